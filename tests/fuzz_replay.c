/*
 * Replays a corpus through a fuzz target without a fuzzer: one file or folder an argument, every file in it handed once
 * to LLVMFuzzerTestOneInput. A missing or empty corpus is a failure, so that a renamed folder cannot turn the test off.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
	FILE *file = fopen(path, "rb");
	uint8_t *data = NULL;
	size_t size = 0, got;
	uint8_t chunk[65536];

	if (!file) {
		fprintf(stderr, "%s cannot be opened\n", path);
		return 0;
	}
	while ((got = fread(chunk, 1, sizeof(chunk), file)) > 0) {
		uint8_t *grown = realloc(data, size + got);
		if (!grown)
			abort();
		data = grown;
		memcpy(data + size, chunk, got);
		size += got;
	}
	fclose(file);

	/* An exact-size heap copy, so that a read past the end is seen by AddressSanitizer. */
	uint8_t *exact = malloc(size ? size : 1);
	if (!exact)
		abort();
	if (size)
		memcpy(exact, data, size);
	LLVMFuzzerTestOneInput(exact, size);
	free(exact);
	free(data);
	return 1;
}

static int replay(const char *path)
{
	struct stat info;

	if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
		return replay_file(path);

	DIR *folder = opendir(path);
	int played = 0;

	if (!folder)
		return 0;
	for (struct dirent *entry; (entry = readdir(folder));) {
		char inner[4096];

		if (entry->d_name[0] == '.')
			continue;
		snprintf(inner, sizeof(inner), "%s/%s", path, entry->d_name);
		played += replay_file(inner);
	}
	closedir(folder);
	return played;
}

int main(int argc, char **argv)
{
	int played = 0;

	for (int i = 1; i < argc; i++)
		played += replay(argv[i]);
	printf("%d inputs replayed\n", played);
	return played > 0 ? 0 : 1;
}
