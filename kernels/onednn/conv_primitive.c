#include "kernels/onednn/conv_primitive.h"

#include "base/memory.h"

#include <stdlib.h>

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

dnnl_api_md conv_primitive_weight_md(const conv_primitive *p)
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

status conv_primitive_create(onednn_state *state, const conv2d_shape *shape, conv_pass pass,
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

void conv_primitive_destroy(conv_primitive *p)
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

/* oneDNN takes inputs as pointers to non-const too. */
static dnnl_status_t set(dnnl_memory_t memory, const void *data)
{
    return dnnl_memory_set_data_handle(memory, (void *)(uintptr_t)data);
}

dnnl_status_t conv_primitive_run(conv_primitive *p, const float *const arrays[CONV_ARRAYS])
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
