/* Every entry point of NVIDIA's libraries that the program calls is made to fail in turn: the run
 * ends with an error that names the call, soon, with nothing leaked. On the emulated device only.
 *
 * Which calls there are is seen from a run that is traced; that these are all that the module
 * needs, from its undefined symbols where it was built. */
#include "tests/app/support/model_file.h"
#include "tests/app/support/training.h"
#include "tests/support/cuda.h"
#include "tests/support/facts.h"

#include <sys/stat.h>

enum { MAX_CALLS = 160, NAME_BYTES = 64, TIMEOUT_S = 60, FAILURE = 2 };

typedef struct call {
    char name[NAME_BYTES];
    unsigned long count; /* of one rank's run */
} call;

/* Runs that together call everything. Each call fails in the first run that makes it: the emulated
 * CNN, which takes longest, comes last. */
static const struct setup {
    const char *flags[8];
} SETUPS[] = {
    {{"--model", "mlp", "--amp", "bf16", "--nproc-per-node", "2", "--backend", "nccl"}},
    {{"--model", "mlp", "--amp", "fp16", "--nproc-per-node", "2", "--backend", "shm"}},
    {{"--model", "mlp", "--mode", "dp", "--devices", "0,1"}},
    {{"--model", "cnn", "--amp", "bf16"}},
};
enum { N_SETUPS = sizeof SETUPS / sizeof SETUPS[0] };

/* Calls that only say or release something, whose failure another call brings up, or with which one
 * of several engines is chosen: the run may go on, and where it fails, the error may name another.
 */
static const char *const HARMLESS[] = {"cudaDriverGetVersion",
                                       "cudaRuntimeGetVersion",
                                       "cudaMemGetInfo",
                                       "cudaGetErrorName",
                                       "cudaGetErrorString",
                                       "cudaFree",
                                       "cudaFreeHost",
                                       "cudaHostUnregister",
                                       "cudaStreamDestroy",
                                       "cudaEventDestroy",
                                       "cudaGraphDestroy",
                                       "cudaGraphExecDestroy",
                                       "cudaPeekAtLastError",
                                       "cudnnGetErrorString",
                                       "cudnnGetVersion",
                                       "ncclGetErrorString",
                                       "ncclGetLastError",
                                       "ncclGetVersion",
                                       "ncclCommFinalize",
                                       "ncclCommDestroy",
                                       "ncclCommAbort",
                                       "cudnnDestroy",
                                       "cublasLtDestroy",
                                       "cudaGraphUpload",
                                       "cudaGetDevice",
                                       "cudnnGetLastErrorString",
                                       "cudaGetLastError",
                                       "cudnnBackendCreateDescriptor",
                                       "cudnnBackendSetAttribute",
                                       "cudnnBackendGetAttribute",
                                       "cudnnBackendFinalize"};

/* Calls that no training makes: collectives that dist.nccl covers. */
static const char *const ELSEWHERE[] = {"ncclAllGather", "ncclReduceScatter"};

static bool is_elsewhere(const char *name)
{
    for (size_t i = 0; i < sizeof ELSEWHERE / sizeof ELSEWHERE[0]; i++)
        if (strcmp(name, ELSEWHERE[i]) == 0)
            return true;
    return false;
}

/* Calls whose last is made while all is closed, behind the run's end: nobody needs them then. */
static bool is_of_closing(const char *name)
{
    return strcmp(name, "cudaSetDevice") == 0 || strcmp(name, "cudaStreamQuery") == 0;
}

/* Calls that wait by asking again: how often they are made is a matter of time. */
static bool is_polled(const char *name)
{
    return strcmp(name, "cudaEventQuery") == 0 || strcmp(name, "ncclCommGetAsyncError") == 0;
}

static bool is_release(const char *name)
{
    return strstr(name, "Destroy") != NULL;
}

static bool is_harmless(const char *name)
{
    for (size_t i = 0; i < sizeof HARMLESS / sizeof HARMLESS[0]; i++)
        if (strcmp(name, HARMLESS[i]) == 0)
            return true;
    return is_release(name);
}

static program run(const struct setup *s)
{
    const char *const *f = s->flags; /* the first NULL among them is the last argument */
    test_folder_remove("one many");
    return program_mnist("--device", "cuda", "--epochs", "2", "--eval-every", "2", "--limit", "40",
                         "--batch-size", "8", "--json", "--quiet", "--timeout", "20", "--run-dir",
                         test_folder_path("one"), f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7],
                         NULL);
}

/* What a healthy run calls, and how often; sorted by nothing. */
static int trace(const struct setup *s, call *out)
{
    char *text = NULL;
    size_t size_bytes = 0;
    int n = 0;
    const char *path = test_folder_path("trace");
    unlink(path);
    setenv("MNIST_DDP_EMULATED_TRACE", path, 1);
    program p = run(s);
    unsetenv("MNIST_DDP_EMULATED_TRACE");
    ASSERT_EXIT(p, 0);
    program_close(&p);
    ck_assert_int_eq(file_read(path, 1 << 20, &text, &size_bytes), STATUS_OK);
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        call one;
        ck_assert_int_eq(sscanf(line, "%63s %lu", one.name, &one.count), 2);
        int at = 0;
        while (at < n && strcmp(out[at].name, one.name) != 0)
            at++;
        ck_assert_int_lt(at, MAX_CALLS);
        if (at == n)
            out[n++] = one;
        else if (one.count < out[at].count)
            out[at].count = one.count; /* ranks differ: what each of them reaches */
    }
    free(text);
    return n;
}

/* What an error calls it. */
static const char *said_as(const char *name)
{
    static const char *const other[][2] = {
        {"cudaLaunchKernel", "launch"}, {"ncclAllReduce", "nccl"}, /* an all_reduce or a barrier */
        {"ncclBroadcast", "broadcast"}, {"ncclReduce", "reduce"},
        {"ncclSend", "send"},           {"ncclRecv", "recv"}};
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
        if (strcmp(name, other[i][0]) == 0)
            return other[i][1];
    return name;
}

/* What is wrong with a run in which `name` failed; NULL: nothing. */
static const char *fault_of(const program *p, const char *name, bool last)
{
    if (p->exit_code == -1)
        return "did not end";
    if (p->exit_code >= 128 || strstr(p->err, "Sanitizer") != NULL)
        return "crashed";
    if (p->exit_code == 99)
        return "leaked";
    if (is_harmless(name) || (last && p->exit_code == 0 && is_of_closing(name)))
        return NULL;
    if (p->exit_code == 0)
        return "nobody noticed";
    return facts_in_a_line(p->err, said_as(name), NULL) ? NULL : "the error does not name it";
}

/* The nth call of `name` fails on every rank. Returns how many things are wrong. Where a polled
 * call was made less often than in the traced run, an earlier one fails instead. */
static int make_fail(const struct setup *s, const char *name, unsigned long nth)
{
    char injection[128];
    /* cudnnStatus_t has thousands; elsewhere any small number is an error. */
    int code = strncmp(name, "cudnn", 5) == 0 ? 4000 : FAILURE;
    snprintf(injection, sizeof injection, "%.63s:%lu:%d", name, nth, code);
    setenv("MNIST_DDP_EMULATED_FAIL", injection, 1);
    program p = run(s);
    unsetenv("MNIST_DDP_EMULATED_FAIL");
    if (p.exit_code == 0 && nth > 1 && is_polled(name)) {
        program_close(&p);
        return make_fail(s, name, nth / 2);
    }
    const char *fault = fault_of(&p, name, nth > 1);
    if (fault != NULL)
        fprintf(stderr, "%s: %s, exit %d\n%s\n", injection, fault, p.exit_code, p.err);
    program_close(&p);
    return fault != NULL;
}

/* The first call of each, in the beginning, or the last, in the midst of training. */
START_TEST(every_call_may_fail)
{
    call tried[N_SETUPS * MAX_CALLS], calls[MAX_CALLS];
    int n_tried = 0, wrong = 0;
    bool last = _i == 1;
    for (int k = 0; k < N_SETUPS; k++) {
        int n = trace(&SETUPS[k], calls);
        ck_assert_int_gt(n, 20);
        for (int i = 0; i < n; i++) {
            int at = 0;
            while (at < n_tried && strcmp(tried[at].name, calls[i].name) != 0)
                at++;
            if (at < n_tried || (last && calls[i].count < 2))
                continue;
            tried[n_tried++] = calls[i];
            wrong += make_fail(&SETUPS[k], calls[i].name, last ? calls[i].count : 1);
        }
    }
    fprintf(stderr, "%d calls failed in turn\n", n_tried);
    ck_assert_int_eq(wrong, 0);
}
END_TEST

static bool is_nvidias(const char *name)
{
    static const char *const families[] = {"cuda", "cublas", "cudnn", "nccl"};
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (strncmp(name, families[i], strlen(families[i])) == 0)
            return true;
    return false;
}

/* The real module's undefined symbols of NVIDIA's libraries are what the traced runs called. */
START_TEST(calls_are_the_modules)
{
    call calls[N_SETUPS * MAX_CALLS];
    char command[FILE_PATH_BYTES + 32], line[256], name[NAME_BYTES];
    int n = 0, seen = 0, missing = 0;
    for (int i = 0; i < N_SETUPS; i++)
        n += trace(&SETUPS[i], calls + n);
    snprintf(command, sizeof command, "nm -D -u '%s/mnist_ddp_cuda.so'", getenv("BUILD_DIR"));
    FILE *symbols = popen(command, "r");
    ck_assert_ptr_nonnull(symbols);
    while (fgets(line, sizeof line, symbols) != NULL) {
        if (sscanf(line, " U %63[A-Za-z0-9_]", name) != 1 || !is_nvidias(name))
            continue;
        seen++;
        int at = 0;
        while (at < n && strcmp(calls[at].name, name) != 0)
            at++;
        if (at == n) {
            fprintf(stderr, "%s: never called in the traced runs\n", name);
            missing += !is_harmless(name) && !is_elsewhere(name);
        }
    }
    pclose(symbols);
    ck_assert_int_gt(seen, 20);
    ck_assert_int_eq(missing, 0);
}
END_TEST

int main(void)
{
    char module[FILE_PATH_BYTES];
    if (cuda_is_real()) {
        printf("SKIP: a real device cannot be told to fail\n");
        return TEST_SKIPPED;
    }
    if (!cuda_choose())
        return TEST_SKIPPED;
    test_folder_open();
    setenv("MNIST_DDP_EMULATED_STRICT", "1", 1);
    snprintf(module, sizeof module, "%s/mnist_ddp_cuda.so", getenv("BUILD_DIR"));
    Suite *suite = suite_create("cuda_faults");
    TCase *calls = suite_case(suite, "calls", 800);
    tcase_add_loop_test(calls, every_call_may_fail, 0, 2);
    if (access(module, R_OK) == 0)
        tcase_add_test(calls, calls_are_the_modules);
    else
        printf("SKIP of calls_are_the_modules: no CUDA toolkit, so no module\n");
    return test_folder_close(suite_run(suite));
}
