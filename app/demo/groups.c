/* new_group: some of the ranks make a group of their own, and have other numbers in it. */
#include "app/demo/demo.h"

#include <stdio.h>

enum { RANKS_MAX = 7, GROUPS = 2, PLACE_BYTES = 32 };

/* Group g has the ranks g, g + 2, g + 4 ... */
typedef struct groups {
    demo *d;
    process_group *of[GROUPS]; /* NULL: this rank is not in it */
} groups;

static status open_groups(groups *g)
{
    for (int i = 0; i < GROUPS; i++) {
        int ranks[RANKS_MAX], n = 0;
        for (int rank = i; rank < g->d->world_size; rank += GROUPS)
            ranks[n++] = rank;
        const sub_group what = {.ranks = ranks, .n = n};
        TRY(process_group_new_group(g->d->group, &what, &g->of[i]));
    }
    return STATUS_OK;
}

/* The one that this rank is in. */
static process_group *own(const groups *g)
{
    return g->of[g->d->rank % GROUPS];
}

static void name_place(const process_group *group, char out[PLACE_BYTES])
{
    snprintf(out, PLACE_BYTES, "-");
    if (group != NULL)
        snprintf(out, PLACE_BYTES, "rank %d of %d", process_group_rank(group),
                 process_group_world_size(group));
}

static status show_places(groups *g)
{
    demo *d = g->d;
    char even[PLACE_BYTES], odd[PLACE_BYTES];
    name_place(g->of[0], even);
    name_place(g->of[1], odd);
    demo_begin(d, "dist.new_group([0, 2, ...]) and dist.new_group([1, 3, ...])");
    demo_say(d,
             "init_process_group makes one group of all %d ranks, the world. new_group makes a "
             "smaller one of some of them. Here the even ranks make one, and the odd ranks make "
             "another.",
             d->world_size);
    demo_say(d, "In each group the ranks are numbered from 0. So a process has one rank in the "
                "world, and another one in its group.");
    demo_say(d, "All ranks call new_group for each group, in the same order, also for a group that "
                "they are not in.");
    demo_columns(d, "in the world|in the even group|in the odd group");
    demo_row(d, "rank %d|%s|%s", d->rank, even, odd);
    return demo_show(d);
}

static status show_sums(groups *g)
{
    demo *d = g->d;
    double brought = demo_digit(d), in_group = brought, in_world = brought;
    TRY(process_group_all_reduce(own(g), &in_group, 1, DTYPE_F64, REDUCE_SUM, NULL));
    TRY(process_group_all_reduce(d->group, &in_world, 1, DTYPE_F64, REDUCE_SUM, NULL));
    demo_begin(d, "dist.all_reduce(x, group=group)");
    demo_say(d, "Rank r brings 10 to the power of r. So the digits of a sum say whose numbers are "
                "in it.");
    demo_say(d, "An all-reduce in a group adds up the numbers of its ranks alone. The two groups "
                "do so at the same time, and do not wait for each other.");
    demo_columns(d, "in the world|brings|sum of its group|sum of the world");
    demo_row(d, "rank %d|#%.17g|#%.17g|#%.17g", d->rank, brought, in_group, in_world);
    return demo_show(d);
}

static status show_roots(groups *g)
{
    demo *d = g->d;
    double x = d->rank;
    TRY(process_group_broadcast(own(g), &x, 1, DTYPE_F64, 0, NULL));
    demo_begin(d, "A broadcast from rank 0 of each group");
    demo_say(d, "Each rank begins with its number in the world. Rank 0 of each group sends it to "
                "the others of its group. Rank 0 of the odd group is rank 1 of the world.");
    demo_say(d, "PyTorch asks for this rank by its number in the world: dist.broadcast(x, src=1, "
                "group=odd). Here, as in MPI, it is the number in the group.");
    demo_columns(d, "in the world|has now");
    demo_row(d, "rank %d|#%.17g", d->rank, x);
    TRY(demo_show(d));
    demo_begin(d, "What groups are for");
    demo_say(d, "With several machines the ranks of one machine are a group, and add up over "
                "shared memory. Then one rank of each machine is in a group with those of the "
                "others, which uses the network. --backend=hierarchical does so.");
    return demo_show(d);
}

static status show_all(groups *g)
{
    TRY(open_groups(g));
    TRY(show_places(g));
    TRY(show_sums(g));
    return show_roots(g);
}

status groups_demo(demo *d)
{
    groups g = {.d = d};
    status_kept cause;
    status st = show_all(&g);
    status_keep(&cause);
    for (int i = 0; i < GROUPS; i++)
        process_group_destroy(g.of[i]);
    status_restore(&cause);
    return st;
}
