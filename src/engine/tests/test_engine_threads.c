/* The engine with its thread: requests and cancels from several threads at once. Also run under ThreadSanitizer. */
#include <pthread.h>

#include "fake_model.h"
#include "lane_rig.h"

static const struct okv_tokenizer tokenizer = {.digest = {{9}}};

enum { THREADS = 4, REQUESTS = 40, PROMPT = 40 };

/* A reply that a thread can wait for. */
struct waiter {
	struct reply reply;
	pthread_mutex_t lock;
	pthread_cond_t over;
	bool is_over;
};

static void waiter_sink(void *context, uint64_t request_id, const struct okv_event *event)
{
	struct waiter *waiter = context;

	pthread_mutex_lock(&waiter->lock);
	reply_sink(&waiter->reply, request_id, event);
	waiter->is_over = event->kind == OKV_EVENT_END;
	if (waiter->is_over)
		pthread_cond_signal(&waiter->over);
	pthread_mutex_unlock(&waiter->lock);
}

struct asker {
	pthread_t thread;
	struct rig *rig;
	uint64_t seed;
	struct waiter waiter[REQUESTS];
	uint32_t prompt[REQUESTS][PROMPT];
	struct okv_request request[REQUESTS];
	bool is_cancelled[REQUESTS];
};

static void *ask(void *context)
{
	struct asker *asker = context;
	struct okv_rng rng = okv_rng_seeded(asker->seed);

	for (uint32_t i = 0; i < REQUESTS; i++) {
		struct waiter *waiter = &asker->waiter[i];
		uint64_t id = 0;

		pthread_mutex_init(&waiter->lock, NULL);
		pthread_cond_init(&waiter->over, NULL);
		for (uint32_t k = 0; k < PROMPT; k++)
			asker->prompt[i][k] = 1 + (uint32_t)(k < 20 ? k : okv_rng_below(&rng, FAKE_VOCABULARY - 1));
		asker->request[i] = request_of(asker->prompt[i], PROMPT, 20, &waiter->reply);
		asker->request[i].sink = waiter_sink;
		asker->request[i].sink_context = waiter;
		OKV_ASSERT(asker->rig->driver.admit(asker->rig->driver.context, &asker->request[i], &id, NULL) ==
			   OKV_OK);
		if (okv_rng_below(&rng, 3) == 0) {
			asker->is_cancelled[i] = true;
			asker->rig->driver.cancel(asker->rig->driver.context, id);
		}
		if (okv_rng_below(&rng, 8) == 0)
			okv_engine_forget(asker->rig->engine);
	}
	for (uint32_t i = 0; i < REQUESTS; i++) {
		struct waiter *waiter = &asker->waiter[i];

		pthread_mutex_lock(&waiter->lock);
		while (!waiter->is_over)
			pthread_cond_wait(&waiter->over, &waiter->lock);
		pthread_mutex_unlock(&waiter->lock);
	}
	return NULL;
}

static void open_threaded(struct rig *rig, struct okv_model *model, struct memory_source *source)
{
	*model = fake_model();
	rig_prepare(rig, model, &tokenizer);
	rig->options.clock = okv_clock_boottime();
	rig_open(rig);
	memory_source_init(source);
	memory_source_attach(source, rig->engine);
	assert_int_equal(okv_engine_start(rig->engine, &source->ops, NULL), OKV_OK);
}

static void requests_of_many_threads_end_once_and_answer_like_solo(void **state)
{
	static struct asker askers[THREADS];
	struct okv_model model;
	struct memory_source source;
	struct rig rig;
	struct solo solo;

	(void)state;
	open_threaded(&rig, &model, &source);
	for (unsigned i = 0; i < THREADS; i++) {
		askers[i] = (struct asker){.rig = &rig, .seed = i + 1};
		assert_int_equal(pthread_create(&askers[i].thread, NULL, ask, &askers[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(askers[i].thread, NULL);
	okv_engine_stop(rig.engine);
	solo_open(&solo, &rig);
	for (unsigned i = 0; i < THREADS; i++) {
		for (uint32_t k = 0; k < REQUESTS; k++) {
			struct okv_request *request = &askers[i].request[k];

			request->sink_context = &askers[i].waiter[k].reply;
			if (askers[i].waiter[k].reply.end == OKV_END_CANCELLED)
				assert_true(askers[i].is_cancelled[k]);
			else
				assert_answers_like_solo(&solo, &rig, request);
		}
	}
	solo_close(&solo);
	okv_engine_destroy(rig.engine);
	okv_metrics_destroy(rig.metrics);
	memory_source_done(&source);
}

static void stop_while_requests_run_ends_them_all(void **state)
{
	static struct waiter waiter[16];
	struct okv_model model;
	struct memory_source source;
	struct rig rig;
	uint32_t prompt[PROMPT] = {1, 2, 3};

	(void)state;
	open_threaded(&rig, &model, &source);
	for (unsigned i = 0; i < 16; i++) {
		struct okv_request request = request_of(prompt, PROMPT, 400, &waiter[i].reply);
		uint64_t id;

		pthread_mutex_init(&waiter[i].lock, NULL);
		pthread_cond_init(&waiter[i].over, NULL);
		prompt[0] = 1 + i;
		request.ignore_end = true;
		request.sink = waiter_sink;
		request.sink_context = &waiter[i];
		assert_int_equal(rig.driver.admit(rig.driver.context, &request, &id, NULL), OKV_OK);
	}
	okv_engine_stop(rig.engine);
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal(waiter[i].reply.ends, 1);
	okv_engine_destroy(rig.engine);
	okv_metrics_destroy(rig.metrics);
	memory_source_done(&source);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(requests_of_many_threads_end_once_and_answer_like_solo),
		cmocka_unit_test(stop_while_requests_run_ends_them_all),
	};

	return cmocka_run_group_tests_name("engine_threads", tests, NULL, NULL);
}
