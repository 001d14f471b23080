/* An all-reduce up and down a tree. In step k rank r, a multiple of 2^k but not of 2^(k+1), sends
 * all it has to rank r - 2^k, and is done: half of the ranks are left. After log2 N steps rank 0
 * has the sum, and it goes back the same way. */
#include "app/demo/demo.h"

/* One rank. */
typedef struct tree {
    demo *d;
    double value;
    int levels; /* log2 N, rounded up */
    int64_t sent_bytes, received_bytes;
} tree;

static int levels_of(int ranks)
{
    int levels = 0;
    while (1 << levels < ranks)
        levels++;
    return levels;
}

/* Who is at the other end on this level; -1: nobody. The lower one is the parent. */
static int partner_of(const tree *t, int level)
{
    int rank = t->d->rank, distance = 1 << level;
    if (rank % distance != 0)
        return -1;
    int partner = rank ^ distance;
    return partner < t->d->world_size ? partner : -1;
}

static status send_value(tree *t, int to)
{
    TRY(process_group_send(t->d->group, &t->value, 1, DTYPE_F64, to, NULL));
    t->sent_bytes += (int64_t)sizeof t->value;
    demo_arrow(t->d, t->d->rank, to, "%.0f", t->value);
    return STATUS_OK;
}

static status receive_value(tree *t, int from, double *out)
{
    TRY(process_group_recv(t->d->group, out, 1, DTYPE_F64, from, NULL));
    t->received_bytes += (int64_t)sizeof *out;
    return STATUS_OK;
}

static void tell_value(const tree *t, bool changed)
{
    demo_columns(t->d, "|number");
    demo_row(t->d, "rank %d|%.0f%s", t->d->rank, t->value, changed ? "*" : " ");
}

static status show_up(tree *t, int level)
{
    double got = 0;
    int partner = partner_of(t, level);
    demo_begin(t->d, "Step %d of %d: up", level + 1, 2 * t->levels);
    if (level == 0)
        demo_say(t->d, "Every second rank sends its number to the one before it, which adds it to "
                       "its own. A star marks what has changed.");
    else
        demo_say(t->d, "Of the ranks that are left, every second one sends its sum.");
    if (partner >= 0 && partner < t->d->rank)
        TRY(send_value(t, partner));
    else if (partner >= 0)
        TRY(receive_value(t, partner, &got));
    t->value += got;
    tell_value(t, partner > t->d->rank);
    return demo_show(t->d);
}

static status show_down(tree *t, int level)
{
    int partner = partner_of(t, level);
    demo_begin(t->d, "Step %d of %d: down", 2 * t->levels - level, 2 * t->levels);
    if (level == t->levels - 1)
        demo_say(t->d, "Rank 0 has the sum of all. It goes back the same way: a broadcast.");
    if (partner > t->d->rank)
        TRY(send_value(t, partner));
    else if (partner >= 0)
        TRY(receive_value(t, partner, &t->value));
    tell_value(t, partner >= 0 && partner < t->d->rank);
    return demo_show(t->d);
}

static status show_start(tree *t)
{
    demo_begin(t->d, "All-reduce up and down a tree of %d ranks", t->d->world_size);
    demo_say(t->d, "A ring of N ranks takes 2 (N - 1) steps, and each of them takes at least as "
                   "long as a message is under way. A tree takes 2 log2 N: with 1024 ranks 20 "
                   "steps in place of 2046.");
    demo_say(t->d, "Rank r brings 10 to the power of r: so the digits of a sum say whose numbers "
                   "are in it.");
    tell_value(t, false);
    return demo_show(t->d);
}

static status show_end(tree *t)
{
    double sum = demo_digit(t->d);
    TRY(process_group_all_reduce(t->d->group, &sum, 1, DTYPE_F64, REDUCE_SUM, NULL));
    bool same = sum >= t->value && sum <= t->value;
    demo_begin(t->d, "Every rank has the sum");
    demo_say(t->d,
             "It took %d steps. But whoever sends has sent the whole array, here one number of %zu "
             "bytes: rank 0 as often as the tree has levels. In a ring nobody sends more than "
             "twice the array.",
             2 * t->levels, sizeof t->value);
    demo_columns(t->d, "|bytes sent|bytes received|same as all_reduce");
    demo_row(t->d, "rank %d|#%lld|#%lld|%s", t->d->rank, (long long)t->sent_bytes,
             (long long)t->received_bytes, same ? "yes" : "NO");
    demo_fact(t->d, "steps", json_integer(2 * t->levels));
    demo_fact(t->d, "bytes_sent", json_integer(t->sent_bytes));
    return demo_show_proof(t->d, same, "the tree's sum is not that of all_reduce");
}

static status show_comparison(tree *t)
{
    demo_begin(t->d, "Tree or ring?");
    demo_say(t->d,
             "For an array of S bytes. A small array is a matter of steps: a tree. A large one is "
             "a matter of bytes: a ring.");
    demo_columns(t->d, "ranks|steps, tree|steps, ring|most sent, tree|ring");
    for (int ranks = 2; ranks <= 1024 && t->d->rank == 0; ranks *= ranks < 16 ? 2 : 8)
        demo_row(t->d, "#%d|#%d|#%d|%d S|%.3f S", ranks, 2 * levels_of(ranks), 2 * (ranks - 1),
                 levels_of(ranks), 2.0 * (ranks - 1) / ranks);
    return demo_show(t->d);
}

status tree_demo(demo *d)
{
    tree t = {.d = d, .value = demo_digit(d), .levels = levels_of(d->world_size)};
    TRY(show_start(&t));
    for (int level = 0; level < t.levels; level++)
        TRY(show_up(&t, level));
    for (int level = t.levels - 1; level >= 0; level--)
        TRY(show_down(&t, level));
    TRY(show_end(&t));
    return show_comparison(&t);
}
