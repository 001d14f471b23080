#include "tests/support/screen.h"

#include "base/clock.h"
#include "tests/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { CHUNK_BYTES = 4096, MOST_BYTES = 4 << 20, ROWS = 2000, MOST_COLUMNS = 512 };

static int take_both(int fd)
{
    return dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0;
}

static int take_stderr(int fd)
{
    return dup2(fd, STDERR_FILENO) < 0;
}

static int take_all(int fd)
{
    return dup2(fd, STDIN_FILENO) < 0 || take_both(fd);
}

void screen_resize(screen *s, int columns)
{
    const struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    s->columns = columns;
    ck_assert_int_eq(ioctl(s->into, TIOCSWINSZ, &size), 0);
}

static void start(int columns, int (*take)(int fd), const char *const *argv, screen *s)
{
    *s = (screen){.from = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)};
    ck_assert(grantpt(s->from) == 0 && unlockpt(s->from) == 0);
    s->into = open(ptsname(s->from), O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(s->into, 0);
    screen_resize(s, columns);
    s->bytes = calloc(MOST_BYTES, 1);
    ck_assert_ptr_nonnull(s->bytes);
    s->program = program_start_after(argv, take, s->into);
}

void screen_start(int columns, bool out, const char *const *argv, screen *s)
{
    start(columns, out ? take_both : take_stderr, argv, s);
}

void screen_start_typing(int columns, const char *const *argv, screen *s)
{
    start(columns, take_all, argv, s);
}

void screen_type(screen *s, const char *keys)
{
    size_t length = strlen(keys);
    ck_assert_int_eq(write(s->from, keys, length), (ssize_t)length);
}

/* What is there now; waits for it a moment. */
static bool read_some(screen *s)
{
    struct pollfd ready = {.fd = s->from, .events = POLLIN};
    if (poll(&ready, 1, POLL_MS) != 1)
        return false;
    ck_assert_uint_lt(s->size_bytes, MOST_BYTES - CHUNK_BYTES);
    ssize_t n = read(s->from, s->bytes + s->size_bytes, CHUNK_BYTES - 1);
    s->size_bytes += n > 0 ? (size_t)n : 0;
    return n > 0;
}

void screen_await(screen *s, const char *words)
{
    int64_t deadline_ns = clock_deadline_ns(RUN_S * 1000);
    while (strstr(s->bytes, words) == NULL) {
        bool gone = process_is_gone(s->program.pid);
        if (read_some(s))
            continue;
        ck_assert_msg(!gone && !clock_passed(deadline_ns), "no \"%s\" in: %s", words, s->bytes);
    }
}

/* The rows of a terminal that is as high as they are many. */
typedef struct grid {
    char cells[ROWS][MOST_COLUMNS + 1];
    bool goes_on[ROWS]; /* the row was filled, and its line goes on in the next one */
    int columns, row, column;
} grid;

static void put_letter(grid *g, char letter)
{
    if (g->column == g->columns) { /* as terminals do: only the next letter makes a new row */
        g->goes_on[g->row++] = true;
        g->column = 0;
    }
    ck_assert_int_lt(g->row, ROWS);
    char *row = g->cells[g->row];
    for (size_t i = strlen(row); i < (size_t)g->column; i++)
        row[i] = ' ';
    row[g->column++] = letter;
}

/* The letters after an escape; returns how many they are. Fails the test for one that is unknown
 * here. */
static size_t obey(grid *g, const char *text)
{
    size_t length = 1 + strspn(text + 1, "0123456789;");
    bool erases = text[0] == '[' && text[length] == 'K' && length == 1;
    bool paints = text[0] == '[' && text[length] == 'm';
    ck_assert_msg(erases || paints, "an escape: %.10s", text);
    if (erases)
        memset(g->cells[g->row] + g->column, 0, (size_t)(MOST_COLUMNS - g->column));
    return length + 1;
}

static void play(grid *g, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\r') {
            g->column = 0;
        } else if (*text == '\n') {
            g->row++;
            ck_assert_int_lt(g->row, ROWS);
        } else if (*text == '\033') {
            text += obey(g, text + 1);
        } else {
            put_letter(g, *text);
        }
    }
}

static char *lines_of(const grid *g)
{
    char *lines = calloc(ROWS, MOST_COLUMNS + 2), *to = lines;
    ck_assert_ptr_nonnull(lines);
    for (int row = 0; row <= g->row; row++)
        to += sprintf(to, "%s%s", g->cells[row], g->goes_on[row] ? "" : "\n");
    return lines;
}

void screen_finish(screen *s)
{
    int64_t deadline_ns = clock_deadline_ns(RUN_S * 1000);
    bool gone = false;
    while (!clock_passed(deadline_ns)) {
        bool some = read_some(s);
        if (gone && !some)
            break;
        gone = process_is_gone(s->program.pid);
    }
    program_wait(&s->program, RUN_S);
    grid *g = calloc(1, sizeof *g);
    ck_assert_ptr_nonnull(g);
    g->columns = s->columns;
    play(g, s->bytes);
    s->lines = lines_of(g);
    free(g);
}

void screen_close(screen *s)
{
    close(s->from);
    close(s->into);
    program_close(&s->program);
    free(s->bytes);
    free(s->lines);
}
