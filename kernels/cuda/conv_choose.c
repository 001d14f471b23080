#include "kernels/cuda/conv_choose.h"

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
