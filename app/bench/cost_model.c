#include "app/bench/cost_model.h"

#include <math.h>

#define GAIN_OF_DOUBLING 1.1 /* less than this is no gain */

const char *cost_kind_name(cost_kind kind)
{
    static const char *const names[COST_KINDS] = {"DDP ring", "DDP tree", "DDP hierarchical",
                                                  "parameter server", "DP master"};
    return kind < COST_KINDS ? names[kind] : "?";
}

bool cost_kind_is_ddp(cost_kind kind)
{
    return kind <= COST_HIERARCHICAL;
}

static int64_t nodes_of(const cost_cluster *cluster, int64_t ranks)
{
    return (ranks + cluster->ranks_per_node - 1) / cluster->ranks_per_node;
}

/* Ranks of a full node, or all if they are fewer. */
static int64_t local_ranks(const cost_cluster *cluster, int64_t ranks)
{
    return ranks < cluster->ranks_per_node ? ranks : cluster->ranks_per_node;
}

static double levels(int64_t ranks)
{
    double n = 0;
    for (int64_t reach = 1; reach < ranks; reach *= 2)
        n++;
    return n;
}

/* W - 1 steps to reduce and W - 1 to gather, n / W bytes each. */
static double ring(cost_link link, int64_t ranks, double bytes)
{
    double steps = 2 * (double)(ranks - 1);
    return steps * (link.latency_s + bytes / (double)ranks * link.s_per_byte);
}

/* A chunk passes 2 d stages; the next ones follow it at the pace of a rank's link, which takes each
 * chunk in and out twice. k chunks: latency + 2 d n/k b + (k - 1) (a + 2 n/k b), least at k =
 * sqrt((2 d - 2) n b / a). `latency_s`: of all stages together; link: the slowest. */
static double tree(cost_link link, double depth, double latency_s, double bytes)
{
    if (depth <= 0)
        return 0;
    double once = bytes * link.s_per_byte, chunks = 1;
    if (link.latency_s > 0)
        chunks = fmax(1, sqrt((2 * depth - 2) * once / link.latency_s));
    else if (once > 0)
        chunks = HUGE_VAL;
    double fill = (2 * depth - 2) * once / chunks;
    double pace = isinf(chunks) ? 0 : (chunks - 1) * link.latency_s;
    return latency_s + 2 * once + fill + pace;
}

static double tree_of(const cost_cluster *cluster, int64_t ranks, double bytes)
{
    int64_t nodes = nodes_of(cluster, ranks);
    double inner = levels(local_ranks(cluster, ranks)), outer = levels(nodes);
    double latency_s = 2 * (inner * cluster->inside.latency_s + outer * cluster->between.latency_s);
    return tree(nodes > 1 ? cluster->between : cluster->inside, inner + outer, latency_s, bytes);
}

/* All ranks of a node send at once, each its part, over the node's one link: together all bytes. */
static double hierarchical(const cost_cluster *cluster, int64_t ranks, double bytes)
{
    int64_t nodes = nodes_of(cluster, ranks);
    double inside = ring(cluster->inside, local_ranks(cluster, ranks), bytes);
    if (nodes == 1)
        return inside;
    double around = ring(cluster->between, nodes, bytes), depth = levels(nodes);
    double across = tree(cluster->between, depth, 2 * depth * cluster->between.latency_s, bytes);
    return inside + fmin(around, across);
}

double cost_all_reduce(cost_kind kind, const cost_cluster *cluster, int64_t ranks, double bytes)
{
    if (ranks <= 1)
        return 0;
    if (kind == COST_TREE)
        return tree_of(cluster, ranks, bytes);
    if (kind == COST_HIERARCHICAL)
        return hierarchical(cluster, ranks, bytes);
    /* A ring in the order of the nodes enters and leaves each of them once. */
    return ring(nodes_of(cluster, ranks) > 1 ? cluster->between : cluster->inside, ranks, bytes);
}

static double message(cost_link link, double bytes)
{
    return link.latency_s + bytes * link.s_per_byte;
}

/* Seconds in which rank 0 sends `bytes` to each other rank, or receives them, one by one. */
static double fan(const cost_cluster *cluster, int64_t ranks, double bytes)
{
    int64_t near = local_ranks(cluster, ranks);
    return (double)(near - 1) * message(cluster->inside, bytes) +
           (double)(ranks - near) * message(cluster->between, bytes);
}

/* Parameters out, gradients in; DP's master also images out, logits in, their gradients out. */
static double star(cost_kind kind, const cost_cluster *cluster, const cost_work *work,
                   int64_t ranks, double images)
{
    double s = 2 * fan(cluster, ranks, work->gradient_bytes);
    if (kind == COST_MASTER)
        s += fan(cluster, ranks, images * work->image_bytes) +
             2 * fan(cluster, ranks, images * work->logit_bytes);
    return s;
}

cost_step cost_step_of(cost_kind kind, const cost_cluster *cluster, const cost_work *work,
                       int64_t ranks, double images)
{
    double compute_s = work->image_s * images + work->step_s, transfer_s, exposed_s;
    if (cost_kind_is_ddp(kind)) {
        transfer_s = cost_all_reduce(kind, cluster, ranks, work->gradient_bytes);
        double hidden_s = work->overlap * work->backward_share * work->image_s * images;
        exposed_s =
            fmax(transfer_s - hidden_s, cost_all_reduce(kind, cluster, ranks, work->last_bytes));
    } else {
        transfer_s = exposed_s = star(kind, cluster, work, ranks, images);
    }
    return (cost_step){transfer_s, exposed_s, compute_s + exposed_s};
}

double cost_images_per_s(cost_kind kind, const cost_cluster *cluster, const cost_work *work,
                         cost_scaling scaling, int64_t ranks, double batch)
{
    if (scaling == COST_STRONG && (double)ranks > batch)
        ranks = (int64_t)batch;
    double images = scaling == COST_STRONG ? batch / (double)ranks : batch;
    double step_s = cost_step_of(kind, cluster, work, ranks, images).step_s;
    return images * (double)ranks / step_s;
}

double cost_efficiency(cost_kind kind, const cost_cluster *cluster, const cost_work *work,
                       cost_scaling scaling, int64_t ranks, double batch)
{
    double one = cost_images_per_s(kind, cluster, work, scaling, 1, batch);
    return cost_images_per_s(kind, cluster, work, scaling, ranks, batch) / one / (double)ranks;
}

/* A question with one answer from some number of ranks on. */
typedef struct question {
    cost_kind kind;
    const cost_cluster *cluster;
    const cost_work *work;
    cost_scaling scaling;
    double batch;
} question;

typedef bool answer_fn(const question *q, int64_t ranks);

static bool is_saturated(const question *q, int64_t ranks)
{
    double now = cost_images_per_s(q->kind, q->cluster, q->work, q->scaling, ranks, q->batch);
    double twice = cost_images_per_s(q->kind, q->cluster, q->work, q->scaling, 2 * ranks, q->batch);
    return twice < GAIN_OF_DOUBLING * now;
}

static bool is_half(const question *q, int64_t ranks)
{
    return cost_efficiency(q->kind, q->cluster, q->work, q->scaling, ranks, q->batch) < 0.5;
}

/* A few per cent more: depths of trees and half-filled nodes make the curves uneven, so that
 * halving an interval would miss places. */
static int64_t next_of(int64_t ranks)
{
    return ranks + 1 + ranks / 32;
}

/* The fewest ranks at which the answer is yes; 0: none. */
static int64_t first_yes(const question *q, answer_fn *answer, int64_t most)
{
    int64_t no = 0;
    for (int64_t ranks = 1; ranks <= most; ranks = next_of(ranks)) {
        if (!answer(q, ranks)) {
            no = ranks;
            continue;
        }
        while (no + 1 < ranks && !answer(q, no + 1))
            no++;
        return no + 1;
    }
    return 0;
}

/* The fewest ranks from which on the answer stays yes; 0: none. */
static int64_t last_yes(const question *q, answer_fn *answer, int64_t most)
{
    int64_t yes = 0;
    for (int64_t ranks = 1; ranks <= most; ranks = next_of(ranks)) {
        if (!answer(q, ranks))
            yes = 0;
        else if (yes == 0)
            yes = ranks;
    }
    while (yes > 1 && answer(q, yes - 1))
        yes--;
    return yes;
}

int64_t cost_saturation(cost_kind kind, const cost_cluster *cluster, const cost_work *work,
                        cost_scaling scaling, double batch, int64_t most)
{
    question q = {kind, cluster, work, scaling, batch};
    return last_yes(&q, is_saturated, most);
}

int64_t cost_half_efficiency(cost_kind kind, const cost_cluster *cluster, const cost_work *work,
                             cost_scaling scaling, double batch, int64_t most)
{
    question q = {kind, cluster, work, scaling, batch};
    return first_yes(&q, is_half, most);
}
