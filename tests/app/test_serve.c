/* mnist_ddp serve, as tests/app/support/serve_checks.py asks it: a client in Python; with the
 * argument "browser" a browser, with "limits" clients that hold their connections. */
#include "tests/app/support/browser.h"
#include "tests/app/support/training.h"

/* Of serve_checks.py. */
static const char *const CHECKS[] = {"http", "browser", "limits"};
enum { HTTP, BROWSER, LIMITS };

static void train(void)
{
    program p = program_run_with(NULL, WORDS("train", "--model=mlp", TRAINING_SGD, "--epochs=8",
                                             "--batch-size=16", "--threads=1", "--quiet",
                                             "--run-dir=runs/a", "--no-progress"));
    test_folder_require(p.exit_code == 0 ? STATUS_OK : FAIL(STATUS_INVALID, "%s", p.err));
    program_close(&p);
}

START_TEST(it_keeps_its_promises)
{
    char script[FILE_PATH_BYTES];
    snprintf(script, sizeof script, "%.3000s/tests/app/support/serve_checks.py",
             getenv("SOURCE_DIR"));
    const char *browser = _i == BROWSER ? browser_name() : NULL;
    program p = program_start(WORDS("python3", "-B", script, CHECKS[_i], browser));
    program_wait(&p, 2 * RUN_S);
    ASSERT_EXIT(p, 0);
    program_close(&p);
}
END_TEST

static const char *what_is_missing(void)
{
    program p = program_start(WORDS("python3", "--version"));
    program_wait(&p, RUN_S);
    bool python = p.exit_code == 0;
    program_close(&p);
    if (!python)
        return "python3 is missing";
    char path[FILE_PATH_BYTES];
    snprintf(path, sizeof path, "%.3000s/mnist_ddp_microhttpd.so", getenv("BUILD_DIR"));
    return file_exists(path) ? NULL : "built without libmicrohttpd";
}

int main(int argc, char **argv)
{
    program_clean_environment();
    const char *missing = what_is_missing();
    int which = HTTP;
    for (int i = HTTP; i <= LIMITS; i++)
        which = argc > 1 && strcmp(argv[1], CHECKS[i]) == 0 ? i : which;
    if (missing == NULL && which == BROWSER && !browser_find())
        missing = "Chromium is missing";
    test_folder_open();
    if (missing == NULL)
        train();
    Suite *suite = suite_create("serve");
    TCase *all = suite_case(suite, "all", 2.5 * RUN_S);
    suite_add(all, it_keeps_its_promises, which, missing);
    return test_folder_close(suite_run(suite));
}
