/* Runs of the program that are under way: their log, their processes, how they end. */
#ifndef MNIST_DDP_TESTS_APP_UNDERWAY_H
#define MNIST_DDP_TESTS_APP_UNDERWAY_H

#include "base/clock.h"
#include "tests/app/workbench.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/socket.h>

enum { RUN_S = 60, MAX_WORDS = 64, MAX_RANKS = 8, ENVIRON_BYTES = 65536, POLL_MS = 5 };

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* One small epoch by one thread per rank; `flags` that follow win. */
#define SMALL_RUN \
    "train", "--model", "mlp", "--limit", "192", "--epochs", "1", "--threads", "1", "--json"

/* Starts `before` (env and variables, a shell, or nothing: NULL), the program, and `flags`. */
static inline program underway_start(const char *const *before, const char *const *flags)
{
    const char *argv[MAX_WORDS] = {NULL};
    int n = 0;
    for (size_t i = 0; before != NULL && before[i] != NULL && n < MAX_WORDS - 2; i++)
        argv[n++] = before[i];
    argv[n++] = program_mnist_ddp();
    for (size_t i = 0; flags[i] != NULL && n < MAX_WORDS - 1; i++)
        argv[n++] = flags[i];
    return program_start(argv);
}

static inline program underway_run(const char *const *before, const char *const *flags)
{
    program p = underway_start(before, flags);
    program_wait(&p, RUN_S);
    return p;
}

/* What a file of /proc says; "" where the process is gone. */
static inline void underway_proc(pid_t pid, const char *name, char *out, size_t size_bytes)
{
    char path[128];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = 0, total = 0;
    while (fd >= 0 && (n = read(fd, out + total, size_bytes - 1 - (size_t)total)) > 0)
        total += n;
    out[total] = '\0';
    for (ssize_t i = 0; i < total; i++) /* environ parts its variables with zero bytes */
        if (out[i] == '\0')
            out[i] = '\n';
    if (fd >= 0)
        close(fd);
}

/* The processes that a launcher has started, MAX_RANKS at most. */
static inline int underway_children(pid_t launcher, pid_t *out)
{
    char name[64], text[512];
    int n = 0;
    snprintf(name, sizeof name, "task/%d/children", (int)launcher);
    underway_proc(launcher, name, text, sizeof text);
    for (char *at = text, *end = NULL; n < MAX_RANKS; at = end) {
        long pid = strtol(at, &end, 10);
        if (end == at)
            break;
        out[n++] = (pid_t)pid;
    }
    return n;
}

/* The process of a rank that a launcher has started. */
static inline pid_t underway_rank(pid_t launcher, int rank)
{
    static char text[ENVIRON_BYTES];
    pid_t pids[MAX_RANKS];
    char variable[32];
    snprintf(variable, sizeof variable, "\nRANK=%d\n", rank);
    int n = underway_children(launcher, pids);
    for (int i = 0; i < n; i++) {
        underway_proc(pids[i], "environ", text, sizeof text);
        if (strstr(text, variable) != NULL)
            return pids[i];
    }
    ck_abort_msg("launcher %d has no rank %d among %d children", (int)launcher, rank, n);
    return -1;
}

/* Gone, or a zombie that nobody has reaped. */
static inline bool underway_is_gone(pid_t pid)
{
    char text[512];
    underway_proc(pid, "stat", text, sizeof text);
    const char *end = strrchr(text, ')'); /* of the name; the state follows */
    return end == NULL || end[2] == 'Z' || end[2] == 'X';
}

/* Returns once a line of the program's stderr holds all these facts. */
#define underway_await(p, ...) underway_await_listed((p), WORDS(__VA_ARGS__))
static inline void underway_await_listed(const program *p, const char *const *facts)
{
    int64_t deadline_ns = clock_deadline_ns(RUN_S * 1000);
    bool said = false;
    while (!said) {
        bool gone = underway_is_gone(p->pid);
        char *text = program_peek(p);
        said = facts_listed_in_a_line(text, facts);
        if (!said && (clock_passed(deadline_ns) || gone)) {
            kill(-p->pid, SIGKILL);
            ASSERT_FACTS_LISTED(text, facts);
        }
        free(text);
        clock_sleep_ms(POLL_MS);
    }
}

/* The ranks are training, and the first epoch's checkpoint is written. */
static inline void underway_await_training(const program *p)
{
    underway_await(p, "epoch 2/");
}

static inline void underway_assert_gone(const pid_t *pids, int n, int within_ms)
{
    int64_t deadline_ns = clock_deadline_ns(within_ms);
    for (int i = 0; i < n; i++) {
        while (!underway_is_gone(pids[i]) && !clock_passed(deadline_ns))
            clock_sleep_ms(POLL_MS);
        bool gone = underway_is_gone(pids[i]);
        if (!gone)
            kill(pids[i], SIGKILL);
        ck_assert_msg(gone, "process %d is left over after %d ms", (int)pids[i], within_ms);
    }
}

/* A listening socket on loopback, with a port that was free. */
static inline int underway_listen(int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, size), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

/* Returns once something accepts connections at this port. */
static inline void underway_await_listener(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int64_t deadline_ns = clock_deadline_ns(RUN_S * 1000);
    bool there = false;
    while (!there) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        there = connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
        close(fd);
        ck_assert_msg(there || !clock_passed(deadline_ns), "nobody listens at port %d", port);
        clock_sleep_ms(POLL_MS);
    }
}

/* "--name=number", in memory that lasts for the test. */
static inline const char *underway_text(const char *name, int number)
{
    static char texts[16][48];
    static int next;
    char *text = texts[next++ % 16];
    snprintf(text, sizeof texts[0], "%s%d", name, number);
    return text;
}

static inline int underway_free_port(void)
{
    int port = 0;
    close(underway_listen(&port));
    return port;
}

static const char *const underway_backends[] = {"shm", "gloo"};

/* How many of them are in this build; says so where one is not. */
static inline int underway_backend_count(void)
{
    char module[FILE_PATH_BYTES];
    const char *folder = getenv("BUILD_DIR");
    snprintf(module, sizeof module, "%s/mnist_ddp_gloo.so", folder != NULL ? folder : ".");
    if (file_exists(module))
        return 2;
    printf("SKIP: the tests with gloo, which is not in this build\n");
    return 1;
}

/* For main(): as a user's terminal has it, whoever runs the tests. */
static inline void underway_clean_environment(void)
{
    static const char *const unset[] = {"RANK",
                                        "LOCAL_RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_WORLD_SIZE",
                                        "NODE_RANK",
                                        "GROUP_RANK",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "PET_NNODES",
                                        "PET_NODE_RANK",
                                        "PET_NPROC_PER_NODE",
                                        "PET_MASTER_ADDR",
                                        "PET_MASTER_PORT",
                                        "OMP_NUM_THREADS"};
    for (size_t i = 0; i < sizeof unset / sizeof unset[0]; i++)
        unsetenv(unset[i]);
    signal(SIGINT, SIG_DFL); /* a shell's background job starts with these ignored */
    signal(SIGQUIT, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
}

#endif
