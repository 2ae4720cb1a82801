/* The scheduler alone: its states, its order, its budget, on a clock that is a number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "okv/base/clock.h"
#include "okv/base/rng.h"
#include "scheduler.h"

static const struct okv__scheduler_options usual = {
	.running_max = 4, .rows_max = 256, .step_ns = 40 * OKV_NS_PER_MS, .step_alone_ns = 160 * OKV_NS_PER_MS};

static enum okv__action next(struct okv__scheduler *scheduler, uint64_t now_ns, const struct okv__task *expected)
{
	struct okv__task *task = NULL;
	enum okv__action action = okv__scheduler_next(scheduler, now_ns, &task);

	assert_ptr_equal(task, expected);
	return action;
}

static void submit_and_run(struct okv__scheduler *scheduler, struct okv__task *task, uint32_t prompt)
{
	okv__scheduler_submit(scheduler, task, prompt, prompt + 100);
	assert_int_equal(next(scheduler, 0, task), OKV__ACTION_ADMIT);
	okv__scheduler_run(scheduler, task, 0);
}

static void step(struct okv__scheduler *scheduler, uint64_t row_ns)
{
	okv__scheduler_measured(scheduler, scheduler->plan_rows * row_ns);
	OKV_LIST_EACH_SAFE(at, &scheduler->running)
	{
		struct okv__task *task = OKV_CONTAINER_OF(at, struct okv__task, link);

		if (okv__scheduler_stepped(task))
			(void)okv__scheduler_sampled(scheduler, task, false);
	}
}

static void a_task_goes_from_prompt_to_its_last_token(void **state)
{
	struct okv__scheduler scheduler;
	struct okv__task task;

	(void)state;
	okv__scheduler_init(&scheduler, &usual);
	okv__scheduler_submit(&scheduler, &task, 10, 12);
	assert_int_equal(next(&scheduler, 0, &task), OKV__ACTION_ADMIT);
	okv__scheduler_run(&scheduler, &task, 4);
	assert_int_equal(next(&scheduler, 0, NULL), OKV__ACTION_NONE);
	assert_int_equal(okv__scheduler_plan(&scheduler), 6);
	assert_true(okv__scheduler_stepped(&task));
	assert_int_equal(okv__scheduler_sampled(&scheduler, &task, false), OKV__GO_ON);
	assert_int_equal(task.state, OKV__TASK_DECODE);
	assert_int_equal(okv__scheduler_plan(&scheduler), 1);
	assert_true(okv__scheduler_stepped(&task));
	assert_int_equal(okv__scheduler_sampled(&scheduler, &task, false), OKV__LENGTH);
	assert_int_equal(scheduler.running_count, 0);
	assert_int_equal(okv__scheduler_plan(&scheduler), 0);
}

static void an_end_token_ends_the_task(void **state)
{
	struct okv__scheduler scheduler;
	struct okv__task task;

	(void)state;
	okv__scheduler_init(&scheduler, &usual);
	submit_and_run(&scheduler, &task, 10);
	(void)okv__scheduler_plan(&scheduler);
	assert_true(okv__scheduler_stepped(&task));
	assert_int_equal(okv__scheduler_sampled(&scheduler, &task, true), OKV__STOP);
	assert_int_equal(scheduler.running_count, 0);
}

static void a_cancelled_task_leaves_from_every_state(void **state)
{
	struct okv__scheduler scheduler;
	struct okv__task queued, restoring, prefill, decode;

	(void)state;
	okv__scheduler_init(&scheduler, &usual);
	submit_and_run(&scheduler, &decode, 8);
	(void)okv__scheduler_plan(&scheduler);
	step(&scheduler, 1);
	assert_int_equal(decode.state, OKV__TASK_DECODE);
	submit_and_run(&scheduler, &prefill, 100);
	okv__scheduler_submit(&scheduler, &restoring, 100, 200);
	assert_int_equal(next(&scheduler, 0, &restoring), OKV__ACTION_ADMIT);
	okv__scheduler_restore(&scheduler, &restoring, 50);
	okv__scheduler_submit(&scheduler, &queued, 100, 200);

	struct okv__task *all[] = {&decode, &prefill, &restoring, &queued};

	for (unsigned i = 0; i < 4; i++) {
		okv__scheduler_cancel(all[i]);
		assert_int_equal(next(&scheduler, 0, all[i]), OKV__ACTION_END);
	}
	assert_int_equal(next(&scheduler, 0, NULL), OKV__ACTION_NONE);
	assert_int_equal(scheduler.running_count + scheduler.queued_count, 0);
}

static void an_overdue_restore_starts_afresh_at_the_head_and_restores_no_more(void **state)
{
	struct okv__scheduler scheduler;
	struct okv__task task, other;

	(void)state;
	okv__scheduler_init(&scheduler, &usual);
	okv__scheduler_submit(&scheduler, &task, 100, 200);
	assert_int_equal(next(&scheduler, 0, &task), OKV__ACTION_ADMIT);
	okv__scheduler_restore(&scheduler, &task, 3000);
	okv__scheduler_submit(&scheduler, &other, 100, 200);
	assert_int_equal(okv__scheduler_wake_ns(&scheduler), 3000);
	assert_int_equal(next(&scheduler, 2999, &other), OKV__ACTION_ADMIT);
	okv__scheduler_postpone(&scheduler);
	assert_int_equal(next(&scheduler, 2999, NULL), OKV__ACTION_NONE);
	assert_int_equal(next(&scheduler, 3000, &task), OKV__ACTION_ABANDON);
	assert_int_equal(okv__scheduler_wake_ns(&scheduler), UINT64_MAX);
	assert_int_equal(okv__scheduler_plan(&scheduler), 0);
	assert_false(task.may_restore);
	assert_int_equal(next(&scheduler, 3000, &task), OKV__ACTION_ADMIT);
	okv__scheduler_run(&scheduler, &task, 0);
	assert_int_equal(next(&scheduler, 3000, &other), OKV__ACTION_ADMIT);
}

static void a_task_without_pages_is_asked_again_after_the_next_plan_and_not_overtaken(void **state)
{
	struct okv__scheduler scheduler;
	struct okv__task large, small;

	(void)state;
	okv__scheduler_init(&scheduler, &usual);
	okv__scheduler_submit(&scheduler, &large, 100, 200);
	okv__scheduler_submit(&scheduler, &small, 1, 2);
	assert_int_equal(next(&scheduler, 0, &large), OKV__ACTION_ADMIT);
	okv__scheduler_postpone(&scheduler);
	assert_int_equal(next(&scheduler, 0, NULL), OKV__ACTION_NONE);
	(void)okv__scheduler_plan(&scheduler);
	assert_int_equal(next(&scheduler, 0, &large), OKV__ACTION_ADMIT);
}

static void no_more_than_running_max_run(void **state)
{
	struct okv__scheduler scheduler;
	struct okv__task task[5];

	(void)state;
	okv__scheduler_init(&scheduler, &usual);
	for (unsigned i = 0; i < 4; i++)
		submit_and_run(&scheduler, &task[i], 10);
	okv__scheduler_submit(&scheduler, &task[4], 10, 20);
	assert_int_equal(next(&scheduler, 0, NULL), OKV__ACTION_NONE);
}

static void prompts_never_keep_a_decode_from_its_row(void **state)
{
	struct okv__scheduler scheduler;
	struct okv__task decode, prompt;

	(void)state;
	okv__scheduler_init(&scheduler, &usual);
	submit_and_run(&scheduler, &decode, 8);
	(void)okv__scheduler_plan(&scheduler);
	step(&scheduler, OKV_NS_PER_MS);
	submit_and_run(&scheduler, &prompt, 4000);
	for (unsigned i = 0; i < 50; i++) {
		(void)okv__scheduler_plan(&scheduler);
		assert_int_equal(decode.rows, 1);
		assert_true(prompt.rows >= 16);
		step(&scheduler, OKV_NS_PER_MS);
	}
}

static void the_step_grows_and_shrinks_to_its_time(void **state)
{
	static const struct {
		uint64_t row_ns;
		uint32_t rows_min, rows_max;
	} cases[] = {
		{OKV_NS_PER_MS, 24, 41}, {OKV_NS_PER_MS / 4, 120, 161}, {10 * OKV_NS_PER_MS, 16, 17}, {1000, 256, 256}};
	struct okv__scheduler scheduler;
	struct okv__task decode, prompt;

	(void)state;
	okv__scheduler_init(&scheduler, &usual);
	submit_and_run(&scheduler, &decode, 8);
	(void)okv__scheduler_plan(&scheduler);
	step(&scheduler, OKV_NS_PER_MS);
	submit_and_run(&scheduler, &prompt, 1000000);
	for (unsigned i = 0; i < 4; i++) {
		for (unsigned round = 0; round < 20; round++) {
			(void)okv__scheduler_plan(&scheduler);
			step(&scheduler, cases[i].row_ns);
		}
		assert_in_range(okv__scheduler_plan(&scheduler), cases[i].rows_min, cases[i].rows_max);
	}
}

static void a_step_of_few_rows_says_nothing_about_one_more(void **state)
{
	struct okv__scheduler scheduler;
	struct okv__task decode, prompt;

	(void)state;
	okv__scheduler_init(&scheduler, &usual);
	submit_and_run(&scheduler, &decode, 8);
	for (unsigned round = 0; round < 20; round++) { /* each takes as long as forty rows of a prompt would */
		assert_int_equal(okv__scheduler_plan(&scheduler), round == 0 ? 8 : 1);
		step(&scheduler, 40 * OKV_NS_PER_MS);
	}
	submit_and_run(&scheduler, &prompt, 1000);
	assert_in_range(okv__scheduler_plan(&scheduler), 24, 41);
}

static void half_of_a_step_is_the_oldest_prompts_and_half_the_shortests(void **state)
{
	struct okv__scheduler scheduler;
	struct okv__task old, large, small;

	(void)state;
	okv__scheduler_init(&scheduler, &usual);
	submit_and_run(&scheduler, &old, 5000);
	submit_and_run(&scheduler, &large, 4000);
	submit_and_run(&scheduler, &small, 20);
	assert_int_equal(okv__scheduler_plan(&scheduler), 160);
	assert_int_equal(old.rows, 80);
	assert_int_equal(small.rows, 20);
	assert_int_equal(large.rows, 60);
}

static void a_held_task_computes_nothing(void **state)
{
	struct okv__scheduler scheduler;
	struct okv__task leader, follower;

	(void)state;
	okv__scheduler_init(&scheduler, &usual);
	submit_and_run(&scheduler, &leader, 64);
	submit_and_run(&scheduler, &follower, 64);
	okv__scheduler_hold(&follower, true);
	assert_int_equal(okv__scheduler_plan(&scheduler), 64);
	assert_int_equal(follower.rows, 0);
	okv__scheduler_hold(&follower, false);
	okv__scheduler_found(&follower, 48);
	assert_int_equal(okv__scheduler_plan(&scheduler), 80);
	assert_int_equal(follower.rows, 16);
}

/* Whatever comes in whatever order, every task ends, computes its tokens once and in order, and no step is too long. */
static void random_lives_end_and_no_row_is_lost(void **state)
{
	enum { TASKS = 30 };
	struct okv_rng rng = okv_rng_seeded(11);

	(void)state;
	for (unsigned life = 0; life < 50; life++) {
		struct okv__scheduler_options options = {.running_max = 1 + (uint32_t)okv_rng_below(&rng, 8),
							 .rows_max = 16 + (uint32_t)okv_rng_below(&rng, 60),
							 .step_ns = 1 + okv_rng_below(&rng, 40 * OKV_NS_PER_MS),
							 .step_alone_ns = 1 + okv_rng_below(&rng, OKV_NS_PER_S)};
		struct okv__scheduler scheduler;
		struct okv__task task[TASKS];
		unsigned submitted = 0, over = 0;

		okv__scheduler_init(&scheduler, &options);
		for (uint64_t now_ns = 0; over < TASKS; now_ns++) {
			struct okv__task *at;
			enum okv__action action;
			uint32_t total;

			assert_true(now_ns < 1000000);
			if (submitted < TASKS && okv_rng_below(&rng, 2)) {
				uint32_t prompt = 1 + (uint32_t)okv_rng_below(&rng, 300);

				okv__scheduler_submit(&scheduler, &task[submitted++], prompt,
						      prompt + 1 + (uint32_t)okv_rng_below(&rng, 50));
			}
			while ((action = okv__scheduler_next(&scheduler, now_ns, &at)) != OKV__ACTION_NONE) {
				if (action == OKV__ACTION_END) {
					over++;
				} else if (action == OKV__ACTION_ADMIT) {
					uint64_t dice = okv_rng_below(&rng, 4);

					if (dice == 0)
						okv__scheduler_postpone(&scheduler);
					else if (dice == 1 && at->may_restore)
						okv__scheduler_restore(&scheduler, at, now_ns + 5);
					else
						okv__scheduler_run(&scheduler, at,
								   (uint32_t)okv_rng_below(&rng, at->prompt_tokens));
				}
			}
			total = okv__scheduler_plan(&scheduler);
			assert_true(total <= options.rows_max);
			okv__scheduler_measured(&scheduler, okv_rng_below(&rng, OKV_NS_PER_S));
			OKV_LIST_EACH_SAFE(link, &scheduler.running)
			{
				at = OKV_CONTAINER_OF(link, struct okv__task, link);
				total -= at->rows;
				if (at->state == OKV__TASK_RESTORING && okv_rng_below(&rng, 8) == 0)
					okv__scheduler_restored(at, at->prompt_tokens - 1);
				else if (okv_rng_below(&rng, 300) == 0)
					okv__scheduler_cancel(at);
				else if (okv__scheduler_stepped(at))
					over += okv__scheduler_sampled(&scheduler, at, okv_rng_below(&rng, 40) == 0) !=
						OKV__GO_ON;
			}
			assert_int_equal(total, 0);
		}
		assert_int_equal(scheduler.queued_count + scheduler.running_count, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_task_goes_from_prompt_to_its_last_token),
		cmocka_unit_test(an_end_token_ends_the_task),
		cmocka_unit_test(a_cancelled_task_leaves_from_every_state),
		cmocka_unit_test(an_overdue_restore_starts_afresh_at_the_head_and_restores_no_more),
		cmocka_unit_test(a_task_without_pages_is_asked_again_after_the_next_plan_and_not_overtaken),
		cmocka_unit_test(no_more_than_running_max_run),
		cmocka_unit_test(prompts_never_keep_a_decode_from_its_row),
		cmocka_unit_test(the_step_grows_and_shrinks_to_its_time),
		cmocka_unit_test(a_step_of_few_rows_says_nothing_about_one_more),
		cmocka_unit_test(half_of_a_step_is_the_oldest_prompts_and_half_the_shortests),
		cmocka_unit_test(a_held_task_computes_nothing),
		cmocka_unit_test(random_lives_end_and_no_row_is_lost),
	};

	return cmocka_run_group_tests_name("scheduler", tests, NULL, NULL);
}
