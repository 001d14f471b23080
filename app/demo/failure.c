/* Each fault of --inject in a small training, and what the program says of it. */
#include "app/demo/demo.h"
#include "app/options/training_values.h"
#include "app/train/fault.h"

#include <stdlib.h>
#include <string.h>

enum { LINES = 5, RANKS = 3 };

typedef struct fault_shown {
    const char *name, *fields; /* what --inject is given */
    const char *flags;         /* more of the training's */
    const char *title, *what;  /* what is done to it */
    const char *look;          /* what to look at in what it says */
    const char *lines[LINES];  /* how the lines begin that are quoted; NULL at the end */
} fault_shown;

static const fault_shown faults[] = {
    {"kill",
     ":rank=1,step=5",
     "",
     "a rank dies",
     "Rank 1 gets SIGKILL before step 5. That is what kill -9 does, and the kernel when memory "
     "runs out.",
     "All three ranks have failed, so which is the first? Ranks 0 and 2 ended with 72: somebody "
     "else went away. That is a consequence. The report is of rank 1, whose end is a signal.",
     {"[rank 0] error", "error: rank", "it was last", "also:", NULL}},
    {"stop",
     ":rank=1,step=5",
     " --timeout=2",
     "a rank hangs",
     "Rank 1 is stopped before step 5 (SIGSTOP). It is there, and does nothing. The others wait "
     "for it in an all-reduce, at most --timeout seconds.",
     "Who hangs does not say so: it is the others that fail, with 110, as a deadline has passed. "
     "The rank to look at is the one that never entered the all-reduce. Here its process is "
     "stopped. Else the line says what it did last.",
     {"error: rank", "it was last", "rank 1 (its", "hint:", NULL}},
    {"delay",
     ":rank=1,step=5,ms=400",
     " --json",
     "a rank is late",
     "Rank 1 sleeps for 400 ms before step 5, as with a slow disk, or another program on its "
     "cores. That is less than --timeout.",
     "Nothing fails. But an all-reduce ends when the last rank has come: the whole job is as slow "
     "as its slowest rank. The result has that time as 'waiting'. Below are rank 0's seconds:",
     {"[rank 1] warning", NULL}},
    {"drop-conn",
     ":rank=1,step=5",
     " --backend=gloo",
     "a connection breaks",
     "The TCP connections of rank 1 break before step 5, as with a cable or a firewall. The "
     "backend is gloo, which sends over TCP even on one machine.",
     "All ranks end with 72, and no process was killed. The line says that all ranks have entered "
     "the all-reduce. So no rank is stuck in its own code: it is the network.",
     {"[rank 0] error", "error: rank", "also:", NULL}},
    {"uneven",
     ":rank=1",
     "",
     "a rank has fewer steps",
     "Rank 1 has one step less in the epoch than the others, as if a sampler of one's own deals "
     "unevenly.",
     "Rank 1 is at the epoch's end already, and adds up losses: 2 numbers. The others add up "
     "gradients. All wait in an all-reduce, but not in the same one. PyTorch with NCCL waits "
     "for its timeout then, 10 minutes. Here the line names both.",
     {"[rank 1] error", "error: rank", "also:", NULL}},
    {"forget-set-epoch",
     "",
     " --epochs=2",
     "sampler.set_epoch is forgotten",
     "The sampler is not told that a new epoch has begun.",
     "No rank fails, and the loss falls: the exit code is 0. The images come in one order in every "
     "epoch, and only a warning says it.",
     {"[rank 0] warning: injected", "[rank 0] warning: epoch", NULL}},
    {"port-busy",
     "",
     "",
     "the port is taken",
     "Another process listens on the port at which the ranks are to meet. Often it is an older job "
     "that still runs.",
     "The code 69 says that the ranks did not find each other: not one was started. The line says "
     "who has the port, and names one that is free.",
     {"error:", NULL}},
};
enum { FAULTS = sizeof faults / sizeof faults[0] };

/* Where a rank's time went: a row for each phase that took some. */
static void tell_phases(demo *d, const char *document)
{
    const char *name;
    json_t *seconds, *result = json_loads(document, 0, NULL);
    json_object_foreach(json_object_get(result, "phases"), name, seconds)
    {
        if (json_number_value(seconds) > 0)
            demo_cells(d, json_pack("[s, O]", name, seconds));
        if (strcmp(name, "waiting") == 0)
            demo_fact(d, "waiting_s", json_incref(seconds));
    }
    json_decref(result);
}

static status show_fault(demo *d, const fault_shown *fault, const char *asked)
{
    const demo_child *child = &d->child;
    const char *data_dir = d->opts->data_dir; /* may have blanks */
    bool measures = strstr(fault->flags, "--json") != NULL;
    demo_begin(d, "--inject=%s: %s", fault->name, fault->title);
    demo_say(d, "%s", asked == NULL ? fault->what : "A training of three ranks, with this fault:");
    if (asked != NULL)
        demo_say(d, "--inject=%s", asked);
    TRY(demo_show(d));
    if (data_dir != NULL && setenv("MNIST_DDP_DATA", data_dir, 1) != 0)
        return FAIL(STATUS_NO_MEMORY, "a setting");
    TRY(demo_child_run(d,
                       "train --nproc-per-node=%d --model=mlp --device=cpu --limit=480 "
                       "--batch-size=16%s%s --inject=%s%s",
                       RANKS, strstr(fault->flags, "--epochs") != NULL ? "" : " --epochs=1",
                       fault->flags, asked != NULL ? asked : fault->name,
                       asked != NULL ? "" : fault->fields));
    demo_begin(d, "It has ended after %.1f s, with exit code %d", child->elapsed_s,
               child->exit_code);
    demo_say(d, "%s", child->line);
    if (asked == NULL)
        demo_say(d, "%s", fault->look);
    if (measures)
        tell_phases(d, child->out);
    else
        demo_child_quote(d, child->err, fault->lines);
    demo_fact(d, fault->name, json_integer(child->exit_code));
    return demo_show(d);
}

/* The one that --inject names, by its name alone or as train takes it; NULL: all. */
static status find(const char *asked, const fault_shown **out)
{
    inject parsed;
    *out = NULL;
    if (asked == NULL)
        return STATUS_OK;
    for (int i = 0; i < FAULTS; i++)
        if (strcspn(asked, ":") == strlen(faults[i].name) &&
            strncmp(asked, faults[i].name, strlen(faults[i].name)) == 0)
            *out = &faults[i];
    if (*out != NULL && strchr(asked, ':') == NULL)
        return STATUS_OK;
    TRY(inject_parse(asked, &parsed));
    TRY(fault_check(&parsed, RANKS));
    return *out != NULL ? STATUS_OK : FAIL(STATUS_INVALID, "--inject=%.80s: no demo of it", asked);
}

status failure_check_demo(const options *opts, int world_size)
{
    const fault_shown *one;
    (void)world_size;
    return find(opts->inject, &one);
}

status failure_demo(demo *d)
{
    const fault_shown *one;
    const char *asked = d->opts->inject;
    TRY(find(asked, &one));
    demo_begin(d, "One rank fails, and all others fail because of it");
    demo_say(d, "Ranks wait for each other in every step. So one fault ends in as many error "
                "messages as there are ranks, and most of them say only that somebody else is "
                "gone. What one wants to know is who was first, and why.");
    demo_say(d, "Here a training of three ranks is started again and again, each time with another "
                "fault. What it says is quoted; ... stands for lines that are left out.");
    TRY(demo_show(d));
    for (int i = 0; i < FAULTS; i++)
        if (one == NULL || one == &faults[i])
            TRY(show_fault(d, &faults[i],
                           one != NULL && strchr(asked, ':') != NULL ? asked : NULL));
    return STATUS_OK;
}
