/* A training step asks for no memory: a run of many steps makes fewer further allocations than half
 * of its further steps, with each model, optimizer and precision, on each rank. What is asked for
 * once, at the start, in the first step or at the end, is in both runs. Ranks that wait for each
 * other at the start ask for a few more or less. The libraries below the program are counted, too.
 * Both runs log two steps: the page at the end reads a line about each. */
#include "tests/app/support/training.h"
#include "tests/support/failing_malloc.h"

#include "model/model_kind.h"

#include <fcntl.h>
#include <sys/mman.h>

enum { FEW_STEPS = 20, MANY_STEPS = 280 };

static const char *const SETTINGS[] = {"--optimizer=sgd", "--optimizer=adam", "--optimizer=adamw",
                                       "--optimizer=adadelta", "--amp=bf16"};
enum { N_SETTINGS = sizeof SETTINGS / sizeof SETTINGS[0] };

/* The first: one process. Then each rank of two. */
static const struct {
    int world_size, rank;
} PLACES[] = {{1, FAILING_MALLOC_NO_RANK}, {2, 0}, {2, 1}};
enum { N_PLACES = sizeof PLACES / sizeof PLACES[0] };

/* Of a process at this place, in a run of so many steps. */
static int64_t count_allocations(int place, const char *model, const char *setting, int steps)
{
    const failing_malloc nothing_fails = {.rank = PLACES[place].rank};
    const file_part part = {&nothing_fails, sizeof nothing_fails};
    unlink("plan");
    test_folder_require(file_write("plan", &part, 1));
    test_folder_remove("run");
    char preload[FILE_PATH_BYTES], told[FILE_PATH_BYTES], limit[32], log[32];
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s/failing_malloc.so", getenv("BUILD_DIR"));
    snprintf(told, sizeof told, "TEST_FAILING_MALLOC=%s", test_folder_path("plan"));
    snprintf(limit, sizeof limit, "--limit=%d", PLACES[place].world_size * steps);
    snprintf(log, sizeof log, "--log-interval=%d", steps / 2);
    program p = program_run_with(
        WORDS("env", preload, told),
        WORDS(TRAINING_SMALL, "--model", model, setting, limit, log, "--batch-size=1",
              program_flag("--nproc-per-node=", PLACES[place].world_size), "--backend=auto",
              "--device=cpu", "--quiet", "--run-dir=run"));
    ASSERT_EXIT(p, 0);
    ck_assert_double_eq(training_number(p.out, "steps"), steps);
    program_close(&p);
    char *left = test_folder_read("plan");
    int64_t count = ((const failing_malloc *)(const void *)left)->count_all;
    free(left);
    ck_assert_int_gt(count, 100);
    return count;
}

START_TEST(no_step_allocates)
{
    int place = _i % N_PLACES;
    const char *model = model_kind_names[_i / N_PLACES / N_SETTINGS];
    const char *setting = SETTINGS[_i / N_PLACES % N_SETTINGS];
    int64_t few = count_allocations(place, model, setting, FEW_STEPS);
    int64_t many = count_allocations(place, model, setting, MANY_STEPS);
    ck_assert_msg(many - few < (MANY_STEPS - FEW_STEPS) / 2,
                  "%s, %s, rank %d of %d: %lld allocations in %d steps, %lld in %d", model, setting,
                  PLACES[place].rank, PLACES[place].world_size, (long long)few, FEW_STEPS,
                  (long long)many, MANY_STEPS);
}
END_TEST

int main(void)
{
#ifdef SANITIZED
    printf("SKIP: a sanitizer has an allocator of its own\n");
    return TEST_SKIPPED;
#endif
    program_clean_environment();
    test_folder_open();
    Suite *suite = suite_create("step_allocations");
    TCase *runs = suite_case(suite, "runs", 4.0 * RUN_S);
    tcase_add_loop_test(runs, no_step_allocates, 0, MODEL_COUNT * N_SETTINGS * N_PLACES);
    return test_folder_close(suite_run(suite));
}
