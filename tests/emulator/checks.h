/* The emulated device's own tests: what each check does and how it must end. A test program is a
 * list of checks; each check runs in a process of its own. */
#ifndef MNIST_DDP_TESTS_EMULATOR_CHECKS_H
#define MNIST_DDP_TESTS_EMULATOR_CHECKS_H

#include "emulator.h"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

enum class ending {
    succeeds, /* exit code 0 */
    exits,    /* the code in `code` */
    dies,     /* by a signal, or by a sanitizer's exit */
    shows     /* under at least one of several seeds it exits with WRONG_RESULT, else with 0 */
};

/* Exit codes of a check. */
enum { NOT_SO = 41, WRONG_RESULT = 42, SKIPPED = 77 };

/* Runs in a process of its own, which has not used the device. */
struct check {
    const char *name;
    void (*body)();
    ending end = ending::succeeds;
    const char *says = nullptr;        /* a part of what it must print on stderr */
    const char *environment = nullptr; /* "NAME=value NAME=value" */
    int seeds = 1;                     /* run with each of the seeds 1 .. seeds */
    int code = 0;
};

/* Ends the process if `holds` is false. */
inline void expect(bool holds, const char *what, const char *file, int line);

#define EXPECT(condition) expect((condition), #condition, __FILE__, __LINE__)
#define OK(call) EXPECT((call) == cudaSuccess)

/* Ends a check that was looking for a wrong result. */
[[noreturn]] inline void wrong_result();

/* A stream; device memory; what the host then sees of it. All released by close(). */
struct bench {
    cudaStream_t stream = nullptr, side = nullptr;
    cudaEvent_t event = nullptr;
    float *memory = nullptr; /* COUNT elements */

    enum { COUNT = 4096 };

    bench();
    void close();
    void wait(cudaStream_t on);
    std::vector<float> read(); /* after all work of both streams */
};

/* Blocks a stream until it is opened. */
class gate
{
  public:
    explicit gate(cudaStream_t stream)
    {
        auto look = [state = is_open] {
            return state->load() ? emulated::progress::done : emulated::progress::pending;
        };
        OK(emulated::enqueue_steps(stream, "gate", [look]() -> emulated::step_fn { return look; }));
    }

    void open()
    {
        *is_open = true;
    }

  private:
    std::shared_ptr<std::atomic<bool>> is_open = std::make_shared<std::atomic<bool>>(false);
};

inline void expect(bool holds, const char *what, const char *file, int line)
{
    if (holds)
        return;
    std::fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
    std::exit(NOT_SO);
}

inline void wrong_result()
{
    std::exit(WRONG_RESULT);
}

inline bench::bench()
{
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    OK(cudaMalloc(reinterpret_cast<void **>(&memory), COUNT * sizeof(float)));
}

inline void bench::wait(cudaStream_t on)
{
    cudaError_t error;
    while ((error = cudaStreamQuery(on)) == cudaErrorNotReady)
        usleep(20);
    EXPECT(error == cudaSuccess);
    cudaGetLastError();
}

inline std::vector<float> bench::read()
{
    std::vector<float> values(COUNT);
    wait(side);
    OK(cudaMemcpyAsync(values.data(), memory, COUNT * sizeof(float), cudaMemcpyDeviceToHost,
                       stream));
    return values;
}

inline void bench::close()
{
    OK(cudaFree(memory));
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(side));
    OK(cudaStreamDestroy(stream));
}

inline void set_environment(const char *text, int seed)
{
    std::string rest = text == nullptr ? "" : text;
    for (const char *name :
         {"CUDA_VISIBLE_DEVICES", "MNIST_DDP_EMULATED_DEVICES", "MNIST_DDP_EMULATED_DRIVER",
          "MNIST_DDP_EMULATED_FAIL", "MNIST_DDP_EMULATED_MEMORY_MIB", "MNIST_DDP_EMULATED_STRICT",
          "MNIST_DDP_EMULATED_TRACE", "MNIST_DDP_EMULATED_WORK", "NCCL_ALGO", "NCCL_CONF_FILE"})
        unsetenv(name);
    setenv("MNIST_DDP_EMULATED_SEED", std::to_string(seed).c_str(), 1);
    setenv("MNIST_DDP_EMULATED_LAZY", "0", 1); /* else loading a kernel waits for a gate */
    while (!rest.empty()) {
        size_t space = rest.find(' ');
        std::string one = rest.substr(0, space);
        rest = space == std::string::npos ? "" : rest.substr(space + 1);
        size_t equals = one.find('=');
        setenv(one.substr(0, equals).c_str(), one.substr(equals + 1).c_str(), 1);
    }
}

/* Returns what wait() says of the child, and what that printed. */
inline int run_child(const check &c, int seed, std::string *printed)
{
    int ends[2];
    if (pipe(ends) != 0)
        std::abort();
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        ::close(ends[0]);
        ::close(ends[1]);
        set_environment(c.environment, seed);
        rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        alarm(60);
        c.body();
        std::exit(EXIT_SUCCESS);
    }
    ::close(ends[1]);
    char buffer[4096];
    ssize_t got;
    while ((got = read(ends[0], buffer, sizeof buffer)) > 0)
        printed->append(buffer, static_cast<size_t>(got));
    ::close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return status;
}

inline bool is_exit(int status, int code)
{
    return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

inline bool ends_as_wanted(const check &c, int status)
{
    switch (c.end) {
    case ending::succeeds:
        return is_exit(status, 0);
    case ending::exits:
        return is_exit(status, c.code);
    case ending::dies:
        return WIFSIGNALED(status) ? WTERMSIG(status) != SIGALRM
                                   : WEXITSTATUS(status) != 0 && !is_exit(status, NOT_SO);
    case ending::shows:
        return is_exit(status, 0) || is_exit(status, WRONG_RESULT);
    }
    return false;
}

enum class verdict { passed, failed, skipped };

inline verdict judge(const check &c)
{
    bool good = true, shown = c.end != ending::shows;
    for (int seed = 1; seed <= c.seeds && good; seed++) {
        std::string printed;
        int status = run_child(c, seed, &printed);
        if (is_exit(status, SKIPPED))
            return verdict::skipped;
        good = ends_as_wanted(c, status) &&
               (c.says == nullptr || printed.find(c.says) != std::string::npos);
        shown = shown || is_exit(status, WRONG_RESULT);
        if (!good)
            std::printf("seed %d, status %x:\n%s\n", seed, static_cast<unsigned>(status),
                        printed.c_str());
    }
    return good && shown ? verdict::passed : verdict::failed;
}

/* With an argument: only checks whose name contains it. Returns what main() shall. */
inline int run_checks(const std::vector<check> &checks, int argc, char **argv)
{
    int failed = 0;
    for (const check &c : checks) {
        if (argc > 1 && std::strstr(c.name, argv[1]) == nullptr)
            continue;
        std::fflush(stdout);
        verdict v = judge(c);
        std::printf("%s  %s\n",
                    v == verdict::passed   ? "ok  "
                    : v == verdict::failed ? "FAIL"
                                           : "SKIP",
                    c.name);
        failed += v == verdict::failed ? 1 : 0;
    }
    std::printf("%d failed\n", failed);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
