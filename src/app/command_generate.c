#include "commands.h"
#include "okv/tools/generate.h"

struct settings {
	char *model, *prompt;
	bool chat, stats, json, ignore_end;
	uint64_t max_tokens, seed, threads, page_tokens, top_k;
	double temperature, top_p, min_p;
	unsigned kv_dtype;
};

static int run(const void *context)
{
	const struct settings *settings = context;
	struct okv_generate_options options = {
		.model = settings->model,
		.prompt = settings->prompt,
		.chat = settings->chat,
		.stats = settings->stats,
		.json = settings->json,
		.ignore_end = settings->ignore_end,
		.tokens_max = (uint32_t)settings->max_tokens,
		.threads = (uint32_t)settings->threads,
		.page_tokens = (uint32_t)settings->page_tokens,
		.kv_dtype = settings->kv_dtype == 0 ? OKV_KV_F16 : OKV_KV_F32,
		.sampling = {.temperature = (float)settings->temperature,
			     .top_p = (float)settings->top_p,
			     .min_p = (float)settings->min_p,
			     .top_k = (uint32_t)settings->top_k,
			     .seed = settings->seed},
	};
	struct okv_reason reason = {.field = ""};
	enum okv_status status;

	if (!options.model) {
		fprintf(stderr, "orbitkv generate: --model FILE is needed: a GGUF file (`./run setup` fetches one)\n");
		return 2;
	}
	status = okv_generate(&options, stdin, stdout, stderr, &reason);
	if (status == OKV_OK)
		return 0;
	fprintf(stderr, "orbitkv generate: %s\n", reason.text);
	return 1;
}

#define FIELD(name) offsetof(struct settings, name)

static const struct okv__option options[] = {
	{"model", OKV__OPTION_STRING, FIELD(model), "FILE", NULL, "The model, a GGUF file.", 0, 0},
	{"prompt", OKV__OPTION_STRING, FIELD(prompt), "TEXT", NULL,
	 "The text to go on from; standard input without it.", 0, 0},
	{"chat", OKV__OPTION_SWITCH, FIELD(chat), NULL, NULL, "The text is a question to the model's chat template.", 0,
	 0},
	{"max-tokens", OKV__OPTION_INTEGER, FIELD(max_tokens), "N", "256", "Stop after N tokens.", 1, 1000000},
	{"ignore-end", OKV__OPTION_SWITCH, FIELD(ignore_end), NULL, NULL, "Go on after an end token, for measuring.", 0,
	 0},
	{"temperature", OKV__OPTION_REAL, FIELD(temperature), "T", "0",
	 "0 takes the likeliest token; more is more varied.", 0, 100},
	{"top-k", OKV__OPTION_INTEGER, FIELD(top_k), "K", "0", "Draw among the K likeliest tokens; 0 is off.", 0,
	 1000000},
	{"top-p", OKV__OPTION_REAL, FIELD(top_p), "P", "1", "Draw among the likeliest tokens that weigh P together.", 0,
	 1},
	{"min-p", OKV__OPTION_REAL, FIELD(min_p), "P", "0",
	 "Never draw a token less likely than P times the likeliest.", 0, 1},
	{"seed", OKV__OPTION_INTEGER, FIELD(seed), "N", "0", "The same seed draws the same tokens.", 0, 0},
	{"threads", OKV__OPTION_INTEGER, FIELD(threads), "N", "0", "Threads that compute; 0 is one a processor.", 0,
	 1024},
	{"kv-dtype", OKV__OPTION_CHOICE, FIELD(kv_dtype), "f16|f32", "f16", "How keys and values are kept.", 0, 0},
	{"page-tokens", OKV__OPTION_INTEGER, FIELD(page_tokens), "N", "16", "Tokens of a KV page, a multiple of 8.", 8,
	 256},
	{"stats", OKV__OPTION_SWITCH, FIELD(stats), NULL, NULL, "Print token counts and speeds to standard error.", 0,
	 0},
	{"json", OKV__OPTION_SWITCH, FIELD(json), NULL, NULL,
	 "Print one JSON object with text, ids and numbers instead.", 0, 0},
};

const struct okv__command okv__command_generate = {
	.name = "generate",
	.summary = "let a model go on from a text, in this terminal",
	.description = "Reads a model, computes the prompt and streams what follows to standard output. Ctrl-C stops.\n"
		       "\n"
		       "  orbitkv generate --model SmolLM2.gguf --prompt 'Once upon a time'\n"
		       "  orbitkv generate --model SmolLM2.gguf --chat --prompt 'What is a KV cache?' --stats\n"
		       "  orbitkv generate --model SmolLM2.gguf --temperature 0.8 --seed 7 < story.txt\n",
	.options = options,
	.option_count = sizeof(options) / sizeof(*options),
	.settings_size = sizeof(struct settings),
	.run = run,
};
