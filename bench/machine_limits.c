/*
 * okv-bench-machine: what this machine can do at best, for `./run bench` to hold our own figures against.
 *
 * Reads memory (beyond every cache, and over a working set of a chosen size, since a small model may live in the last
 * cache) and runs multiply-add instructions on registers, each on one core and on all cores asked for. Prints one JSON
 * object: limit name -> {unit, samples}. A limit is the best sample: other processes can only make it look smaller.
 *
 *   okv-bench-machine [CORES [WORKING_SET_BYTES]]
 *
 * Threads: main starts one pinned thread a core for each sample; a barrier lets them begin together, and the sample
 * ends with the last of them. Nothing is shared but the read-only source buffer.
 */
#include <errno.h>
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	CORES_MAX = 64,
	SAMPLES = 5,
	STREAMS = 4,	       /* read streams of one core; one alone leaves line-fill buffers idle */
	PREFETCH_BYTES = 1024, /* ahead of each stream */
	LINE_BYTES = 64,
};

static const uint64_t beyond_caches_bytes = 2ull << 30; /* virtual machines report up to 480 MiB of shared L3 */
static const uint64_t read_goal_bytes = 2ull << 30;	/* a core reads about this much in one sample */
static const double compute_goal_s = 0.05;

struct task {
	/* Set by main before the thread starts. */
	int cpu;
	pthread_barrier_t *start; /* borrowed */
	const struct kernel *kernel;
	uint64_t rounds;
	const uint8_t *bytes; /* borrowed; this thread's part of the source */
	uint64_t size;
	/* Set by the thread; read after the join. */
	double begin_s, end_s;
	uint64_t sink; /* keeps the compiler from dropping the work */
};

struct kernel {
	const char *name, *unit;
	double per_round; /* operations of one round; 0: this kernel reads memory */
	bool (*is_here)(void);
	uint64_t (*run)(const struct task *task);
};

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Twelve independent chains hide the latency of any of these instructions (4 to 5 cycles, two a cycle). */
#define EACH_CHAIN(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
enum { CHAINS = 12 };

static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}

static bool has_vnni(void)
{
	return has_avx512() && __builtin_cpu_supports("avx512vnni");
}

/* Tile registers must be asked for; the kernel refuses where the processor or the hypervisor has none. */
static bool has_amx_int8(void)
{
	enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
	unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;

	__asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
	return (edx >> 25 & 1) && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

__attribute__((target("avx2,fma"))) static uint64_t f32_avx2(const struct task *task)
{
	const __m256 factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(0.001f);
#define DECLARE(i) __m256 chain##i = _mm256_set1_ps(1.0f + (float)i);
#define STEP(i)	   chain##i = _mm256_fmadd_ps(chain##i, factor, term);
#define FOLD(i)	   total = _mm256_add_ps(total, chain##i);
	EACH_CHAIN(DECLARE)
	for (uint64_t round = 0; round < task->rounds; round++) {
		EACH_CHAIN(STEP)
	}
	__m256 total = _mm256_setzero_ps();
	EACH_CHAIN(FOLD)
#undef DECLARE
#undef STEP
#undef FOLD
	return (uint64_t)_mm256_cvtss_f32(total);
}

__attribute__((target("avx512f"))) static uint64_t f32_avx512(const struct task *task)
{
	const __m512 factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(0.001f);
#define DECLARE(i) __m512 chain##i = _mm512_set1_ps(1.0f + (float)i);
#define STEP(i)	   chain##i = _mm512_fmadd_ps(chain##i, factor, term);
#define FOLD(i)	   total = _mm512_add_ps(total, chain##i);
	EACH_CHAIN(DECLARE)
	for (uint64_t round = 0; round < task->rounds; round++) {
		EACH_CHAIN(STEP)
	}
	__m512 total = _mm512_setzero_ps();
	EACH_CHAIN(FOLD)
#undef DECLARE
#undef STEP
#undef FOLD
	return (uint64_t)_mm512_cvtss_f32(total);
}

/* unsigned x signed bytes, pairs summed to 16 bits, those to 32, added: the int8 dot product without VNNI */
__attribute__((target("avx2"))) static uint64_t int8_avx2(const struct task *task)
{
	const __m256i ones = _mm256_set1_epi16(1), weight = _mm256_set1_epi8(3);
	__m256i x = _mm256_set1_epi8(5);
#define DECLARE(i) __m256i sum##i = _mm256_setzero_si256();
#define STEP(i)                                                                                                        \
	__asm__("" : "+x"(x)); /* or the compiler would compute the product once */                                    \
	sum##i = _mm256_add_epi32(sum##i, _mm256_madd_epi16(_mm256_maddubs_epi16(x, weight), ones));
#define FOLD(i) total = _mm256_add_epi32(total, sum##i);
	EACH_CHAIN(DECLARE)
	for (uint64_t round = 0; round < task->rounds; round++) {
		EACH_CHAIN(STEP)
	}
	__m256i total = _mm256_setzero_si256();
	EACH_CHAIN(FOLD)
#undef DECLARE
#undef STEP
#undef FOLD
	return (uint64_t)_mm256_extract_epi64(total, 0);
}

__attribute__((target("avx512f,avx512vnni"))) static uint64_t int8_vnni(const struct task *task)
{
	const __m512i x = _mm512_set1_epi8(5), weight = _mm512_set1_epi8(3);
#define DECLARE(i) __m512i sum##i = _mm512_setzero_si512();
#define STEP(i)	   sum##i = _mm512_dpbusd_epi32(sum##i, x, weight);
#define FOLD(i)	   total = _mm512_add_epi32(total, sum##i);
	EACH_CHAIN(DECLARE)
	for (uint64_t round = 0; round < task->rounds; round++) {
		EACH_CHAIN(STEP)
	}
	__m512i total = _mm512_setzero_si512();
	EACH_CHAIN(FOLD)
#undef DECLARE
#undef STEP
#undef FOLD
	return (uint64_t)_mm512_reduce_add_epi32(total);
}

enum { TILE_ROWS = 16, TILE_ROW_BYTES = 64, TILE_CHAINS = 4 };

__attribute__((target("amx-tile,amx-int8"))) static uint64_t int8_amx(const struct task *task)
{
	struct {
		uint8_t palette, start_row, reserved[14];
		uint16_t row_bytes[16];
		uint8_t rows[16];
	} config = {.palette = 1};
	int32_t result[TILE_ROWS * TILE_ROW_BYTES / 4];
	const int8_t operand[TILE_ROWS * TILE_ROW_BYTES] = {1, 2, 3};

	for (int tile = 0; tile < 8; tile++) {
		config.row_bytes[tile] = TILE_ROW_BYTES;
		config.rows[tile] = TILE_ROWS;
	}
	_tile_loadconfig(&config);
	_tile_zero(0);
	_tile_zero(1);
	_tile_zero(2);
	_tile_zero(3);
	_tile_loadd(4, operand, TILE_ROW_BYTES);
	_tile_loadd(5, operand, TILE_ROW_BYTES);
	for (uint64_t round = 0; round < task->rounds; round++) {
		_tile_dpbusd(0, 4, 5);
		_tile_dpbusd(1, 4, 5);
		_tile_dpbusd(2, 4, 5);
		_tile_dpbusd(3, 4, 5);
	}
	_tile_stored(0, result, TILE_ROW_BYTES);
	_tile_release();
	return (uint64_t)(uint32_t)result[0];
}

__attribute__((target("avx2"))) static uint64_t read_memory(const struct task *task)
{
	const uint64_t part = task->size / STREAMS / LINE_BYTES * LINE_BYTES;
	__m256i sums[STREAMS] = {0};

	for (uint64_t round = 0; round < task->rounds; round++) {
		for (uint64_t at = 0; at < part; at += LINE_BYTES) {
			for (uint64_t stream = 0; stream < STREAMS; stream++) {
				const uint8_t *line = task->bytes + stream * part + at;

				_mm_prefetch((const char *)line + PREFETCH_BYTES, _MM_HINT_T0);
				sums[stream] = _mm256_xor_si256(
					sums[stream],
					_mm256_or_si256(_mm256_load_si256((const void *)line),
							_mm256_load_si256((const void *)(line + LINE_BYTES / 2))));
			}
		}
	}
	sums[0] = _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
	return (uint64_t)_mm256_extract_epi64(sums[0], 0);
}

static void *run_task(void *argument)
{
	struct task *task = argument;
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET((size_t)task->cpu, &cpus);
	(void)sched_setaffinity(0, sizeof(cpus), &cpus); /* unpinned, the sample is only a little lower */
	pthread_barrier_wait(task->start);
	task->begin_s = now_s();
	task->sink = task->kernel->run(task);
	task->end_s = now_s();
	return NULL;
}

static _Noreturn void fail(const char *what, int error)
{
	fprintf(stderr, "okv-bench-machine: %s: %s\n", what, strerror(error));
	exit(1);
}

/* Seconds from the first start to the last end of `model` on each of the first `cores` allowed processors. */
static double run_once(const struct task *model, unsigned cores, uint64_t part_bytes)
{
	pthread_barrier_t start;
	pthread_t threads[CORES_MAX];
	struct task tasks[CORES_MAX];
	cpu_set_t allowed;
	double begin_s = 1e300, end_s = 0;

	if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
		fail("sched_getaffinity", errno);
	pthread_barrier_init(&start, NULL, cores);
	for (unsigned i = 0, cpu = 0; i < cores; i++, cpu++) {
		while (!CPU_ISSET(cpu % CPU_SETSIZE, &allowed))
			cpu++;
		tasks[i] = *model;
		tasks[i].cpu = (int)(cpu % CPU_SETSIZE);
		tasks[i].start = &start;
		tasks[i].bytes = model->bytes + i * part_bytes;
		tasks[i].size = part_bytes;

		int error = pthread_create(&threads[i], NULL, run_task, &tasks[i]);

		if (error)
			fail("pthread_create", error);
	}
	for (unsigned i = 0; i < cores; i++) {
		pthread_join(threads[i], NULL);
		begin_s = tasks[i].begin_s < begin_s ? tasks[i].begin_s : begin_s;
		end_s = tasks[i].end_s > end_s ? tasks[i].end_s : end_s;
	}
	pthread_barrier_destroy(&start);
	return end_s - begin_s;
}

/* Rounds that keep one core busy for about compute_goal_s. */
static uint64_t rounds_of(struct task task)
{
	for (task.rounds = 1024;; task.rounds *= 2) {
		double seconds = run_once(&task, 1, 0);

		if (seconds > compute_goal_s / 8)
			return (uint64_t)((double)task.rounds * compute_goal_s / seconds);
	}
}

static void report(const char *name, const char *suffix, unsigned cores, const char *unit, const double *samples)
{
	static const char *separator = "{"; /* main's thread only */

	printf("%s\"%s%s_%u_core%s\": {\"unit\": \"%s\", \"samples\": [", separator, name, suffix, cores,
	       cores == 1 ? "" : "s", unit);
	for (int i = 0; i < SAMPLES; i++)
		printf("%s%.2f", i ? ", " : "", samples[i]);
	printf("]}");
	separator = ", ";
}

static void measure_compute(const struct kernel *kernel, unsigned cores)
{
	struct task task = {.kernel = kernel};
	double samples[SAMPLES];

	if (!kernel->is_here())
		return;
	task.rounds = rounds_of(task);
	for (int i = 0; i < SAMPLES; i++)
		samples[i] = kernel->per_round * (double)task.rounds * cores / run_once(&task, cores, 0) * 1e-9;
	report(kernel->name, "", cores, kernel->unit, samples);
}

static void measure_read(const char *suffix, const uint8_t *bytes, uint64_t working_set, unsigned cores)
{
	static const struct kernel kernel = {"read", "GB/s", 0, has_avx2, read_memory};
	const uint64_t part = working_set / cores / (STREAMS * LINE_BYTES) * (STREAMS * LINE_BYTES);
	struct task task = {.kernel = &kernel, .bytes = bytes, .rounds = 1 + read_goal_bytes / cores / working_set};
	double samples[SAMPLES];

	if (!kernel.is_here())
		return;
	run_once(&task, cores, part); /* brings into the last cache what fits there */
	for (int i = 0; i < SAMPLES; i++)
		samples[i] = (double)(part * cores * task.rounds) / run_once(&task, cores, part) * 1e-9;
	report("read", suffix, cores, kernel.unit, samples);
}

int main(int argc, char **argv)
{
	static const struct kernel kernels[] = {
		{"f32_avx2", "GFLOP/s", CHAINS * 8 * 2, has_avx2, f32_avx2},
		{"f32_avx512", "GFLOP/s", CHAINS * 16 * 2, has_avx512, f32_avx512},
		{"int8_avx2", "GOP/s", CHAINS * 32 * 2, has_avx2, int8_avx2},
		{"int8_avx512_vnni", "GOP/s", CHAINS * 64 * 2, has_vnni, int8_vnni},
		{"int8_amx", "GOP/s", TILE_CHAINS * TILE_ROWS * TILE_ROWS * TILE_ROW_BYTES * 2, has_amx_int8, int8_amx},
	};
	const unsigned cores = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 2;
	const uint64_t working_set = argc > 2 ? strtoull(argv[2], NULL, 10) : 96ull << 20;

	if (argc > 3 || cores < 1 || cores > CORES_MAX || working_set < 1 << 20 || working_set > beyond_caches_bytes) {
		fprintf(stderr, "usage: okv-bench-machine [CORES [WORKING_SET_BYTES]]; 1..%d cores, 1 MiB..2 GiB\n",
			CORES_MAX);
		return 2;
	}
	uint8_t *bytes = mmap(NULL, beyond_caches_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (bytes == MAP_FAILED)
		fail("mapping 2 GiB", errno);
	(void)madvise(bytes, beyond_caches_bytes, MADV_HUGEPAGE); /* fewer TLB misses where there are huge pages */
	for (uint64_t page = 0; page < beyond_caches_bytes; page += 4096)
		bytes[page] = 1; /* a page never written may be the shared zero page, which no memory is read for */
	for (unsigned some = 1; some <= cores; some = some < cores ? cores : cores + 1) {
		measure_read("_memory", bytes, beyond_caches_bytes, some);
		measure_read("_working_set", bytes, working_set, some);
		for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++)
			measure_compute(&kernels[i], some);
	}
	printf("}\n");
	munmap(bytes, beyond_caches_bytes);
	return 0;
}
