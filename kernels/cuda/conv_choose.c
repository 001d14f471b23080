#include "kernels/cuda/conv_choose.h"

#include <stddef.h>
#include <stdio.h>

void conv_descriptor_destroy(cudnnBackendDescriptor_t descriptor)
{
    if (descriptor != NULL)
        (void)CUDNN_CALL(cudnnBackendDestroyDescriptor(descriptor));
}

status conv_descriptor_make(cudnnBackendDescriptorType_t type, const conv_attribute *attributes,
                            int count, cudnnBackendDescriptor_t *out)
{
    cudnnBackendDescriptor_t made = NULL;
    TRY(CUDNN_CALL(cudnnBackendCreateDescriptor(type, &made)));
    status st = STATUS_OK;
    for (int i = 0; i < count && st == STATUS_OK; i++) {
        const conv_attribute *a = &attributes[i];
        if (a->count == 0)
            continue;
        st = CUDNN_CALL(cudnnBackendSetAttribute(made, a->name, a->type, a->count, a->value));
        if (st != STATUS_OK)
            st = status_context(st, "attribute %d", (int)a->name);
    }
    if (st == STATUS_OK)
        st = CUDNN_CALL(cudnnBackendFinalize(made));
    if (st != STATUS_OK) {
        st = status_context(st, "descriptor of type %d", (int)type);
        conv_descriptor_destroy(made);
        return st;
    }
    *out = made;
    return STATUS_OK;
}

#define COUNT_OF(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* The graph owns the descriptors. */
static status add(conv_graph *g, cudnnBackendDescriptorType_t type,
                  const conv_attribute *attributes, int count, cudnnBackendDescriptor_t *out)
{
    ASSERT(g->count < CONV_GRAPH_PARTS);
    TRY(conv_descriptor_make(type, attributes, count, out));
    g->parts[g->count++] = *out;
    return STATUS_OK;
}

/* (N, C, H, W). */
static status add_tensor(conv_graph *g, const conv_work *work, int64_t name, const int64_t sizes[4],
                         cudnnBackendDescriptor_t *out)
{
    int64_t c = sizes[1], h = sizes[2], w = sizes[3], alignment = CONV_ALIGNMENT;
    int64_t innermost[] = {h * w * c, 1, w * c, c}, planes[] = {c * h * w, h * w, w, 1};
    const int64_t *strides = work->planes ? planes : innermost;
    cudnnDataType_t type = name == CONV_SUM ? CUDNN_DATA_FLOAT : work->type;
    bool is_virtual = name == CONV_SUM;
    conv_attribute attributes[] = {
        {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &name},
        {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type},
        {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, sizes},
        {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides},
        {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment},
        {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual, &is_virtual},
    };
    return add(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, attributes, COUNT_OF(attributes), out);
}

/* Stride 1, no padding, the kernel not flipped, sums in float32. */
static status add_convolution(conv_graph *g, cudnnBackendDescriptor_t *out)
{
    const int64_t dimensions = 2, ones[] = {1, 1}, zeros[] = {0, 0};
    const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const conv_attribute attributes[] = {
        {CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dimensions},
        {CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums},
        {CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode},
        {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, ones},
        {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, ones},
        {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, zeros},
        {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, zeros},
    };
    return add(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, attributes, COUNT_OF(attributes), out);
}

/* The attribute names of the three operations. */
typedef struct operation_names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t alpha, beta, convolution, w, x, y;
} operation_names;

static const operation_names *names_of(conv_pass pass)
{
    static const operation_names forward = {
        CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
    };
    static const operation_names data = {
        CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
    };
    static const operation_names weights = {
        CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
    };
    return pass == CONV_PASS_DATA ? &data : pass == CONV_PASS_WEIGHTS ? &weights : &forward;
}

static status add_operation(conv_graph *g, conv_pass pass, const cudnnBackendDescriptor_t *x,
                            const cudnnBackendDescriptor_t *w, const cudnnBackendDescriptor_t *y,
                            cudnnBackendDescriptor_t *out)
{
    const operation_names *names = names_of(pass);
    const float one = 1.0f, zero = 0.0f;
    cudnnBackendDescriptor_t convolution = NULL;
    TRY(add_convolution(g, &convolution));
    const conv_attribute attributes[] = {
        {names->alpha, CUDNN_TYPE_FLOAT, 1, &one},
        {names->beta, CUDNN_TYPE_FLOAT, 1, &zero},
        {names->convolution, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &convolution},
        {names->w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, w},
        {names->x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, x},
        {names->y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, y},
    };
    return add(g, names->type, attributes, COUNT_OF(attributes), out);
}

/* y = sum + bias */
static status add_bias(conv_graph *g, const cudnnBackendDescriptor_t *sum,
                       const cudnnBackendDescriptor_t *bias, const cudnnBackendDescriptor_t *y,
                       cudnnBackendDescriptor_t *out)
{
    const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_ADD;
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t addition = NULL;
    const conv_attribute pointwise[] = {
        {CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode},
        {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type},
    };
    TRY(add(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, pointwise, COUNT_OF(pointwise), &addition));
    const conv_attribute attributes[] = {
        {CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &addition},
        {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, sum},
        {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, bias},
        {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, y},
    };
    return add(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, attributes, COUNT_OF(attributes),
               out);
}

/* Everything below the graph itself; the operations in the order of execution. */
static status add_operations(const conv_work *work, conv_graph *g,
                             cudnnBackendDescriptor_t operations[2])
{
    const conv2d_shape *s = &work->shape;
    const int64_t n = work->n, k = s->kernel, o = s->out_channels;
    const int64_t x_sizes[] = {n, s->channels, s->height, s->width};
    const int64_t w_sizes[] = {o, s->channels, k, k};
    const int64_t y_sizes[] = {n, o, s->height - k + 1, s->width - k + 1};
    const int64_t bias_sizes[] = {1, o, 1, 1};
    cudnnBackendDescriptor_t x = NULL, w = NULL, y = NULL, bias = NULL, sum = NULL;
    TRY(add_tensor(g, work, CONV_X, x_sizes, &x));
    TRY(add_tensor(g, work, CONV_W, w_sizes, &w));
    TRY(add_tensor(g, work, CONV_Y, y_sizes, &y));
    if (work->pass != CONV_PASS_FORWARD_BIAS)
        return add_operation(g, work->pass, &x, &w, &y, &operations[0]);
    TRY(add_tensor(g, work, CONV_BIAS, bias_sizes, &bias));
    TRY(add_tensor(g, work, CONV_SUM, y_sizes, &sum));
    TRY(add_operation(g, work->pass, &x, &w, &sum, &operations[0]));
    return add_bias(g, &sum, &bias, &y, &operations[1]);
}

status conv_graph_init(const conv_work *work, cudnnHandle_t handle, conv_graph *out)
{
    cudnnBackendDescriptor_t operations[2] = {NULL, NULL};
    conv_graph g = {.graph = NULL, .count = 0};
    status st = add_operations(work, &g, operations);
    const conv_attribute attributes[] = {
        {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle != NULL, &handle},
        {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
         operations[1] != NULL ? 2 : 1, operations},
    };
    if (st == STATUS_OK)
        st = conv_descriptor_make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, attributes,
                                  COUNT_OF(attributes), &g.graph);
    if (st != STATUS_OK) {
        conv_graph_close(&g);
        return st;
    }
    *out = g;
    return STATUS_OK;
}

void conv_graph_close(conv_graph *g)
{
    conv_descriptor_destroy(g->graph);
    while (g->count > 0)
        conv_descriptor_destroy(g->parts[--g->count]);
    g->graph = NULL;
}

/* The heuristics are queried in stages. Mode A orders engines by expected speed. It checks each of
 * them (20 ms for all, under 1 ms for the first alone), so the first stage asks for the first
 * alone. The fallback list is not ordered. */
typedef struct search_stage {
    cudnnBackendHeurMode_t mode;
    int requested;
} search_stage;

static const search_stage STAGES[] = {
    {CUDNN_HEUR_MODE_A, 1},
    {CUDNN_HEUR_MODE_A, CONV_SEARCH_CONFIGS},
    {CUDNN_HEUR_MODE_FALLBACK, CONV_SEARCH_CONFIGS},
};

enum {
    STAGE_COUNT = sizeof STAGES / sizeof STAGES[0],
    MAX_NOTES = 32 /* more than there are kinds */
};

void conv_engine_close(conv_engine *engine)
{
    conv_descriptor_destroy(engine->plan);
    conv_descriptor_destroy(engine->config);
    *engine = (conv_engine){0};
}

static void drop_configs(conv_search *s)
{
    for (int i = 0; i < s->count; i++)
        conv_descriptor_destroy(s->configs[i]);
    s->count = s->at = 0;
}

void conv_engine_end(conv_search *search)
{
    drop_configs(search);
    search->stage = STAGE_COUNT;
}

/* If an engine is refused, the search goes on and keeps cuDNN's reason. Lack of memory is a
 * failure. */
static status refused(conv_search *s, status st)
{
    if (st == STATUS_NO_MEMORY)
        return st;
    snprintf(s->refusal, sizeof s->refusal, "%s", status_text());
    return STATUS_OK;
}

static status get_results(conv_search *s, cudnnBackendDescriptor_t heuristics, int requested)
{
    for (; s->count < requested; s->count++)
        TRY(CUDNN_CALL(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                                                    &s->configs[s->count])));
    int64_t found = 0;
    TRY(CUDNN_CALL(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR, requested, &found,
                                            s->configs)));
    while (s->count > found)
        conv_descriptor_destroy(s->configs[--s->count]);
    return STATUS_OK;
}

/* Sets the configs of the next stage; none if the heuristics have no answer. */
static status open_stage(conv_search *s)
{
    drop_configs(s);
    const search_stage *stage = &STAGES[s->stage++];
    cudnnBackendDescriptor_t heuristics = NULL;
    const conv_attribute attributes[] = {
        {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &s->graph->graph},
        {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &stage->mode},
        s->target->heuristics,
    };
    status st =
        conv_descriptor_make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, attributes, 3, &heuristics);
    if (st == STATUS_OK)
        st = get_results(s, heuristics, stage->requested);
    conv_descriptor_destroy(heuristics);
    if (st == STATUS_OK)
        return STATUS_OK;
    drop_configs(s);
    return refused(s, st);
}

/* Whether the notes of an engine fit. */
static bool fits(const conv_search *s, const conv_engine *e)
{
    unsigned never = 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC |
                     1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS |
                     1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION;
    if (!s->tensor_cores)
        never |= 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE | 1u << CUDNN_NUMERICAL_NOTE_FFT |
                 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6 |
                 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13;
    bool compiled = (e->behavior & 1u << CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) != 0;
    return (e->numerical & never) == 0 && (!compiled || s->compile);
}

static status get_notes(cudnnBackendDescriptor_t engine, conv_engine *e)
{
    cudnnBackendNumericalNote_t numbers[MAX_NOTES];
    cudnnBackendBehaviorNote_t behaviors[MAX_NOTES];
    int64_t count = 0;
    e->numerical = e->behavior = 0;
    TRY(CUDNN_CALL(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
                                            CUDNN_TYPE_INT64, 1, &count, &e->index)));
    TRY(CUDNN_CALL(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                            CUDNN_TYPE_NUMERICAL_NOTE, MAX_NOTES, &count,
                                            numbers)));
    for (int64_t i = 0; i < count && i < MAX_NOTES; i++)
        e->numerical |= 1u << numbers[i];
    TRY(CUDNN_CALL(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE,
                                            CUDNN_TYPE_BEHAVIOR_NOTE, MAX_NOTES, &count,
                                            behaviors)));
    for (int64_t i = 0; i < count && i < MAX_NOTES; i++)
        e->behavior |= 1u << behaviors[i];
    return STATUS_OK;
}

void conv_engine_write_notes(const conv_engine *engine, char *out, size_t size_bytes)
{
    static const char *const numerical[] = {"tensor_core",       "down_convert_inputs",
                                            "reduced_precision", "fft",
                                            "nondeterministic",  "winograd",
                                            "winograd_4x4",      "winograd_6x6",
                                            "winograd_13x13",    "strict_nan"};
    static const char *const behavior[] = {"runtime_compilation", "int8_filter", "int8_bias",
                                           "cuda_graph_api", "cublaslt"};
    const struct {
        unsigned bits;
        const char *const *words;
        size_t count;
    } kinds[] = {{engine->numerical, numerical, sizeof numerical / sizeof numerical[0]},
                 {engine->behavior, behavior, sizeof behavior / sizeof behavior[0]}};
    size_t used = 0;
    out[0] = '\0';
    for (int kind = 0; kind < 2; kind++)
        for (size_t i = 0; i < kinds[kind].count && used < size_bytes; i++)
            if ((kinds[kind].bits & 1u << i) != 0)
                used += (size_t)snprintf(out + used, size_bytes - used, "%s%s", used > 0 ? "," : "",
                                         kinds[kind].words[i]);
}

/* Reads the engine's index, notes and workspace into *e; *good: it may be used. */
static status examine(const conv_search *s, cudnnBackendDescriptor_t config, conv_engine *e,
                      bool *good)
{
    cudnnBackendDescriptor_t engine = NULL;
    int64_t count = 0;
    TRY(CUDNN_CALL(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine)));
    status st = CUDNN_CALL(cudnnBackendGetAttribute(
        config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine));
    if (st == STATUS_OK)
        st = get_notes(engine, e);
    conv_descriptor_destroy(engine);
    *good = st == STATUS_OK && fits(s, e);
    return st;
}

/* Completes *e; takes over `config` on success. */
static status make_plan(const conv_search *s, cudnnBackendDescriptor_t config, conv_engine *e)
{
    int64_t count = 0, workspace_bytes = 0;
    cudnnBackendDescriptor_t plan = NULL;
    const conv_attribute attributes[] = {
        s->target->plan,
        {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config},
    };
    TRY(conv_descriptor_make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, attributes, 2, &plan));
    status st = CUDNN_CALL(cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                    CUDNN_TYPE_INT64, 1, &count, &workspace_bytes));
    if (st != STATUS_OK) {
        conv_descriptor_destroy(plan);
        return st;
    }
    e->config = config;
    e->plan = plan;
    e->workspace_bytes = (size_t)workspace_bytes;
    return STATUS_OK;
}

status conv_engine_next(conv_search *search, conv_engine *out, bool *found)
{
    if (search->many && search->stage == 0)
        search->stage = 1;
    *found = false;
    for (;;) {
        if (search->at == search->count) {
            if (search->stage >= STAGE_COUNT)
                return STATUS_OK;
            TRY(open_stage(search));
            continue;
        }
        cudnnBackendDescriptor_t *config = &search->configs[search->at++];
        conv_engine engine = {.index = -1};
        bool good = false;
        status st = examine(search, *config, &engine, &good);
        if (st == STATUS_OK && good)
            st = make_plan(search, *config, &engine);
        if (st != STATUS_OK) {
            TRY(refused(search, st));
        } else if (good) {
            *config = NULL;
            *out = engine;
            *found = true;
            return STATUS_OK;
        }
    }
}

enum { SMALLEST_PIECE = 16 /* images */ };

/* Images per piece, so that a piece fits the limit; `wanted` bytes are for all n. Equal pieces if a
 * divisor of n is near; 0 if pieces would be too small. */
static int piece_of(int n, size_t wanted, size_t limit)
{
    size_t pieces = (wanted + limit - 1) / limit;
    if ((size_t)n < pieces * SMALLEST_PIECE)
        return 0;
    int least = (int)pieces;
    for (int p = least; p < 2 * least; p++)
        if (n % p == 0)
            return n / p;
    return n / (least + 1) + 1;
}

/* Keeps the faster of *engine and the choice's; closes the other one. */
static status compete(const conv_problem *p, conv_engine *engine, conv_choice *choice,
                      float *best_ms)
{
    float ms = 0.0f;
    if (p->tries > 1) {
        status st = p->measure(p->ctx, engine, &ms);
        if (st != STATUS_OK) {
            conv_engine_close(engine);
            return st;
        }
    }
    if (choice->engine.plan != NULL && ms >= *best_ms) {
        conv_engine_close(engine);
        return STATUS_OK;
    }
    conv_engine_close(&choice->engine);
    choice->engine = *engine;
    *best_ms = ms;
    return STATUS_OK;
}

static status walk(const conv_problem *p, conv_search *search, conv_choice *choice)
{
    float best_ms = 0.0f;
    for (int tried = 0; tried < p->tries;) {
        conv_engine engine = {0};
        bool found = false;
        TRY(conv_engine_next(search, &engine, &found));
        if (!found)
            return STATUS_OK;
        if (engine.workspace_bytes <= p->workspace_bytes) {
            TRY(compete(p, &engine, choice, &best_ms));
            tried++;
            continue;
        }
        if (tried == 0)
            choice->piece = piece_of(p->work.n, engine.workspace_bytes, p->workspace_bytes);
        conv_engine_close(&engine);
        if (choice->piece > 0)
            return STATUS_OK;
    }
    return STATUS_OK;
}

status conv_choose(const conv_problem *problem, conv_choice *out)
{
    const conv_problem *p = problem;
    conv_graph graph = {.graph = NULL};
    conv_choice choice = {.n = p->work.n};
    bool needed = p->work.pass != CONV_PASS_FORWARD_BIAS; /* the others have no alternative */
    status st = conv_graph_init(&p->work, p->handle, &graph);
    if (st == STATUS_DEVICE && !needed) {
        *out = choice;
        return STATUS_OK;
    }
    if (st != STATUS_OK)
        return st;
    conv_search search = {
        .target = &p->target,
        .graph = &graph,
        .tensor_cores = p->tensor_cores,
        .compile = needed,
        .many = p->tries > 1,
    };
    st = walk(p, &search, &choice);
    conv_engine_end(&search);
    conv_graph_close(&graph);
    bool none = choice.engine.plan == NULL && choice.piece == 0;
    if (st == STATUS_OK && none && needed)
        st = FAIL(
            STATUS_DEVICE,
            "cuDNN has no engine for it that is deterministic, precise enough and fits %zu bytes "
            "of workspace; its last error: %s",
            p->workspace_bytes, search.refusal);
    if (st != STATUS_OK) {
        conv_engine_close(&choice.engine);
        return st;
    }
    *out = choice;
    return STATUS_OK;
}
