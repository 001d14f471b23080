#include "kernels/cuda/conv_engine.h"

#include <stdio.h>

/* The heuristics are asked in stages. Mode A orders engines by expected speed; to answer it checks
 * each of them (20 ms for all, under 1 ms for the first alone), so we ask for the first alone
 * first. The fallback list is not ordered. Engines that are compiled on the spot come last. */
typedef struct search_stage {
    cudnnBackendHeurMode_t mode;
    int requested;
    bool compiled;
} search_stage;

static const search_stage STAGES[] = {
    {CUDNN_HEUR_MODE_A, 1, false},
    {CUDNN_HEUR_MODE_A, CONV_SEARCH_CONFIGS, false},
    {CUDNN_HEUR_MODE_FALLBACK, CONV_SEARCH_CONFIGS, false},
    {CUDNN_HEUR_MODE_A, CONV_SEARCH_CONFIGS, true},
    {CUDNN_HEUR_MODE_FALLBACK, CONV_SEARCH_CONFIGS, true},
};

enum {
    STAGE_COUNT = sizeof STAGES / sizeof STAGES[0],
    FIRST_COMPILED = 3,
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

/* An engine's refusal is no failure of ours, but may be worth telling; lack of memory is one. */
static status refused(conv_search *s, status st)
{
    if (st == STATUS_NO_MEMORY)
        return st;
    snprintf(s->refusal, sizeof s->refusal, "%s", status_message());
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

/* Sets the configs of the next stage; none where the heuristics have no answer. */
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

/* Whether the notes of an engine, bits of their numbers, fit. */
static bool fits(const conv_search *s, unsigned numerical, unsigned behavior)
{
    unsigned never = 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC |
                     1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS |
                     1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION;
    if (!s->tensor_cores)
        never |= 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE | 1u << CUDNN_NUMERICAL_NOTE_FFT |
                 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6 |
                 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13;
    bool compiled = (behavior & 1u << CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) != 0;
    return (numerical & never) == 0 && compiled == STAGES[s->stage - 1].compiled;
}

static status get_notes(cudnnBackendDescriptor_t engine, unsigned *numerical, unsigned *behavior)
{
    cudnnBackendNumericalNote_t numbers[MAX_NOTES];
    cudnnBackendBehaviorNote_t behaviors[MAX_NOTES];
    int64_t count = 0;
    *numerical = *behavior = 0;
    TRY(CUDNN_CALL(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                            CUDNN_TYPE_NUMERICAL_NOTE, MAX_NOTES, &count,
                                            numbers)));
    for (int64_t i = 0; i < count && i < MAX_NOTES; i++)
        *numerical |= 1u << numbers[i];
    TRY(CUDNN_CALL(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE,
                                            CUDNN_TYPE_BEHAVIOR_NOTE, MAX_NOTES, &count,
                                            behaviors)));
    for (int64_t i = 0; i < count && i < MAX_NOTES; i++)
        *behavior |= 1u << behaviors[i];
    return STATUS_OK;
}

static status examine(const conv_search *s, cudnnBackendDescriptor_t config, bool *good)
{
    cudnnBackendDescriptor_t engine = NULL;
    unsigned numerical = 0, behavior = 0;
    int64_t count = 0;
    TRY(CUDNN_CALL(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine)));
    status st = CUDNN_CALL(cudnnBackendGetAttribute(
        config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine));
    if (st == STATUS_OK)
        st = get_notes(engine, &numerical, &behavior);
    conv_descriptor_destroy(engine);
    *good = st == STATUS_OK && fits(s, numerical, behavior);
    return st;
}

/* Takes over `config` on success. */
static status make_plan(const conv_search *s, cudnnBackendDescriptor_t config, conv_engine *out)
{
    conv_engine e = {.config = config};
    int64_t count = 0, workspace_bytes = 0;
    const conv_attribute attributes[] = {
        s->target->plan,
        {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config},
    };
    TRY(conv_descriptor_make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, attributes, 2, &e.plan));
    status st =
        CUDNN_CALL(cudnnBackendGetAttribute(e.plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                            CUDNN_TYPE_INT64, 1, &count, &workspace_bytes));
    if (st != STATUS_OK) {
        conv_descriptor_destroy(e.plan);
        return st;
    }
    e.workspace_bytes = (size_t)workspace_bytes;
    *out = e;
    return STATUS_OK;
}

status conv_engine_next(conv_search *search, conv_engine *out, bool *found)
{
    int stages = search->compile ? STAGE_COUNT : FIRST_COMPILED;
    if (search->many && search->stage == 0)
        search->stage = 1;
    *found = false;
    for (;;) {
        if (search->at == search->count) {
            if (search->stage >= stages)
                return STATUS_OK;
            TRY(open_stage(search));
            continue;
        }
        cudnnBackendDescriptor_t *config = &search->configs[search->at++];
        bool good = false;
        status st = examine(search, *config, &good);
        if (st == STATUS_OK && good)
            st = make_plan(search, *config, out);
        if (st != STATUS_OK) {
            TRY(refused(search, st));
        } else if (good) {
            *config = NULL;
            *found = true;
            return STATUS_OK;
        }
    }
}
