#include "app/bench/measure.h"

#include "app/common/run_files.h"
#include "app/common/terminal.h"
#include "app/options/options_table.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEPT_BYTES = SUBPROCESS_KEPT_BYTES, SAID_BYTES = 300, GRACE_MS = 10000 };

static const char ERROR[] = "error: ";

/* The end of what a program writes. */
typedef struct tail {
    int from, into; /* the ends of a pipe; -1: closed */
    char *text;     /* (2 KEPT_BYTES + 1) */
    size_t used;    /* at most KEPT_BYTES between two calls */
} tail;

static void close_end(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static status tail_open(tail *t)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return FAIL(STATUS_IO, "a pipe from a program: %s", strerror(errno));
    *t = (tail){.from = ends[0], .into = ends[1], .text = calloc(2 * KEPT_BYTES + 1, 1)};
    fcntl(t->from, F_SETFL, O_NONBLOCK); /* this end alone does not block */
    return t->text != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "%d bytes", 2 * KEPT_BYTES);
}

/* Takes all that is in the pipe, which holds less than KEPT_BYTES. Does not wait. */
static void tail_read(tail *t)
{
    ssize_t n = t->from >= 0 ? read(t->from, t->text + t->used, KEPT_BYTES) : -1;
    if (n == 0)
        close_end(&t->from);
    t->used += n > 0 ? (size_t)n : 0;
    if (t->used > KEPT_BYTES) {
        memmove(t->text, t->text + t->used - KEPT_BYTES, KEPT_BYTES);
        t->used = KEPT_BYTES;
    }
    t->text[t->used] = '\0';
}

static void tail_close(tail *t)
{
    close_end(&t->from);
    close_end(&t->into);
    free(t->text);
}

/* A program that was started. */
typedef struct running {
    pid_t pid;
    int pidfd, stops; /* stops: readable if a signal came that stops it; -1: closed */
    tail out, err;
    bool stopped, timed_out;
} running;

__attribute__((noreturn)) static void become(const subprocess *program, const running *r,
                                             pid_t parent)
{
    sigset_t none;
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || in < 0 || dup2(in, STDIN_FILENO) < 0 ||
        dup2(r->out.into, STDOUT_FILENO) < 0 || dup2(r->err.into, STDERR_FILENO) < 0)
        _exit(127);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL); /* this process may have blocked some for itself */
    execvpe(program->argv[0], program->argv, program->env != NULL ? program->env : environ);
    dprintf(STDERR_FILENO, "start %s: %s\n", program->argv[0], strerror(errno));
    _exit(127);
}

/* A descriptor that is readable if a stop came. */
static int watch_stops(const stop_signals *signals)
{
    if (signals == NULL)
        return stop_signals_watch_blocked();
    return signals->fd > 0 ? fcntl(signals->fd, F_DUPFD_CLOEXEC, 0) : -1;
}

static status start(const subprocess *program, running *r)
{
    pid_t parent = getpid();
    TRY(tail_open(&r->out));
    TRY(tail_open(&r->err));
    r->stops = watch_stops(program->signals);
    signal(SIGCHLD, SIG_DFL); /* ignored, the kernel would reap the program */
    pid_t pid = fork();
    if (pid == 0)
        become(program, r, parent);
    if (pid < 0)
        return FAIL(STATUS_IO, "fork: %s", strerror(errno));
    setpgid(pid, pid); /* whichever of the two is first */
    close_end(&r->out.into);
    close_end(&r->err.into);
    r->pid = pid;
    r->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (r->pidfd < 0) {
        kill(-pid, SIGKILL);
        return FAIL(STATUS_IO, "pidfd_open: %s", strerror(errno));
    }
    return STATUS_OK;
}

/* Returns when the program has ended or was killed. */
static void wait_for(const subprocess *program, running *r)
{
    int64_t deadline_ns = clock_deadline_ns(program->timeout_ms);
    for (;;) {
        int left_ms = clock_remaining_ms(deadline_ns);
        struct pollfd fds[] = {{r->pidfd, POLLIN, 0},
                               {r->stops, POLLIN, 0},
                               {r->out.from, POLLIN, 0},
                               {r->err.from, POLLIN, 0}};
        int n = poll(fds, sizeof fds / sizeof fds[0], left_ms);
        tail_read(&r->out);
        tail_read(&r->err);
        if (n > 0 && fds[0].revents != 0)
            return;
        bool stop = n > 0 && fds[1].revents != 0;
        if (left_ms == 0 || (stop && r->stopped)) {
            r->timed_out = !r->stopped;
            kill(-r->pid, SIGKILL);
            return;
        }
        if (!stop)
            continue;
        r->stopped = true;
        kill(r->pid, SIGTERM);
        deadline_ns = clock_deadline_ns(program->grace_ms > 0 ? program->grace_ms : GRACE_MS);
        if (program->signals != NULL)
            stop_signals_next(program->signals);
        else
            close_end(&r->stops); /* it stays pending: a second one is not told from it */
    }
}

/* Kills what the program left running, and takes its state: waitpid's. */
static int reap(const running *r)
{
    siginfo_t info;
    int state = 0;
    while (waitid(P_PID, (id_t)r->pid, &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
    }
    kill(-r->pid, SIGKILL); /* until waitpid its number is its own */
    while (waitpid(r->pid, &state, 0) < 0 && errno == EINTR) {
    }
    return state;
}

/* The last error, where a line names one: reports and hints may follow. NULL: none does. */
static char *last_error(char *text)
{
    char *found = NULL;
    for (char *at = strstr(text, ERROR); at != NULL; at = strstr(at + 1, ERROR))
        found = at;
    return found;
}

/* The last error, else the last line with words in it, with ": " before it; "" if there is none.
 * Cuts the text. */
static void last_words(char *text, char out[SAID_BYTES])
{
    size_t length = strlen(text);
    out[0] = '\0';
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        text[--length] = '\0';
    char *words = last_error(text), *line = strrchr(text, '\n');
    if (length == 0)
        return;
    if (words == NULL)
        words = line != NULL ? line + 1 : text;
    words[strcspn(words, "\n")] = '\0';
    strcpy(out, ": ");
    printable_copy(PRINTABLE_LINE, words, out + 2, SAID_BYTES - 2);
}

/* The failure of a program that did not end by itself. */
static status judge_wait(const subprocess *program, running *r)
{
    char said[SAID_BYTES];
    if (r->stopped)
        return FAIL(STATUS_TIMEOUT, "stopped by a signal");
    if (!r->timed_out)
        return STATUS_OK;
    last_words(r->err.text, said);
    return FAIL(STATUS_TIMEOUT, "killed after %lld s%s", (long long)(program->timeout_ms / 1000),
                said);
}

static char *take(char **text)
{
    char *taken = *text;
    *text = NULL;
    return taken;
}

status subprocess_watch(const subprocess *program, subprocess_end *out)
{
    static const tail closed = {.from = -1, .into = -1};
    running r = {.pidfd = -1, .stops = -1, .out = closed, .err = closed};
    status st = start(program, &r);
    if (st == STATUS_OK)
        wait_for(program, &r);
    int state = r.pid > 0 ? reap(&r) : 0;
    if (st == STATUS_OK) {
        tail_read(&r.out);
        tail_read(&r.err);
        st = judge_wait(program, &r);
    }
    if (st == STATUS_OK)
        *out = (subprocess_end){state, take(&r.out.text), take(&r.err.text)};
    close_end(&r.pidfd);
    close_end(&r.stops);
    tail_close(&r.out);
    tail_close(&r.err);
    return st;
}

status subprocess_run(const subprocess *program, char **out)
{
    char said[SAID_BYTES];
    subprocess_end end;
    TRY(subprocess_watch(program, &end));
    status st = STATUS_OK;
    last_words(end.err, said);
    if (WIFSIGNALED(end.wait_status))
        st = FAIL(STATUS_PEER, "ended by SIG%s%s", sigabbrev_np(WTERMSIG(end.wait_status)), said);
    else if (WEXITSTATUS(end.wait_status) != 0)
        st = FAIL(STATUS_PEER, "exit code %d%s", WEXITSTATUS(end.wait_status), said);
    if (st == STATUS_OK)
        *out = take(&end.out);
    free(end.out);
    free(end.err);
    return st;
}

enum { DESCRIPTORS = 16, LINE_BYTES = 8192, SPLIT_BYTES = 2048 };

void bench_words_add(bench_words *words, const char *fmt, ...)
{
    va_list args;
    size_t room = sizeof words->text - words->used;
    va_start(args, fmt);
    int length = vsnprintf(words->text + words->used, room, fmt, args);
    va_end(args);
    if (length < 0 || (size_t)length >= room || words->n == BENCH_WORDS) {
        words->overflow = true;
        return;
    }
    words->words[words->n++] = words->text + words->used;
    words->used += (size_t)length + 1;
}

void bench_words_split(bench_words *words, const char *fmt, ...)
{
    char text[SPLIT_BYTES];
    va_list args;
    va_start(args, fmt);
    words->overflow |= vsnprintf(text, sizeof text, fmt, args) >= SPLIT_BYTES;
    va_end(args);
    for (char *rest = text, *word; (word = strsep(&rest, " ")) != NULL;)
        if (*word != '\0')
            bench_words_add(words, "%s", word);
}

void bench_words_line(const bench_words *words, char *out, size_t size_bytes)
{
    char *line = shell_words_line(words->words);
    snprintf(out, size_bytes, "%s", line != NULL ? line : "");
    free(line);
}

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

/* A line of the log. The signals are blocked, so the wait for stderr's reader looks for them. */
static void write_line(void *self, const char *line, size_t size_bytes)
{
    bench_child *place = self;
    char text[LINE_BYTES + TERMINAL_FORMAT_BYTES];
    if (size_bytes > LINE_BYTES)
        size_bytes = LINE_BYTES;
    size_bytes = terminal_format(terminal_of(STDERR_FILENO), line, size_bytes, text);
    line = text;
    for (size_t done = 0; done < size_bytes;) {
        struct pollfd fds[] = {{STDERR_FILENO, POLLOUT, 0}, {place->signals.fd, POLLIN, 0}};
        size_t rest = size_bytes - done;
        if (poll(fds, 2, bench_child_stopped(place) ? 0 : -1) <= 0 || fds[0].revents == 0)
            return;
        ssize_t n = write(STDERR_FILENO, line + done, rest < PIPE_BUF ? rest : PIPE_BUF);
        if (n <= 0)
            return;
        done += (size_t)n;
    }
}

status bench_child_open(int64_t timeout_ms, bench_child *out)
{
    bench_child place = {.timeout_ms = timeout_ms};
    sigset_t stops;
    TRY(file_make_temporary_folder(NULL, "mnist_ddp_bench", place.folder));
    status st = copy_environment(&place.env);
    if (st == STATUS_OK)
        st = stop_signals_parse("SIGINT,SIGTERM,SIGHUP", &stops);
    if (st == STATUS_OK)
        st = stop_signals_take(&stops, &place.signals);
    if (st != STATUS_OK) {
        bench_child_close(&place);
        return st;
    }
    *out = place;
    log_set_sink(write_line, out);
    return STATUS_OK;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info, (void)type;
    return at->level > 0 ? remove(path) : 0;
}

static void empty_folder(const bench_child *place)
{
    nftw(place->folder, remove_entry, DESCRIPTORS, FTW_DEPTH | FTW_PHYS);
}

void bench_child_release_signals(bench_child *place)
{
    (void)bench_child_stopped(place); /* takes what has come */
    if (place->signals.fd > 0)
        sigprocmask(SIG_SETMASK, &place->signals.before, NULL);
    terminal_take_log();
}

void bench_child_close(bench_child *place)
{
    if (place->folder[0] == '\0')
        return;
    bench_child_release_signals(place);
    empty_folder(place);
    rmdir(place->folder);
    stop_signals_close(&place->signals);
    free(place->env);
    *place = (bench_child){.folder = ""};
}

bool bench_child_stopped(bench_child *place)
{
    return stop_signals_came(&place->signals);
}

/* The last line that is an object; cuts the text. */
static status find_object(char *text, json_t **out)
{
    json_t *object = NULL;
    for (char *end = text + strlen(text); end != NULL && object == NULL; *end = '\0') {
        end = strrchr(text, '\n');
        char *line = end != NULL ? end + 1 : text;
        if (*line == '{')
            object = json_text_parse(line, strlen(line), 0, NULL);
        if (end == NULL)
            break;
    }
    *out = object;
    return object != NULL ? STATUS_OK : FAIL(STATUS_PEER, "it has ended without a JSON line");
}

status bench_child_run(bench_child *place, const bench_words *words, json_t **out)
{
    char *text = NULL;
    if (words->overflow || words->n == 0)
        return FAIL(STATUS_INVALID, "a command of more than %d words or %d bytes", BENCH_WORDS,
                    BENCH_WORD_BYTES);
    if (bench_child_stopped(place))
        return FAIL(STATUS_TIMEOUT, "stopped by a signal");
    empty_folder(place);
    TRY(subprocess_run(&(subprocess){.argv = words->words,
                                     .env = place->env,
                                     .timeout_ms = place->timeout_ms,
                                     .signals = &place->signals},
                       &text));
    status st = find_object(text, out);
    free(text);
    return st;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_stats_quantile(const double *sorted, int n, double p)
{
    double at = p * (n - 1);
    int below = (int)floor(at);
    if (below >= n - 1)
        return sorted[n - 1];
    return sorted[below] + (at - below) * (sorted[below + 1] - sorted[below]);
}

double bench_stats_median(double *values, int n)
{
    if (n == 0)
        return (double)NAN;
    qsort(values, (size_t)n, sizeof *values, compare);
    return bench_stats_quantile(values, n, 0.5);
}

/* The probability that fewer than k of n samples lie below the true median, each with 1/2. */
static double chance_below(int n, int k)
{
    double sum = 0;
    for (int i = 0; i < k; i++)
        sum += exp(lgamma(n + 1.0) - lgamma(i + 1.0) - lgamma(n - i + 1.0) - n * log(2.0));
    return sum;
}

/* The k-th smallest and the k-th largest sample miss the true median on either side with the
 * probability that fewer than k samples lie there. The largest k whose interval holds 95 %. */
static void set_interval(const double *sorted, bench_summary *out)
{
    int k = 0;
    while (2 * (k + 1) <= out->n && 1 - 2 * chance_below(out->n, k + 1) >= 0.95)
        k++;
    out->low = out->high = out->coverage = (double)NAN;
    if (k == 0)
        return;
    out->low = sorted[k - 1];
    out->high = sorted[out->n - k];
    out->coverage = 1 - 2 * chance_below(out->n, k);
}

bool bench_stats_is_outlier(const bench_summary *summary, double value)
{
    return value < summary->low_fence || value > summary->high_fence;
}

bench_summary bench_stats_summary(double *values, int n)
{
    bench_summary s = {.n = n, .median = bench_stats_median(values, n)};
    s.low_fence = -HUGE_VAL;
    s.high_fence = HUGE_VAL;
    set_interval(values, &s);
    if (n < 4) /* quartiles of fewer are the samples themselves */
        return s;
    double q1 = bench_stats_quantile(values, n, 0.25), q3 = bench_stats_quantile(values, n, 0.75);
    s.low_fence = q1 - 1.5 * (q3 - q1);
    s.high_fence = q3 + 1.5 * (q3 - q1);
    for (int i = 0; i < n; i++)
        s.outliers += bench_stats_is_outlier(&s, values[i]);
    return s;
}

enum { GIVE_UP = 2 }; /* failures in a row: as often as a case is tried in vain */

/* A missing number is not known, and never 0. */
static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static double largest(const json_t *list)
{
    double found = (double)NAN;
    const json_t *value;
    size_t i;
    json_array_foreach(list, i, value) if (json_is_number(value)) found =
        fmax(found, json_number_value(value)); /* passes over NAN */
    return found;
}

static void read_peaks(const json_t *list, bench_sample *out)
{
    const json_t *value;
    size_t i;
    json_array_foreach(list, i, value) if (i < BENCH_MAX_DEVICES && json_is_number(value))
        out->peak_mib[out->peak_mib_count++] = json_number_value(value);
}

status bench_sample_read(const json_t *line, int warmup, int global_batch, bench_sample *out)
{
    const json_t *train_s = json_object_get(line, "train_s"), *value;
    size_t epochs = json_array_size(train_s), i;
    double images = number(line, "images_per_epoch"), all_s = 0, timed_s = 0;
    if (epochs <= (size_t)warmup || !(images > 0))
        return FAIL(STATUS_PEER, "its JSON line tells of %zu epochs, want more than %d", epochs,
                    warmup);
    json_array_foreach(train_s, i, value)
    {
        all_s += json_number_value(value);
        timed_s += i >= (size_t)warmup ? json_number_value(value) : 0;
    }
    if (!(timed_s > 0))
        return FAIL(STATUS_PEER, "its JSON line has an epoch that took no time");
    double steps = number(line, "steps"), timed = (double)(epochs - (size_t)warmup);
    double epoch_steps = ceil(images / global_batch);
    steps = steps > 0 ? steps : epoch_steps * (double)epochs;
    const json_t *phases = json_object_get(line, "phases"), *bytes = json_object_get(line, "bytes");
    bench_sample s = {
        .images_per_s = images * timed / timed_s,
        .step_s = timed_s / (epoch_steps * timed),
        .whole_step_s = all_s / steps,
        .comm_total_s = number(line, "comm_total") / steps,
        .comm_exposed_s = number(line, "comm_exposed") / steps,
        .sent_bytes = number(bytes, "sent"),
        .received_bytes = number(bytes, "received"),
        .sent_busiest_bytes = number(bytes, "sent_busiest"),
        .received_busiest_bytes = number(bytes, "received_busiest"),
        .test_acc = number(line, "test_acc"),
        .last_loss = number(line, "last_loss"),
        .train_loss = number(line, "train_loss"),
        .state_mib = largest(json_object_get(line, "state_mib")),
    };
    for (int p = 0; p < N_PHASES; p++)
        s.phase_s[p] = number(phases, moment_about((moment)p)->name) / steps;
    read_peaks(json_object_get(line, "peak_mib"), &s);
    *out = s;
    return STATUS_OK;
}

double bench_train_loss(const char *run_folder)
{
    char path[FILE_PATH_BYTES], *line = NULL;
    size_t room = 0;
    double found = (double)NAN;
    snprintf(path, sizeof path, "%s/" RUN_FILE_METRICS, run_folder);
    FILE *in = fopen(path, "r");
    while (in != NULL && getline(&line, &room, in) > 0) {
        json_t *event = json_loads(line, 0, NULL);
        if (json_object_get(event, "train_loss") != NULL)
            found = number(event, "train_loss");
        json_decref(event);
    }
    free(line);
    if (in != NULL)
        fclose(in);
    return found;
}

/* How far the measuring is. */
typedef struct run_counter {
    int64_t started_ns;
    status_line line; /* whose lock what follows has */
    int done, all;
    char name[BENCH_CASE_BYTES]; /* the run under way */
} run_counter;

/* What is left takes as long as what was done, run by run. */
static double left_s(const run_counter *p, int64_t now_ns)
{
    return clock_seconds(now_ns - p->started_ns) / p->done * (p->all - p->done);
}

enum { PASSED_PRIORITY = 1, BAR_PRIORITY, LEFT_PRIORITY, NAME_PRIORITY, RUN_PRIORITY };

static void tell(void *ctx, status_parts *out)
{
    run_counter *p = ctx;
    int64_t now_ns = clock_now_ns();
    status_parts_add(out, RUN_PRIORITY, "run %d/%d", p->done + 1, p->all);
    status_parts_add(out, NAME_PRIORITY, "%s", p->name);
    status_parts_add_time(out, PASSED_PRIORITY, clock_seconds(now_ns - p->started_ns), "passed");
    if (p->done > 0)
        status_parts_add_time(out, LEFT_PRIORITY, left_s(p, now_ns), "left");
    out->bar_priority = BAR_PRIORITY;
    out->done = (double)p->done / p->all;
}

static void counter_set(run_counter *p, int done, int all, const char *name)
{
    pthread_mutex_lock(&p->line.lock);
    p->done = done;
    p->all = all;
    snprintf(p->name, sizeof p->name, "%s", name);
    pthread_mutex_unlock(&p->line.lock);
}

status bench_measure(const bench_measurement *m, bench_child *place)
{
    char name[BENCH_CASE_BYTES], figure[BENCH_FIGURE_BYTES];
    int done = 0, all = m->cases * m->repeats, *failures = calloc((size_t)m->cases, sizeof(int));
    run_counter shown = {.started_ns = clock_now_ns(), .all = all};
    bool draws = m->shows && terminal_of(STDERR_FILENO).erases;
    bench_words words;
    if (failures == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d cases", m->cases);
    status_line_open(draws ? STDERR_FILENO : -1, tell, &shown, &shown.line);
    for (int repeat = 0; repeat < m->repeats; repeat++)
        for (int i = 0; i < m->cases && !bench_child_stopped(place); i++) {
            if (failures[i] >= GIVE_UP)
                continue;
            json_t *line = NULL;
            m->command(m->ctx, i, name, &words);
            counter_set(&shown, done, all, name);
            status st = bench_child_run(place, &words, &line);
            if (st == STATUS_OK)
                st = m->take(m->ctx, i, repeat, line, figure);
            json_decref(line);
            if (bench_child_stopped(place))
                break;
            if (st != STATUS_OK) {
                bool gives_up = ++failures[i] >= GIVE_UP;
                all -= gives_up ? m->repeats - repeat : 1;
                LOG_W("%s: %s%s", name, status_text(), gives_up ? "; it is not tried again" : "");
                m->failed(m->ctx, i, name);
                continue;
            }
            failures[i] = 0;
            done++;
            counter_set(&shown, done, all, name);
            LOG_I("repeat %d of %d, run %d of %d: %s: %s; about %.0f s left", repeat + 1,
                  m->repeats, done, all, name, figure, left_s(&shown, clock_now_ns()));
        }
    status_line_close(&shown.line);
    free(failures);
    return STATUS_OK;
}
