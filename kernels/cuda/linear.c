/* Linear layers: three matmuls of cuBLASLt each. Bias, relu and bias gradient are in their
 * epilogues if the library has such kernels, else kernels of our own after them. Row-major (rows,
 * columns) is the library's column-major (columns x rows), so y = x W^T is Y (O x N) = W^T (I x
 * O)^T X (I x N). */
#include "base/memory.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/linear_epilogue.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/skinny_linear.h"

#include <stdlib.h>

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
    cuda_relu_mask mask; /* of this layer's output; bits NULL: never made */
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
    bool ran = false, relu = left->relu;
    p->mask.y = NULL;
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
    linear_epilogue left = *epilogue;
    const float *bias = epilogue->bias;
    if (left.drop != NULL && left.drop->p <= 0.0f)
        left.drop = NULL;
    if (p->is_skinny) {
        TRY(cuda_skinny_forward(&p->skinny, n, x, weight, bias, y));
        left.bias = NULL;
    } else {
        const void *like_y = p->s.logits ? bias : cuda_half_weights(p->dev, bias);
        matmul_arrays arrays = {
            .a = cuda_half_weights(p->dev, weight), .b = x, .d = y, .bias = like_y};
        TRY(forward_matmul(p, n, &arrays, &left));
    }
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
