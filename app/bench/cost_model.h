/* What one training step costs by the number of ranks: formulas, no measurements.
 *
 * A message of n bytes takes latency + n / bandwidth (R. Hockney, "The communication challenge for
 * MPP", Parallel Computing 20, 1994). With W ranks and n bytes of gradients:
 *
 *   ring           2 (W-1) messages of n/W bytes, one after the other (P. Patarasuk, X. Yuan,
 *                  "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009)
 *   tree           up and down two binary trees, each with half of the data, in chunks (P. Sanders,
 *                  J. Speck, J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast,
 *                  reduction and scan", 2009; NCCL's trees): 2 ceil(log2 W) stages, every rank's
 *                  link carries 2 n
 *   hierarchical   reduce-scatter inside each node, all-reduce between nodes (the cheaper of ring
 *                  and tree), all-gather inside each node (R. Thakur, R. Rabenseifner, W. Gropp,
 *                  "Optimization of collective communication operations in MPICH", 2005, for the
 *                  parts)
 *   server         rank 0 receives n bytes from every other rank and sends n to each, over its one
 *                  link: 2 (W-1) messages of n bytes (M. Li et al., "Scaling distributed machine
 *                  learning with the parameter server", 2014, with one server)
 *   master (DP)    like the server, and each step's images go out, logits come in, and their
 *                  gradients go out again: torch.nn.DataParallel as point-to-point copies
 *
 * DDP hides all-reduces behind the backward pass (S. Li et al., "PyTorch Distributed", VLDB 2020),
 * but for the bucket that is complete last. Server and master hide nothing: they work with the
 * finished gradients of a whole step. What is left out: the reduction's own arithmetic, and that
 * ranks which compute do not all take equally long.
 */
#ifndef MNIST_DDP_APP_BENCH_COST_MODEL_H
#define MNIST_DDP_APP_BENCH_COST_MODEL_H

#include <stdbool.h>
#include <stdint.h>

typedef struct cost_link {
    double latency_s;  /* of one message */
    double s_per_byte; /* 1 / bandwidth */
} cost_link;

typedef struct cost_cluster {
    cost_link inside;  /* between the ranks of a node */
    cost_link between; /* a node's one link to all others */
    int64_t ranks_per_node;
} cost_cluster;

/* What one rank does in a step. */
typedef struct cost_work {
    double gradient_bytes;
    double last_bytes;     /* of the last bucket: no backward pass is left to hide it behind */
    double image_bytes;    /* of an image, as DP's master sends it */
    double logit_bytes;    /* of an image's logits */
    double image_s;        /* forward and backward of one image */
    double step_s;         /* of a step, whatever its batch: optimizer, overhead */
    double backward_share; /* of image_s, 0 to 1 */
    double overlap;        /* of the backward pass that transfers may run beside, 0 to 1 */
} cost_work;

typedef enum cost_kind {
    COST_RING, /* DDP, by the all-reduce's algorithm */
    COST_TREE,
    COST_HIERARCHICAL,
    COST_SERVER,
    COST_MASTER,
    COST_KINDS,
} cost_kind;

/* "DDP ring", "parameter server", ... */
const char *cost_kind_name(cost_kind kind);
bool cost_kind_is_ddp(cost_kind kind);

/* Seconds of one all-reduce of `bytes` over `ranks`; 0 for one rank. Kinds of DDP only. */
double cost_all_reduce(cost_kind kind, const cost_cluster *cluster, int64_t ranks, double bytes);

typedef struct cost_step {
    double transfer_s; /* all of it */
    double exposed_s;  /* of it: while nobody computes */
    double step_s;     /* arithmetic, and what is exposed */
} cost_step;

/* A step of `images` per rank; a fraction stands for an uneven share. */
cost_step cost_step_of(cost_kind kind, const cost_cluster *cluster, const cost_work *work,
                       int64_t ranks, double images);

typedef enum cost_scaling {
    COST_WEAK,   /* the batch of a rank stays: the global batch grows */
    COST_STRONG, /* the global batch stays: a rank's share shrinks, down to one image */
} cost_scaling;

/* Images per second of all ranks. `batch`: of a rank (weak), or of all (strong: ranks beyond it
 * have nothing to do, and the speed is that of as many ranks as there are images). */
double cost_images_per_s(cost_kind kind, const cost_cluster *cluster, const cost_work *work,
                         cost_scaling scaling, int64_t ranks, double batch);

/* Speed per rank, relative to that of one: 1 is perfect. */
double cost_efficiency(cost_kind kind, const cost_cluster *cluster, const cost_work *work,
                       cost_scaling scaling, int64_t ranks, double batch);

/* The fewest ranks from which on twice as many bring less than a tenth more images per second:
 * there it stops scaling. 0: not up to `most` ranks. */
int64_t cost_saturation(cost_kind kind, const cost_cluster *cluster, const cost_work *work,
                        cost_scaling scaling, double batch, int64_t most);

/* The fewest ranks at which efficiency is below a half: more of a step goes into transfers than
 * into images. 0: not up to `most` ranks. */
int64_t cost_half_efficiency(cost_kind kind, const cost_cluster *cluster, const cost_work *work,
                             cost_scaling scaling, double batch, int64_t most);

#endif
