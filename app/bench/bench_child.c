#include "app/bench/bench_child.h"

#include "app/options/options_table.h"
#include "base/clock.h"
#include "base/json_text.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OUTPUT_BYTES = 16 << 20, SAID_BYTES = 300, STOP_MS = 10000, DESCRIPTORS = 16 };

/* What torchrun, or a launcher of ours, tells a rank. */
static const char *const RANK_VARIABLES[] = {
    "RANK",        "WORLD_SIZE",  "LOCAL_RANK",      "LOCAL_WORLD_SIZE",
    "GROUP_RANK",  "NODE_RANK",   "ROLE_RANK",       "ROLE_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "GROUP_WORLD_SIZE"};

static bool is_setting(const char *name)
{
    char spelling[OPTION_NAME_BYTES];
    option_match match;
    options_table_normalize(name, spelling);
    for (char *c = spelling; *c != '\0'; c++)
        *c = (char)tolower((unsigned char)*c);
    return options_table_find(spelling, FOR_ALL, &match);
}

/* Would this entry of the environment change what a child does? */
static bool steers(const char *entry)
{
    static const char ours[] = "MNIST_DDP_";
    char name[OPTION_NAME_BYTES];
    size_t length = strcspn(entry, "=");
    if (strncmp(entry, "PET_", 4) == 0 || strncmp(entry, "TORCHELASTIC_", 13) == 0)
        return true;
    if (length >= sizeof name)
        return false;
    snprintf(name, sizeof name, "%.*s", (int)length, entry);
    for (size_t i = 0; i < sizeof RANK_VARIABLES / sizeof RANK_VARIABLES[0]; i++)
        if (strcmp(name, RANK_VARIABLES[i]) == 0)
            return true;
    if (strncmp(name, ours, strlen(ours)) != 0 || strcmp(name, "MNIST_DDP_DATA") == 0)
        return false;
    const char *setting = name + strlen(ours);
    return strcmp(setting, "LAUNCHED") == 0 || is_setting(setting);
}

static status copy_environment(char ***out)
{
    size_t n = 0, kept = 0;
    while (environ[n] != NULL)
        n++;
    char **env = calloc(n + 1, sizeof *env);
    if (env == NULL)
        return FAIL(STATUS_NO_MEMORY, "an environment of %zu entries", n);
    for (size_t i = 0; i < n; i++)
        if (!steers(environ[i]))
            env[kept++] = environ[i];
    *out = env;
    return STATUS_OK;
}

status bench_child_open(int64_t timeout_ms, bench_child *out)
{
    sigset_t stop;
    const char *tmp = getenv("TMPDIR");
    bench_child place = {.timeout_ms = timeout_ms};
    TRY(copy_environment(&place.env));
    int n = snprintf(place.folder, sizeof place.folder, "%s/mnist_ddp-bench-XXXXXX",
                     tmp != NULL ? tmp : "/tmp");
    if (n >= (int)sizeof place.folder)
        strcpy(place.folder, "/tmp/mnist_ddp-bench-XXXXXX");
    if (mkdtemp(place.folder) == NULL) {
        free(place.env);
        return FAIL(STATUS_IO, "make a folder %s: %s", place.folder, strerror(errno));
    }
    sigemptyset(&stop);
    sigaddset(&stop, SIGINT);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGHUP);
    status st = launch_signals_take(&stop, &place.signals);
    if (st == STATUS_OK)
        *out = place;
    else
        bench_child_close(&place);
    return st;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info, (void)type;
    return at->level > 0 ? remove(path) : 0;
}

void bench_child_tidy(const bench_child *place)
{
    nftw(place->folder, remove_entry, DESCRIPTORS, FTW_DEPTH | FTW_PHYS);
}

void bench_child_close(bench_child *place)
{
    if (place->folder[0] == '\0')
        return;
    bench_child_tidy(place);
    rmdir(place->folder);
    launch_signals_close(&place->signals);
    free(place->env);
    *place = (bench_child){.folder = ""};
}

bool bench_child_stopped(bench_child *place)
{
    for (int number; (number = launch_signals_next(&place->signals)) != 0; place->stopped = true)
        place->stop_signal = place->stopped ? place->stop_signal : number;
    return place->stopped;
}

/* One child and what it has been told. */
typedef struct running {
    pid_t pid;
    int pidfd;
    int64_t deadline_ns;
    bool timed_out;
} running;

__attribute__((noreturn)) static void become_child(const bench_child *place,
                                                   const bench_words *words, const int fds[3],
                                                   pid_t parent)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    for (int fd = 0; fd < 3; fd++)
        if (dup2(fds[fd], fd) < 0)
            _exit(127);
    sigprocmask(SIG_SETMASK, &place->signals.mask, NULL);
    execvpe(words->words[0], words->words, place->env);
    fprintf(stderr, "start %s: %s\n", words->words[0], strerror(errno));
    _exit(127);
}

static status open_files(const char *out_path, const char *err_path, int fds[3])
{
    fds[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    fds[1] = open(out_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    fds[2] = open(err_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (fds[0] < 0 || fds[1] < 0 || fds[2] < 0)
        return FAIL(STATUS_IO, "open %s: %s", fds[1] < 0 ? out_path : err_path, strerror(errno));
    return STATUS_OK;
}

static status start(const bench_child *place, const bench_words *words, const char *out_path,
                    const char *err_path, running *out)
{
    int fds[3] = {-1, -1, -1};
    pid_t parent = getpid();
    status st = open_files(out_path, err_path, fds);
    out->deadline_ns = clock_deadline_ns(place->timeout_ms);
    if (st == STATUS_OK) {
        out->pid = fork();
        if (out->pid == 0)
            become_child(place, words, fds, parent);
        if (out->pid < 0)
            st = FAIL(STATUS_IO, "fork: %s", strerror(errno));
    }
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (st != STATUS_OK)
        return st;
    setpgid(out->pid, out->pid); /* whoever of the two comes first */
    out->pidfd = (int)syscall(SYS_pidfd_open, out->pid, 0);
    if (out->pidfd >= 0)
        return STATUS_OK;
    int error = errno;
    kill(-out->pid, SIGKILL);
    waitpid(out->pid, NULL, 0);
    return FAIL(STATUS_IO, "pidfd_open: %s", strerror(error));
}

/* Returns waitpid's state. */
static int wait_for(bench_child *place, running *child)
{
    struct pollfd fds[2] = {{.fd = child->pidfd, .events = POLLIN},
                            {.fd = place->signals.stop_fd, .events = POLLIN}};
    int state = 0;
    for (;;) {
        int n = poll(fds, 2, clock_remaining_ms(child->deadline_ns));
        if (n > 0 && fds[0].revents != 0)
            break;
        bool again = place->stopped;
        if (n > 0 && fds[1].revents != 0 && bench_child_stopped(place) && !again) {
            kill(child->pid, SIGTERM);
            child->deadline_ns = clock_deadline_ns(STOP_MS);
        } else if (n == 0 || (n > 0 && again)) {
            child->timed_out = !place->stopped;
            kill(-child->pid, SIGKILL);
            break;
        }
    }
    siginfo_t info;
    while (waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
    }
    kill(-child->pid, SIGKILL); /* whom it has left behind; its number is still its own */
    while (waitpid(child->pid, &state, 0) < 0 && errno == EINTR) {
    }
    launch_signals_drain_children(&place->signals);
    close(child->pidfd);
    return state;
}

/* The last line with words in it; "" if none. */
static void last_line(const char *path, char *out, size_t size_bytes)
{
    char *text = NULL;
    size_t length = 0;
    out[0] = '\0';
    if (file_read(path, OUTPUT_BYTES, &text, &length) != STATUS_OK)
        return;
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        text[--length] = '\0';
    const char *line = strrchr(text, '\n');
    snprintf(out, size_bytes, "%s", line != NULL ? line + 1 : text);
    free(text);
}

/* The last line that is an object. */
static status find_object(const char *path, json_t **out)
{
    char *text = NULL;
    size_t length = 0;
    json_t *object = NULL;
    TRY(file_read(path, OUTPUT_BYTES, &text, &length));
    while (length > 0 && object == NULL) {
        char *line = memrchr(text, '\n', length);
        line = line != NULL ? line + 1 : text;
        if (*line == '{')
            object = json_text_parse(line, strlen(line), JSON_DISABLE_EOF_CHECK, NULL);
        length = line > text ? (size_t)(line - text) - 1 : 0;
        text[length] = '\0';
    }
    free(text);
    *out = object;
    return object != NULL ? STATUS_OK : FAIL(STATUS_PEER, "it has ended without a JSON line");
}

static status judge(const bench_child *place, const running *child, int state, const char *err_path)
{
    char said[SAID_BYTES];
    last_line(err_path, said, sizeof said);
    const char *colon = said[0] != '\0' ? ": " : "";
    if (place->stopped)
        return FAIL(STATUS_TIMEOUT, "stopped by a signal");
    if (child->timed_out)
        return FAIL(STATUS_TIMEOUT, "killed after %lld s%s%s",
                    (long long)(place->timeout_ms / 1000), colon, said);
    if (WIFSIGNALED(state))
        return FAIL(STATUS_PEER, "ended by SIG%s%s%s", sigabbrev_np(WTERMSIG(state)), colon, said);
    if (WEXITSTATUS(state) != 0)
        return FAIL(STATUS_PEER, "exit code %d%s%s", WEXITSTATUS(state), colon, said);
    return STATUS_OK;
}

status bench_child_run(bench_child *place, const bench_words *words, json_t **out)
{
    char out_path[FILE_PATH_BYTES], err_path[FILE_PATH_BYTES];
    running child = {.pidfd = -1};
    if (words->overflow || words->n == 0)
        return FAIL(STATUS_INVALID, "a command of more than %d words or %d bytes", BENCH_WORDS,
                    BENCH_WORD_BYTES);
    if (bench_child_stopped(place))
        return FAIL(STATUS_TIMEOUT, "stopped by a signal");
    TRY(file_join(place->folder, "stdout", out_path));
    TRY(file_join(place->folder, "stderr", err_path));
    TRY(start(place, words, out_path, err_path, &child));
    int state = wait_for(place, &child);
    TRY(judge(place, &child, state, err_path));
    return find_object(out_path, out);
}
