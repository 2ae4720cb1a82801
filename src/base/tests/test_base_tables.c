/* List, map and the metrics registry. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "okv/base/buf.h"
#include "okv/base/clock.h"
#include "okv/base/list.h"
#include "okv/base/map.h"
#include "okv/base/metrics.h"
#include "okv/base/rng.h"

struct thing {
	struct okv_map_node node;
	struct okv_list link;
	uint64_t key;
	int present;
};

static void list_keeps_order_and_survives_removal_while_walking(void **state)
{
	(void)state;
	struct okv_list head;
	struct thing things[5];
	uint64_t seen = 0;

	okv_list_init(&head);
	for (uint64_t i = 0; i < 5; i++) {
		things[i].key = i + 1;
		if (i < 4)
			okv_list_push_back(&head, &things[i].link);
		else
			okv_list_push_front(&head, &things[i].link);
	}
	OKV_LIST_EACH_SAFE(at, &head)
	{
		struct thing *thing = OKV_CONTAINER_OF(at, struct thing, link);

		seen = seen * 10 + thing->key;
		if (thing->key % 2)
			okv_list_remove(at);
	}
	assert_int_equal(seen, 51234);
	seen = 0;
	OKV_LIST_EACH(at, &head)
	seen = seen * 10 + OKV_CONTAINER_OF(at, struct thing, link)->key;
	assert_int_equal(seen, 24);
	assert_false(okv_list_is_empty(&head));
}

static struct thing *find(const struct okv_map *map, uint64_t key)
{
	/* Only 37 distinct hashes, so that candidates with equal hash and another key do occur. */
	for (struct okv_map_node *n = okv_map_first(map, key % 37); n; n = okv_map_next(n))
		if (OKV_CONTAINER_OF(n, struct thing, node)->key == key)
			return OKV_CONTAINER_OF(n, struct thing, node);
	return NULL;
}

static void map_agrees_with_an_array_under_random_use(void **state)
{
	(void)state;
	enum { THINGS = 500 };
	struct thing *things = calloc(THINGS, sizeof(*things));
	struct okv_map map;
	struct okv_rng rng = okv_rng_seeded(1);
	size_t present = 0, walked = 0;

	assert_int_equal(okv_map_init(&map), OKV_OK);
	for (int step = 0; step < 20000; step++) {
		uint64_t i = okv_rng_below(&rng, THINGS);

		things[i].key = i;
		assert_ptr_equal(find(&map, i), things[i].present ? &things[i] : NULL);
		if (things[i].present) {
			okv_map_remove(&map, &things[i].node);
			present--;
		} else {
			okv_map_insert(&map, &things[i].node, i % 37);
			present++;
		}
		things[i].present = !things[i].present;
		assert_int_equal(map.size, present);
	}
	for (struct okv_map_node *n = okv_map_walk(&map, NULL); n; n = okv_map_walk(&map, n))
		walked++;
	assert_int_equal(walked, present);
	okv_map_done(&map);
	free(things);
}

static void metrics_render_families_together_and_share_equal_names(void **state)
{
	(void)state;
	struct okv_metrics *metrics = okv_metrics_create();
	struct okv_metric *bytes = okv_counter(metrics, "orbitkv_x_total", "reason=\"bytes\"", "Refusals");
	struct okv_metric *gauge = okv_gauge(metrics, "orbitkv_g", "", "A gauge");
	struct okv_metric *slots = okv_counter(metrics, "orbitkv_x_total", "reason=\"slots\"", "Refusals");
	struct okv_buf text = {0};

	assert_ptr_equal(okv_counter(metrics, "orbitkv_x_total", "reason=\"slots\"", "Refusals"), slots);
	okv_metric_add(bytes, 2);
	okv_metric_add(slots, 1);
	okv_metric_set(gauge, 7);
	okv_metric_add(gauge, -3);
	okv_metric_add(NULL, 1);
	okv_metrics_render(metrics, &text);
	assert_string_equal(text.data, "# HELP orbitkv_x_total Refusals\n# TYPE orbitkv_x_total counter\n"
				       "orbitkv_x_total{reason=\"bytes\"} 2\norbitkv_x_total{reason=\"slots\"} 1\n"
				       "# HELP orbitkv_g A gauge\n# TYPE orbitkv_g gauge\norbitkv_g 4\n");
	okv_buf_done(&text);
	okv_metrics_destroy(metrics);
}

static void histogram_buckets_are_cumulative(void **state)
{
	(void)state;
	struct okv_metrics *metrics = okv_metrics_create();
	struct okv_metric *latency = okv_histogram(metrics, "orbitkv_t_seconds", "", "Time");
	struct okv_buf text = {0};

	okv_metric_observe_ns(latency, 1000000);      /* 1 ms */
	okv_metric_observe_ns(latency, 1500000000);   /* 1.5 s */
	okv_metric_observe_ns(latency, 500000000000); /* past the last bound */
	okv_metrics_render(metrics, &text);
	assert_non_null(strstr(text.data, "orbitkv_t_seconds_bucket{le=\"0.0009765625\"} 0\n"));
	assert_non_null(strstr(text.data, "orbitkv_t_seconds_bucket{le=\"0.001953125\"} 1\n"));
	assert_non_null(strstr(text.data, "orbitkv_t_seconds_bucket{le=\"2\"} 2\n"));
	assert_non_null(strstr(text.data, "orbitkv_t_seconds_bucket{le=\"64\"} 2\n"));
	assert_non_null(strstr(text.data, "orbitkv_t_seconds_bucket{le=\"+Inf\"} 3\n"));
	assert_non_null(strstr(text.data, "orbitkv_t_seconds_sum 501.501\norbitkv_t_seconds_count 3\n"));
	okv_buf_done(&text);
	okv_metrics_destroy(metrics);
}

static void histograms_of_ages_and_counts_have_bounds_of_their_own(void **state)
{
	(void)state;
	struct okv_metrics *metrics = okv_metrics_create();
	struct okv_metric *age = okv_histogram_of_ages(metrics, "orbitkv_age_seconds", "", "Age");
	struct okv_metric *parts = okv_histogram_of_counts(metrics, "orbitkv_parts", "", "Parts");
	struct okv_buf text = {0};

	okv_metric_observe_ns(age, 90 * OKV_NS_PER_S);
	okv_metric_observe_ns(age, 86400 * OKV_NS_PER_S);
	okv_metric_observe_count(parts, 0);
	okv_metric_observe_count(parts, 3);
	okv_metrics_render(metrics, &text);
	assert_non_null(strstr(text.data, "orbitkv_age_seconds_bucket{le=\"0.125\"} 0\n"));
	assert_non_null(strstr(text.data, "orbitkv_age_seconds_bucket{le=\"128\"} 1\n"));
	assert_non_null(strstr(text.data, "orbitkv_age_seconds_bucket{le=\"131072\"} 2\n"));
	assert_non_null(strstr(text.data, "orbitkv_age_seconds_sum 86490\n"));
	assert_non_null(strstr(text.data, "orbitkv_parts_bucket{le=\"1\"} 1\n"));
	assert_non_null(strstr(text.data, "orbitkv_parts_bucket{le=\"4\"} 2\n"));
	assert_non_null(strstr(text.data, "orbitkv_parts_sum 3\norbitkv_parts_count 2\n"));
	okv_buf_done(&text);
	okv_metrics_destroy(metrics);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(list_keeps_order_and_survives_removal_while_walking),
		cmocka_unit_test(map_agrees_with_an_array_under_random_use),
		cmocka_unit_test(metrics_render_families_together_and_share_equal_names),
		cmocka_unit_test(histogram_buckets_are_cumulative),
		cmocka_unit_test(histograms_of_ages_and_counts_have_bounds_of_their_own),
	};
	return cmocka_run_group_tests_name("base_tables", tests, NULL, NULL);
}
