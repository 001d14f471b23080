#include "kernels/cuda/conv_choose.h"

#include <stdio.h>

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
