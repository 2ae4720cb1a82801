/* What is read from a completion request, and one case for each refusal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "serve_request.h"

enum { BODY_BYTES_MAX = 10000 };

static struct okv__ask read_ask(bool is_chat, const char *body)
{
	struct okv__ask ask = {0};
	struct okv__refusal refusal;

	if (okv__ask_read(is_chat, body, strlen(body), BODY_BYTES_MAX, &ask, &refusal) != OKV_OK)
		fail_msg("%s: %s", body, refusal.reason.text);
	return ask;
}

static void a_chat_request_is_read_with_all_its_parameters(void **state)
{
	(void)state;
	struct okv__ask ask = read_ask(
		true, "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"be brief\",\"name\":\"x\"},"
		      "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\\u0000\"},{\"type\":\"text\","
		      "\"text\":\"b\"}]}],\"temperature\":0.5,\"top_p\":0.9,\"min_p\":0.1,\"top_k\":40,\"seed\":-1,"
		      "\"max_tokens\":5,\"max_completion_tokens\":7,\"stop\":[\"x\",\"yz\"],\"stream\":true,"
		      "\"stream_options\":{\"include_usage\":true},\"orbitkv\":{\"cache\":\"local\"},"
		      "\"ignore_eos\":true,\"user\":\"someone\",\"metadata\":{\"a\":1}}");

	assert_string_equal(ask.model, "m");
	assert_int_equal(ask.message_count, 2);
	assert_string_equal(ask.messages[0].role, "system");
	assert_int_equal(ask.messages[0].content_size, 8);
	assert_int_equal(ask.messages[1].content_size, 3);
	assert_memory_equal(ask.messages[1].content, "a\0b", 3);
	assert_true(ask.sampling.temperature == 0.5f && ask.sampling.top_p == 0.9f && ask.sampling.min_p == 0.1f);
	assert_int_equal(ask.sampling.top_k, 40);
	assert_true(ask.has_seed && ask.sampling.seed == UINT64_MAX);
	assert_int_equal(ask.tokens_max, 7);
	assert_int_equal(ask.stops.count, 2);
	assert_string_equal(ask.stops.stop[1].data, "yz");
	assert_true(ask.is_chat && ask.stream && ask.include_usage && ask.ignore_end);
	assert_int_equal(ask.cache, OKV_CACHE_LOCAL);
	okv__ask_done(&ask);
}

static void defaults_are_those_of_the_openai_api(void **state)
{
	(void)state;
	struct okv__ask ask = read_ask(true, "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"stop\":null}");

	assert_null(ask.model);
	assert_true(ask.sampling.temperature == 1 && ask.sampling.top_p == 1 && ask.sampling.min_p == 0);
	assert_int_equal(ask.sampling.top_k, 0);
	assert_int_equal(ask.tokens_max, 0);
	assert_int_equal(ask.cache, OKV_CACHE_FULL);
	assert_true(!ask.stream && !ask.include_usage && !ask.has_seed && !ask.ignore_end);
	okv__ask_done(&ask);
	ask = read_ask(false, "{\"prompt\":\"p\",\"stop\":\"one\",\"top_k\":-1,\"orbitkv\":{}}");
	assert_int_equal(ask.tokens_max, 16);
	assert_int_equal(ask.stops.count, 1);
	assert_int_equal(ask.sampling.top_k, 0);
	okv__ask_done(&ask);
}

static void a_prompt_is_a_text_or_token_ids_or_a_list_of_one(void **state)
{
	(void)state;
	static const char *const texts[] = {"{\"prompt\":\"hi\"}", "{\"prompt\":[\"hi\"]}"};
	static const char *const ids[] = {"{\"prompt\":[5,4294967295]}", "{\"prompt\":[[5,4294967295]]}"};

	for (int i = 0; i < 2; i++) {
		struct okv__ask ask = read_ask(false, texts[i]);

		assert_int_equal(ask.text_size, 2);
		assert_string_equal(ask.text, "hi");
		okv__ask_done(&ask);
		ask = read_ask(false, ids[i]);
		assert_null(ask.text);
		assert_int_equal(ask.ids.count, 2);
		assert_int_equal(ask.ids.id[1], UINT32_MAX);
		okv__ask_done(&ask);
	}
	struct okv__ask ask = read_ask(false, "{\"prompt\":[]}");
	assert_true(!ask.text && ask.ids.count == 0);
	okv__ask_done(&ask);
}

static void what_asks_for_nothing_is_accepted(void **state)
{
	(void)state;
	struct okv__ask ask = read_ask(
		true, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":null}],\"n\":1,\"tools\":[],"
		      "\"tool_choice\":\"none\",\"logprobs\":false,\"top_logprobs\":0,\"logit_bias\":{},"
		      "\"presence_penalty\":0,\"frequency_penalty\":0.0,\"response_format\":{\"type\":\"text\"},"
		      "\"modalities\":[\"text\"],\"audio\":null,\"repetition_penalty\":1,\"functions\":[]}");

	okv__ask_done(&ask);
	ask = read_ask(false, "{\"prompt\":\"x\",\"echo\":false,\"suffix\":\"\",\"best_of\":1}");
	okv__ask_done(&ask);
}

struct refused {
	const char *body, *param, *words;
	unsigned http_status;
};

static void expect_refusal(bool is_chat, const struct refused *refused)
{
	struct okv__ask ask;
	struct okv__refusal refusal;
	unsigned http_status = refused->http_status ? refused->http_status : 400;

	if (okv__ask_read(is_chat, refused->body, strlen(refused->body), BODY_BYTES_MAX, &ask, &refusal) == OKV_OK)
		fail_msg("accepted: %s", refused->body);
	if (refusal.http_status != http_status || strcmp(refusal.param, refused->param) != 0 ||
	    !strstr(refusal.reason.text, refused->words))
		fail_msg("%s: %u, param %s, %s", refused->body, refusal.http_status, refusal.param,
			 refusal.reason.text);
	assert_non_null(refusal.type);
}

#define MESSAGE "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"

static void each_bad_chat_request_is_refused_by_name(void **state)
{
	(void)state;
	static const struct refused cases[] = {
		{"", "", "the body is empty; send a JSON object, with its Content-Length", 0},
		{"{\"messages\":", "", "not valid JSON", 0},
		{"[]", "", "must be an object, but is a list", 0},
		{"{" MESSAGE ",\"model\":5}", "model", "must be text", 0},
		{"{" MESSAGE ",\"model\":\"tiny\\u0000x\"}", "model", "NUL", 0},
		{"{}", "messages", "messages is required", 0},
		{"{\"messages\":\"hi\"}", "messages", "must be a list", 0},
		{"{\"messages\":[]}", "messages", "from 1 to 4096", 0},
		{"{\"messages\":[7]}", "messages[0]", "must be an object", 0},
		{"{\"messages\":[{\"content\":\"x\"}]}", "messages[0]", "messages[0].role is required", 0},
		{"{\"messages\":[{\"role\":1,\"content\":\"x\"}]}", "messages[0].role", "must be text", 0},
		{"{\"messages\":[{\"role\":\"a\\u0000\",\"content\":\"x\"}]}", "messages[0].role", "NUL", 0},
		{"{\"messages\":[{\"role\":\"user\"}]}", "messages[0]", "content is required", 0},
		{"{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages[0].content", "must be text", 0},
		{"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
		 "messages[0].content[0].type", "must be \"text\"", 0},
		{"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", "messages[0].content[0]",
		 "text is required", 0},
		{"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1}]}]}",
		 "messages[0].content[0].text", "must be text", 0},
		{"{\"messages\":[{\"role\":\"user\",\"content\":[{}]}]}", "messages[0].content[0]", "type is required",
		 0},
		{"{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[]}]}",
		 "messages[0].tool_calls", "not supported", 0},
		{"{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"function_call\":{}}]}",
		 "messages[0].function_call", "not supported", 0},
		{"{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"audio\":{}}]}", "messages[0].audio",
		 "not supported", 0},
		{"{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"tool_call_id\":\"y\"}]}",
		 "messages[0].tool_call_id", "not supported", 0},
		{"{" MESSAGE ",\"n\":2}", "n", "not supported", 0},
		{"{" MESSAGE ",\"logprobs\":true}", "logprobs", "not supported", 0},
		{"{" MESSAGE ",\"top_logprobs\":3}", "top_logprobs", "not supported", 0},
		{"{" MESSAGE ",\"logit_bias\":{\"5\":1}}", "logit_bias", "not supported", 0},
		{"{" MESSAGE ",\"presence_penalty\":0.5}", "presence_penalty", "not supported", 0},
		{"{" MESSAGE ",\"frequency_penalty\":-1}", "frequency_penalty", "not supported", 0},
		{"{" MESSAGE ",\"tools\":[{}]}", "tools", "not supported", 0},
		{"{" MESSAGE ",\"tool_choice\":\"auto\"}", "tool_choice", "not supported", 0},
		{"{" MESSAGE ",\"functions\":[{}]}", "functions", "not supported", 0},
		{"{" MESSAGE ",\"function_call\":\"auto\"}", "function_call", "not supported", 0},
		{"{" MESSAGE ",\"repetition_penalty\":1.1}", "repetition_penalty", "not supported", 0},
		{"{" MESSAGE ",\"prediction\":{}}", "prediction", "not supported", 0},
		{"{" MESSAGE ",\"web_search_options\":{}}", "web_search_options", "not supported", 0},
		{"{" MESSAGE ",\"response_format\":{\"type\":\"json_object\"}}", "response_format", "not supported", 0},
		{"{" MESSAGE ",\"modalities\":[\"text\",\"audio\"]}", "modalities", "not supported", 0},
		{"{" MESSAGE ",\"audio\":{}}", "audio", "not supported", 0},
		{"{" MESSAGE ",\"reasoning_effort\":\"high\"}", "reasoning_effort", "not supported", 0},
		{"{" MESSAGE ",\"temperature\":2.5}", "temperature", "from 0 to 2", 0},
		{"{" MESSAGE ",\"temperature\":\"hot\"}", "temperature", "must be a number", 0},
		{"{" MESSAGE ",\"top_p\":0}", "top_p", "above 0", 0},
		{"{" MESSAGE ",\"top_p\":1.1}", "top_p", "from 0 to 1", 0},
		{"{" MESSAGE ",\"min_p\":-0.1}", "min_p", "from 0 to 1", 0},
		{"{" MESSAGE ",\"top_k\":-2}", "top_k", "from -1", 0},
		{"{" MESSAGE ",\"seed\":0.5}", "seed", "a whole number", 0},
		{"{" MESSAGE ",\"max_tokens\":0}", "max_tokens", "from 1", 0},
		{"{" MESSAGE ",\"max_completion_tokens\":\"5\"}", "max_completion_tokens", "a whole number", 0},
		{"{" MESSAGE ",\"stop\":\"\"}", "stop", "from 1 to 1024 bytes", 0},
		{"{" MESSAGE ",\"stop\":[\"a\",5]}", "stop[1]", "must be text", 0},
		{"{" MESSAGE ",\"stop\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", "stop", "at most 16", 0},
		{"{" MESSAGE ",\"stream\":1}", "stream", "true or false", 0},
		{"{" MESSAGE ",\"stream_options\":{}}", "stream_options", "when stream is true", 0},
		{"{" MESSAGE ",\"stream\":true,\"stream_options\":1}", "stream_options", "an object", 0},
		{"{" MESSAGE ",\"stream\":true,\"stream_options\":{\"include_usage\":1}}",
		 "stream_options.include_usage", "true or false", 0},
		{"{" MESSAGE ",\"orbitkv\":\"off\"}", "orbitkv", "an object", 0},
		{"{" MESSAGE ",\"orbitkv\":{\"cache\":\"sometimes\"}}", "orbitkv.cache", "\"off\", \"local\" or", 0},
		{"{" MESSAGE ",\"orbitkv\":{\"cache\":\"fullest\"}}", "orbitkv.cache", "\"off\", \"local\" or", 0},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		expect_refusal(true, &cases[i]);
}

static void each_bad_completion_request_is_refused_by_name(void **state)
{
	(void)state;
	static const struct refused cases[] = {
		{"{}", "prompt", "prompt is required", 0},
		{"{\"prompt\":5}", "prompt", "must be text", 0},
		{"{\"prompt\":[1,-1]}", "prompt[1]", "from 0", 0},
		{"{\"prompt\":[1,\"x\"]}", "prompt[1]", "a whole number", 0},
		{"{\"prompt\":[\"a\",\"b\"]}", "prompt", "one prompt only", 0},
		{"{\"prompt\":[[1],[2]]}", "prompt", "one prompt only", 0},
		{"{\"prompt\":\"x\",\"echo\":true}", "echo", "not supported", 0},
		{"{\"prompt\":\"x\",\"suffix\":\"y\"}", "suffix", "not supported", 0},
		{"{\"prompt\":\"x\",\"best_of\":2}", "best_of", "not supported", 0},
		{"{\"prompt\":\"x\",\"logprobs\":0}", "logprobs", "not supported", 0},
		{"{\"prompt\":\"\xff\"}", "", "not valid JSON", 0},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		expect_refusal(false, &cases[i]);
}

static void huge_and_deep_bodies_are_refused(void **state)
{
	(void)state;
	static char huge[BODY_BYTES_MAX + 2], deep[1000];

	memset(huge, ' ', sizeof(huge) - 1);
	memset(deep, '[', sizeof(deep) - 1);
	expect_refusal(true, &(struct refused){huge, "", "more than the 10000 allowed", 413});
	expect_refusal(true, &(struct refused){deep, "", "more than 64 levels", 400});
}

static void long_lists_and_stop_strings_are_refused(void **state)
{
	(void)state;
	struct okv_buf body = {0};

	okv_buf_text(&body, "{\"messages\":[7");
	for (int i = 0; i < 4096; i++)
		okv_buf_text(&body, ",7");
	okv_buf_text(&body, "]}");
	expect_refusal(true, &(struct refused){body.data, "messages", "from 1 to 4096 messages", 0});
	okv_buf_clear(&body);
	okv_buf_print(&body, "{" MESSAGE ",\"stop\":[\"a\",\"%01025d\"]}", 0);
	expect_refusal(true, &(struct refused){body.data, "stop[1]", "from 1 to 1024 bytes", 0});
	okv_buf_done(&body);
}

static void a_refusals_type_follows_its_status(void **state)
{
	struct okv__refusal refusal;

	(void)state;
	okv__refuse(&refusal, 503, NULL, NULL, "no memory");
	assert_string_equal(refusal.type, "server_error");
	okv__refuse(&refusal, 429, NULL, NULL, "later");
	assert_string_equal(refusal.type, "rate_limit_error");
	okv__refuse(&refusal, 404, NULL, NULL, "nothing there");
	assert_string_equal(refusal.type, "invalid_request_error");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_chat_request_is_read_with_all_its_parameters),
		cmocka_unit_test(defaults_are_those_of_the_openai_api),
		cmocka_unit_test(a_prompt_is_a_text_or_token_ids_or_a_list_of_one),
		cmocka_unit_test(what_asks_for_nothing_is_accepted),
		cmocka_unit_test(each_bad_chat_request_is_refused_by_name),
		cmocka_unit_test(each_bad_completion_request_is_refused_by_name),
		cmocka_unit_test(huge_and_deep_bodies_are_refused),
		cmocka_unit_test(long_lists_and_stop_strings_are_refused),
		cmocka_unit_test(a_refusals_type_follows_its_status),
	};
	return cmocka_run_group_tests_name("serve_request", tests, NULL, NULL);
}
