/* RUN/train.log: what rank 0 of a training and its launcher say, line by line, each with the local
 * time. It says what a terminal would, whether or not there is one: also what --quiet hides, and a
 * line about a step every two seconds where a status line takes its place; no colours.
 *
 *   2026-11-23 07:15:02.117 epoch 1/2: 3.21 s, 18692 images/s, train loss 0.2104, ...
 *
 * Rank 0 opens the file once the folder is its own. What both have said before waits in a spool: a
 * memfd, which rank 0 inherits from the launcher. Rank 0 seals it and writes its text to the file;
 * the launcher finds that it can write no more to the spool, and from then on appends to the file
 * itself. A launcher whose rank 0 never comes so far, or runs on another node, writes nothing.
 *
 * Lines are appended whole (O_APPEND), so those of the two do not mix. A file that cannot be
 * written costs the log, not the run: rank 0 warns once. */
#ifndef MNIST_DDP_APP_COMMON_RUN_LOG_H
#define MNIST_DDP_APP_COMMON_RUN_LOG_H

#include <stddef.h>

/* From here on what this process logs (base/log.h) is taken, into the spool. A process has one.
 * Before that, and after the end, the functions below do nothing. Once descriptors 0 to 2 are open,
 * and while no other thread logs. */
void run_log_begin(void);

/* Nothing more is taken: the process has no part in a run's log. While no other thread logs. */
void run_log_end(void);

/* A launcher's: after rank 0 has taken the spool, what is said goes to the file in `folder`. */
void run_log_follow(const char *folder);

/* A launcher's: the spool that rank 0 inherits, named in $MNIST_DDP_RUN_LOG; closed on exec until
 * that is undone. -1: none, as rank 0 has taken it, or there is no run to follow. */
int run_log_spool(void);

/* Rank 0's: `folder` is this run's. Opens the file and writes what was said before. */
void run_log_open(const char *folder);

/* Another rank may be rank 0 from now on: lines wait in a spool again. */
void run_log_leave(void);

/* Takes lines as they are said elsewhere; from any thread. Colours, other control characters and
 * empty lines are left out. */
void run_log_say(const char *text, size_t size_bytes);

/* A line of the log alone, cut at 4,095 bytes. */
void run_log_line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
