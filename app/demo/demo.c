#include "app/demo/demo.h"

#include "app/common/json_value.h"
#include "app/common/stop_signals.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READER_MOST_MS = 12000 }; /* of a frame */

enum {
    WORD_MS = 200, /* of a reader */
    LOOK_MS = 800, /* at a table */
};

/* No terminal of another process group's: to read it would stop this one. */
static bool is_my_terminal(int fd)
{
    pid_t foreground = tcgetpgrp(fd);
    return isatty(fd) && (foreground < 0 || foreground == getpgrp());
}

/* Says what Enter does, if stdin is a terminal that this process may read. */
static void reader_greet(void)
{
    if (is_my_terminal(STDIN_FILENO))
        puts("Enter shows the next step at once.");
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

void demo_print_frame(const json_t *frame, FILE *out)
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

void demo_columns(demo *d, ...)
{
    va_list args;
    va_start(args, d);
    for (const char *name = va_arg(args, const char *); name != NULL;
         name = va_arg(args, const char *))
        append(d, "columns", json_string(name));
    va_end(args);
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

/* Where a rank tells its part of the frame. */
static void name_part(const demo *d, int rank, char out[KEY_BYTES])
{
    snprintf(out, KEY_BYTES, "demo/%d/%d", d->frames, rank);
}

/* After it all may go on. */
static void name_shown(const demo *d, char out[KEY_BYTES])
{
    snprintf(out, KEY_BYTES, "demo/%d/shown", d->frames);
}

/* Rows and arrows of another rank. */
static status take_rank(demo *d, int rank)
{
    static const char *const lists[] = {"rows", "arrows"};
    char key[KEY_BYTES];
    void *text = NULL;
    size_t size_bytes = 0;
    name_part(d, rank, key);
    TRY(store_get(rendezvous_store(d->rdzv), key, &text, &size_bytes));
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
    status st = store_set(rendezvous_store(d->rdzv), key, text, strlen(text));
    free(text);
    return st;
}

/* A reader who leaves is no failure; demo_command looks at the rest. */
static status print_frame(demo *d)
{
    bool paced = !d->opts->demo.fast && isatty(STDOUT_FILENO);
    if (d->opts->json || d->opts->quiet || d->print_error != 0)
        return STATUS_OK;
    if (paced && d->frames == 0)
        reader_greet();
    errno = 0;
    demo_print_frame(d->frame, stdout);
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
    name_shown(d, key);
    return d->world_size > 1 ? store_set(rendezvous_store(d->rdzv), key, "1", 1) : STATUS_OK;
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

status demo_swap(const demo *d, const collective both[2])
{
    work *works[2];
    TRY(process_group_batch_isend_irecv(d->group, both, 2, NULL, works));
    TRY(process_group_wait(d->group, works[0], NULL));
    return process_group_wait(d->group, works[1], NULL);
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
    store *job = rendezvous_store(d->rdzv);
    if (d->rank == 0)
        TRY(store_set(job, key, text, strlen(text)));
    return store_get_text(job, key, clock_deadline_ns(SHARE_MS), text, size_bytes);
}

status demo_show(demo *d)
{
    char key[KEY_BYTES];
    status st = STATUS_OK;
    if (d->lost)
        return FAIL(STATUS_NO_MEMORY, "a frame of a demonstration");
    if (d->rank == 0) {
        st = show_all(d);
    } else {
        name_shown(d, key);
        st = tell_rank_0(d);
        if (st == STATUS_OK)
            st = store_wait(rendezvous_store(d->rdzv), key,
                            d->opts->timeout * 1000 + READER_MOST_MS);
    }
    d->frames++;
    return st;
}
