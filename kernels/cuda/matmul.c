#include "kernels/cuda/matmul.h"

#include "base/log.h"
#include "base/memory.h"
#include "kernels/cuda/choices.h"

#include <stdio.h>
#include <stdlib.h>

enum { CANDIDATES = 8, BEST_ALIGNMENT = 16 };

struct matmul {
    device *dev;
    matmul_shape shape;
    cublasStatus_t code; /* the library's answer to the latest call that may be a refusal */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
};

unsigned matmul_alignment(const matmul_arrays *arrays)
{
    uintptr_t bits = (uintptr_t)arrays->a | (uintptr_t)arrays->b | (uintptr_t)arrays->d |
                     (uintptr_t)arrays->bias | BEST_ALIGNMENT;
    return (unsigned)(bits & ~(bits - 1));
}

void matmul_destroy(matmul *p)
{
    if (p == NULL)
        return;
    if (p->desc != NULL)
        (void)cublasLtMatmulDescDestroy(p->desc);
    cublasLtMatrixLayout_t layouts[] = {p->a, p->b, p->d};
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (layouts[i] != NULL)
            (void)cublasLtMatrixLayoutDestroy(layouts[i]);
    free(p);
}

/* Whether the library refuses such a matmul, rather than that something failed. It may refuse an
 * epilogue by any of these codes. */
static bool is_refusal(const matmul *p)
{
    return p->shape.epilogue != CUBLASLT_EPILOGUE_DEFAULT &&
           (p->code == CUBLAS_STATUS_NOT_SUPPORTED || p->code == CUBLAS_STATUS_INVALID_VALUE ||
            p->code == CUBLAS_STATUS_ARCH_MISMATCH);
}

static const char *epilogue_name(cublasLtEpilogue_t epilogue)
{
    switch (epilogue) {
    case CUBLASLT_EPILOGUE_BIAS:
        return "BIAS";
    case CUBLASLT_EPILOGUE_RELU_BIAS:
        return "RELU_BIAS";
    case CUBLASLT_EPILOGUE_RELU_AUX_BIAS:
        return "RELU_AUX_BIAS";
    case CUBLASLT_EPILOGUE_DRELU:
        return "DRELU";
    case CUBLASLT_EPILOGUE_BGRADB:
        return "BGRADB";
    default:
        return "DEFAULT";
    }
}

static const char *type_name(cudaDataType_t type)
{
    return type == CUDA_R_16BF ? "bf16" : type == CUDA_R_16F ? "fp16" : "f32";
}

/* Our own kernels do the epilogue from now on. */
static status note_refusal(const matmul *p)
{
    const matmul_shape *s = &p->shape;
    bool is_new = false;
    device_choice note = {.library = "cublaslt", .engine = -1};
    snprintf(note.subject, sizeof note.subject, "%s to %s", type_name(s->in), type_name(s->out));
    snprintf(note.pass, sizeof note.pass, "%s", epilogue_name(s->epilogue));
    snprintf(note.notes, sizeof note.notes, "%s for %d x %d x %d",
             p->code == CUBLAS_STATUS_SUCCESS ? "no algorithm" : cuda_call_cublas_name(p->code),
             s->m, s->n, s->k);
    TRY(cuda_note_choice(p->dev, &note, &is_new));
    if (is_new)
        LOG_I("cuBLASLt does not do the epilogue %s, %s (%s): own kernels do it", note.pass,
              note.subject, note.notes);
    return STATUS_OK;
}

static status set(matmul *p, cublasLtMatmulDescAttributes_t attribute, const void *value,
                  size_t size_bytes)
{
    p->code = cublasLtMatmulDescSetAttribute(p->desc, attribute, value, size_bytes);
    return cuda_call_cublaslt(p->code, "cublasLtMatmulDescSetAttribute", __FILE__, __LINE__);
}

/* The library reads these pointers even when it only chooses an algorithm. */
static status set_pointers(matmul *p, const matmul_arrays *arrays)
{
    if (arrays->bias != NULL)
        TRY(set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &arrays->bias, sizeof arrays->bias));
    if (arrays->aux != NULL)
        TRY(set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &arrays->aux, sizeof arrays->aux));
    return STATUS_OK;
}

static status describe(matmul *p, precision how, const matmul_arrays *like)
{
    const matmul_shape *s = &p->shape;
    cublasComputeType_t compute =
        how == PRECISION_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasOperation_t op_a = s->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t op_b = s->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint64_t m = (uint64_t)s->m, n = (uint64_t)s->n, k = (uint64_t)s->k;
    uint64_t a_rows = s->trans_a ? k : m, a_cols = s->trans_a ? m : k;
    uint64_t b_rows = s->trans_b ? n : k, b_cols = s->trans_b ? k : n;
    TRY(CUBLASLT_CALL(cublasLtMatmulDescCreate(&p->desc, compute, CUDA_R_32F)));
    TRY(set(p, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a));
    TRY(set(p, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b));
    TRY(set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &s->epilogue, sizeof s->epilogue));
    if (like->aux != NULL)
        TRY(set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &s->aux_ld, sizeof s->aux_ld));
    TRY(set_pointers(p, like));
    TRY(CUBLASLT_CALL(cublasLtMatrixLayoutCreate(&p->a, s->in, a_rows, a_cols, (int64_t)a_rows)));
    TRY(CUBLASLT_CALL(cublasLtMatrixLayoutCreate(&p->b, s->in, b_rows, b_cols, (int64_t)b_rows)));
    return CUBLASLT_CALL(cublasLtMatrixLayoutCreate(&p->d, s->out, m, n, (int64_t)m));
}

static status prefer(cublasLtMatmulPreference_t preference, const cuda_state *state,
                     uint32_t alignment)
{
    static const cublasLtMatmulPreferenceAttributes_t of_arrays[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    TRY(CUBLASLT_CALL(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &state->workspace_bytes,
        sizeof state->workspace_bytes)));
    for (size_t i = 0; i < sizeof of_arrays / sizeof of_arrays[0]; i++)
        TRY(CUBLASLT_CALL(cublasLtMatmulPreferenceSetAttribute(preference, of_arrays[i], &alignment,
                                                               sizeof alignment)));
    return STATUS_OK;
}

/* *found = false if the library has no algorithm. */
static status choose(matmul *p, cublasLtMatmulPreference_t preference, bool *found)
{
    const cuda_state *s = cuda_state_of(p->dev);
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    int n = 0;
    *found = false;
    p->code = cublasLtMatmulAlgoGetHeuristic(s->blas, p->desc, p->a, p->b, p->d, p->d, preference,
                                             CANDIDATES, results, &n);
    TRY(cuda_call_cublaslt(p->code, "cublasLtMatmulAlgoGetHeuristic", __FILE__, __LINE__));
    for (int i = 0; i < n && !*found; i++) {
        if (results[i].state != CUBLAS_STATUS_SUCCESS ||
            results[i].workspaceSize > s->workspace_bytes)
            continue;
        p->algo = results[i].algo;
        *found = true;
    }
    return STATUS_OK;
}

static status plan(matmul *p, const matmul_arrays *like, bool *found)
{
    cublasLtMatmulPreference_t preference = NULL;
    TRY(describe(p, p->dev->precision, like));
    TRY(CUBLASLT_CALL(cublasLtMatmulPreferenceCreate(&preference)));
    status st = prefer(preference, cuda_state_of(p->dev), matmul_alignment(like));
    if (st == STATUS_OK)
        st = choose(p, preference, found);
    (void)cublasLtMatmulPreferenceDestroy(preference);
    return st;
}

status matmul_create(device *dev, const matmul_shape *shape, const matmul_arrays *like,
                     matmul **out)
{
    matmul *p = NULL;
    bool found = false;
    TRY(memory_alloc(sizeof *p, (void **)&p));
    p->dev = dev;
    p->shape = *shape;
    status st = plan(p, like, &found);
    if (st != STATUS_OK && is_refusal(p))
        st = STATUS_OK;
    if (st == STATUS_OK && !found)
        st = shape->epilogue != CUBLASLT_EPILOGUE_DEFAULT
                 ? note_refusal(p)
                 : FAIL(STATUS_DEVICE, "cuBLASLt has no algorithm for a product of %d x %d x %d",
                        shape->m, shape->n, shape->k);
    if (st != STATUS_OK || !found) {
        matmul_destroy(p);
        p = NULL;
    }
    if (st == STATUS_OK)
        *out = p;
    return st;
}

status matmul_run(matmul *p, const matmul_arrays *arrays, float beta, bool *ran)
{
    const cuda_state *s = cuda_state_of(p->dev);
    float alpha = 1.0f;
    status st = set_pointers(p, arrays);
    if (st == STATUS_OK) {
        p->code = cublasLtMatmul(s->blas, p->desc, &alpha, arrays->a, p->a, arrays->b, p->b, &beta,
                                 arrays->d, p->d, arrays->d, p->d, &p->algo, s->workspace,
                                 s->workspace_bytes, s->stream);
        st = cuda_call_cublaslt(p->code, "cublasLtMatmul", __FILE__, __LINE__);
    }
    *ran = st == STATUS_OK;
    return st != STATUS_OK && is_refusal(p) ? note_refusal(p) : st;
}
