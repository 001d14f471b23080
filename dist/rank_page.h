/* Where a rank is: one page that it keeps up to date, at a few stores per change, and that others
 * of its host can read also when it hangs, is stopped or has been killed.
 *
 * With a folder the page is the file <folder>/rank<r>.page, mapped; without one it is only its own.
 */
#ifndef MNIST_DDP_DIST_RANK_PAGE_H
#define MNIST_DDP_DIST_RANK_PAGE_H

#include "base/status.h"
#include "dist/moment.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rank_page rank_page;
struct collective; /* dist/process_group_ops.h */

typedef struct rank_page_options {
    const char *folder; /* made if missing; NULL: nobody else reads the page */
    int rank, world_size, generation;
} rank_page_options;

/* A file that cannot be made is only logged: then there is no other reader. An older generation's
 * file is replaced. */
status rank_page_create(const rank_page_options *options, rank_page **out);

/* Accepts NULL. The file stays. */
void rank_page_destroy(rank_page *page);

/* All accept NULL. One thread moves moment and step, the group's lock is held for collectives. */
void rank_page_enter(rank_page *page, moment m);
void rank_page_step(rank_page *page, int64_t epoch, int64_t step);
void rank_page_launch(rank_page *page, const struct collective *c);
void rank_page_wait(rank_page *page, const struct collective *c, int64_t now_ns);
void rank_page_end_wait(rank_page *page); /* not where it failed: that is where the rank is */
void rank_page_fail(rank_page *page);     /* the rank has failed, and says why itself */

typedef enum rank_state {
    RANK_WORKS,
    RANK_WAITS,   /* in a collective */
    RANK_STOPPED, /* by a signal (SIGSTOP) or a debugger */
    RANK_GONE,    /* its process has ended without a word */
    RANK_FAILED,
    RANK_LEFT,
} rank_state;

enum { RANK_TEXT_BYTES = 256 };

/* What a page says. */
typedef struct rank_sight {
    int rank, pid, generation;
    char host[64];
    rank_state state;
    int64_t epoch, step;                /* step: of the run, from 1; 0: none has begun */
    uint64_t entered, waits;            /* numbers of collectives; 0: none */
    char entered_text[RANK_TEXT_BYTES]; /* "all_reduce #17 (bucket 0: fc2.weight, fc2.bias)" */
    char waits_text[RANK_TEXT_BYTES];
    char doing[RANK_TEXT_BYTES]; /* "in the forward pass, step 12 in epoch 1, 3.2 s ago" */
} rank_sight;

/* Of this process. */
void rank_page_look(const rank_page *page, rank_sight *out);

/* Of a rank whose page lies in `folder`. STATUS_IO where there is none; STATUS_PEER where it is not
 * a page, or of a process on another host, whose page cannot be trusted to be fresh. */
status rank_page_read(const char *folder, int rank, rank_sight *out);

#ifdef __cplusplus
}
#endif
#endif
