#include "app/demo/demo_child.h"

#include "app/common/json_value.h"
#include "app/common/subprocess.h"
#include "base/clock.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMEOUT_MS = 30000, GRACE_MS = 1, QUOTE_COLUMNS = 76, INDENT_MOST = 20, DEEPER = 2 };

/* The program and the words of `line` after its name. It is on its own, whoever has started this
 * process. A training's files go to the folder. */
static void read_words(const char *line, const char *folder, bench_words *out)
{
    bench_words_add(out, "/proc/self/exe");
    for (const char *at = strchr(line, ' '); at != NULL; at = strchr(at, ' ')) {
        at += strspn(at, " ");
        bench_words_add(out, "%.*s", (int)strcspn(at, " "), at);
        if (out->n == 2)
            bench_words_add(out, "--launcher=none");
    }
    if (out->n > 1 && strcmp(out->words[1], "train") == 0) {
        bench_words_add(out, "--run-dir=%s/run", folder);
        bench_words_add(out, "--log-dir=%s/log", folder);
    }
}

/* Takes `words` out of the text, and puts `other` there, which is not longer. */
static void say_instead(char *text, const char *words, const char *other)
{
    size_t length = strlen(words), put = strlen(other);
    for (char *at = text; (at = strstr(at, words)) != NULL; at += put) {
        memcpy(at, other, put);
        memmove(at + put, at + length, strlen(at + length) + 1);
    }
}

static status watch(bench_child *place, demo_child *out)
{
    bench_words words = {.n = 0};
    subprocess_end end;
    int64_t start_ns = clock_now_ns();
    read_words(out->line, place->folder, &words);
    if (words.overflow)
        return FAIL(STATUS_INVALID, "%s: too many words", out->line);
    TRY(subprocess_watch(&(subprocess){.argv = words.words,
                                       .env = place->env,
                                       .timeout_ms = place->timeout_ms,
                                       .grace_ms = GRACE_MS,
                                       .signals = &place->signals},
                         &end));
    out->elapsed_s = clock_seconds(clock_now_ns() - start_ns);
    out->exit_code = WIFSIGNALED(end.wait_status) ? 128 + WTERMSIG(end.wait_status)
                                                  : WEXITSTATUS(end.wait_status);
    out->out = end.out;
    out->err = end.err;
    say_instead(out->err, "/proc/self/exe", "mnist_ddp"); /* as its line is shown */
    say_instead(out->err, " --launcher=none", "");
    return STATUS_OK;
}

status demo_child_run(demo_child *out, const char *words, ...)
{
    bench_child place;
    va_list args;
    *out = (demo_child){.line = "mnist_ddp "};
    size_t used = strlen(out->line);
    va_start(args, words);
    vsnprintf(out->line + used, sizeof out->line - used, words, args);
    va_end(args);
    TRY(bench_child_open(TIMEOUT_MS, &place));
    status st = watch(&place, out);
    demo_child_close_place(&place);
    return status_context(st, "%s", out->line);
}

void demo_child_free(demo_child *child)
{
    free(child->out);
    free(child->err);
    *child = (demo_child){.line = ""};
}

void demo_child_close_place(bench_child *place)
{
    status_kept cause;
    status_keep(&cause);
    bench_child_release_signals(place);
    int stop = place->signals.first;
    bench_child_close(place);
    if (stop != 0)
        raise(stop);
    status_restore(&cause);
}

static bool is_wanted(const char *line, const char *const *starts)
{
    line += strspn(line, " ");
    if (starts == NULL)
        return *line != '\0' && *line != '\n';
    for (; *starts != NULL; starts++)
        if (strncmp(line, *starts, strlen(*starts)) == 0)
            return true;
    return false;
}

static void tell(demo *d, const char *text, int length, int indent)
{
    char row[QUOTE_COLUMNS + 1];
    snprintf(row, sizeof row, "%*s%.*s", indent, "", length, text);
    demo_row(d, json_pack("[o]", json_value_text(row)));
}

/* One line, broken between words; what follows stands deeper. */
static void quote_line(demo *d, const char *line, int length)
{
    int indent = (int)strspn(line, " ");
    line += indent, length -= indent;
    indent = indent < INDENT_MOST ? indent : INDENT_MOST;
    for (int deeper = 0; length > 0; deeper = DEEPER) {
        int room = QUOTE_COLUMNS - indent - deeper, cut = length;
        if (length > room)
            for (cut = room; cut > 0 && line[cut] != ' ';)
                cut--;
        if (cut == 0) /* one long word */
            cut = room;
        tell(d, line, cut, indent + deeper);
        line += cut, length -= cut;
        while (length > 0 && *line == ' ')
            line++, length--;
    }
}

void demo_child_quote(demo *d, const char *text, const char *const *starts)
{
    bool gap = false;
    for (const char *next; *text != '\0'; text = next) {
        size_t length = strcspn(text, "\n");
        next = text + length + (text[length] != '\0');
        if (!is_wanted(text, starts)) {
            gap = length > 0;
            continue;
        }
        if (gap)
            tell(d, "...", 3, 0);
        gap = false;
        quote_line(d, text, (int)length);
    }
}
