/* What a generation's end means for the job: from how each node's gang ended, to what all do next.
 */
#ifndef MNIST_DDP_APP_LAUNCH_VERDICT_H
#define MNIST_DDP_APP_LAUNCH_VERDICT_H

#include "app/launch/launch_ending.h"
#include "app/launch/launch_gang.h"

enum { VERDICT_TEXT_BYTES = 600 };

/* One node's end of a generation. */
typedef struct launch_record {
    launch_result result;
    int signal;          /* that has told its launcher to stop; 0: none has */
    bool lost;           /* nothing was heard of the node: `text` says how long */
    launch_ending cause; /* of LAUNCH_FAILED; owned */
    char *notes;         /* where its ranks were, where one waited in vain: lines, or ""; owned */
    char text[VERDICT_TEXT_BYTES];
} launch_record;

typedef struct launch_verdict {
    bool again; /* all start their workers again, as the next generation: nobody was told to stop */
    int code;   /* else what all exit with: the first failing rank's code, 0, ... */
    bool failed; /* `cause` is set */
    launch_ending cause;
    char *notes;                   /* of all nodes; never NULL */
    char text[VERDICT_TEXT_BYTES]; /* where no rank is to blame: what happened; "" */
    int told_by;                   /* the node whose launcher has said it already; -1: none */
} launch_verdict;

/* How this node's gang ended. `signal`: what has told the launcher to stop, or 0; `memory_killed`:
 * the kernel was short of memory meanwhile. */
status launch_record_make(const launch_gang *gang, int signal, bool memory_killed,
                          launch_record *out);
void launch_record_free(launch_record *record);

/* Judges by the records of all nodes, 0 to n - 1: the generation is the number of restarts so far.
 */
status launch_verdict_make(const launch_record *records, int n, const launch_settings *settings,
                           int generation, launch_verdict *out);

/* What comes through the store may come from anybody. Where `out` cannot be true beside what
 * happened here (all is well, though ranks of this node failed or were stopped; one restart more
 * than there are), the verdict is made from `own` alone, and says so. */
status launch_verdict_doubt(const launch_record *own, const launch_settings *settings,
                            int generation, launch_verdict *out);
void launch_verdict_free(launch_verdict *verdict);

/* One line of JSON each, to be freed with free(); STATUS_PEER where what came is nonsense. */
status launch_record_write(const launch_record *record, char **out);
status launch_record_read(const char *text, launch_record *out);
status launch_verdict_write(const launch_verdict *verdict, char **out);
status launch_verdict_read(const char *text, launch_verdict *out);

#endif
