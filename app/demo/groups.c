/* new_group: some of the ranks make a group of their own, and have other numbers in it. */
#include "app/demo/demo.h"

enum { RANKS_MAX = 7, GROUPS = 2 };

/* Group g has the ranks g, g + 2, g + 4 ... *own: the one that this rank is in. */
static status open_groups(demo *d, process_group **own)
{
    for (int g = 0; g < GROUPS; g++) {
        process_group *made = NULL;
        int ranks[RANKS_MAX], n = 0;
        for (int rank = g; rank < d->world_size; rank += GROUPS)
            ranks[n++] = rank;
        TRY(process_group_new_group(d->group, &(sub_group){.ranks = ranks, .n = n}, &made));
        if (d->rank % GROUPS == g)
            *own = made;
    }
    return STATUS_OK;
}

static status show_places(demo *d, process_group *own)
{
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
    demo_row(d, d->rank % 2 == 0 ? "rank %d|rank %d of %d|-" : "rank %d|-|rank %d of %d", d->rank,
             process_group_rank(own), process_group_world_size(own));
    return demo_show(d);
}

static status show_sums(demo *d, process_group *own)
{
    double brought = demo_digit(d), in_group = brought, in_world = brought;
    TRY(process_group_all_reduce(own, &in_group, 1, DTYPE_F64, REDUCE_SUM, NULL));
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

static status show_roots(demo *d, process_group *own)
{
    double x = d->rank;
    TRY(process_group_broadcast(own, &x, 1, DTYPE_F64, 0, NULL));
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

static status show_all(demo *d, process_group **own)
{
    TRY(open_groups(d, own));
    TRY(show_places(d, *own));
    TRY(show_sums(d, *own));
    return show_roots(d, *own);
}

status groups_demo(demo *d)
{
    process_group *own = NULL;
    status_kept cause;
    status st = show_all(d, &own);
    status_keep(&cause);
    process_group_destroy(own);
    status_restore(&cause);
    return st;
}
