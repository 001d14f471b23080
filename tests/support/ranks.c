#include "tests/support/ranks.h"

#include "base/clock.h"
#include "base/module.h"
#include "dist/backends/local/backend_local.h"
#include "dist/store/store.h"
#include "kernels/device.h"

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
    local_hub *hub; /* NULL: not for threads that meet at one */
    rank_fn fn;
    void *arg;
    rank_result result;
} rank_run;

static _Thread_local device *device_of_rank;
static _Thread_local char host_of_rank[2];

device *ranks_device(void)
{
    return device_of_rank;
}

/* Ranks that are told to be on several hosts meet on loopback all the same. */
static void prepare(const ranks_options *options)
{
    if (options->hosts != NULL)
        setenv("GLOO_SOCKET_IFNAME", "lo", 1);
}

const char *ranks_lack_backend(const char *name)
{
    const module *found = NULL;
    if (strcmp(name, "shm") == 0 || strcmp(name, "local") == 0 || strcmp(name, "hierarchical") == 0)
        return NULL;
#ifdef __SANITIZE_THREAD__
    if (strcmp(name, "gloo") == 0)
        return "libgloo is opaque to the thread sanitizer, which then sees races in it";
#endif
    return module_open(name, &found) == STATUS_OK ? NULL : strdup(status_text());
}

static status interrupted(void *group)
{
    return process_group_check(group);
}

static status open_group(const rank_run *run, store *keys, process_group **out)
{
    const ranks_options *o = run->options;
    const char *backend = o->backend == NULL ? "shm" : o->backend;
    if (run->rank % 2 == 1 && o->odd_backend != NULL)
        backend = o->odd_backend;
    process_group_options options = {.backend = backend,
                                     .rank = run->rank,
                                     .world_size = o->world_size,
                                     .store = keys,
                                     .hub = run->hub,
                                     .timeout_ms =
                                         o->timeout_ms > 0 ? o->timeout_ms : DEFAULT_TIMEOUT_MS,
                                     .shared_bytes = o->shared_bytes,
                                     .inject_delay_ms = o->inject_delay_ms,
                                     .debug = o->debug,
                                     .eager = o->eager};
    if (o->hosts != NULL) {
        host_of_rank[0] = o->hosts[run->rank];
        options.host = host_of_rank; /* sub-groups read it, too */
    }
    if (o->open_device != NULL)
        TRY(o->open_device(run->rank, &device_of_rank));
    options.device = device_of_rank;
    TRY(process_group_create(&options, out));
    if (device_of_rank != NULL) {
        device_of_rank->interrupted = interrupted;
        device_of_rank->interrupted_ctx = *out;
    }
    return STATUS_OK;
}

static void close_group(const rank_run *run, process_group *group)
{
    if (device_of_rank != NULL)
        device_of_rank->interrupted = NULL;
    process_group_destroy(group);
    if (device_of_rank != NULL)
        run->options->close_device(device_of_rank);
    device_of_rank = NULL;
}

static void run_one(rank_run *run)
{
    store_options where = {.host = "127.0.0.1",
                           .port = run->port,
                           .prefix = "test/",
                           .timeout_ms = DEFAULT_TIMEOUT_MS,
                           .connect_timeout_ms = DEFAULT_TIMEOUT_MS,
                           .describe = ""};
    store *keys = NULL;
    process_group *group = NULL;
    status st = store_create(&where, &keys);
    if (st == STATUS_OK)
        st = open_group(run, keys, &group);
    int64_t start_ns = clock_now_ns();
    if (st == STATUS_OK)
        st = run->fn(group, run->rank, run->options->world_size, run->arg);
    run->result.seconds = clock_seconds(clock_now_ns() - start_ns);
    run->result.st = st;
    run->result.reported = true;
    if (st != STATUS_OK)
        snprintf(run->result.message, sizeof run->result.message, "%s", status_text());
    close_group(run, group);
    store_destroy(keys);
}

void run_as_rank(const rank_job *job, rank_result *result)
{
    rank_run run = {job->options, job->rank, job->port, NULL, job->fn, job->arg, {0}};
    run_one(&run);
    *result = run.result;
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
    prepare(options);
    ASSERT(n >= 1 && n <= MAX_RANKS);
    local_hub *hub = NULL;
    TRY(store_server_create("127.0.0.1", 0, &server));
    if (options->backend != NULL && strcmp(options->backend, "local") == 0)
        TRY(local_hub_create(n, &hub));
    for (int rank = 0; rank < n; rank++) {
        runs[rank] = (rank_run){options, rank, store_server_port(server), hub, fn, arg, {0}};
        int error = pthread_create(&threads[rank], NULL, thread_main, &runs[rank]);
        ASSERT(error == 0);
    }
    for (int rank = 0; rank < n; rank++)
        pthread_join(threads[rank], NULL);
    local_hub_destroy(hub);
    store_server_destroy(server);
    return first_failure(runs, n);
}

status run_ranks(int world_size, rank_fn fn, void *arg)
{
    ranks_options options = {.world_size = world_size};
    return run_ranks_with(&options, fn, arg);
}

/* A rank's process and its two pipes. */
typedef struct process {
    pid_t pid;
    int port_fd;   /* the parent writes the store's port */
    int result_fd; /* the rank writes its rank_result */
} process;

/* The child: waits for the port, runs, reports. */
static void child_main(rank_run *run, int port_fd, int result_fd)
{
    if (read(port_fd, &run->port, sizeof run->port) != (ssize_t)sizeof run->port)
        _exit(1);
    run_one(run);
    ssize_t written = write(result_fd, &run->result, sizeof run->result);
    _exit(written == (ssize_t)sizeof run->result ? 0 : 1);
}

static process start_process(rank_run *run)
{
    int port[2], result[2];
    int failed = pipe(port) | pipe(result);
    ASSERT(failed == 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        close(port[1]);
        close(result[0]);
        child_main(run, port[0], result[1]);
    }
    ASSERT(pid > 0);
    close(port[0]);
    close(result[1]);
    return (process){pid, port[1], result[0]};
}

/* Notes in ended[] and stopped[] what has happened since; returns how many still run. */
static int look(const process *processes, int n, bool *ended, bool *stopped)
{
    int running = 0;
    for (int rank = 0; rank < n; rank++) {
        int how = 0;
        if (!ended[rank] &&
            waitpid(processes[rank].pid, &how, WUNTRACED | WNOHANG) == processes[rank].pid) {
            stopped[rank] = WIFSTOPPED(how);
            ended[rank] = !stopped[rank];
        }
        running += !ended[rank] && !stopped[rank];
    }
    return running;
}

static status reap(const process *processes, int n, int64_t limit_ms)
{
    bool ended[MAX_RANKS] = {false}, stopped[MAX_RANKS] = {false};
    int64_t deadline_ns = clock_deadline_ns(limit_ms);
    status st = STATUS_OK;
    while (look(processes, n, ended, stopped) > 0 && st == STATUS_OK) {
        if (clock_passed(deadline_ns))
            st = FAIL(STATUS_TIMEOUT, "the ranks did not end within %lld ms", (long long)limit_ms);
        clock_sleep_ms(POLL_MS);
    }
    for (int rank = 0; rank < n; rank++) {
        if (ended[rank])
            continue;
        kill(processes[rank].pid, SIGKILL);
        while (waitpid(processes[rank].pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    return st;
}

static rank_result collect(const process *p)
{
    rank_result result;
    ssize_t got = read(p->result_fd, &result, sizeof result);
    close(p->result_fd);
    close(p->port_fd);
    return got == (ssize_t)sizeof result ? result : (rank_result){.message = "(no report)"};
}

/* The server's thread starts after the forks: a child must not inherit a lock that it holds. */
status run_rank_processes(const ranks_options *options, rank_fn fn, void *arg, rank_result *results)
{
    int n = options->world_size;
    store_server *server = NULL;
    process processes[MAX_RANKS];
    prepare(options);
    ASSERT(n >= 1 && n <= MAX_RANKS);
    for (int rank = 0; rank < n; rank++) {
        rank_run run = {options, rank, 0, NULL, fn, arg, {0}};
        processes[rank] = start_process(&run);
    }
    status st = store_server_create("127.0.0.1", 0, &server);
    int port = st == STATUS_OK ? store_server_port(server) : -1;
    for (int rank = 0; rank < n; rank++) {
        ssize_t written = write(processes[rank].port_fd, &port, sizeof port);
        ASSERT(written == (ssize_t)sizeof port);
    }
    status reaped =
        reap(processes, n, options->limit_ms > 0 ? options->limit_ms : PROCESSES_TIMEOUT_MS);
    for (int rank = 0; rank < n; rank++)
        results[rank] = collect(&processes[rank]);
    store_server_destroy(server);
    return st != STATUS_OK ? st : reaped;
}
