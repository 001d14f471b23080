/* Linear layers: three products of cuBLASLt each, with bias, relu and bias gradient in their
 * epilogues where the library has such kernels, else behind them. Row-major (rows, columns) is the
 * library's column-major (columns x rows), so y = x W^T is Y (O x N) = W^T (I x O)^T X (I x N). */
#include "base/memory.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/product.h"

#include <stdlib.h>

/* A product for one batch size, chosen at its first use. */
typedef struct planned {
    struct planned *next;
    product_shape shape; /* what it was asked for as: m, n, k, epilogue, beta's use ... */
    unsigned alignment;
    product *product; /* NULL: the library cannot do it */
} planned;

typedef struct linear_plan {
    linear_shape s;
    device *dev;
    planned *known;
    cuda_relu_mask mask; /* of this layer's output; bits NULL: never made */
    bool is_narrow;      /* few outputs: own kernels, no products */
    narrow_layer narrow;
} linear_plan;

enum { MASK_ALIGNMENT = 128 }; /* bits, of a sample's mask */

static linear_plan *plan_of(linear *plan)
{
    return (linear_plan *)(void *)plan;
}

static bool same_shape(const product_shape *a, const product_shape *b)
{
    return a->trans_a == b->trans_a && a->trans_b == b->trans_b && a->m == b->m && a->n == b->n &&
           a->k == b->k && a->in == b->in && a->out == b->out && a->epilogue == b->epilogue;
}

/* (*out)->product is NULL where the library cannot do it. */
static status find_product(linear_plan *p, const product_shape *shape, const product_arrays *arrays,
                           planned **out)
{
    unsigned alignment = product_alignment(arrays);
    for (planned *one = p->known; one != NULL; one = one->next)
        if (one->alignment == alignment && same_shape(&one->shape, shape)) {
            *out = one;
            return STATUS_OK;
        }
    planned *made = NULL;
    TRY(memory_alloc(sizeof *made, (void **)&made));
    *made = (planned){.shape = *shape, .alignment = alignment};
    status st = product_create(p->dev, shape, arrays, &made->product);
    if (st != STATUS_OK) {
        free(made);
        return st;
    }
    made->next = p->known;
    p->known = made;
    *out = made;
    return STATUS_OK;
}

/* Runs the product with this epilogue; *ran = false where the library cannot do it. */
static status try_epilogue(linear_plan *p, product_shape shape, const product_arrays *arrays,
                           cublasLtEpilogue_t epilogue, bool *ran)
{
    planned *found = NULL;
    *ran = false;
    shape.epilogue = epilogue;
    TRY(find_product(p, &shape, arrays, &found));
    if (found->product == NULL)
        return STATUS_OK;
    TRY(product_run(found->product, arrays, 0.0f, ran));
    if (!*ran) { /* nor will it the next time */
        product_destroy(found->product);
        found->product = NULL;
    }
    return STATUS_OK;
}

/* The product alone. */
static status run_plain(linear_plan *p, product_shape shape, product_arrays arrays, float beta)
{
    planned *found = NULL;
    bool ran = false;
    shape.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    arrays.bias = arrays.aux = NULL;
    TRY(find_product(p, &shape, &arrays, &found));
    return product_run(found->product, &arrays, beta, &ran);
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

static status make_narrow(linear_plan *p, int max_n)
{
    int inputs = p->s.in_features, outputs = p->s.out_features;
    p->is_narrow = true;
    p->narrow.in_features = inputs;
    p->narrow.out_features = outputs;
    TRY(cuda_alloc(p->dev, sizeof(float) * cuda_narrow_partials(inputs, outputs, max_n),
                   (void **)&p->narrow.partials));
    return cuda_alloc(p->dev, sizeof(unsigned) * cuda_narrow_tickets(inputs),
                      (void **)&p->narrow.tickets);
}

status cuda_linear_create(device *dev, const linear_shape *shape, int max_n, linear **out)
{
    linear_plan *p = NULL;
    TRY(memory_alloc(sizeof *p, (void **)&p));
    p->s = *shape;
    p->dev = dev;
    bool narrow = shape->logits && shape->out_features <= NARROW_OUTPUTS;
    status st = narrow ? make_narrow(p, max_n) : make_mask(p, max_n);
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
    for (planned *one = p->known, *next; one != NULL; one = next) {
        next = one->next;
        product_destroy(one->product);
        free(one);
    }
    cuda_relu_mask **link = &cuda_state_of(p->dev)->masks;
    while (*link != NULL && *link != &p->mask)
        link = &(*link)->next;
    if (*link != NULL)
        *link = p->mask.next;
    cuda_free(p->dev, p->mask.bits);
    cuda_free(p->dev, p->narrow.partials);
    cuda_free(p->dev, p->narrow.tickets);
    free(p);
}

/* Where column j of PyTorch's weight lies: a flattened input has its channels innermost here. */
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

/* The forward product with as much of bias and relu as the library can do; *left is what it could
 * not. The mask is written where nothing but the relu comes behind the product. */
static status forward_product(linear_plan *p, int n, product_arrays *arrays, bool relu,
                              linear_finish *left)
{
    const linear_shape *s = &p->s;
    cudaDataType_t type = cuda_activation_type(p->dev);
    product_shape shape = {.trans_a = true,
                           .m = s->out_features,
                           .n = n,
                           .k = s->in_features,
                           .in = type,
                           .out = s->logits ? CUDA_R_32F : type,
                           .aux_ld = p->mask.ld};
    bool ran = false;
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
                           const float *bias, bool relu, const dropout *drop, float *y)
{
    linear_plan *p = plan_of(plan);
    linear_finish left = {.n = n,
                          .features = p->s.out_features,
                          .is_float = p->s.logits,
                          .bias = bias,
                          .relu = relu,
                          .drop = drop != NULL && drop->p > 0.0f ? drop : NULL};
    if (p->is_narrow) {
        TRY(cuda_narrow_forward(p->dev, &p->narrow, n, x, weight, bias, y));
        left.bias = NULL;
    } else {
        const void *like_y = p->s.logits ? bias : cuda_shadow_of(p->dev, bias);
        product_arrays arrays = {
            .a = cuda_shadow_of(p->dev, weight), .b = x, .d = y, .bias = like_y};
        TRY(forward_product(p, n, &arrays, relu, &left));
    }
    if (left.bias == NULL && !left.relu && left.drop == NULL)
        return STATUS_OK;
    return cuda_linear_finish(p->dev, &left, y);
}

status cuda_linear_backward_weights(linear *plan, int n, const float *x, const float *dy, float *dw,
                                    float *db, bool accumulate)
{
    linear_plan *p = plan_of(plan);
    if (p->is_narrow)
        return cuda_narrow_backward_weights(p->dev, &p->narrow, n, x, dy, accumulate, dw, db);
    product_shape shape = {.trans_b = true,
                           .m = p->s.in_features,
                           .n = p->s.out_features,
                           .k = n,
                           .in = cuda_activation_type(p->dev),
                           .out = CUDA_R_32F};
    product_arrays arrays = {.a = x, .b = dy, .d = dw, .bias = db};
    bool ran = false;
    if (!accumulate)
        TRY(try_epilogue(p, shape, &arrays, CUBLASLT_EPILOGUE_BGRADB, &ran));
    if (ran)
        return STATUS_OK;
    TRY(run_plain(p, shape, arrays, accumulate ? 1.0f : 0.0f));
    return cuda_column_sums(p->dev, n, p->s.out_features, dy, accumulate, db);
}

/* The mask of the layer whose forward pass left its relu's output at `x`; NULL: none wrote one. */
static const cuda_relu_mask *mask_of(const linear_plan *p, const float *x)
{
    for (const cuda_relu_mask *mask = cuda_state_of(p->dev)->masks; mask != NULL; mask = mask->next)
        if (mask->y == x && mask->features == p->s.in_features)
            return mask;
    return NULL;
}

status cuda_linear_backward_data(linear *plan, int n, const float *weight, const float *dy,
                                 const float *x, bool relu, float p_drop, float *dx)
{
    linear_plan *p = plan_of(plan);
    float scale = 1.0f / (1.0f - p_drop);
    if (p->is_narrow)
        return cuda_narrow_backward_data(p->dev, &p->narrow, n, weight, dy, relu ? x : NULL, scale,
                                         dx);
    cudaDataType_t type = cuda_activation_type(p->dev);
    product_shape shape = {
        .m = p->s.in_features, .n = n, .k = p->s.out_features, .in = type, .out = type};
    product_arrays arrays = {.a = cuda_shadow_of(p->dev, weight), .b = dy, .d = dx};
    const cuda_relu_mask *mask = relu && p_drop <= 0.0f ? mask_of(p, x) : NULL;
    bool ran = false;
    if (mask != NULL) {
        arrays.aux = mask->bits;
        shape.aux_ld = mask->ld;
        TRY(try_epilogue(p, shape, &arrays, CUBLASLT_EPILOGUE_DRELU, &ran));
    }
    if (ran)
        return STATUS_OK;
    TRY(run_plain(p, shape, arrays, 0.0f));
    if (!relu)
        return STATUS_OK;
    return cuda_relu_backward(p->dev, (size_t)n * (size_t)p->s.in_features, x, scale, dx);
}
