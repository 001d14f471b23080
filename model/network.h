/* A network with its parameters and gradients as two flat arenas in PyTorch's order; or a stage of
 * one: some of its layers, which get the output of those before; or a shard: of its first linear
 * layer some rows, of the next one the columns that they feed, as Megatron-LM cuts such a pair
 * (network_cut). Its parameters may be elsewhere, and come unit by unit (network_sharding). */
#ifndef MNIST_DDP_MODEL_NETWORK_H
#define MNIST_DDP_MODEL_NETWORK_H

#include "base/status.h"
#include "kernels/batch.h"
#include "kernels/ops.h"
#include "model/model_kind.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct network network;

enum { NETWORK_MAX_PARAMETERS = 8, NETWORK_CLASSES = 10 };

/* A parameter as PyTorch's state_dict names it; a slice of both arenas. */
typedef struct parameter {
    const char *name; /* "conv1.weight" */
    int rank;         /* number of dimensions */
    int shape[4];
    size_t offset, count; /* elements */
} parameter;

/* What a network has of its model. A stage: some of its parts, one after the other. A shard, for
 * tensor parallelism: of the first linear layer some outputs, of the next one the columns that take
 * them, and all else. */
typedef struct network_cut {
    int first_part, n_parts; /* of network_parts(); n_parts 0: all */
    int rank, world_size;    /* which of the shards; world_size 0: layers are whole */
} network_cut;

/* How all shards add up `count` numbers in device memory, of `element_bytes` each; every one gets
 * the sum, with the same bits. It is called in forward, and in backward if layers come before the
 * first linear one. */
typedef struct network_sum {
    status (*all_reduce)(void *ctx, void *data, size_t count, size_t element_bytes);
    void *ctx;
} network_sum;

typedef struct network_options {
    model_kind kind;
    int max_batch;         /* largest batch of forward */
    uint64_t seed;         /* for the initial weights and the dropout masks */
    float label_smoothing; /* the loss's in training; 0: none */
    network_cut cut;       /* zeroed: all of the model */
    network_sum sum;       /* a shard's */
    float *gradients; /* device memory for network_count() floats, zeroed, that outlives the network
                         (a process group's shared memory, say); NULL: the network makes its own */
    float *parameters; /* likewise */
    size_t shard;      /* floats of them that are there, of a network that is cut (network_shard);
                          gradients and parameters have room for so many. 0: all are there */
} network_options;

/* Where a network may be cut: before each linear layer but the first layer. So many parts there
 * are: the convolutions, if there are any, and each linear layer. */
int network_parts(model_kind kind);

/* So many shards there are at most: each has a multiple of 16 of the first linear layer's outputs.
 * network_shard_outputs: how many, from *first on. */
int network_most_shards(model_kind kind);
int network_shard_outputs(model_kind kind, int rank, int world_size, int *first);

/* Parameters of a cut, before there is a network of it. No shard has more than shard 0. */
size_t network_cut_count(model_kind kind, network_cut cut);

/* Copies what a cut has of `whole`, the whole model, to `own` (NETWORK_IMPORT), or back; both in
 * PyTorch's order in host memory. */
typedef enum network_order { NETWORK_EXPORT, NETWORK_IMPORT } network_order;
void network_cut_copy(model_kind kind, network_cut cut, float *whole, float *own,
                      network_order way);

/* How the parameters of a network that several ranks cut into shards come to each layer. A unit is
 * one of network_parts(); its arrays have network_cut_count() floats in the arena's order, and
 * offsets in network_layout() are those in a unit. */
typedef struct network_sharding {
    void *ctx;
    /* Begins to bring a unit's parameters, unless they are there. */
    status (*prefetch)(void *ctx, int unit);
    /* They are there: until those of the unit after the next are asked for, or its gradients'
     * array. */
    status (*unshard)(void *ctx, int unit, const float **out);
    /* Room for a unit's gradients. Its parameters are not read any more, but for those of unit 0:
     * if they are there, the room is elsewhere. */
    status (*gradients)(void *ctx, int unit, float **out);
    /* All of the unit's gradients are in that room. */
    status (*ready)(void *ctx, int unit);
    /* The unit's initial parameters: host memory. */
    status (*keep)(void *ctx, int unit, const float *parameters);
} network_sharding;

/* Images of one forward without a backward that go through this device in the least time. */
int network_eval_batch(const device *dev);

/* The initial weights are torch.manual_seed(seed)'s, in every bit. The device must outlive it. */
status network_create(device *dev, const network_options *options, network **out);
void network_destroy(network *net);

/* Its parameters become the initial weights again; options.shard is 0. */
status network_draw(network *net);

/* Once, for options.shard > 0 and before all else: the initial weights are drawn, unit by unit. */
status network_shard(network *net, const network_sharding *how);

/* The batch is read until backward is done. Training draws dropout masks. */
typedef enum network_mode { NETWORK_TRAIN, NETWORK_EVAL } network_mode;
status network_forward(network *net, const batch *in, network_mode mode);

/* After forward: adds this batch's loss and hits to the network's totals. */
status network_score(network *net);

/* Loss and gradient of the batch of the last forward (NETWORK_TRAIN). `accumulate`: gradients are
 * added to what the arena holds, else set. Calls `ready`, unless NULL, as each slice is final: last
 * layer first, weight and bias together, slices adjoining. Adds to the totals as network_score. */
status network_backward(network *net, bool accumulate, grad_ready_fn ready, void *ctx);

/* The same in parts, for a loss that is computed from the logits of several networks. network_loss:
 * of any logits (n, 10), with the labels and step state of `in`; sets dlogits (n, 10) and adds to
 * this network's totals. network_backward_from: the rest, with the gradient of the last forward's
 * logits in network_dlogits() (n, 10). All device memory. */
status network_loss(network *net, const float *logits, const batch *in, void *dlogits);
void *network_dlogits(network *net);
size_t network_dlogits_row_bytes(const network *net); /* a multiple of 4 */
status network_backward_from(network *net, bool accumulate, grad_ready_fn ready, void *ctx);

/* Of a stage: the output of the last forward (n, *elements), which is batch.x of the next stage;
 * and after network_backward_from the gradient of its own batch.x, as many as the output before
 * has, which goes to network_dlogits() of the stage before. Device memory. */
const float *network_output(const network *net, size_t *elements);
const float *network_dinput(const network *net, size_t *elements);

/* Clips the gradients as they are in the arena, over all parameters:
 * torch.nn.utils.clip_grad_norm_. Their norm before it goes to the totals. `state` is that of the
 * step. */
status network_clip_gradients(network *net, float max_norm, const step_state *state);

/* The totals since the last reset: in device memory; and read on the host after all enqueued
 * work. */
const score *network_totals(const network *net);
status network_read_score(network *net, score *out);
status network_reset_score(network *net);

/* Device memory, network_count() floats each. */
float *network_parameters(network *net);
float *network_gradients(network *net);
model_kind network_kind(const network *net);
size_t network_count(const network *net);
int network_max_batch(const network *net);

/* The parameters' names, shapes and offsets, in order. Owned by the network. */
size_t network_layout(const network *net, const parameter **out);

/* The same of the whole model, of which a stage has a part: what a checkpoint holds. */
size_t network_model_layout(const network *net, const parameter **out);
size_t network_model_count(const network *net);

/* Copies an arena (parameters, gradients, optimizer state) to or from host memory in PyTorch's
 * order. */
status network_export(network *net, const float *arena, float *host);
status network_import(network *net, const float *host, float *arena);

/* The same from host memory to host memory: of an arena that several ranks have parts of. */
status network_reorder(network *net, const float *from, float *to, network_order way);

/* Of one unit (network_sharding). */
status network_reorder_unit(network *net, int unit, const float *from, float *to,
                            network_order way);

/* Whether all parameters that are there are finite. Waits for the device. */
status network_is_finite(network *net, bool *out);

/* The logits (n, 10) of the last forward, device memory. */
const float *network_logits(const network *net);

/* For golden tests: masks to use instead of Philox from now on, 1 keeps; layer 0 is dropout1
 * (max_batch, 64, 12, 12), layer 1 dropout2 (max_batch, 128). NULL: Philox again. */
void network_inject_dropout(network *net, int layer, const uint8_t *keep);

#endif
