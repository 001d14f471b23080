/* The oneDNN device: matrix products and convolutions of oneDNN, loops of our own for the rest, for
 * any processor. */
#include "base/memory.h"
#include "base/trace.h"
#include "kernels/host.h"
#include "kernels/onednn/state.h"

#include <stdio.h>
#include <stdlib.h>

/* OpenMP's, which runs below oneDNN: its setting is per thread. NULL if oneDNN was built
 * without. */
extern void omp_set_num_threads(int threads) __attribute__((weak));

status onednn_check(dnnl_status_t code, const char *call, const char *file, int line)
{
    if (code == dnnl_success)
        return STATUS_OK;
    return status_fail(code == dnnl_out_of_memory ? STATUS_NO_MEMORY : STATUS_DEVICE, file, line,
                       "oneDNN error %d in %s", (int)code, call);
}

status onednn_reserve_scratch(onednn_state *state, size_t size_bytes)
{
    if (size_bytes <= state->scratch_bytes)
        return STATUS_OK;
    state->scratch_bytes = 0;
    for (int i = 0; i < team_threads(state->team); i++) {
        host_free(state->dev, state->scratch[i]);
        state->scratch[i] = NULL;
        TRY(host_alloc(state->dev, size_bytes, &state->scratch[i]));
    }
    state->scratch_bytes = size_bytes;
    return STATUS_OK;
}

static void destroy(device *dev)
{
    onednn_state *state = onednn_of(dev);
    for (int i = 0; state->streams != NULL && i < dev->threads; i++)
        dnnl_stream_destroy(state->streams[i]);
    for (int i = 0; state->scratch != NULL && i < dev->threads; i++)
        host_free(dev, state->scratch[i]);
    if (state->engine != NULL)
        dnnl_engine_destroy(state->engine);
    team_destroy(state->team);
    free(state->streams);
    free(state->scratch);
    free(state);
}

static status trace_members(device *dev, trace *t)
{
    return team_trace(onednn_of(dev)->team, t, dev->lane);
}

static const device_ops onednn_ops = {
    .name = "onednn",
    .destroy = destroy,
    .trace = trace_members,
    HOST_OPS,
    .gather = host_gather,
    .conv2d_create = onednn_conv2d_create,
    .conv2d_destroy = onednn_conv2d_destroy,
    .conv2d_import = onednn_conv2d_import,
    .conv2d_export = onednn_conv2d_export,
    .conv2d_forward = onednn_conv2d_forward,
    .conv2d_backward_weights = onednn_conv2d_backward_weights,
    .conv2d_backward_data = onednn_conv2d_backward_data,
    .pool_forward = onednn_pool_forward,
    .pool_backward = onednn_pool_backward,
    .linear_create = onednn_linear_create,
    .linear_destroy = onednn_linear_destroy,
    .linear_import = onednn_linear_import,
    .linear_export = onednn_linear_export,
    .linear_forward = onednn_linear_forward,
    .linear_backward_weights = onednn_linear_backward_weights,
    .linear_backward_data = onednn_linear_backward_data,
    .clip_gradients = host_clip_gradients,
    .sgd_step = onednn_sgd_step,
    .adam_step = onednn_adam_step,
    .adadelta_step = onednn_adadelta_step,
};

/* A member of our team does a piece alone, so oneDNN must start no threads of its own. */
static status check_runtime(void)
{
    const dnnl_version_t *v = dnnl_version();
    if (v->cpu_runtime == DNNL_RUNTIME_SEQ ||
        (v->cpu_runtime == DNNL_RUNTIME_OMP && omp_set_num_threads != NULL))
        return STATUS_OK;
    return FAIL(STATUS_DEVICE,
                "oneDNN %d.%d.%d was built with CPU runtime %u; --device=onednn needs one with "
                "OpenMP (%u) or without threads (%u)",
                v->major, v->minor, v->patch, v->cpu_runtime, DNNL_RUNTIME_OMP, DNNL_RUNTIME_SEQ);
}

static void member_start(void)
{
    if (omp_set_num_threads != NULL)
        omp_set_num_threads(1);
}

static status start(int threads, device *dev)
{
    onednn_state *state = onednn_of(dev);
    size_t n = (size_t)threads;
    TRY(team_create(threads, member_start, &state->team));
    TRY(memory_alloc(sizeof *state->streams * n, (void **)&state->streams));
    TRY(memory_alloc(sizeof *state->scratch * n, (void **)&state->scratch));
    TRY(ONEDNN_CALL(dnnl_engine_create(&state->engine, dnnl_cpu, 0)));
    for (int i = 0; i < threads; i++)
        TRY(ONEDNN_CALL(
            dnnl_stream_create(&state->streams[i], state->engine, dnnl_stream_default_flags)));
    return STATUS_OK;
}

static status create(const device_options *options, device *dev)
{
    TRY(check_runtime());
    TRY(memory_alloc(sizeof(onednn_state), &dev->state));
    dev->ops = &onednn_ops;
    onednn_of(dev)->dev = dev;
    const dnnl_version_t *v = dnnl_version();
    snprintf(dev->description, sizeof dev->description, "oneDNN %d.%d.%d", v->major, v->minor,
             v->patch);
    status st = start(options->threads, dev);
    if (st != STATUS_OK)
        destroy(dev);
    return st;
}

extern const device_kind onednn_kind; /* kernels/onednn/module.c exports it */
const device_kind onednn_kind = {"onednn", create, NULL};
