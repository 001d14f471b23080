#include "kernels/onednn/weight_order.h"

status weight_order_open(onednn_state *state, const conv2d_shape *shape, weight_way way,
                         dnnl_api_md ours, weight_order *out)
{
    dnnl_dims_t dims = {shape->out_channels, shape->channels, shape->kernel, shape->kernel};
    dnnl_api_md plain = NULL;
    dnnl_primitive_desc_t described = NULL;
    *out = (weight_order){.state = state};
    TRY(ONEDNN_CALL(dnnl_api_md_create(4, dims, dnnl_oihw, &plain)));
    dnnl_api_md from = way == WEIGHT_TO_PRIMITIVE ? plain : ours;
    dnnl_api_md to = way == WEIGHT_TO_PRIMITIVE ? ours : plain;
    status st = ONEDNN_CALL(dnnl_memory_create(&out->from, from, state->engine, DNNL_MEMORY_NONE));
    if (st == STATUS_OK)
        st = ONEDNN_CALL(dnnl_memory_create(&out->to, to, state->engine, DNNL_MEMORY_NONE));
    if (st == STATUS_OK)
        st = ONEDNN_CALL(dnnl_reorder_primitive_desc_create(&described, from, state->engine, to,
                                                            state->engine, NULL));
    if (st == STATUS_OK)
        st = ONEDNN_CALL(dnnl_primitive_create(&out->handle, described));
    if (described != NULL)
        dnnl_primitive_desc_destroy(described);
    dnnl_api_md_destroy(plain);
    return st;
}

void weight_order_close(weight_order *w)
{
    if (w->handle != NULL)
        dnnl_primitive_destroy(w->handle);
    if (w->from != NULL)
        dnnl_memory_destroy(w->from);
    if (w->to != NULL)
        dnnl_memory_destroy(w->to);
    *w = (weight_order){0};
}

status weight_order_copy(const weight_order *w, const float *from, float *to)
{
    dnnl_stream_t stream = w->state->streams[0];
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, w->from}, {DNNL_ARG_TO, w->to}};
    TRY(ONEDNN_CALL(dnnl_memory_set_data_handle(w->from, (void *)(uintptr_t)from)));
    TRY(ONEDNN_CALL(dnnl_memory_set_data_handle(w->to, to)));
    TRY(ONEDNN_CALL(dnnl_primitive_execute(w->handle, stream, 2, args)));
    return ONEDNN_CALL(dnnl_stream_wait(stream));
}
