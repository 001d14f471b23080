#include "tests/app/support/launched_worker.h"

#include "app/common/exit_codes.h"
#include "base/clock.h"
#include "base/status.h"
#include "dist/store/store.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SLEEP_MS = 30000 };

static const char *text_of(const char *name)
{
    const char *value = getenv(name);
    return value != NULL ? value : "(unset)";
}

static int number_of(const char *name)
{
    return atoi(text_of(name));
}

/* Writes a number to TEST_FOLDER/`name`. */
static void note(const char *name, long long number)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", text_of("TEST_FOLDER"), name);
    FILE *file = fopen(path, "w");
    if (file == NULL || fprintf(file, "%lld\n", number) < 0 || fclose(file) != 0)
        exit(LAUNCHED_WORKER_BAD);
}

static int sleep_until_stopped(void)
{
    clock_sleep_ms(SLEEP_MS);
    return LAUNCHED_WORKER_BAD;
}

static int check_variables(int rank)
{
    static const struct {
        const char *name, *value;
    } wanted[] = {
        {"WORLD_SIZE", "3"},
        {"LOCAL_WORLD_SIZE", "3"},
        {"NODE_RANK", "0"},
        {"GROUP_RANK", "0"},
        {"GROUP_WORLD_SIZE", "1"},
        {"ROLE_WORLD_SIZE", "3"},
        {"ROLE_NAME", "default"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"TORCHELASTIC_RESTART_COUNT", "0"},
        {"TORCHELASTIC_MAX_RESTARTS", "0"},
        {"TORCHELASTIC_RUN_ID", "none"},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"},
        {"OMP_NUM_THREADS", "1"},
        {"TEST_KEPT", "as it was"},
    };
    int bad = 0;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (strcmp(text_of(wanted[i].name), wanted[i].value) != 0) {
            fprintf(stderr, "%s=%s, want %s\n", wanted[i].name, text_of(wanted[i].name),
                    wanted[i].value);
            bad = LAUNCHED_WORKER_BAD;
        }
    if (number_of("LOCAL_RANK") != rank || number_of("ROLE_RANK") != rank ||
        number_of("MASTER_PORT") <= 0 || atoll(text_of("MNIST_DDP_LAUNCHED")) <= 0) {
        fprintf(stderr, "LOCAL_RANK, ROLE_RANK, MASTER_PORT or MNIST_DDP_LAUNCHED\n");
        bad = LAUNCHED_WORKER_BAD;
    }
    struct sigaction action;
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    if (sigaction(SIGINT, NULL, &action) != 0 || action.sa_handler != SIG_IGN ||
        sigaction(SIGTERM, NULL, &action) != 0 || action.sa_handler != SIG_DFL ||
        sigaction(SIGPIPE, NULL, &action) != 0 || action.sa_handler != SIG_DFL ||
        sigismember(&mask, SIGTERM) || sigismember(&mask, SIGCHLD)) {
        fprintf(stderr, "signals\n");
        bad = LAUNCHED_WORKER_BAD;
    }
    return bad;
}

static int check_descriptors(void)
{
    int bad = 0;
    DIR *list = opendir("/proc/self/fd");
    if (list == NULL)
        return LAUNCHED_WORKER_BAD;
    for (struct dirent *entry = readdir(list); entry != NULL; entry = readdir(list))
        if (entry->d_name[0] != '.' && atoi(entry->d_name) > 2 &&
            atoi(entry->d_name) != dirfd(list)) {
            fprintf(stderr, "descriptor %s is open\n", entry->d_name);
            bad = LAUNCHED_WORKER_BAD;
        }
    closedir(list);
    return bad;
}

/* Counts itself in the launcher's store and waits for all others. */
static int use_store(const char *counter)
{
    store *client = NULL;
    int64_t count = 0;
    store_options how = {.host = text_of("MASTER_ADDR"),
                         .port = number_of("MASTER_PORT"),
                         .prefix = "test/",
                         .timeout_ms = 5000,
                         .connect_timeout_ms = 5000,
                         .describe = ""};
    status st = store_create(&how, &client);
    if (st == STATUS_OK)
        st = store_add(client, counter, 1, &count);
    if (st == STATUS_OK && count == number_of("WORLD_SIZE"))
        st = store_set(client, "all here", "1", 1);
    if (st == STATUS_OK)
        st = store_wait(client, "all here", 5000);
    if (st != STATUS_OK)
        fprintf(stderr, "%s\n", status_text());
    store_destroy(client);
    return st == STATUS_OK ? 0 : LAUNCHED_WORKER_BAD;
}

static int two_nodes(int rank)
{
    if (rank != number_of("NODE_RANK") * 2 + number_of("LOCAL_RANK") ||
        number_of("GROUP_WORLD_SIZE") != 2 || number_of("WORLD_SIZE") != 4)
        return LAUNCHED_WORKER_BAD;
    int code = use_store("first");
    if (code != 0 || rank < 2)
        return code;
    clock_sleep_ms(400);
    return use_store("second");
}

/* Rank 0 leaves a key and fails once all have seen it; those that are started again find none. */
static int leave_key(int rank)
{
    store *client = NULL;
    bool there = true;
    bool first = number_of("TORCHELASTIC_RESTART_COUNT") == 0;
    store_options how = {.host = text_of("MASTER_ADDR"),
                         .port = number_of("MASTER_PORT"),
                         .prefix = "", /* as a torch process has it */
                         .timeout_ms = 5000,
                         .connect_timeout_ms = 5000,
                         .describe = ""};
    status st = store_create(&how, &client);
    if (st == STATUS_OK && first && rank == 0)
        st = store_set(client, "default_pg/0//address", "old", 3);
    if (st == STATUS_OK && first)
        st = store_wait(client, "default_pg/0//address", 5000);
    if (st == STATUS_OK && !first)
        st = store_check(client, "default_pg/0//address", &there);
    if (st != STATUS_OK)
        fprintf(stderr, "%s\n", status_text());
    if (first && rank == 0)
        clock_sleep_ms(100);
    store_destroy(client);
    if (st != STATUS_OK)
        return LAUNCHED_WORKER_BAD;
    return first ? (rank == 0 ? 3 : sleep_until_stopped()) : there ? LAUNCHED_WORKER_BAD : 0;
}

static int write_lines(void)
{
    for (int i = 1; i <= 30; i++)
        fprintf(stderr, "line %d\n", i);
    fprintf(stderr, "a line without an end");
    return 9;
}

static int write_long_lines(int rank)
{
    char line[102];
    for (int i = 0; i < 2000; i++) {
        int n = snprintf(line, sizeof line, "%d %d ", rank, i);
        memset(line + n, '.', 100 - (size_t)n);
        line[100] = '\n';
        /* In two pieces: lines of different ranks must not mix even so. */
        if (write(2, line, 30) != 30 || write(2, line + 30, 71) != 71)
            return LAUNCHED_WORKER_BAD;
    }
    return 0;
}

static int flood(void)
{
    while (fprintf(stderr, "there is always more to say\n") > 0)
        continue;
    return LAUNCHED_WORKER_BAD;
}

static int write_endless_line(void)
{
    for (int i = 0; i < 1000; i++)
        fprintf(
            stderr, "%.*s", 100,
            "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
            "xxxxxxxxxxxxxxxxxxxx");
    fprintf(stderr, "\n\r 50 %%");
    clock_sleep_ms(20);
    fprintf(stderr, "\r100 %%\ndone\n");
    return 3;
}

static int die(int signal_number)
{
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
    return LAUNCHED_WORKER_BAD;
}

/* Modes in which rank 1 (or all) fails. */
static int fail(const char *mode, int rank)
{
    if (strcmp(mode, "all_exit_72") == 0)
        return EXIT_CODE_PEER;
    if (strstr(mode, "_late") != NULL && rank != 1)
        return rank == 0 ? EXIT_CODE_PEER : EXIT_CODE_TIMEOUT;
    if (strstr(mode, "_late") != NULL)
        clock_sleep_ms(120); /* well within the launcher's grace */
    if (rank != 1)
        return sleep_until_stopped();
    fprintf(stderr, "the last words of rank 1\n");
    if (strncmp(mode, "rank1_exits_7", 13) == 0)
        return 7;
    if (strncmp(mode, "rank1_exits_65", 14) == 0)
        return 65;
    if (strncmp(mode, "rank1_exits_110", 15) == 0)
        return EXIT_CODE_TIMEOUT;
    return die(strncmp(mode, "rank1_is_killed", 15) == 0 ? SIGKILL : SIGSEGV);
}

int launched_worker_main(void)
{
    const char *mode = text_of("TEST_WORKER");
    int rank = number_of("RANK");
    char name[32];
    sigset_t held, listened;
    sigemptyset(&listened);
    sigaddset(&listened, SIGTERM);
    sigaddset(&listened, SIGUSR1);
    /* The launcher holds them until a rank listens. */
    sigprocmask(SIG_UNBLOCK, &listened, &held);
    if (!sigismember(&held, SIGTERM) || !sigismember(&held, SIGUSR1))
        return LAUNCHED_WORKER_BAD;
    if (strstr(mode, "stay") != NULL) {
        signal(SIGTERM, SIG_IGN);
        signal(SIGUSR1, SIG_IGN);
    }
    snprintf(name, sizeof name, "pid.%d", rank);
    note(name, (long long)getpid());
    if (strcmp(mode, "ok") == 0)
        return 0;
    if (strcmp(mode, "note_end") == 0)
        note("end", clock_now_ns());
    if (strcmp(mode, "note_end") == 0)
        return 0;
    if (strcmp(mode, "environment") == 0)
        return check_variables(rank);
    if (strcmp(mode, "omp3") == 0)
        return number_of("OMP_NUM_THREADS") == 3 ? 0 : LAUNCHED_WORKER_BAD;
    if (strcmp(mode, "descriptors") == 0)
        return check_descriptors();
    if (strcmp(mode, "store") == 0)
        return use_store("first");
    if (strcmp(mode, "leave_key") == 0)
        return leave_key(rank);
    if (strcmp(mode, "two_nodes") == 0)
        return two_nodes(rank);
    if (strcmp(mode, "many_lines") == 0)
        return write_lines();
    if (strcmp(mode, "long_lines") == 0)
        return write_long_lines(rank);
    if (strcmp(mode, "flood") == 0)
        return flood();
    if (strcmp(mode, "endless_line") == 0)
        return write_endless_line();
    if (strcmp(mode, "sleep") == 0 || strcmp(mode, "stay") == 0)
        return sleep_until_stopped();
    return fail(mode, rank);
}
