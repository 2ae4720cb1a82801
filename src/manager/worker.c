#include "worker.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct okv__worker {
	struct okv_loop *loop; /* borrowed */
	pthread_t thread;
	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t changed;
	struct okv_list jobs;
	bool is_stopping;
};

static void *run(void *context)
{
	struct okv__worker *worker = context;

	pthread_mutex_lock(&worker->lock);
	for (;;) {
		while (okv_list_is_empty(&worker->jobs) && !worker->is_stopping)
			pthread_cond_wait(&worker->changed, &worker->lock);
		if (okv_list_is_empty(&worker->jobs))
			break;

		struct okv__job *job = OKV_CONTAINER_OF(worker->jobs.next, struct okv__job, node);
		okv_list_remove(&job->node);
		pthread_mutex_unlock(&worker->lock);
		job->work(job);
		okv_loop_post(worker->loop, &job->done); /* the job is the loop's again */
		pthread_mutex_lock(&worker->lock);
	}
	pthread_mutex_unlock(&worker->lock);
	return NULL;
}

enum okv_status okv__worker_create(struct okv_loop *loop, struct okv__worker **ret_worker, struct okv_reason *reason)
{
	struct okv__worker *worker = calloc(1, sizeof(*worker));

	if (!worker)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "worker", "no memory for the copy thread");
	worker->loop = loop;
	okv_list_init(&worker->jobs);
	pthread_mutex_init(&worker->lock, NULL);
	pthread_cond_init(&worker->changed, NULL);

	int error = pthread_create(&worker->thread, NULL, run, worker);
	if (error) {
		pthread_cond_destroy(&worker->changed);
		pthread_mutex_destroy(&worker->lock);
		free(worker);
		return okv_refuse(reason, okv_status_from_errno(error), "worker", "the copy thread cannot start: %s",
				  strerror(error));
	}
	*ret_worker = worker;
	return OKV_OK;
}

void okv__worker_destroy(struct okv__worker *worker)
{
	if (!worker)
		return;
	pthread_mutex_lock(&worker->lock);
	OKV_ASSERT(okv_list_is_empty(&worker->jobs));
	worker->is_stopping = true;
	pthread_cond_signal(&worker->changed);
	pthread_mutex_unlock(&worker->lock);
	pthread_join(worker->thread, NULL);
	pthread_cond_destroy(&worker->changed);
	pthread_mutex_destroy(&worker->lock);
	free(worker);
}

void okv__worker_submit(struct okv__worker *worker, struct okv__job *job)
{
	pthread_mutex_lock(&worker->lock);
	okv_list_push_back(&worker->jobs, &job->node);
	pthread_cond_signal(&worker->changed);
	pthread_mutex_unlock(&worker->lock);
}
