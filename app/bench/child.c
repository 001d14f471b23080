#include "app/bench/child.h"

#include "app/common/terminal.h"
#include "app/options/options_table.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/text.h"

#include <ctype.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DESCRIPTORS = 16, LINE_BYTES = 8192 };

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
