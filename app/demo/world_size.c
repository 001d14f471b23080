/* What the launcher makes of --nnodes, --nproc-per-node and --node-rank: what it says itself. */
#include "app/demo/demo.h"

#include <stdio.h>
#include <string.h>

enum { NODES = 3, NPROC = 8, WRONG_NODE = 5 };

static status show_question(demo *d)
{
    demo_begin(d, "How many processes are that?");
    demo_say(d, "Three machines with sixteen GPUs each. On each of them one types a command with "
                "--nnodes=3 and --nproc-per-node=8, and a --node-rank of its own.");
    demo_say(d, "A node is a machine. A process is a rank, and drives one GPU. The world size is "
                "the number of ranks on all nodes together. How many is it?");
    demo_say(d, "It is 3 x 8 = 24. It is not 3, as ranks are counted, not machines. It is not 48, "
                "as a GPU without a process does not count.");
    return demo_show(d);
}

/* What the dry run prints of a rank's environment. */
typedef struct placed {
    int rank, local_rank, world_size, local_world_size, node_rank;
} placed;

static bool read_placed(const char *line, placed *out)
{
    return sscanf(line, " RANK=%d LOCAL_RANK=%d WORLD_SIZE=%d LOCAL_WORLD_SIZE=%d NODE_RANK=%d",
                  &out->rank, &out->local_rank, &out->world_size, &out->local_world_size,
                  &out->node_rank) == 5;
}

/* Of a node: its first rank and its last one. */
static void tell_node(demo *d, const placed *first, const placed *last)
{
    demo_row(d, "#%d|%d to %d|%d to %d|#%d", first->node_rank, first->local_rank, last->local_rank,
             first->rank, last->rank, first->world_size);
}

/* A row for each node. Returns how many ranks there are. */
static int tell_nodes(demo *d, const char *text)
{
    placed first = {.node_rank = -1}, last = first, now;
    int ranks = 0;
    for (; text != NULL; text = strchr(text, '\n')) {
        text += *text == '\n';
        if (!read_placed(text, &now))
            continue;
        if (now.node_rank != last.node_rank) {
            if (ranks > 0)
                tell_node(d, &first, &last);
            first = now;
        }
        last = now;
        ranks++;
    }
    if (ranks > 0)
        tell_node(d, &first, &last);
    return ranks;
}

static status show_ranks(demo *d)
{
    TRY(demo_child_run(d, "run --dry-run --nnodes=%d --nproc-per-node=%d true", NODES, NPROC));
    demo_begin(d, "Which rank is where?");
    demo_say(d, "The launcher says what it would start on each node. It starts nothing:");
    demo_say(d, "%s", d->child.line);
    demo_say(d, "It gives each process its place by environment variables, as torchrun does. The "
                "lowest and the highest on each node are:");
    demo_columns(d, "NODE_RANK|LOCAL_RANK|RANK|WORLD_SIZE");
    demo_fact(d, "ranks", json_integer(tell_nodes(d, d->child.out)));
    TRY(demo_show(d));
    demo_begin(d, "A rank is not the number of a GPU");
    demo_say(d, "RANK = NODE_RANK x 8 + LOCAL_RANK. A process takes the GPU of its LOCAL_RANK: "
                "torch.cuda.set_device(local_rank). The rank would be a mistake: rank 23 is on the "
                "third machine, and there is no GPU 23 on it.");
    demo_say(d, "RANK says whose share of the samples this process has, and who is rank 0, which "
                "saves the model.");
    return demo_show(d);
}

static status show_refusal(demo *d)
{
    TRY(demo_child_run(d, "train --nnodes=%d --nproc-per-node=%d --node-rank=%d", NODES, NPROC,
                       WRONG_NODE));
    demo_begin(d, "Why is --node-rank=%d refused?", WRONG_NODE);
    demo_say(d, "%s", d->child.line);
    demo_say(d,
             "With three nodes the node ranks are 0, 1 and 2. Node rank %d would have ranks %d "
             "to %d of %d. The launcher says so before it starts a process, and ends with exit "
             "code %d:",
             WRONG_NODE, WRONG_NODE * NPROC, WRONG_NODE * NPROC + NPROC - 1, NODES * NPROC,
             d->child.exit_code);
    demo_child_quote(d, d->child.err, NULL);
    demo_fact(d, "refused_with", json_integer(d->child.exit_code));
    return demo_show(d);
}

status world_size_demo(demo *d)
{
    TRY(show_question(d));
    TRY(show_ranks(d));
    return show_refusal(d);
}
