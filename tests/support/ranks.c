#include "tests/support/ranks.h"

#include "base/clock.h"
#include "dist/store.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_RANKS = 16, DEFAULT_TIMEOUT_MS = 20000, PROCESSES_TIMEOUT_MS = 60000, POLL_MS = 2 };

typedef struct rank_run {
    const ranks_options *options;
    int rank, port;
    rank_fn fn;
    void *arg;
    rank_result result;
} rank_run;

static void run_one(rank_run *run)
{
    const ranks_options *o = run->options;
    int64_t timeout_ms = o->timeout_ms > 0 ? o->timeout_ms : DEFAULT_TIMEOUT_MS;
    store_options keys = {.host = "127.0.0.1",
                          .port = run->port,
                          .prefix = "test/",
                          .timeout_ms = DEFAULT_TIMEOUT_MS,
                          .connect_timeout_ms = DEFAULT_TIMEOUT_MS,
                          .describe = ""};
    const char *backend = o->backend == NULL ? "shm" : o->backend;
    if (run->rank % 2 == 1 && o->odd_backend != NULL)
        backend = o->odd_backend;
    process_group_options group_options = {.backend = backend,
                                           .rank = run->rank,
                                           .world_size = o->world_size,
                                           .timeout_ms = timeout_ms,
                                           .shared_bytes = o->shared_bytes,
                                           .inject_delay_ms = o->inject_delay_ms};
    process_group *group = NULL;
    status st = store_create(&keys, &group_options.store);
    if (st == STATUS_OK)
        st = process_group_create(&group_options, &group);
    int64_t start_ns = clock_now_ns();
    if (st == STATUS_OK)
        st = run->fn(group, run->rank, o->world_size, run->arg);
    run->result.seconds = clock_seconds(clock_now_ns() - start_ns);
    run->result.st = st;
    run->result.reported = true;
    if (st != STATUS_OK)
        snprintf(run->result.message, sizeof run->result.message, "%s", status_message());
    process_group_destroy(group);
    store_destroy(group_options.store);
}

static void *thread_main(void *arg)
{
    run_one(arg);
    return NULL;
}

static status first_failure(const rank_run *runs, int n)
{
    status first = STATUS_OK;
    const char *message = "";
    for (int rank = 0; rank < n; rank++) {
        const rank_result *result = &runs[rank].result;
        if (result->st == STATUS_OK)
            continue;
        fprintf(stderr, "rank %d: %s\n", rank, result->message);
        if (first == STATUS_OK) {
            first = result->st;
            message = result->message;
        }
    }
    return first == STATUS_OK ? STATUS_OK : FAIL(first, "%s", message);
}

status run_ranks_with(const ranks_options *options, rank_fn fn, void *arg)
{
    int n = options->world_size;
    store_server *server = NULL;
    pthread_t threads[MAX_RANKS];
    rank_run runs[MAX_RANKS];
    ASSERT(n >= 1 && n <= MAX_RANKS);
    TRY(store_server_create("127.0.0.1", 0, &server));
    for (int rank = 0; rank < n; rank++) {
        runs[rank] = (rank_run){options, rank, store_server_port(server), fn, arg, {0}};
        int error = pthread_create(&threads[rank], NULL, thread_main, &runs[rank]);
        ASSERT(error == 0);
    }
    for (int rank = 0; rank < n; rank++)
        pthread_join(threads[rank], NULL);
    store_server_destroy(server);
    return first_failure(runs, n);
}

status run_ranks(int world_size, rank_fn fn, void *arg)
{
    ranks_options options = {.world_size = world_size};
    return run_ranks_with(&options, fn, arg);
}

bool ranks_can_fork(void)
{
#ifdef __SANITIZE_THREAD__
    return false;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    return false;
#else
    return true;
#endif
#else
    return true;
#endif
}

static pid_t start_process(rank_run *run, int *result_fd)
{
    int ends[2];
    if (pipe(ends) != 0)
        return -1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        run_one(run);
        ssize_t written = write(ends[1], &run->result, sizeof run->result);
        _exit(written == (ssize_t)sizeof run->result ? 0 : 1);
    }
    close(ends[1]);
    *result_fd = ends[0];
    return pid;
}

/* Notes in ended[] and stopped[] what has happened since; returns how many still run. */
static int look(const pid_t *pids, int n, bool *ended, bool *stopped)
{
    int running = 0;
    for (int rank = 0; rank < n; rank++) {
        int how = 0;
        if (!ended[rank] && waitpid(pids[rank], &how, WUNTRACED | WNOHANG) == pids[rank]) {
            stopped[rank] = WIFSTOPPED(how);
            ended[rank] = !stopped[rank];
        }
        running += !ended[rank] && !stopped[rank];
    }
    return running;
}

static status reap(const pid_t *pids, int n)
{
    bool ended[MAX_RANKS] = {false}, stopped[MAX_RANKS] = {false};
    int64_t deadline_ns = clock_deadline_ns(PROCESSES_TIMEOUT_MS);
    status st = STATUS_OK;
    while (look(pids, n, ended, stopped) > 0 && st == STATUS_OK) {
        if (clock_passed(deadline_ns))
            st = FAIL(STATUS_TIMEOUT, "the ranks did not end within %d ms", PROCESSES_TIMEOUT_MS);
        clock_sleep_ms(POLL_MS);
    }
    for (int rank = 0; rank < n; rank++) {
        if (ended[rank])
            continue;
        kill(pids[rank], SIGKILL);
        while (waitpid(pids[rank], NULL, 0) < 0 && errno == EINTR) {
        }
    }
    return st;
}

status run_rank_processes(const ranks_options *options, rank_fn fn, void *arg, rank_result *results)
{
    int n = options->world_size;
    store_server *server = NULL;
    pid_t pids[MAX_RANKS];
    int fds[MAX_RANKS];
    ASSERT(n >= 1 && n <= MAX_RANKS);
    TRY(store_server_create("127.0.0.1", 0, &server));
    for (int rank = 0; rank < n; rank++) {
        rank_run run = {options, rank, store_server_port(server), fn, arg, {0}};
        pids[rank] = start_process(&run, &fds[rank]);
        ASSERT(pids[rank] > 0);
    }
    status st = reap(pids, n);
    for (int rank = 0; rank < n; rank++) {
        results[rank] = (rank_result){0};
        ssize_t got = read(fds[rank], &results[rank], sizeof results[rank]);
        if (got != (ssize_t)sizeof results[rank])
            results[rank] = (rank_result){.message = "(no report)"};
        close(fds[rank]);
    }
    store_server_destroy(server);
    return st;
}
