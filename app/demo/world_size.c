/* What the launcher makes of --nnodes, --nproc-per-node and --node-rank. */
#include "app/demo/demo_table.h"

#include <stdio.h>

enum { NODES = 3, NPROC = 8 };

static status show_question(demo *d)
{
    demo_begin(d, "How many processes are that?");
    demo_say(d, "Three machines with eight GPUs each. On each of them one types a command with "
                "--nnodes=3 and --nproc-per-node=8, and a --node-rank of its own.");
    demo_say(d,
             "A node is a machine. A process drives one GPU: it is a rank. The world size is the "
             "number of ranks of all nodes: 3 x 8 = 24, not 3, and not 8.");
    demo_fact(d, "world_size", json_integer(NODES * NPROC));
    return demo_show(d);
}

static status show_ranks(demo *d)
{
    char name[16], ranks[32], local[32];
    demo_begin(d, "Which rank is where?");
    demo_say(d,
             "rank = node_rank x nproc_per_node + local_rank. The local rank is the number of the "
             "GPU on its machine. The rank is not: there is no GPU 23 on the third machine.");
    demo_columns(d, "node", "--node-rank", "local ranks", "ranks", NULL);
    for (int node = 0; node < NODES; node++) {
        snprintf(name, sizeof name, "machine %d", node + 1);
        snprintf(local, sizeof local, "0 to %d", NPROC - 1);
        snprintf(ranks, sizeof ranks, "%d to %d", node * NPROC, node * NPROC + NPROC - 1);
        demo_row(d, json_pack("[s, i, s, s]", name, node, local, ranks));
    }
    return demo_show(d);
}

static status show_refusal(demo *d)
{
    demo_begin(d, "Why is --node-rank=5 refused?");
    demo_say(d, "With three nodes the node ranks are 0, 1 and 2. Node rank 5 would be ranks 40 to "
                "47 of 24. The launcher says so before it starts a process:");
    demo_say(d, "mnist_ddp --nnodes=3 --nproc-per-node=8 --node-rank=5 --master-addr=HOST");
    return demo_show(d);
}

status world_size_demo(demo *d)
{
    TRY(show_question(d));
    TRY(show_ranks(d));
    return show_refusal(d);
}
