/* The ceiling of the processor that it runs on, measured: multiply-adds of float32, and dot
 * products of pairs of bfloat16 that are added to float32, between registers, on 1, 2, ... N cores
 * at once. A JSON line on stdout for each loop that the processor can run.
 *
 *     cpu_peak [N]        default: 1
 */
#include "base/clock.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    SUMS = 12, /* of a loop: more than a processor has multiply-adds in flight */
    TURNS = 4000000,
    TRIES = 8, /* the best counts */
    MAX_CORES = 1024,
};

/* Runs TURNS turns of one loop. */
typedef void turn_fn(void);

typedef struct loop {
    const char *precision, *isa;
    double operations; /* of a turn */
    turn_fn *run;      /* NULL: this processor does not have it */
} loop;

static volatile float kept; /* so that no loop is dropped as unused */

/* Sums that begin alike would be one to the compiler, and one that begins at 1 a constant. Each
 * comes near 1 and stays there. */
#define FMA_LOOP(name, target, bytes) \
    typedef float name##_vector __attribute__((vector_size(bytes))); \
    target static void name(void) \
    { \
        name##_vector x[SUMS], half = {0}; \
        half += 0.5f; \
        for (int i = 0; i < SUMS; i++) \
            x[i] = half * (float)(i + 3); \
        for (int turn = 0; turn < TURNS; turn++) \
            for (int i = 0; i < SUMS; i++) \
                x[i] = x[i] * half + half; \
        for (int i = 0; i < SUMS; i++) \
            kept += x[i][0]; \
    }

#if defined(__x86_64__)
FMA_LOOP(fma_avx512, __attribute__((target("avx512f"))), 64)
FMA_LOOP(fma_avx2, __attribute__((target("avx2,fma"))), 32)

__attribute__((target("avx512f,avx512bf16"))) static void dot_avx512(void)
{
    __m512 sums[SUMS];
    __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    for (int i = 0; i < SUMS; i++)
        sums[i] = _mm512_set1_ps((float)i);
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = 0; i < SUMS; i++)
            sums[i] = _mm512_dpbf16_ps(sums[i], ones, ones);
    for (int i = 0; i < SUMS; i++)
        kept += _mm512_cvtss_f32(sums[i]);
}
#else
FMA_LOOP(fma_vector, , 16)
#endif

/* What a core of its own does. */
typedef struct worker {
    const loop *work;
    pthread_barrier_t *start;
    size_t core;
    int64_t begun_ns, ended_ns;
} worker;

static void *run_worker(void *arg)
{
    worker *w = arg;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(w->core, &own);
    sched_setaffinity(0, sizeof own, &own);
    pthread_barrier_wait(w->start);
    w->begun_ns = clock_now_ns();
    w->work->run();
    w->ended_ns = clock_now_ns();
    return NULL;
}

/* GFLOP/s of the loop on these cores at once. */
static double try_once(const loop *l, const size_t *cores, int n)
{
    static worker workers[MAX_CORES];
    static pthread_t threads[MAX_CORES];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        workers[i] = (worker){.work = l, .start = &start, .core = cores[i]};
        if (pthread_create(&threads[i], NULL, run_worker, &workers[i]) != 0) {
            fprintf(stderr, "cpu_peak: the system has no thread left for core %zu\n", cores[i]);
            exit(1);
        }
    }
    int64_t begun_ns = INT64_MAX, ended_ns = 0;
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        begun_ns = workers[i].begun_ns < begun_ns ? workers[i].begun_ns : begun_ns;
        ended_ns = workers[i].ended_ns > ended_ns ? workers[i].ended_ns : ended_ns;
    }
    pthread_barrier_destroy(&start);
    return l->operations * TURNS * n / (double)(ended_ns - begun_ns);
}

static void print_loop(const loop *l, const size_t *cores, int n_cores)
{
    printf("{\"precision\": \"%s\", \"isa\": \"%s\", \"gflops\": [", l->precision, l->isa);
    for (int n = 1; n <= n_cores; n++) {
        double best = 0;
        for (int i = 0; i < TRIES; i++)
            best = fmax(best, try_once(l, cores, n));
        printf("%s%.1f", n > 1 ? ", " : "", best);
    }
    printf("]}\n");
}

/* The cores that the system lets this process use; at most `most`. */
static int read_cores(size_t *cores, int most)
{
    cpu_set_t allowed;
    int n = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return 0;
    for (size_t core = 0; core < CPU_SETSIZE && n < most; core++)
        if (CPU_ISSET(core, &allowed))
            cores[n++] = core;
    return n;
}

int main(int argc, char **argv)
{
    static size_t cores[MAX_CORES];
    int most = argc > 1 ? atoi(argv[1]) : 1;
    int n_cores = read_cores(cores, most < MAX_CORES ? most : MAX_CORES);
#if defined(__x86_64__)
    bool has_avx512 = __builtin_cpu_supports("avx512f");
    const loop loops[] = {
        {"fp32", "avx512", 2 * SUMS * 16, has_avx512 ? fma_avx512 : NULL},
        {"fp32", "avx2", 2 * SUMS * 8, __builtin_cpu_supports("fma") ? fma_avx2 : NULL},
        {"bf16", "avx512", 2 * SUMS * 32,
         has_avx512 && __builtin_cpu_supports("avx512bf16") ? dot_avx512 : NULL},
    };
#else
    const loop loops[] = {{"fp32", "vector", 2 * SUMS * 4, fma_vector}};
#endif
    for (size_t i = 0; i < sizeof loops / sizeof loops[0]; i++)
        if (loops[i].run != NULL)
            print_loop(&loops[i], cores, n_cores);
    return 0;
}
