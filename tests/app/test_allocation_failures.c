/* Memory that runs out: one allocation after the other fails, once, in a command's launcher or in
 * one of its ranks. Each run ends in time with one of the program's exit codes and says why, or its
 * result is what it is without the failure.
 *
 * Of the launcher's own code every allocation fails in turn; where a network is trained or read,
 * every so many-th. MNIST_DDP_EVERY_ALLOCATION=1 visits all. */
#include "tests/app/support/model_file.h"
#include "tests/app/support/run_command.h"
#include "tests/app/support/test_folder.h"
#include "tests/app/support/training.h"
#include "tests/support/facts.h"
#include "tests/support/failing_malloc.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/mman.h>

enum { HANG_S = 40, LAST_MISSES = 3 };

#ifdef SANITIZED
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif

#define TRAIN \
    "train", "--model", "mlp", "--limit", "96", "--epochs", "1", "--threads", "1", "--seed", "3", \
        "--json", "--run-dir", "run"

/* Fails the test unless the result is the one that the first run, without a failure, has left. */
typedef void check_result(const program *p);

typedef struct sweep {
    const char *const *flags;
    int rank; /* whose memory runs out */
    int stride;
    int exit_code; /* without a failure */
    check_result *check;
} sweep;

static failing_malloc *plan;
static char *first_out; /* of the first run */

static void open_plan(void)
{
    const failing_malloc none = {.fail_at = 0};
    const file_part part = {&none, sizeof none};
    unlink("plan");
    test_folder_require(file_write("plan", &part, 1));
    int fd = open("plan", O_RDWR | O_CLOEXEC);
    plan = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(plan, MAP_FAILED);
    close(fd);
}

/* Runs it with this allocation failing; 0: none. */
static program run_failing(const sweep *s, int64_t fail_at)
{
    static char preload[FILE_PATH_BYTES], told[FILE_PATH_BYTES];
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s/failing_malloc.so", getenv("BUILD_DIR"));
    snprintf(told, sizeof told, "TEST_FAILING_MALLOC=%s", test_folder_path("plan"));
    *plan = (failing_malloc){.fail_at = fail_at, .rank = s->rank};
    test_folder_remove("run");
    program p = program_start_with(WORDS("env", preload, told), s->flags);
    program_wait(&p, HANG_S);
    return p;
}

static bool is_coded(int exit_code)
{
    static const int codes[] = {64, 65, 69, 70, 72, 74, 75, 110};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i] == exit_code)
            return true;
    return false;
}

static void check_run(const sweep *s, const program *p, int64_t n)
{
    char what[256];
    snprintf(what, sizeof what, "allocation %lld (%s): exit %d", (long long)n, plan->place,
             p->exit_code);
    ck_assert_msg(p->exit_code == s->exit_code || is_coded(p->exit_code), "%s: %s", what, p->err);
    ck_assert_msg(p->exit_code == s->exit_code || facts_in_a_line(p->err, "memory", NULL),
                  "%s, no word of memory: %s", what, p->err);
    if (p->exit_code == s->exit_code)
        s->check(p);
}

static void sweep_all(const sweep *s)
{
    int misses = 0, runs = 0, stride = getenv("MNIST_DDP_EVERY_ALLOCATION") ? 1 : s->stride;
    open_plan();
    program p = run_failing(s, 0);
    ASSERT_EXIT(p, s->exit_code);
    int64_t count = plan->count;
    ck_assert_int_gt(count, 20);
    first_out = strdup(p.out);
    test_folder_remove("first");
    if (file_exists("run"))
        ck_assert_int_eq(rename("run", "first"), 0);
    program_close(&p);
    for (int64_t n = 1; misses < LAST_MISSES; n += stride, runs++) {
        p = run_failing(s, n);
        misses = plan->fired ? 0 : misses + 1;
        check_run(s, &p, n);
        program_close(&p);
    }
    printf("%s, rank %d: %d of %lld allocations failed in turn\n", s->flags[0], s->rank,
           runs - LAST_MISSES, (long long)count);
    free(first_out);
    munmap(plan, sizeof *plan);
}

static void check_lines(const program *p)
{
    ck_assert_uint_eq(strlen(p->out), strlen(first_out));
    ck_assert_int_eq(facts_count(p->out, "out 0\n"), 1);
    ck_assert_int_eq(facts_count(p->out, "out 1\n"), 1);
}

/* The same members, whatever they say. */
static void check_members(const char *text)
{
    json_t *object = json_loads(text, 0, NULL), *first = json_loads(first_out, 0, NULL);
    const char *key;
    json_t *value;
    ck_assert_msg(object != NULL, "no JSON: %s", text);
    ck_assert_uint_eq(json_object_size(object), json_object_size(first));
    json_object_foreach(first, key, value)
    {
        const json_t *other = json_object_get(object, key);
        ck_assert_msg(other != NULL, "%s is missing: %s", key, text);
        ck_assert_uint_eq(json_object_size(other), json_object_size(value));
        ck_assert_uint_eq(json_array_size(other), json_array_size(value));
    }
    json_decref(object);
    json_decref(first);
}

static void check_training(const program *p)
{
    char *results = test_folder_read("run/result.json");
    check_members(p->out);
    check_members(results);
    model_file_assert_same_bits("run", "first");
    free(results);
}

static void check_eval(const program *p)
{
    check_members(p->out);
    ck_assert_double_eq(training_number(p->out, "test_loss"),
                        training_number(first_out, "test_loss"));
    ck_assert_double_eq(training_number(p->out, "correct"), training_number(first_out, "correct"));
}

static void check_text(const program *p)
{
    ck_assert_str_eq(p->out, first_out);
}

#define RUN_TWO "run", "--nproc-per-node=2", "--tee=3", "--", "sh", "-c"
#define TALK "echo out $RANK; echo err $RANK >&2"

static const sweep SWEEPS[] = {
    {WORDS(RUN_TWO, TALK), FAILING_MALLOC_NO_RANK, 1, 0, check_lines},
    {WORDS(RUN_TWO, TALK "; exit 7"), FAILING_MALLOC_NO_RANK, 1, 7, check_lines},
    {WORDS("sampler", "--samples=50", "--json"), FAILING_MALLOC_NO_RANK, 1, 0, check_text},
    {WORDS(TRAIN), FAILING_MALLOC_NO_RANK, 41, 0, check_training},
    {WORDS(TRAIN, "--nproc-per-node=2"), FAILING_MALLOC_NO_RANK, 7, 0, check_training},
    {WORDS(TRAIN, "--nproc-per-node=2"), 0, 131, 0, check_training},
    {WORDS(TRAIN, "--nproc-per-node=2"), 1, 29, 0, check_training},
    {WORDS("eval", "--json", "--checkpoint", "model"), FAILING_MALLOC_NO_RANK, 13, 0, check_eval},
};

START_TEST(a_failure_is_seen)
{
    sweep_all(&SWEEPS[_i]);
}
END_TEST

int main(void)
{
    if (IS_SANITIZED) {
        printf("SKIP: a sanitizer has an allocator of its own\n");
        return TEST_SKIPPED;
    }
    program_clean_environment();
    test_folder_open();
    program p = program_mnist(TRAIN, NULL);
    if (p.exit_code != 0 || rename("run", "model") != 0)
        return test_folder_close(EXIT_FAILURE);
    program_close(&p);
    Suite *suite = suite_create("allocation_failures");
    TCase *sweeps = suite_case(suite, "sweeps", 3600);
    tcase_add_loop_test(sweeps, a_failure_is_seen, 0, sizeof SWEEPS / sizeof SWEEPS[0]);
    return test_folder_close(suite_run(suite));
}
