/* Linear layers: three matmuls of cuBLASLt each. Bias, relu and bias gradient are in their
 * epilogues if the library has such kernels, else kernels of our own after them. Row-major (rows,
 * columns) is the library's column-major (columns x rows), so y = x W^T is Y (O x N) = W^T (I x
 * O)^T X (I x N). */
#include "base/log.h"
#include "base/memory.h"
#include "kernels/cuda/choices.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/linear_kernels.h"

#include <stdio.h>
#include <stdlib.h>

/* A planned matmul of cuBLASLt: D = op(A) op(B) + beta D with an epilogue. All matrices are
 * column-major: a row-major (N, I) is its (I x N). */

enum { CANDIDATES = 8, BEST_ALIGNMENT = 16 };

/* op(A) is m x k, op(B) k x n, D m x n. All are packed: a leading dimension is the number of rows,
 * as stored. */
typedef struct matmul_shape {
    bool trans_a, trans_b;
    int m, n, k;
    cudaDataType_t in, out; /* the type of A and B; of D and the bias */
    cublasLtEpilogue_t epilogue;
    int64_t aux_ld; /* bits, if the epilogue writes or reads a relu mask */
} matmul_shape;

/* Device memory. */
typedef struct matmul_arrays {
    const void *a, *b;
    void *d;
    const void *bias; /* the epilogue reads it, or writes it if it is a bias gradient */
    void *aux;
} matmul_arrays;

typedef struct matmul {
    device *dev;
    matmul_shape shape;
    cublasStatus_t code; /* the library's answer to the latest call that may be a refusal */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
} matmul;

/* The alignment of all arrays: 4, 8 or 16 bytes, or less. */
static unsigned matmul_alignment(const matmul_arrays *arrays)
{
    uintptr_t bits = (uintptr_t)arrays->a | (uintptr_t)arrays->b | (uintptr_t)arrays->d |
                     (uintptr_t)arrays->bias | BEST_ALIGNMENT;
    return (unsigned)(bits & ~(bits - 1));
}

static void matmul_destroy(matmul *p)
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

/* Chooses an algorithm for arrays that are aligned like these: the library's first choice that fits
 * the workspace, so the same one in every process. *out = NULL if the library refuses such a
 * matmul, which is logged and noted once per epilogue and types (choices.h); for
 * CUBLASLT_EPILOGUE_DEFAULT that is STATUS_DEVICE. Enqueues nothing. */
static status matmul_create(device *dev, const matmul_shape *shape, const matmul_arrays *like,
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

/* Enqueues it. *ran = false if the library refuses only now: then nothing is enqueued. */
static status matmul_run(matmul *p, const matmul_arrays *arrays, float beta, bool *ran)
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

/* The matmul for one batch size, chosen at its first use. */
typedef struct cached_matmul {
    struct cached_matmul *next;
    matmul_shape shape; /* what it was asked for as: m, n, k, epilogue, beta's use ... */
    unsigned alignment;
    matmul *matmul; /* NULL: the library cannot do it */
} cached_matmul;

typedef struct linear_plan {
    linear_shape s;
    device *dev;
    cached_matmul *known;
    cuda_relu_mask mask; /* this layer's output's; bits NULL: never made */
    bool is_skinny;      /* few outputs: own kernels, no cuBLASLt */
    skinny_linear skinny;
} linear_plan;

enum { MASK_ALIGNMENT = 128 }; /* bits, of a sample's mask */

static linear_plan *plan_of(linear *plan)
{
    return (linear_plan *)(void *)plan;
}

static bool same_shape(const matmul_shape *a, const matmul_shape *b)
{
    return a->trans_a == b->trans_a && a->trans_b == b->trans_b && a->m == b->m && a->n == b->n &&
           a->k == b->k && a->in == b->in && a->out == b->out && a->epilogue == b->epilogue;
}

/* (*out)->matmul is NULL if the library cannot do it. */
static status find_matmul(linear_plan *p, const matmul_shape *shape, const matmul_arrays *arrays,
                          cached_matmul **out)
{
    unsigned alignment = matmul_alignment(arrays);
    for (cached_matmul *one = p->known; one != NULL; one = one->next)
        if (one->alignment == alignment && same_shape(&one->shape, shape)) {
            *out = one;
            return STATUS_OK;
        }
    cached_matmul *made = NULL;
    TRY(memory_alloc(sizeof *made, (void **)&made));
    *made = (cached_matmul){.shape = *shape, .alignment = alignment};
    status st = matmul_create(p->dev, shape, arrays, &made->matmul);
    if (st != STATUS_OK) {
        free(made);
        return st;
    }
    made->next = p->known;
    p->known = made;
    *out = made;
    return STATUS_OK;
}

/* Runs the matmul with this epilogue; *ran = false if the library cannot do it. */
static status try_epilogue(linear_plan *p, matmul_shape shape, const matmul_arrays *arrays,
                           cublasLtEpilogue_t epilogue, bool *ran)
{
    cached_matmul *found = NULL;
    *ran = false;
    shape.epilogue = epilogue;
    TRY(find_matmul(p, &shape, arrays, &found));
    if (found->matmul == NULL)
        return STATUS_OK;
    TRY(matmul_run(found->matmul, arrays, 0.0f, ran));
    if (!*ran) { /* it would be refused the next time too */
        matmul_destroy(found->matmul);
        found->matmul = NULL;
    }
    return STATUS_OK;
}

/* The matmul without an epilogue. */
static status run_plain(linear_plan *p, matmul_shape shape, matmul_arrays arrays, float beta)
{
    cached_matmul *found = NULL;
    bool ran = false;
    shape.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    arrays.bias = arrays.aux = NULL;
    TRY(find_matmul(p, &shape, &arrays, &found));
    return matmul_run(found->matmul, &arrays, beta, &ran);
}

static status make_mask(linear_plan *p, int max_n)
{
    cuda_state *s = cuda_state_of(p->dev);
    int64_t features = p->s.out_features;
    p->mask.features = p->s.out_features;
    p->mask.ld = (features + MASK_ALIGNMENT - 1) / MASK_ALIGNMENT * MASK_ALIGNMENT;
    TRY(cuda_alloc(p->dev, (size_t)p->mask.ld / 8 * (size_t)max_n, &p->mask.bits));
    p->mask.next = s->masks;
    s->masks = &p->mask;
    return STATUS_OK;
}

static status make_skinny(linear_plan *p, int max_n)
{
    int inputs = p->s.in_features, outputs = p->s.out_features;
    p->is_skinny = true;
    p->skinny.dev = p->dev;
    p->skinny.in_features = inputs;
    p->skinny.out_features = outputs;
    TRY(cuda_alloc(p->dev, sizeof(float) * cuda_skinny_partials(inputs, outputs, max_n),
                   (void **)&p->skinny.partials));
    return cuda_alloc(p->dev, sizeof(unsigned) * cuda_skinny_tickets(inputs),
                      (void **)&p->skinny.tickets);
}

status cuda_linear_create(device *dev, const linear_shape *shape, int max_n, linear **out)
{
    linear_plan *p = NULL;
    TRY(memory_alloc(sizeof *p, (void **)&p));
    p->s = *shape;
    p->dev = dev;
    bool skinny = shape->logits && shape->out_features <= SKINNY_OUTPUTS;
    status st = skinny ? make_skinny(p, max_n) : make_mask(p, max_n);
    if (st != STATUS_OK) {
        cuda_linear_destroy((linear *)(void *)p);
        return st;
    }
    *out = (linear *)(void *)p;
    return STATUS_OK;
}

void cuda_linear_destroy(linear *plan)
{
    linear_plan *p = plan_of(plan);
    if (p == NULL)
        return;
    for (cached_matmul *one = p->known, *next; one != NULL; one = next) {
        next = one->next;
        matmul_destroy(one->matmul);
        free(one);
    }
    cuda_relu_mask **link = &cuda_state_of(p->dev)->masks;
    while (*link != NULL && *link != &p->mask)
        link = &(*link)->next;
    if (*link != NULL)
        *link = p->mask.next;
    cuda_free(p->dev, p->mask.bits);
    cuda_free(p->dev, p->skinny.partials);
    cuda_free(p->dev, p->skinny.tickets);
    free(p);
}

/* The arena's column for column j of PyTorch's weight: a flattened input is channels innermost. */
static size_t private_column(const linear_shape *s, size_t j)
{
    if (s->channels == 0)
        return j;
    size_t area = (size_t)s->height * (size_t)s->width;
    return j % area * (size_t)s->channels + j / area;
}

status cuda_linear_import(linear *plan, const float *plain, float *weight)
{
    const linear_shape *s = &plan_of(plan)->s;
    size_t features = (size_t)s->in_features;
    for (size_t o = 0; o < (size_t)s->out_features; o++)
        for (size_t j = 0; j < features; j++)
            weight[o * features + private_column(s, j)] = plain[o * features + j];
    return STATUS_OK;
}

status cuda_linear_export(linear *plan, const float *weight, float *plain)
{
    const linear_shape *s = &plan_of(plan)->s;
    size_t features = (size_t)s->in_features;
    for (size_t o = 0; o < (size_t)s->out_features; o++)
        for (size_t j = 0; j < features; j++)
            plain[o * features + j] = weight[o * features + private_column(s, j)];
    return STATUS_OK;
}

/* The forward matmul with as much of bias and relu as the library can do. Sets *left to the rest of
 * the epilogue. The relu mask is written if there is no dropout. */
static status forward_matmul(linear_plan *p, int n, matmul_arrays *arrays, linear_epilogue *left)
{
    const linear_shape *s = &p->s;
    cudaDataType_t type = cuda_activation_type(p->dev);
    matmul_shape shape = {.trans_a = true,
                          .m = s->out_features,
                          .n = n,
                          .k = s->in_features,
                          .in = type,
                          .out = s->logits ? CUDA_R_32F : type,
                          .aux_ld = p->mask.ld};
    bool ran = left->bias == NULL, relu = left->relu;
    p->mask.y = NULL;
    if (ran)
        return run_plain(p, shape, *arrays, 0.0f);
    if (relu && left->drop == NULL) {
        arrays->aux = p->mask.bits;
        TRY(try_epilogue(p, shape, arrays, CUBLASLT_EPILOGUE_RELU_AUX_BIAS, &ran));
        arrays->aux = NULL;
        p->mask.y = ran ? arrays->d : NULL;
    }
    if (!ran)
        TRY(try_epilogue(p, shape, arrays,
                         relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS, &ran));
    if (ran) {
        left->bias = NULL;
        left->relu = false;
        return STATUS_OK;
    }
    return run_plain(p, shape, *arrays, 0.0f);
}

status cuda_linear_forward(linear *plan, int n, const float *x, const float *weight,
                           const linear_epilogue *epilogue, float *y)
{
    linear_plan *p = plan_of(plan);
    linear_epilogue left = {0};
    if (epilogue != NULL)
        left = *epilogue;
    const float *bias = left.bias;
    if (left.drop != NULL && left.drop->p <= 0.0f)
        left.drop = NULL;
    if (p->is_skinny) {
        TRY(cuda_skinny_forward(&p->skinny, n, x, weight, bias, y));
        left.bias = NULL;
    } else {
        const void *like_y = p->s.logits || bias == NULL ? bias : cuda_half_weights(p->dev, bias);
        matmul_arrays arrays = {
            .a = cuda_half_weights(p->dev, weight), .b = x, .d = y, .bias = like_y};
        TRY(forward_matmul(p, n, &arrays, &left));
    }
    return cuda_linear_finish(plan, n, &left, y);
}

status cuda_linear_finish(linear *plan, int n, const linear_epilogue *epilogue, float *y)
{
    const linear_plan *p = plan_of(plan);
    linear_epilogue left = *epilogue;
    if (left.drop != NULL && left.drop->p <= 0.0f)
        left.drop = NULL;
    if (left.bias == NULL && !left.relu && left.drop == NULL)
        return STATUS_OK;
    linear_rows rows = {n, p->s.out_features, p->s.logits};
    return cuda_linear_epilogue(p->dev, &rows, &left, y);
}

status cuda_linear_backward_weights(linear *plan, int n, const float *x, const float *dy,
                                    const param_gradients *out)
{
    linear_plan *p = plan_of(plan);
    if (p->is_skinny)
        return cuda_skinny_backward_weights(&p->skinny, n, x, dy, out);
    matmul_shape shape = {.trans_b = true,
                          .m = p->s.in_features,
                          .n = p->s.out_features,
                          .k = n,
                          .in = cuda_activation_type(p->dev),
                          .out = CUDA_R_32F};
    matmul_arrays arrays = {.a = x, .b = dy, .d = out->dw, .bias = out->db};
    bool ran = false;
    if (!out->accumulate)
        TRY(try_epilogue(p, shape, &arrays, CUBLASLT_EPILOGUE_BGRADB, &ran));
    if (ran)
        return STATUS_OK;
    TRY(run_plain(p, shape, arrays, out->accumulate ? 1.0f : 0.0f));
    return cuda_column_sums(p->dev, n, p->s.out_features, dy, out->accumulate, out->db);
}

/* The relu mask of the layer whose output is `x`; NULL: none was written. */
static const cuda_relu_mask *mask_of(const linear_plan *p, const float *x)
{
    for (const cuda_relu_mask *mask = cuda_state_of(p->dev)->masks; mask != NULL; mask = mask->next)
        if (mask->y == x && mask->features == p->s.in_features)
            return mask;
    return NULL;
}

status cuda_linear_backward_data(linear *plan, int n, const float *weight, const float *dy,
                                 const relu_output *input, float *dx)
{
    linear_plan *p = plan_of(plan);
    if (p->is_skinny)
        return cuda_skinny_backward_data(&p->skinny, n, weight, dy, input, dx);
    cudaDataType_t type = cuda_activation_type(p->dev);
    matmul_shape shape = {
        .m = p->s.in_features, .n = n, .k = p->s.out_features, .in = type, .out = type};
    matmul_arrays arrays = {.a = cuda_half_weights(p->dev, weight), .b = dy, .d = dx};
    const cuda_relu_mask *mask = input != NULL && input->p <= 0.0f ? mask_of(p, input->y) : NULL;
    bool ran = false;
    if (mask != NULL) {
        arrays.aux = mask->bits;
        shape.aux_ld = mask->ld;
        TRY(try_epilogue(p, shape, &arrays, CUBLASLT_EPILOGUE_DRELU, &ran));
    }
    if (ran)
        return STATUS_OK;
    TRY(run_plain(p, shape, arrays, 0.0f));
    if (input == NULL)
        return STATUS_OK;
    return cuda_relu_backward(p->dev, (size_t)n * (size_t)p->s.in_features, input->y,
                              1.0f / (1.0f - input->p), dx);
}
