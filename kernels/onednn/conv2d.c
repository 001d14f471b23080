/* A batch is cut into pieces of fixed size. Each piece is one call of a single-threaded primitive.
 * The outputs of an image do not depend on the other images, and the weight gradients of the pieces
 * are summed in their order. So the number of threads cannot change a bit.
 *
 * oneDNN chooses the algorithm and the order of the weights for this processor, once for each pass.
 */
#include "base/memory.h"
#include "kernels/host.h"
#include "kernels/onednn/dnnl_api.h"
#include "kernels/onednn/state.h"
#include "kernels/onednn/weight_order.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef enum conv_pass { CONV_FORWARD, CONV_DATA, CONV_WEIGHTS, CONV_PASSES } conv_pass;

/* Its arrays, in this order; those that a pass sets are gradients. CONV_DATA has no bias. */
enum { CONV_X, CONV_WEIGHT, CONV_BIAS, CONV_Y, CONV_ARRAYS };

typedef struct conv_primitive conv_primitive;

enum { SCRATCH = CONV_ARRAYS, ARGS };

/* oneDNN's names of the arrays; 0: the pass has none. */
static const int arg_names[CONV_PASSES][ARGS] = {
    [CONV_FORWARD] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST,
                      DNNL_ARG_SCRATCHPAD},
    [CONV_DATA] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, 0, DNNL_ARG_DIFF_DST, DNNL_ARG_SCRATCHPAD},
    [CONV_WEIGHTS] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_BIAS, DNNL_ARG_DIFF_DST,
                      DNNL_ARG_SCRATCHPAD},
};

struct conv_primitive {
    onednn_state *state;
    conv_pass pass;
    dnnl_primitive_t handle;
    dnnl_memory_t *memory; /* (members, ARGS): a member sets the addresses of its own */
};

static dnnl_api_md md_of(const conv_primitive *p, int arg)
{
    const_dnnl_primitive_desc_t described = NULL;
    dnnl_primitive_get_primitive_desc(p->handle, &described);
    return dnnl_primitive_desc_query_md(described, dnnl_query_exec_arg_md, arg_names[p->pass][arg]);
}

/* The order of its weights; valid as long as the primitive. */
static dnnl_api_md conv_primitive_weight_md(const conv_primitive *p)
{
    return md_of(p, CONV_WEIGHT);
}

static void destroy_md(dnnl_api_conv *md)
{
    dnnl_api_md_destroy(md->x);
    dnnl_api_md_destroy(md->weight);
    dnnl_api_md_destroy(md->bias);
    dnnl_api_md_destroy(md->y);
}

/* The caller destroys *out, after a failure too. */
static dnnl_status_t create_md(const conv2d_shape *s, int images, dnnl_api_conv *out)
{
    dnnl_dim_t out_h = s->height - s->kernel + 1, out_w = s->width - s->kernel + 1;
    dnnl_dims_t x = {images, s->channels, s->height, s->width};
    dnnl_dims_t weight = {s->out_channels, s->channels, s->kernel, s->kernel};
    dnnl_dims_t bias = {s->out_channels}, y = {images, s->out_channels, out_h, out_w};
    dnnl_status_t code = dnnl_api_md_create(4, x, dnnl_nhwc, &out->x);
    if (code == dnnl_success)
        code = dnnl_api_md_create(4, weight, dnnl_format_tag_any, &out->weight);
    if (code == dnnl_success)
        code = dnnl_api_md_create(1, bias, dnnl_x, &out->bias);
    if (code == dnnl_success)
        code = dnnl_api_md_create(4, y, dnnl_nhwc, &out->y);
    return code;
}

/* Describes the pass. A backward pass is described with the forward pass, of weights in the order
 * that oneDNN prefers, as its hint. */
static dnnl_status_t describe(const onednn_state *state, conv_pass pass, const dnnl_api_conv *md,
                              dnnl_api_md weight, const_dnnl_primitive_attr_t attr,
                              dnnl_primitive_desc_t *out)
{
    dnnl_api_conv wanted = *md;
    if (weight != NULL)
        wanted.weight = weight;
    if (pass == CONV_FORWARD)
        return dnnl_api_conv_forward(&wanted, state->engine, attr, out);
    dnnl_primitive_desc_t hint = NULL;
    dnnl_status_t code = dnnl_api_conv_forward(md, state->engine, attr, &hint);
    if (code != dnnl_success)
        return code;
    code = (pass == CONV_DATA ? dnnl_api_conv_backward_data : dnnl_api_conv_backward_weights)(
        &wanted, state->engine, attr, hint, out);
    dnnl_primitive_desc_destroy(hint);
    return code;
}

static dnnl_status_t create_handle(conv_primitive *p, const conv2d_shape *shape, int images,
                                   dnnl_api_md weight)
{
    dnnl_api_conv md = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t described = NULL;
    dnnl_status_t code = create_md(shape, images, &md);
    if (code == dnnl_success)
        code = dnnl_primitive_attr_create(&attr);
    if (code == dnnl_success)
        code = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (code == dnnl_success)
        code = describe(p->state, p->pass, &md, weight, attr, &described);
    if (code == dnnl_success)
        code = dnnl_primitive_create(&p->handle, described);
    if (described != NULL)
        dnnl_primitive_desc_destroy(described);
    if (attr != NULL)
        dnnl_primitive_attr_destroy(attr);
    destroy_md(&md);
    return code;
}

static status create_memory(conv_primitive *p)
{
    int count = team_threads(p->state->team) * ARGS;
    TRY(onednn_reserve_scratch(p->state, dnnl_memory_desc_get_size(md_of(p, SCRATCH))));
    TRY(memory_alloc(sizeof *p->memory * (size_t)count, (void **)&p->memory));
    for (int i = 0; i < count; i++)
        if (arg_names[p->pass][i % ARGS] != 0)
            TRY(ONEDNN_CALL(dnnl_memory_create(&p->memory[i], md_of(p, i % ARGS), p->state->engine,
                                               DNNL_MEMORY_NONE)));
    return STATUS_OK;
}

/* Accepts NULL. */
static void conv_primitive_destroy(conv_primitive *p)
{
    if (p == NULL)
        return;
    for (int i = 0; p->memory != NULL && i < team_threads(p->state->team) * ARGS; i++)
        if (p->memory[i] != NULL)
            dnnl_memory_destroy(p->memory[i]);
    if (p->handle != NULL)
        dnnl_primitive_destroy(p->handle);
    free(p->memory);
    free(p);
}

/* One pass of a convolution without its relu. `weight`: the order of the weights; NULL: the one
 * that oneDNN prefers. STATUS_DEVICE if oneDNN has none. Not while the team works. */
static status conv_primitive_create(onednn_state *state, const conv2d_shape *shape, conv_pass pass,
                                    int images, dnnl_api_md weight, conv_primitive **out)
{
    conv_primitive *p = NULL;
    TRY(memory_alloc(sizeof *p, (void **)&p));
    p->state = state;
    p->pass = pass;
    status st = ONEDNN_CALL(create_handle(p, shape, images, weight));
    if (st == STATUS_OK)
        st = create_memory(p);
    if (st != STATUS_OK) {
        conv_primitive_destroy(p);
        return st;
    }
    *out = p;
    return STATUS_OK;
}

/* oneDNN takes inputs as pointers to non-const too. */
static dnnl_status_t set(dnnl_memory_t memory, const void *data)
{
    return dnnl_memory_set_data_handle(memory, (void *)(uintptr_t)data);
}

/* Inside a piece of a team's job. The arrays are those of the primitive's images. */
static dnnl_status_t conv_primitive_run(conv_primitive *p, const float *const arrays[CONV_ARRAYS])
{
    int member = team_member(), n_args = 0;
    dnnl_memory_t *memory = p->memory + member * ARGS;
    dnnl_stream_t stream = p->state->streams[member];
    dnnl_exec_arg_t args[ARGS];
    dnnl_status_t code = dnnl_success;
    for (int i = 0; i < ARGS && code == dnnl_success; i++) {
        if (arg_names[p->pass][i] == 0)
            continue;
        code = set(memory[i], i == SCRATCH ? p->state->scratch[member] : arrays[i]);
        args[n_args++] = (dnnl_exec_arg_t){arg_names[p->pass][i], memory[i]};
    }
    if (code == dnnl_success)
        code = dnnl_primitive_execute(p->handle, stream, n_args, args);
    return code == dnnl_success ? dnnl_stream_wait(stream) : code;
}

enum { IMAGES = 8 }; /* of a piece */

/* What one pass has, made at its first use. */
typedef struct pass_plan {
    conv_primitive *by_images[IMAGES + 1];
    weight_order order;
    size_t weight_floats; /* in the primitives' order, which may have padding */
    float *weight;        /* forward, data: the weights in that order; weights: gradients of each
                             piece, weights and biases */
} pass_plan;

typedef struct conv2d_plan {
    onednn_state *state;
    conv2d_shape s;
    int max_pieces;
    size_t x_elements, y_elements; /* of one image */
    size_t weights;
    pass_plan passes[CONV_PASSES];
    float *gradient; /* of the weights in PyTorch's order, before it is added */
    float *dz;       /* (members, IMAGES, y_elements): dy before the relu; NULL: no relu */
} conv2d_plan;

static conv2d_plan *plan_of(conv2d *plan)
{
    return (conv2d_plan *)(void *)plan;
}

static int pieces_of(int n)
{
    return (n + IMAGES - 1) / IMAGES;
}

static status alloc_floats(conv2d_plan *p, size_t count, float **out)
{
    return host_alloc(p->state->dev, sizeof **out * count, (void **)out);
}

status onednn_conv2d_create(device *dev, const conv2d_shape *shape, int max_n, conv2d **out)
{
    conv2d_plan *p = NULL;
    if (shape->plain_input && shape->channels != 1) /* of one channel, both orders are the same */
        return FAIL(STATUS_INVALID, "onednn device: a convolution of plain input has one channel");
    TRY(memory_alloc(sizeof *p, (void **)&p));
    int out_h = shape->height - shape->kernel + 1, out_w = shape->width - shape->kernel + 1;
    p->state = onednn_of(dev);
    p->s = *shape;
    p->max_pieces = pieces_of(max_n);
    p->x_elements = (size_t)(shape->channels * shape->height * shape->width);
    p->y_elements = (size_t)(shape->out_channels * out_h * out_w);
    p->weights = (size_t)(shape->out_channels * shape->channels * shape->kernel * shape->kernel);
    status st = alloc_floats(p, p->weights, &p->gradient);
    if (st == STATUS_OK && shape->relu)
        st = alloc_floats(p, (size_t)(team_threads(p->state->team) * IMAGES) * p->y_elements,
                          &p->dz);
    if (st != STATUS_OK) {
        onednn_conv2d_destroy((conv2d *)(void *)p);
        return st;
    }
    *out = (conv2d *)(void *)p;
    return STATUS_OK;
}

void onednn_conv2d_destroy(conv2d *plan)
{
    conv2d_plan *p = plan_of(plan);
    if (p == NULL)
        return;
    for (int pass = 0; pass < CONV_PASSES; pass++) {
        for (int images = 0; images <= IMAGES; images++)
            conv_primitive_destroy(p->passes[pass].by_images[images]);
        weight_order_close(&p->passes[pass].order);
        host_free(p->state->dev, p->passes[pass].weight);
    }
    host_free(p->state->dev, p->gradient);
    host_free(p->state->dev, p->dz);
    free(p);
}

static status copy_weights(conv2d *plan, const float *from, float *to)
{
    memcpy(to, from, sizeof *to * plan_of(plan)->weights);
    return STATUS_OK;
}

status onednn_conv2d_import(conv2d *plan, const float *plain, float *weight)
{
    return copy_weights(plan, plain, weight);
}

status onednn_conv2d_export(conv2d *plan, const float *weight, float *plain)
{
    return copy_weights(plan, weight, plain);
}

/* Gradients of one piece: weights, then biases. */
static size_t partial_floats(const conv2d_plan *p)
{
    return p->passes[CONV_WEIGHTS].weight_floats + (size_t)p->s.out_channels;
}

/* The primitive for whole pieces, whose order of the weights those for fewer images share. */
static status open_pass(conv2d_plan *p, conv_pass pass)
{
    pass_plan *plan = &p->passes[pass];
    if (plan->by_images[IMAGES] == NULL)
        TRY(conv_primitive_create(p->state, &p->s, pass, IMAGES, NULL, &plan->by_images[IMAGES]));
    if (plan->weight != NULL)
        return STATUS_OK;
    bool is_weights = pass == CONV_WEIGHTS;
    dnnl_api_md ours = conv_primitive_weight_md(plan->by_images[IMAGES]);
    weight_order_close(&plan->order); /* of an opening that failed */
    TRY(weight_order_open(p->state, &p->s, is_weights ? WEIGHT_TO_PLAIN : WEIGHT_TO_PRIMITIVE, ours,
                          &plan->order));
    plan->weight_floats = dnnl_memory_desc_get_size(ours) / sizeof *plan->weight;
    return alloc_floats(
        p, is_weights ? (size_t)p->max_pieces * partial_floats(p) : plan->weight_floats,
        &plan->weight);
}

/* The primitive for `images` images. Not while the team works. */
static status primitive_for(conv2d_plan *p, conv_pass pass, int images, conv_primitive **out)
{
    pass_plan *plan = &p->passes[pass];
    if (plan->by_images[images] == NULL)
        TRY(conv_primitive_create(p->state, &p->s, pass, images,
                                  conv_primitive_weight_md(plan->by_images[IMAGES]),
                                  &plan->by_images[images]));
    *out = plan->by_images[images];
    return STATUS_OK;
}

typedef struct conv_job {
    conv2d_plan *p;
    conv_pass pass;
    int n;                        /* of the batch */
    conv_primitive *whole, *rest; /* for whole pieces, and for the last one */
    const float *x, *bias;
    const float *y;    /* its relu; backward: NULL if there is none */
    const float *dy;   /* backward */
    float *y_out;      /* forward */
    atomic_int failed; /* the dnnl_status_t of a failed call */
} conv_job;

/* y = relu(y). */
static void relu(float *y, size_t count)
{
    for (size_t i = 0; i < count; i++)
        y[i] = y[i] > 0.0f ? y[i] : 0.0f;
}

/* dz = dy for y > 0, else 0. */
static void relu_backward(float *restrict dz, const float *restrict y, const float *restrict dy,
                          size_t count)
{
    for (size_t i = 0; i < count; i++)
        dz[i] = y[i] > 0.0f ? dy[i] : 0.0f;
}

static void run_piece(void *arg, int piece)
{
    conv_job *job = arg;
    conv2d_plan *p = job->p;
    pass_plan *plan = &p->passes[job->pass];
    int first = piece * IMAGES, images = job->n - first < IMAGES ? job->n - first : IMAGES;
    size_t y_at = (size_t)first * p->y_elements, y_count = (size_t)images * p->y_elements;
    const float *arrays[CONV_ARRAYS] = {job->x + (size_t)first * p->x_elements, plan->weight,
                                        job->bias, NULL};
    if (job->pass == CONV_FORWARD) {
        arrays[CONV_Y] = job->y_out + y_at;
    } else if (job->y != NULL) {
        float *dz = p->dz + (size_t)(team_member() * IMAGES) * p->y_elements;
        relu_backward(dz, job->y + y_at, job->dy + y_at, y_count);
        arrays[CONV_Y] = dz;
    } else {
        arrays[CONV_Y] = job->dy + y_at;
    }
    if (job->pass == CONV_WEIGHTS) {
        arrays[CONV_WEIGHT] = plan->weight + (size_t)piece * partial_floats(p);
        arrays[CONV_BIAS] = arrays[CONV_WEIGHT] + plan->weight_floats;
    }
    dnnl_status_t code = conv_primitive_run(images < IMAGES ? job->rest : job->whole, arrays);
    if (code != dnnl_success)
        atomic_store(&job->failed, (int)code);
    else if (job->pass == CONV_FORWARD && p->s.relu)
        relu(job->y_out + y_at, y_count);
}

/* Does the pass, which is open. */
static status run(conv_job *job)
{
    if (job->n >= IMAGES)
        TRY(primitive_for(job->p, job->pass, IMAGES, &job->whole));
    if (job->n % IMAGES > 0)
        TRY(primitive_for(job->p, job->pass, job->n % IMAGES, &job->rest));
    team_run(job->p->state->team, run_piece, job, pieces_of(job->n));
    return ONEDNN_CALL((dnnl_status_t)atomic_load(&job->failed));
}

/* Opens a pass that reads the weights, and takes them in. */
static status take_weights(conv2d_plan *p, conv_pass pass, const float *weight)
{
    TRY(open_pass(p, pass));
    return weight_order_copy(&p->passes[pass].order, weight, p->passes[pass].weight);
}

status onednn_conv2d_forward(conv2d *plan, int n, const float *x, const float *weight,
                             const float *bias, float *y)
{
    conv_job job = {
        .p = plan_of(plan), .pass = CONV_FORWARD, .n = n, .x = x, .bias = bias, .y_out = y};
    TRY(take_weights(job.p, CONV_FORWARD, weight));
    return run(&job);
}

status onednn_conv2d_backward_data(conv2d *plan, int n, const float *weight, const float *y,
                                   const float *dy, float *dx)
{
    conv2d_plan *p = plan_of(plan);
    conv_job job = {
        .p = p, .pass = CONV_DATA, .n = n, .x = dx, .y = p->s.relu ? y : NULL, .dy = dy};
    TRY(take_weights(p, CONV_DATA, weight));
    return run(&job);
}

static void add(float *restrict sum, const float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sum[i] += x[i];
}

/* The sum of the pieces' gradients, in order, to *out. It grows in the first piece's place. */
static status sum_pieces(conv2d_plan *p, int pieces, const param_gradients *out)
{
    pass_plan *plan = &p->passes[CONV_WEIGHTS];
    size_t biases = (size_t)p->s.out_channels;
    for (int piece = 1; piece < pieces; piece++)
        add(plan->weight, plan->weight + (size_t)piece * partial_floats(p), partial_floats(p));
    TRY(weight_order_copy(&plan->order, plan->weight, p->gradient));
    if (!out->accumulate) {
        memset(out->dw, 0, sizeof *out->dw * p->weights);
        memset(out->db, 0, sizeof *out->db * biases);
    }
    add(out->dw, p->gradient, p->weights);
    add(out->db, plan->weight + plan->weight_floats, biases);
    return STATUS_OK;
}

status onednn_conv2d_backward_weights(conv2d *plan, int n, const float *x, const float *y,
                                      const float *dy, const param_gradients *out)
{
    conv2d_plan *p = plan_of(plan);
    conv_job job = {
        .p = p, .pass = CONV_WEIGHTS, .n = n, .x = x, .y = p->s.relu ? y : NULL, .dy = dy};
    TRY(open_pass(p, CONV_WEIGHTS));
    TRY(run(&job));
    return sum_pieces(p, pieces_of(n), out);
}
