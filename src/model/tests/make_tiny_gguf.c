/* make-tiny-gguf PATH TYPE [SEED]: writes the tiny model of gguf_builder.h, for tests that need a model as a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_builder.h"

static const struct {
	const char *name;
	enum okv_tensor_type type;
} types[] = {{"f32", OKV_TENSOR_F32},
	     {"f16", OKV_TENSOR_F16},
	     {"q4_0", OKV_TENSOR_Q4_0},
	     {"q4_1", OKV_TENSOR_Q4_1},
	     {"q8_0", OKV_TENSOR_Q8_0}};

static int write_model(const char *path, const struct tiny_model_options *options)
{
	struct okv_buf file = {0};
	FILE *out = fopen(path, "wb");
	bool written = false;

	tiny_model_write(options, &file);
	if (out && !file.failed)
		written = fwrite(file.data, 1, file.size, out) == file.size;
	if (out)
		written = fclose(out) == 0 && written;
	okv_buf_done(&file);
	if (!written)
		fprintf(stderr, "%s cannot be written\n", path);
	return written ? 0 : 1;
}

int main(int argc, char **argv)
{
	for (size_t i = 0; argc >= 3 && i < sizeof(types) / sizeof(types[0]); i++) {
		if (strcmp(argv[2], types[i].name) != 0)
			continue;
		struct tiny_model_options options = tiny_model_default(types[i].type);

		if (argc > 3)
			options.seed = strtoull(argv[3], NULL, 10);
		return write_model(argv[1], &options);
	}
	fprintf(stderr, "usage: make-tiny-gguf PATH f32|f16|q4_0|q4_1|q8_0 [SEED]\n");
	return 2;
}
