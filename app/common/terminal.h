/* What a descriptor is for whoever reads it: a terminal and its width, and whether lines may have
 * colours.
 *
 * A status line (app/common/status_line.h) may stand at the foot of a terminal, and another process
 * may have drawn it there. So every line that goes to a terminal erases first what stands in the
 * cursor's row, in the same write. */
#ifndef MNIST_DDP_APP_COMMON_TERMINAL_H
#define MNIST_DDP_APP_COMMON_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>

/* To the row's first column, and erase the row. */
#define TERMINAL_ERASE "\r\033[K"

/* Around words that are to be seen; "" and "" for a descriptor without colours. */
#define TERMINAL_RED "\033[31m"
#define TERMINAL_GREEN "\033[32m"
#define TERMINAL_YELLOW "\033[33m"
#define TERMINAL_PLAIN "\033[0m"

typedef struct terminal_facts {
    bool erases;  /* a terminal that TERMINAL_ERASE works on: $TERM is neither unset nor "dumb",
                     and it is not the one that a launcher such as mpirun makes for its ranks */
    bool colours; /* by $NO_COLOR, else $CLICOLOR_FORCE, else those that erase */
    int columns;  /* of one that erases: lines are broken there, between words; 0: nowhere */
} terminal_facts;

terminal_facts terminal_of(int fd);

/* Whether what is written to `fd` may be shown on a terminal by the process that reads it: a pipe
 * or socket. */
bool terminal_may_follow(int fd);

/* Bytes that terminal_format adds at most. */
enum { TERMINAL_FORMAT_BYTES = 32 };

/* A line of a log, or its beginning, as the terminal is to get it: with TERMINAL_ERASE, and with a
 * coloured "error:" or "warning:", which may stand after a prefix in brackets; and broken between
 * words, unless it has a command to be copied. Returns the bytes written to `out`, at most
 * TERMINAL_FORMAT_BYTES more than `size_bytes`. */
size_t terminal_format(terminal_facts t, const char *line, size_t size_bytes, char *out);

/* A pipe or terminal is opened once more, so that a write to it does not wait: poll() tells of room
 * that another process may take first, and of less than a line on a terminal. To set O_NONBLOCK on
 * `fd` would set it for other processes too. Returns `fd` itself if it cannot be, and for other
 * files, which do not wait for a reader. */
int terminal_open_again(int fd);

/* Writes what is taken within `wait_ms`: a terminal that is stopped (Ctrl-S) keeps nobody longer.
 * The rest is left out. */
void terminal_write(int fd, const char *text, size_t size_bytes, int wait_ms);

/* From here on the lines of this process's log come to stderr as it is a terminal, or are to have
 * colours. Replaces the log's sink. While no other thread logs. */
void terminal_take_log(void);

/* From here on what this thread logs waits half a second at most for a terminal that is stopped, or
 * a pipe that nobody reads, and is then left out. For a thread that must go on. After
 * terminal_take_log. */
void terminal_hurry_log(void);

/* Erases the status line if stderr is its terminal: before this process ends at once, without
 * status_line_close. Waits as terminal_hurry_log says. */
void terminal_leave(void);

#endif
