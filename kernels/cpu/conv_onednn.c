/* A batch is cut into pieces of fixed size. Each piece is one call of a single-threaded oneDNN
 * primitive. The outputs of an image do not depend on the other images, and the weight gradients of
 * the pieces are summed in their order.
 *
 * The algorithm is Winograd if oneDNN has it for this processor, else direct. Weights stay in the
 * arena in the forward primitive's layout. A primitive with another layout gets a reordered copy.
 */
#include "base/memory.h"
#include "kernels/cpu/conv2d.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    IMAGES = 8,          /* of a piece of forward and backward-data */
    WEIGHTS_IMAGES = 16, /* of a piece of backward-weights */
    MAX_IMAGES = WEIGHTS_IMAGES,
};

typedef enum direction { FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS, N_DIRECTIONS } direction;

enum { ARG_X, ARG_WEIGHT, ARG_BIAS, ARG_Y, ARG_SCRATCH, N_ARGS };

/* One direction at one number of images. The memory objects are one set per member of the team. */
typedef struct primitive {
    dnnl_primitive_t handle;
    dnnl_memory_desc_t md[N_ARGS];
    dnnl_memory_t *memory; /* (members, N_ARGS) */
} primitive;

struct conv_onednn {
    conv_plan plan; /* first: kernels/cpu/conv2d.c looks at it */
    int members;
    dnnl_memory_desc_t weight_md; /* in the arena */
    primitive *by_images[N_DIRECTIONS][MAX_IMAGES + 1];
    float *reordered;         /* weights in backward-data's layout, if that differs */
    dnnl_primitive_t reorder; /* arena to `reordered`; NULL: same order */
};

static const int execute_args[N_DIRECTIONS][N_ARGS] = {
    [FORWARD] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD},
    [BACKWARD_DATA] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, 0, DNNL_ARG_DIFF_DST,
                       DNNL_ARG_SCRATCHPAD},
    [BACKWARD_WEIGHTS] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_BIAS,
                          DNNL_ARG_DIFF_DST, DNNL_ARG_SCRATCHPAD},
};

static status activation_md(const conv_onednn *c, int images, int channels, int height, int width,
                            dnnl_memory_desc_t *out)
{
    dnnl_dims_t dims = {images, channels, height, width};
    dnnl_format_tag_t tag = c->plan.cpu->vec->block == 16 ? dnnl_nChw16c : dnnl_nChw8c;
    return ONEDNN_CALL(dnnl_memory_desc_init_by_tag(out, 4, dims, dnnl_f32, tag));
}

static status weight_md(const conv_onednn *c, dnnl_format_tag_t tag, dnnl_memory_desc_t *out)
{
    const conv2d_shape *s = &c->plan.s;
    dnnl_dims_t dims = {s->out_channels, s->channels, s->kernel, s->kernel};
    return ONEDNN_CALL(dnnl_memory_desc_init_by_tag(out, 4, dims, dnnl_f32, tag));
}

static dnnl_status_t describe(direction way, dnnl_alg_kind_t algorithm, dnnl_memory_desc_t *md,
                              dnnl_convolution_desc_t *out)
{
    static const dnnl_dims_t strides = {1, 1}, padding = {0, 0};
    switch (way) {
    case FORWARD:
        return dnnl_convolution_forward_desc_init(out, dnnl_forward_training, algorithm, &md[ARG_X],
                                                  &md[ARG_WEIGHT], &md[ARG_BIAS], &md[ARG_Y],
                                                  strides, padding, padding);
    case BACKWARD_DATA:
        return dnnl_convolution_backward_data_desc_init(out, algorithm, &md[ARG_X], &md[ARG_WEIGHT],
                                                        &md[ARG_Y], strides, padding, padding);
    default:
        return dnnl_convolution_backward_weights_desc_init(out, algorithm, &md[ARG_X],
                                                           &md[ARG_WEIGHT], &md[ARG_BIAS],
                                                           &md[ARG_Y], strides, padding, padding);
    }
}

/* oneDNN's reference loops, which it offers if it has nothing better: hundreds of times slower. */
static bool is_slow(dnnl_primitive_desc_t found)
{
    const char *name = NULL;
    return dnnl_primitive_desc_query(found, dnnl_query_impl_info_str, 0, &name) != dnnl_success ||
           strncmp(name, "ref", 3) == 0;
}

/* The primitive descriptor of one direction by one algorithm, or NULL if oneDNN has no fast one. A
 * backward descriptor needs the forward one of the same algorithm as a hint. */
static dnnl_primitive_desc_t descriptor(const conv_onednn *c, direction way,
                                        dnnl_alg_kind_t algorithm, dnnl_memory_desc_t *md)
{
    dnnl_primitive_desc_t hint = NULL, found = NULL;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_convolution_desc_t described;
    if (way != FORWARD) {
        dnnl_memory_desc_t forward_md[N_ARGS];
        memcpy(forward_md, md, sizeof forward_md);
        forward_md[ARG_WEIGHT] = c->weight_md;
        hint = descriptor(c, FORWARD, algorithm, forward_md);
        if (hint == NULL)
            return NULL;
    }
    if (dnnl_primitive_attr_create(&attr) == dnnl_success &&
        dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) == dnnl_success &&
        describe(way, algorithm, md, &described) == dnnl_success)
        dnnl_primitive_desc_create(&found, &described, attr, c->plan.cpu->engine, hint);
    if (attr != NULL)
        dnnl_primitive_attr_destroy(attr);
    if (hint != NULL)
        dnnl_primitive_desc_destroy(hint);
    if (found != NULL && is_slow(found)) {
        dnnl_primitive_desc_destroy(found);
        return NULL;
    }
    return found;
}

static status memories_create(const conv_onednn *c, direction way, primitive *made)
{
    TRY(memory_alloc(sizeof *made->memory * (size_t)(c->members * N_ARGS), (void **)&made->memory));
    for (int i = 0; i < c->members * N_ARGS; i++)
        if (execute_args[way][i % N_ARGS] != 0)
            TRY(ONEDNN_CALL(dnnl_memory_create(&made->memory[i], &made->md[i % N_ARGS],
                                               c->plan.cpu->engine, DNNL_MEMORY_NONE)));
    return STATUS_OK;
}

static void primitive_destroy(const conv_onednn *c, primitive *p)
{
    if (p == NULL)
        return;
    for (int i = 0; p->memory != NULL && i < c->members * N_ARGS; i++)
        if (p->memory[i] != NULL)
            dnnl_memory_destroy(p->memory[i]);
    if (p->handle != NULL)
        dnnl_primitive_destroy(p->handle);
    free(p->memory);
    free(p);
}

static status all_md(const conv_onednn *c, direction way, int images, dnnl_memory_desc_t *md)
{
    const conv2d_shape *s = &c->plan.s;
    dnnl_dims_t bias_dims = {s->out_channels};
    TRY(activation_md(c, images, s->channels, s->height, s->width, &md[ARG_X]));
    TRY(activation_md(c, images, s->out_channels, c->plan.out_h, c->plan.out_w, &md[ARG_Y]));
    const primitive *first = c->by_images[way][IMAGES]; /* all read the weights in one order */
    md[ARG_WEIGHT] = way == BACKWARD_DATA && first != NULL ? first->md[ARG_WEIGHT] : c->weight_md;
    return ONEDNN_CALL(dnnl_memory_desc_init_by_tag(&md[ARG_BIAS], 1, bias_dims, dnnl_f32, dnnl_a));
}

/* Winograd, else direct. Backward-data may ask for its own weight layout. */
static status choose(const conv_onednn *c, direction way, dnnl_memory_desc_t *md,
                     dnnl_primitive_desc_t *out)
{
    *out = descriptor(c, way, dnnl_convolution_winograd, md);
    if (*out == NULL)
        *out = descriptor(c, way, dnnl_convolution_direct, md);
    if (*out == NULL && way == BACKWARD_DATA) {
        TRY(weight_md(c, dnnl_format_tag_any, &md[ARG_WEIGHT]));
        *out = descriptor(c, way, dnnl_convolution_direct, md);
        if (*out != NULL)
            md[ARG_WEIGHT] = *dnnl_primitive_desc_query_md(*out, dnnl_query_weights_md, 0);
    }
    if (*out == NULL)
        return FAIL(STATUS_DEVICE, "oneDNN has no 3x3 convolution for this processor");
    return STATUS_OK;
}

/* The primitive for `images` images, made at its first use. Not while the team works. */
static status primitive_for(conv_onednn *c, direction way, int images, primitive **out)
{
    if (c->by_images[way][images] != NULL) {
        *out = c->by_images[way][images];
        return STATUS_OK;
    }
    primitive *made = NULL;
    dnnl_primitive_desc_t chosen = NULL;
    TRY(memory_alloc(sizeof *made, (void **)&made));
    status st = all_md(c, way, images, made->md);
    if (st == STATUS_OK)
        st = choose(c, way, made->md, &chosen);
    if (st == STATUS_OK) {
        made->md[ARG_SCRATCH] = *dnnl_primitive_desc_query_md(chosen, dnnl_query_scratchpad_md, 0);
        st = ONEDNN_CALL(dnnl_primitive_create(&made->handle, chosen));
    }
    if (chosen != NULL)
        dnnl_primitive_desc_destroy(chosen);
    if (st == STATUS_OK)
        st = cpu_reserve_scratch(c->plan.cpu, dnnl_memory_desc_get_size(&made->md[ARG_SCRATCH]));
    if (st == STATUS_OK)
        st = memories_create(c, way, made);
    if (st != STATUS_OK) {
        primitive_destroy(c, made);
        return st;
    }
    c->by_images[way][images] = made;
    *out = made;
    return STATUS_OK;
}

/* Creates the weights' copy and the reorder primitive, if backward-data has its own weight
 * layout. */
static status reorder_create(conv_onednn *c)
{
    primitive *data = NULL;
    TRY(primitive_for(c, BACKWARD_DATA, IMAGES, &data));
    const dnnl_memory_desc_t *wanted = &data->md[ARG_WEIGHT];
    if (dnnl_memory_desc_equal(wanted, &c->weight_md))
        return STATUS_OK;
    dnnl_primitive_desc_t described = NULL;
    dnnl_engine_t engine = c->plan.cpu->engine;
    size_t size_bytes = dnnl_memory_desc_get_size(wanted);
    TRY(memory_alloc(size_bytes, (void **)&c->reordered));
    device_note_memory(c->plan.cpu->dev, (int64_t)size_bytes);
    TRY(ONEDNN_CALL(dnnl_reorder_primitive_desc_create(&described, &c->weight_md, engine, wanted,
                                                       engine, NULL)));
    status st = ONEDNN_CALL(dnnl_primitive_create(&c->reorder, described));
    dnnl_primitive_desc_destroy(described);
    return st;
}

static status open_plan(conv_onednn *c, int max_n)
{
    conv_plan *p = &c->plan;
    TRY(conv_plan_open(p, (max_n + WEIGHTS_IMAGES - 1) / WEIGHTS_IMAGES));
    TRY(weight_md(c, p->cpu->vec->block == 16 ? dnnl_OIhw16i16o : dnnl_OIhw8i8o, &c->weight_md));
    return reorder_create(c);
}

status conv_onednn_create(device *dev, const conv2d_shape *shape, int max_n, conv_onednn **out)
{
    conv_onednn *c = NULL;
    TRY(memory_alloc(sizeof *c, (void **)&c));
    c->plan.s = *shape;
    c->plan.cpu = cpu_of(dev);
    c->members = team_threads(c->plan.cpu->team);
    status st = open_plan(c, max_n);
    if (st != STATUS_OK) {
        conv_onednn_destroy(c);
        return st;
    }
    *out = c;
    return STATUS_OK;
}

void conv_onednn_destroy(conv_onednn *c)
{
    if (c == NULL)
        return;
    for (int way = 0; way < N_DIRECTIONS; way++)
        for (int images = 0; images <= MAX_IMAGES; images++)
            primitive_destroy(c, c->by_images[way][images]);
    if (c->reorder != NULL)
        dnnl_primitive_destroy(c->reorder);
    free(c->reordered);
    free(c->plan.partial);
    free(c);
}

/* PyTorch's (O, C, 3, 3) to and from (O/B, C/B, 9, B of C, B of O). */
void conv_onednn_order(const conv_plan *p, const float *from, float *to, bool import)
{
    int block = p->cpu->vec->block, in_blocks = p->s.channels / block;
    for (int o = 0; o < p->s.out_channels; o++)
        for (int c = 0; c < p->s.channels; c++)
            for (int k = 0; k < CONV_TAPS; k++) {
                int plain = (o * p->s.channels + c) * CONV_TAPS + k;
                int tap = (o / block * in_blocks + c / block) * CONV_TAPS + k;
                int ours = (tap * block + c % block) * block + o % block;
                to[import ? ours : plain] = from[import ? plain : ours];
            }
}

typedef struct conv_job {
    conv_onednn *c;
    direction way;
    int n, images;           /* of the batch, of a whole piece */
    primitive *whole, *rest; /* for whole pieces, and for the last one */
    const float *x, *weight, *bias, *y;
    atomic_int failed; /* the dnnl_status_t of a failed call */
} conv_job;

/* oneDNN takes inputs as pointers to non-const too. */
static dnnl_status_t set(dnnl_memory_t memory, const void *data)
{
    return dnnl_memory_set_data_handle(memory, (void *)(uintptr_t)data);
}

static void run_piece(void *arg, int piece)
{
    conv_job *job = arg;
    conv_onednn *c = job->c;
    const conv_plan *p = &c->plan;
    int member = team_member(), first = piece * job->images;
    primitive *prim = job->n - first < job->images ? job->rest : job->whole;
    dnnl_memory_t *memory = prim->memory + member * N_ARGS;
    const float *weight = job->weight, *bias = job->bias;
    if (job->way == BACKWARD_WEIGHTS) {
        weight = p->partial + (size_t)piece * p->partial_floats;
        bias = weight + conv_weights(p);
    }
    const void *data[N_ARGS] = {job->x + (size_t)first * p->x_elements, weight, bias,
                                job->y + (size_t)first * p->y_elements, p->cpu->scratch[member]};
    dnnl_exec_arg_t args[N_ARGS];
    int n_args = 0;
    dnnl_status_t code = dnnl_success;
    for (int i = 0; i < N_ARGS && code == dnnl_success; i++) {
        if (execute_args[job->way][i] == 0)
            continue;
        code = set(memory[i], data[i]);
        args[n_args++] = (dnnl_exec_arg_t){execute_args[job->way][i], memory[i]};
    }
    if (code == dnnl_success)
        code = dnnl_primitive_execute(prim->handle, p->cpu->streams[member], n_args, args);
    if (code == dnnl_success)
        code = dnnl_stream_wait(p->cpu->streams[member]);
    if (code != dnnl_success)
        atomic_store(&job->failed, (int)code);
}

static status run(conv_job *job, int *pieces)
{
    int rest = job->n % job->images;
    if (job->n >= job->images)
        TRY(primitive_for(job->c, job->way, job->images, &job->whole));
    if (rest > 0)
        TRY(primitive_for(job->c, job->way, rest, &job->rest));
    *pieces = job->n / job->images + (rest > 0);
    team_run(job->c->plan.cpu->team, run_piece, job, *pieces);
    return ONEDNN_CALL((dnnl_status_t)atomic_load(&job->failed));
}

status conv_onednn_forward(conv_onednn *c, int n, const float *x, const float *weight,
                           const float *bias, float *y)
{
    int pieces = 0;
    conv_job job = {.c = c,
                    .way = FORWARD,
                    .n = n,
                    .images = IMAGES,
                    .x = x,
                    .weight = weight,
                    .bias = bias,
                    .y = y};
    return run(&job, &pieces);
}

status conv_onednn_backward_weights(conv_onednn *c, int n, const float *x, const float *dy,
                                    const param_gradients *out)
{
    int pieces = 0;
    conv_job job = {
        .c = c, .way = BACKWARD_WEIGHTS, .n = n, .images = WEIGHTS_IMAGES, .x = x, .y = dy};
    TRY(run(&job, &pieces));
    conv_sum_partial(&c->plan, pieces, out);
    return STATUS_OK;
}

static status reorder_weights(conv_onednn *c, const float *weight)
{
    primitive *data = c->by_images[BACKWARD_DATA][IMAGES];
    dnnl_memory_t from = NULL, to = NULL;
    status st = ONEDNN_CALL(
        dnnl_memory_create(&from, &c->weight_md, c->plan.cpu->engine, (void *)(uintptr_t)weight));
    if (st == STATUS_OK)
        st = ONEDNN_CALL(
            dnnl_memory_create(&to, &data->md[ARG_WEIGHT], c->plan.cpu->engine, c->reordered));
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    if (st == STATUS_OK)
        st = ONEDNN_CALL(dnnl_primitive_execute(c->reorder, c->plan.cpu->streams[0], 2, args));
    if (st == STATUS_OK)
        st = ONEDNN_CALL(dnnl_stream_wait(c->plan.cpu->streams[0]));
    if (from != NULL)
        dnnl_memory_destroy(from);
    if (to != NULL)
        dnnl_memory_destroy(to);
    return st;
}

status conv_onednn_backward_data(conv_onednn *c, int n, const float *weight, const float *dy,
                                 float *dx)
{
    int pieces = 0;
    if (c->reorder != NULL)
        TRY(reorder_weights(c, weight));
    conv_job job = {.c = c,
                    .way = BACKWARD_DATA,
                    .n = n,
                    .images = IMAGES,
                    .x = dx,
                    .weight = c->reorder != NULL ? c->reordered : weight,
                    .y = dy};
    return run(&job, &pieces);
}
