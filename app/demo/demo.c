#include "app/demo/demo.h"

#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/common/stop_signals.h"
#include "app/options/options_table.h"
#include "app/report/report.h"
#include "app/report/trace_picture.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/host.h"
#include "base/status.h"
#include "base/text.h"
#include "data/dataset.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READER_MOST_MS = 12000 }; /* for a frame */

enum {
    WORD_MS = 200, /* that a reader takes for a word */
    LOOK_MS = 800, /* at a table */
};

/* No terminal of another process group's: to read it would stop this one. */
static bool is_my_terminal(int fd)
{
    pid_t foreground = tcgetpgrp(fd);
    return isatty(fd) && (foreground < 0 || foreground == getpgrp());
}

static int count_words(const char *text)
{
    int words = 0;
    for (bool inside = false; *text != '\0'; text++) {
        words += !inside && *text != ' ';
        inside = *text != ' ';
    }
    return words;
}

static int64_t pace_ms_of(const json_t *frame)
{
    size_t i;
    json_t *paragraph;
    int64_t pace_ms = json_array_size(json_object_get(frame, "rows")) > 0 ? LOOK_MS : 0;
    json_array_foreach(json_object_get(frame, "text"), i, paragraph) pace_ms +=
        (int64_t)WORD_MS * count_words(json_string_value(paragraph));
    return pace_ms < READER_MOST_MS ? pace_ms : READER_MOST_MS;
}

static bool may_be_typed(int fd)
{
    struct stat about;
    return is_my_terminal(fd) || (fstat(fd, &about) == 0 && S_ISFIFO(about.st_mode));
}

/* The next byte of stdin; false: none will come. Since a moment ago this process may have gone to
 * the background: with SIGTTIN blocked that is an error, and no stop. */
static bool read_key(char *out)
{
    sigset_t background, before;
    sigemptyset(&background);
    sigaddset(&background, SIGTTIN);
    pthread_sigmask(SIG_BLOCK, &background, &before);
    ssize_t n = read(STDIN_FILENO, out, 1);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return n == 1;
}

/* Returns whether a signal stops the demonstration. */
static bool wait_until(int64_t deadline_ns, int stops)
{
    struct pollfd fds[] = {{may_be_typed(STDIN_FILENO) ? STDIN_FILENO : -1, POLLIN, 0},
                           {stops, POLLIN, 0}};
    while (!clock_passed(deadline_ns)) {
        char key = 0;
        int n = poll(fds, 2, clock_remaining_ms(deadline_ns));
        if (n > 0 && fds[1].revents != 0)
            return true;
        if (n <= 0 || fds[0].revents == 0)
            continue;
        if (!read_key(&key))
            fds[0].fd = -1;
        if (key == '\n')
            break;
    }
    return false;
}

/* Waits as long as a reader takes for the frame, or until a line comes from stdin: a terminal or a
 * pipe. One Enter ends one wait. A job in the background waits on. A signal that stops the
 * demonstration ends this process at once; if it is blocked, as between two children, it ends the
 * wait with STATUS_TIMEOUT and stays pending. */
static status reader_wait(const json_t *frame)
{
    int stops = stop_signals_watch_blocked();
    bool stopped = wait_until(clock_deadline_ns(pace_ms_of(frame)), stops);
    if (stops >= 0)
        close(stops);
    return stopped ? FAIL(STATUS_TIMEOUT, "stopped by a signal") : STATUS_OK;
}

enum { CELL_BYTES = 80, COLUMNS_MAX = 24, INDENT = 2, DEEPER = 6 };

/* A text as it is, a number with seven digits. */
static void cell_text(const json_t *cell, char out[CELL_BYTES])
{
    if (json_is_string(cell))
        snprintf(out, CELL_BYTES, "%s", json_string_value(cell));
    else if (json_is_integer(cell))
        snprintf(out, CELL_BYTES, "%" JSON_INTEGER_FORMAT, json_integer_value(cell));
    else if (json_is_real(cell))
        snprintf(out, CELL_BYTES, "%.7g", json_real_value(cell));
    else
        out[0] = '\0';
}

static void widen(const json_t *cells, int widths[COLUMNS_MAX])
{
    size_t i;
    json_t *cell;
    char text[CELL_BYTES];
    json_array_foreach(cells, i, cell)
    {
        cell_text(cell, text);
        if (i < COLUMNS_MAX && paragraph_width(text) > widths[i])
            widths[i] = paragraph_width(text);
    }
}

/* Numbers stand to the right, texts to the left. A row is broken between cells. */
static void print_row(const json_t *cells, const json_t *like, const int widths[COLUMNS_MAX],
                      FILE *out)
{
    size_t i;
    json_t *cell;
    char text[CELL_BYTES];
    int columns = paragraph_columns(out), column = 0, gap = INDENT; /* gap: before the next cell */
    json_array_foreach(cells, i, cell)
    {
        if (i == COLUMNS_MAX)
            break;
        cell_text(cell, text);
        int room = widths[i] - paragraph_width(text);
        bool is_number = json_is_number(json_array_get(like, i));
        if (i > 0 && column + gap + widths[i] > columns) {
            fputc('\n', out);
            column = 0;
            gap = DEEPER;
        }
        if (i + 1 == json_array_size(cells) && gap + widths[i] > columns) {
            gap += (int)strspn(text, " ");
            paragraph_print(out, fprintf(out, "%*s", gap, ""), gap + INDENT,
                            text + strspn(text, " "));
            return;
        }
        fprintf(out, "%*s%s", gap + (is_number ? room : 0), "", text);
        column += gap + widths[i];
        gap = INDENT + (is_number ? 0 : room);
        column -= is_number ? 0 : room;
    }
    fputc('\n', out);
}

static void print_table(const json_t *columns, const json_t *rows, FILE *out)
{
    int widths[COLUMNS_MAX] = {0};
    size_t i;
    json_t *row;
    if (json_array_size(rows) == 0)
        return;
    widen(columns, widths);
    json_array_foreach(rows, i, row) widen(row, widths);
    fputc('\n', out);
    if (json_array_size(columns) > 0)
        print_row(columns, json_array_get(rows, 0), widths, out);
    json_array_foreach(rows, i, row) print_row(row, row, widths, out);
}

static void print_arrows(const json_t *arrows, const char *member, FILE *out)
{
    size_t i;
    json_t *arrow;
    if (json_array_size(arrows) > 0)
        fputc('\n', out);
    json_array_foreach(arrows, i, arrow)
    {
        int from = (int)json_integer_value(json_object_get(arrow, "from"));
        int to = (int)json_integer_value(json_object_get(arrow, "to"));
        int column = fprintf(out, "  %s %d -> %s %d   ", member, from, member, to);
        paragraph_print(out, column, DEEPER, json_string_value(json_object_get(arrow, "label")));
    }
}

/* A frame, as the document has it, as plain text for a terminal of 80 columns. */
static void frame_print(const json_t *frame, FILE *out)
{
    size_t i;
    json_t *paragraph;
    const char *title = json_string_value(json_object_get(frame, "title"));
    fputc('\n', out);
    paragraph_print(out, 0, 0, title);
    for (int n = 0; n < paragraph_width(title) && n < paragraph_columns(out); n++)
        fputc('-', out);
    fputc('\n', out);
    json_array_foreach(json_object_get(frame, "text"), i, paragraph)
        paragraph_print(out, 0, 0, json_string_value(paragraph));
    print_arrows(json_object_get(frame, "arrows"),
                 json_string_value(json_object_get(frame, "member")), out);
    print_table(json_object_get(frame, "columns"), json_object_get(frame, "rows"), out);
}

enum {
    SENTENCE_BYTES = 1024,
    KEY_BYTES = 64,
    SHARE_MS = 30000,
    SHARED_BYTES = 1 << 20, /* what a demonstration may ask of process_group_alloc */
};

static json_t *format_text(const char *fmt, va_list args)
{
    char text[SENTENCE_BYTES];
    vsnprintf(text, sizeof text, fmt, args);
    return json_value_text(text);
}

static void append(demo *d, const char *list, json_t *value)
{
    if (json_array_append_new(json_object_get(d->frame, list), value) != 0)
        d->lost = true;
}

void demo_begin(demo *d, const char *title, ...)
{
    va_list args;
    va_start(args, title);
    json_decref(d->frame);
    d->frame = json_pack("{s:o, s:s, s:[], s:[], s:[], s:[]}", "title", format_text(title, args),
                         "member", d->member, "text", "columns", "rows", "arrows");
    d->lost = d->lost || d->frame == NULL;
    va_end(args);
}

void demo_say(demo *d, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    append(d, "text", format_text(fmt, args));
    va_end(args);
}

void demo_columns(demo *d, const char *fmt, ...)
{
    char text[SENTENCE_BYTES], *rest = text, *name;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    while ((name = strsep(&rest, "|")) != NULL)
        append(d, "columns", json_value_text(name));
}

void demo_cells(demo *d, json_t *cells)
{
    append(d, "rows", cells);
}

static json_t *cell_of(const char *text, bool is_number, bool is_real)
{
    return !is_number ? json_value_text(text)
           : is_real  ? json_real(strtod(text, NULL))
                      : json_integer(strtoll(text, NULL, 10));
}

void demo_row(demo *d, const char *fmt, ...)
{
    char text[SENTENCE_BYTES], *rest = text, *cell;
    json_t *cells = json_array();
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    while ((cell = strsep(&rest, "|")) != NULL) {
        bool is_number = *fmt == '#';
        fmt += strcspn(fmt, "|");
        bool is_real = is_number && fmt[-1] == 'g';
        if (json_array_append_new(cells, cell_of(cell + is_number, is_number, is_real)) != 0)
            d->lost = true;
        fmt += *fmt == '|';
    }
    demo_cells(d, cells);
}

void demo_arrow(demo *d, int from, int to, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    append(d, "arrows",
           json_pack("{s:i, s:i, s:o}", "from", from, "to", to, "label", format_text(fmt, args)));
    va_end(args);
}

void demo_fact(demo *d, const char *name, json_t *value)
{
    if (d->rank != 0)
        json_decref(value);
    else if (json_object_set_new(json_object_get(d->document, "facts"), name, value) != 0)
        d->lost = true;
}

/* The key for a rank's part of the frame; rank 0's says that it is shown, and all may go on. */
static void name_part(const demo *d, int rank, char out[KEY_BYTES])
{
    snprintf(out, KEY_BYTES, "demo/%d/%d", d->frames, rank);
}

/* Rows and arrows of another rank. */
static status take_rank(demo *d, int rank)
{
    static const char *const lists[] = {"rows", "arrows"};
    char key[KEY_BYTES];
    void *text = NULL;
    size_t size_bytes = 0;
    name_part(d, rank, key);
    TRY(store_get(rendezvous_store(d->rendezvous), key, &text, &size_bytes));
    json_t *theirs = json_loadb(text, size_bytes, 0, NULL);
    free(text);
    for (size_t i = 0; i < 2; i++)
        if (json_array_extend(json_object_get(d->frame, lists[i]),
                              json_object_get(theirs, lists[i])) != 0)
            d->lost = true;
    json_decref(theirs);
    return STATUS_OK;
}

static status tell_rank_0(demo *d)
{
    char key[KEY_BYTES];
    char *text = json_dumps(d->frame, JSON_COMPACT);
    if (text == NULL)
        return FAIL(STATUS_NO_MEMORY, "a frame of a demonstration");
    name_part(d, d->rank, key);
    status st = store_set(rendezvous_store(d->rendezvous), key, text, strlen(text));
    free(text);
    return st;
}

/* A reader who leaves is no failure; demo_command looks at the rest. */
static status print_frame(demo *d)
{
    bool paced = !d->opts->demo.fast && isatty(STDOUT_FILENO);
    if (d->opts->json || d->opts->quiet || d->print_error != 0)
        return STATUS_OK;
    if (paced && d->frames == 0 && is_my_terminal(STDIN_FILENO))
        puts("Enter shows the next step at once.");
    errno = 0;
    frame_print(d->frame, stdout);
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        d->print_error = errno != 0 ? errno : EIO;
        __fpurge(stdout);
        clearerr(stdout);
        return STATUS_OK;
    }
    return paced ? reader_wait(d->frame) : STATUS_OK;
}

static status show_all(demo *d)
{
    char key[KEY_BYTES];
    for (int rank = 1; rank < d->world_size; rank++)
        TRY(take_rank(d, rank));
    if (d->lost || json_array_append(json_object_get(d->document, "frames"), d->frame) != 0)
        return FAIL(STATUS_NO_MEMORY, "a frame of a demonstration");
    TRY(print_frame(d));
    name_part(d, 0, key);
    return d->world_size > 1 ? store_set(rendezvous_store(d->rendezvous), key, "1", 1) : STATUS_OK;
}

/* The second barrier: no rank goes on before the last one has taken its start. */
status demo_begin_together(const demo *d, int64_t *start_ns)
{
    TRY(process_group_barrier(d->group));
    *start_ns = clock_now_ns();
    return process_group_barrier(d->group);
}

double demo_since_ms(int64_t start_ns)
{
    return (double)(clock_now_ns() - start_ns) * 1e-6;
}

status demo_swap(const demo *d, int to, const void *out, int from, void *in, size_t size_bytes)
{
    collective list[2] = {0};
    work *works[2];
    int n = 0;
    if (to >= 0 && to < d->world_size)
        list[n++] = (collective){.kind = COLLECTIVE_SEND, .in = out, .root = to};
    if (from >= 0 && from < d->world_size)
        list[n++] = (collective){.kind = COLLECTIVE_RECV, .out = in, .root = from};
    for (int i = 0; i < n; i++) {
        list[i].type = DTYPE_U8;
        list[i].count = size_bytes;
    }
    TRY(process_group_batch_isend_irecv(d->group, list, n, NULL, works));
    for (int i = 0; i < n; i++)
        TRY(process_group_wait(d->group, works[i], NULL));
    return STATUS_OK;
}

double demo_digit(const demo *d)
{
    double digit = 1;
    for (int rank = 0; rank < d->rank; rank++)
        digit *= 10;
    return digit;
}

status demo_share(const demo *d, const char *key, char *text, size_t size_bytes)
{
    store *job = rendezvous_store(d->rendezvous);
    if (d->rank == 0)
        TRY(store_set(job, key, text, strlen(text)));
    return store_get_text(job, key, clock_deadline_ns(SHARE_MS), text, size_bytes);
}

status demo_open_rpc(demo *d, const rpc_function *functions, int n)
{
    return rpc_open(&(rpc_options){.store = rendezvous_store(d->rendezvous),
                                   .rank = d->rank,
                                   .world_size = d->world_size,
                                   .functions = functions,
                                   .n_functions = n,
                                   .timeout_ms = d->opts->timeout * 1000,
                                   .watches = rendezvous_watches(d->rendezvous)},
                    &d->calls);
}

status demo_open_group(const demo *d, int64_t timeout_ms, process_group **out)
{
    process_group_options settings = {.backend = d->opts->backend,
                                      .rank = d->rank,
                                      .world_size = d->world_size,
                                      .store =
                                          d->rendezvous ? rendezvous_store(d->rendezvous) : NULL,
                                      .master_addr = d->place.master_addr,
                                      .timeout_ms = timeout_ms,
                                      .shared_bytes = SHARED_BYTES};
    return process_group_create(&settings, out);
}

status demo_show(demo *d)
{
    char key[KEY_BYTES];
    if (d->lost)
        return FAIL(STATUS_NO_MEMORY, "a frame of a demonstration");
    TRY(d->rank == 0 ? show_all(d) : tell_rank_0(d));
    name_part(d, 0, key);
    if (d->rank > 0)
        TRY(store_wait(rendezvous_store(d->rendezvous), key,
                       d->opts->timeout * 1000 + READER_MOST_MS));
    d->frames++;
    return STATUS_OK;
}

status demo_show_proof(demo *d, bool holds, const char *else_text)
{
    TRY(demo_show(d));
    return holds ? STATUS_OK : FAIL(STATUS_DEVICE, "%s", else_text);
}

enum { TIMEOUT_MS = 30000, GRACE_MS = 1, QUOTE_COLUMNS = 76, INDENT_MOST = 20, QUOTE_DEEPER = 2 };

/* The program and the words of `line` after its name. It is on its own, whoever has started this
 * process. A training's files go to the folder. */
static void read_words(const char *line, const char *folder, bench_words *out)
{
    line += strcspn(line, " ");
    line += strspn(line, " ");
    size_t name = strcspn(line, " ");
    bench_words_split(out, "/proc/self/exe %.*s --launcher=none%s", (int)name, line, line + name);
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

static status watch(demo_child *out)
{
    bench_words words = {.n = 0};
    bench_child *place = &out->place;
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

static void forget(demo_child *child)
{
    free(child->out);
    free(child->err);
    json_decref(child->result);
    json_decref(child->trace);
    child->out = child->err = NULL;
    child->result = child->trace = NULL;
}

/* bench_child_close; then a signal that came since bench_child_open ends this process, as it would
 * have. */
static void close_place(bench_child *place)
{
    status_kept cause;
    if (place->folder[0] == '\0')
        return;
    status_keep(&cause);
    bench_child_release_signals(place);
    int stop = place->signals.first;
    bench_child_close(place);
    if (stop != 0)
        raise(stop);
    status_restore(&cause);
}

/* Frees what it holds, and removes the folder. A signal that came meanwhile then ends this process.
 * Leaves this thread's message alone. */
static void child_close(demo *d)
{
    forget(&d->child);
    close_place(&d->child.place);
}

status demo_child_run(demo *d, const char *words, ...)
{
    demo_child *child = &d->child;
    char own[DEMO_LINE_BYTES - sizeof "mnist_ddp "];
    va_list args;
    va_start(args, words);
    vsnprintf(own, sizeof own, words, args);
    va_end(args);
    snprintf(child->line, sizeof child->line, "mnist_ddp %s", own);
    forget(child);
    TRY(bench_child_open(TIMEOUT_MS, &child->place));
    status st = watch(child);
    close_place(&child->place);
    return status_context(st, "%s", child->line);
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
    demo_cells(d, json_pack("[o]", json_value_text(row)));
}

/* One line, broken between words; what follows stands deeper. */
static void quote_line(demo *d, const char *line, int length)
{
    int indent = (int)strspn(line, " ");
    line += indent, length -= indent;
    indent = indent < INDENT_MOST ? indent : INDENT_MOST;
    for (int deeper = 0; length > 0; deeper = QUOTE_DEEPER) {
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

void training_run_path(const demo *d, const char *name, char out[FILE_PATH_BYTES])
{
    snprintf(out, FILE_PATH_BYTES, "%.*s/%s", FILE_PATH_BYTES - 64, d->child.place.folder, name);
}

status training_run_do(demo *d, const char *flags, ...)
{
    const options *o = d->opts;
    demo_child *t = &d->child;
    char path[FILE_PATH_BYTES], own[DEMO_LINE_BYTES];
    bench_words w = {.n = 0};
    va_list args;
    if (t->place.folder[0] == '\0')
        TRY(bench_child_open(o->timeout * 1000, &t->place));
    va_start(args, flags);
    vsnprintf(own, sizeof own, flags, args);
    va_end(args);
    char *rest = strstr(own, " -- ");
    *rest = '\0';
    snprintf(t->line, sizeof t->line, "mnist_ddp train --model=%s %.400s", o->model, own);
    /* on its own, whoever has started this process */
    bench_words_split(&w,
                      "/proc/self/exe train --launcher=none --json --quiet --device=cpu "
                      "--threads=1 --eval-every=0 --seed=%lld --timeout=%lld",
                      (long long)o->seed, (long long)o->timeout);
    bench_words_add(&w, "--run-dir=%s/run", t->place.folder);
    bench_words_add(&w, "--trace=%s/trace.json", t->place.folder);
    if (o->data_dir != NULL)
        bench_words_add(&w, "--data-dir=%s", o->data_dir);
    bench_words_split(&w, "--model=%s %s %s", o->model, own, rest + strlen(" -- "));
    forget(t);
    TRY(status_context(bench_child_run(&t->place, &w, &t->result), "%s", t->line));
    training_run_path(d, "trace.json", path);
    return trace_picture_read(path, &t->trace);
}

double training_run_number(const demo *d, const char *object, const char *key)
{
    const json_t *from =
        object != NULL ? json_object_get(d->child.result, object) : d->child.result;
    const json_t *value = json_object_get(from, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static const char *lane_of(json_t *events, int thread)
{
    size_t i;
    json_t *from;
    const char *kind, *name;
    int rank, its;
    json_array_foreach(events, i,
                       from) if (json_unpack(from, "{s:s, s:i, s:i, s:{s:s}}", "ph", &kind, "pid",
                                             &rank, "tid", &its, "args", "name", &name) == 0 &&
                                 rank == 0 && its == thread) return name;
    return "";
}

size_t training_run_spans(const demo *d, int64_t step, step_span *out, size_t max)
{
    json_t *events = d->child.trace, *from;
    size_t i, n = 0;
    trace_picture_span e;
    double begin_us = 0, end_us = -1;
    json_array_foreach(events, i, from) if (trace_picture_span_read(from, &e) && e.rank == 0 &&
                                            strcmp(e.name, "step") == 0 && e.step == step)
    {
        begin_us = e.begin_us;
        end_us = begin_us + e.length_us;
    }
    json_array_foreach(events, i, from)
    {
        if (!trace_picture_span_read(from, &e) || e.rank != 0 || e.begin_us < begin_us ||
            e.begin_us > end_us || n == max)
            continue;
        out[n++] = (step_span){
            .lane = lane_of(events, e.thread),
            .name = e.name,
            .parameters = e.parameters,
            .bytes = e.bytes,
            .begin_ms = (e.begin_us - begin_us) / 1000,
            .end_ms = (e.begin_us + e.length_us - begin_us) / 1000,
        };
    }
    return n;
}

static void print_frames(const json_t *data, FILE *out)
{
    const json_t *frame;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(data, "demo"), "frames"), i, frame)
        frame_print(frame, out);
}

/* `document`: as --json prints it. STATUS_IO. */
static status demo_page_write(const char *path, const json_t *document)
{
    json_t *title =
        json_sprintf("mnist_ddp demo %s", json_string_value(json_object_get(document, "demo")));
    json_t *data = json_pack("{s:s, s:o, s:O}", "kind", "demo", "title", title, "demo", document);
    status st = page_write(path, data, print_frames);
    json_decref(data);
    return st;
}

enum { SHOWN_BYTES = 80 };

/* clang-format off */
const demo_entry demo_table[] = {
    {"linear",              "nn.Linear(10, 10) on two ranks: DDP averages gradients",   2, 1, 16, linear_demo,              false, NULL},
    {"ring",                "an all-reduce around a ring, chunk by chunk",              4, 2, 7,  ring_demo,                false, NULL},
    {"tree",                "an all-reduce up and down a tree, in 2 log2 N steps",      8, 2, 12, tree_demo,                false, NULL},
    {"sampler",             "who gets which sample: DistributedSampler on all ranks",   3, 1, 16, sampler_demo,             false, sampler_check_demo},
    {"buckets",             "DDP's buckets: ready, sent, there; what overlap hides",    2, 2, 4,  buckets_demo,             true,  NULL},
    {"dp",                  "DataParallel: a batch of 30 on three replicas",            1, 1, 1,  dp_demo,                  true,  dp_check_demo},
    {"ps",                  "a parameter server: who sends what, how many bytes",       4, 2, 8,  ps_demo,                  true,  NULL},
    {"rendezvous",          "how ranks find each other, and what stands in the store",  3, 2, 7,  rendezvous_demo,          false, NULL},
    {"store",               "TCPStore among ranks: set, get, wait, add, compare_set",   3, 2, 7,  store_demo,               false, NULL},
    {"p2p",                 "send, recv, isend, irecv; two ranks that both send first", 2, 2, 2,  p2p_demo,                 false, NULL},
    {"groups",              "new_group: who is which rank in which group",              4, 2, 7,  groups_demo,              false, NULL},
    {"world-size",          "what nodes, processes, world size and ranks are",          1, 1, 1,  world_size_demo,          false, NULL},
    {"failure",             "each fault of --inject, and how its cause is named",       1, 1, 1,  failure_demo,             true,  failure_check_demo},
    {"precision",           "gradients in fp16 and bf16: underflow, loss scaling",      1, 1, 1,  precision_demo,           true,  NULL},
    {"one-batch-four-ways", "single, dp, ddp and ps: the same batch, the same loss",    2, 2, 4,  one_batch_four_ways_demo, true,  one_batch_four_ways_check_demo},
    {"rpc",                 "calls from rank to rank: futures, references, errors",     3, 3, 7,  rpc_demo,                 false, NULL},
    {"async-ps",            "a parameter server whose trainers do not wait",            4, 2, 5,  async_ps_demo,            false, NULL},
    {"zero",                "the optimizer's state in slices: ddp, zero1 and fsdp",     4, 2, 4,  zero_demo,                false, NULL},
    {"pipeline",            "micro-batches over time: gpipe, 1f1b, and the bubble",     4, 2, 4,  pipeline_demo,            false, NULL},
    {"tensor-parallel",     "a layer by columns, the next by rows, and one all_reduce", 2, 2, 4,  tensor_parallel_demo,     false, NULL},
    {"mesh",                "two pipelines side by side: the groups along dp and pp",   4, 4, 4,  mesh_demo,                true,  NULL},
};
/* clang-format on */
const int demo_table_count = sizeof demo_table / sizeof demo_table[0];

/* STATUS_INVALID if none has this name: the message names the nearest, or all. */
static status demo_table_find(const char *name, const demo_entry **out)
{
    char hint[HINT_BYTES];
    int i = names_find(name, demo_table, demo_table_count, sizeof *demo_table, hint);
    if (i < 0)
        return FAIL(STATUS_INVALID, "'%.*s' is not a demo; %s", SHOWN_BYTES, name, hint);
    *out = &demo_table[i];
    return STATUS_OK;
}

status demo_complete(options *opts)
{
    const demo_entry *entry;
    char ranks[16];
    if (opts->command != COMMAND_DEMO || opts->action == NULL)
        return STATUS_OK;
    TRY(demo_table_find(opts->action, &entry));
    if (opts->nproc_per_node != NULL)
        return STATUS_OK;
    snprintf(ranks, sizeof ranks, "%d", entry->ranks);
    opts->nproc_per_node = strdup(ranks);
    return opts->nproc_per_node != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "a setting");
}

status demo_check(const options *opts, int world_size)
{
    const demo_entry *entry;
    TRY(demo_table_find(opts->action, &entry));
    int least = entry->least_ranks, most = entry->most_ranks;
    if (world_size < least)
        return FAIL(STATUS_INVALID, "demo %s: %s; give --nproc-per-node=%d%s", entry->name,
                    world_size == 1 ? "one rank has nobody to talk to" : "these are too few ranks",
                    least, most > least ? " or more" : "");
    if (world_size > most && most == 1)
        return FAIL(STATUS_INVALID, "demo %s: %d ranks; at most 1: %s", entry->name, world_size,
                    entry->show == dp_demo ? "it is one process, and --replicas says how many "
                                             "replicas it has"
                                           : "it is one process; leave --nproc-per-node out");
    if (world_size > most)
        return FAIL(STATUS_INVALID, "demo %s: %d ranks; at most %d fit on a screen", entry->name,
                    world_size, most);
    if (strcmp(opts->backend, "local") == 0)
        return FAIL(STATUS_INVALID,
                    "demo %s: --backend=local is for the threads of --mode=dp; "
                    "ranks take shm (one host), gloo or mpi",
                    entry->name);
    return entry->check != NULL ? entry->check(opts, world_size) : STATUS_OK;
}

static status check_data(const options *opts)
{
    static const dataset_split splits[] = {DATASET_TRAIN, DATASET_TEST};
    dataset_location where;
    TRY(dataset_locate(DATASET_MNIST, opts->data_dir, &where));
    for (size_t i = 0; i < sizeof splits / sizeof splits[0] && !where.embedded; i++) {
        dataset set;
        TRY(dataset_open(&where, splits[i], &set));
        dataset_close(&set);
    }
    return STATUS_OK;
}

static status check_page(const options *opts)
{
    return opts->demo.html != NULL ? status_context(file_draft_try(opts->demo.html), "--html")
                                   : STATUS_OK;
}

status demo_check_files(const options *opts, int *code)
{
    const demo_entry *entry;
    if (opts->command != COMMAND_DEMO || opts->action == NULL ||
        environment_text("MNIST_DDP_LAUNCHED") != NULL)
        return STATUS_OK;
    *code = EXIT_CODE_USAGE;
    TRY(demo_table_find(opts->action, &entry));
    *code = EXIT_CODE_DATA;
    if (entry->reads_data)
        TRY(check_data(opts));
    *code = EXIT_CODE_OUTPUT;
    bool is_rank = opts->rank >= 0 || environment_text("RANK") != NULL; /* rank 0 will write it */
    return is_rank ? STATUS_OK : check_page(opts);
}

int demo_list(void)
{
    puts("mnist_ddp demo NAME shows, with ranks that really do it:\n");
    for (int i = 0; i < demo_table_count; i++)
        printf("  %-20s  %s\n", demo_table[i].name, demo_table[i].summary);
    puts("\nmnist_ddp demo ring --nproc-per-node=6    with another number of ranks\n"
         "mnist_ddp demo ring --html=ring.html      as an animated page\n"
         "mnist_ddp help demo                       all flags");
    return EXIT_SUCCESS;
}

static status open_demo(demo *d, const demo_entry *entry)
{
    TRY(rendezvous_join(&d->place, d->opts->join_timeout * 1000, d->opts->timeout * 1000,
                        &d->rendezvous));
    d->place = *rendezvous_joined(d->rendezvous);
    TRY(demo_open_group(d, d->opts->timeout * 1000, &d->group));
    d->document =
        json_pack("{s:s, s:i, s:s, s:{}, s:[]}", "demo", entry->name, "world_size", d->world_size,
                  "backend", process_group_backend(d->group), "facts", "frames");
    return d->document != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "a demonstration");
}

static status write_results(const demo *d)
{
    if (d->rank != 0)
        return STATUS_OK;
    if (d->opts->demo.html != NULL)
        TRY(demo_page_write(d->opts->demo.html, d->document));
    if (d->print_error != 0 && d->print_error != EPIPE)
        return FAIL(STATUS_IO, "stdout: %s: not all is shown there", strerror(d->print_error));
    if (d->opts->demo.html != NULL && !d->opts->json && d->print_error == 0)
        printf("\npage: %s\n", d->opts->demo.html);
    return d->opts->json ? json_value_print(json_incref(d->document)) : STATUS_OK;
}

static status run(demo *d, int *exit_code)
{
    const demo_entry *entry = NULL;
    *exit_code = EXIT_CODE_USAGE;
    TRY(demo_table_find(d->opts->action, &entry));
    *exit_code = EXIT_CODE_OUTPUT;
    if (d->rank == 0)
        TRY(check_page(d->opts));
    *exit_code = EXIT_CODE_RENDEZVOUS;
    TRY(open_demo(d, entry));
    *exit_code = EXIT_CODE_INTERNAL;
    status st = entry->show(d);
    child_close(d);
    TRY(st);
    TRY(process_group_barrier(d->group));
    rendezvous_leave(d->rendezvous); /* what cannot be written is not the other ranks' failure */
    *exit_code = EXIT_CODE_OUTPUT;
    return write_results(d);
}

int demo_command(const options *opts, const rendezvous_place *place, int64_t started_ns)
{
    status_kept cause;
    int exit_code = EXIT_CODE_INTERNAL;
    demo d = {.opts = opts,
              .place = *place,
              .rank = place->rank,
              .world_size = place->world_size,
              .member = "rank"};
    (void)started_ns;
    status st = run(&d, &exit_code);
    status_keep(&cause);
    rpc_close(d.calls);
    process_group_destroy(d.group);
    rendezvous_destroy(d.rendezvous);
    json_decref(d.frame);
    json_decref(d.document);
    status_restore(&cause);
    return st == STATUS_OK ? EXIT_SUCCESS : exit_code_failed(st, exit_code);
}
