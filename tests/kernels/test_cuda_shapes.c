/* The cuda device's own kernels at sizes and places that no network has, against the reference
 * device. A row of a table is one case. Numbers are such that most sums are exact: their order does
 * not show. Convolutions stand in test_cuda_conv.c, NCCL's scaling in test_nccl_graph.c. */
#include "tests/kernels/cuda_tensor.h"

/* What an array holds. IMAGES are activations too, channels innermost on the cuda device. */
typedef enum array_kind { BYTES, FLOATS, ACTIVATIONS, IMAGES } array_kind;

typedef struct array {
    array_kind kind;
    int n, channels, area;     /* of IMAGES */
    unsigned char *block, *at; /* `at` is `shift` elements in the block, which has size_bytes */
    size_t count, shift, element_bytes, size_bytes;
    bool is_result;
    double absolute, relative; /* what a result may differ by, beside being rounded once */
} array;

/* One case on one device: its arrays in the order in which they were made, and what numbers come
 * out beside them. */
typedef struct scene {
    device *dev;
    uint32_t seed;
    int n, n_numbers;
    array arrays[40];
    double numbers[8], tolerances[8];
} scene;

/* What is written has a margin after it, and all is filled with this, which is no usual number.
 * What is only read ends where its memory ends. */
enum { MARGIN_BYTES = 64, FILL = 0x7f };
typedef enum array_use { IS_READ, IS_WRITTEN } array_use;

static array *add(scene *s, array_kind kind, array_use use, size_t count, size_t shift)
{
    array *a = &s->arrays[s->n++];
    ck_assert_uint_le((size_t)s->n, sizeof s->arrays / sizeof *s->arrays);
    *a = (array){.kind = kind, .count = count, .shift = shift};
    a->element_bytes = kind == BYTES ? 1 : kind == FLOATS ? 4 : device_element_bytes(s->dev);
    a->size_bytes = (shift + count) * a->element_bytes + (use == IS_WRITTEN ? MARGIN_BYTES : 0);
    void *fill = NULL;
    ok(memory_alloc(a->size_bytes, &fill));
    memset(fill, FILL, a->size_bytes);
    a->block = put_bytes(s->dev, fill, a->size_bytes);
    a->at = a->block + shift * a->element_bytes;
    free(fill);
    return a;
}

static array *add_images(scene *s, array_use use, int n, int channels, int area)
{
    array *a = add(s, IMAGES, use, (size_t)n * (size_t)(channels * area), 0);
    a->n = n;
    a->channels = channels;
    a->area = area;
    return a;
}

static void *put(const scene *s, const array *a, const void *host)
{
    if (a->kind == BYTES || a->kind == FLOATS) {
        ok(s->dev->ops->upload(s->dev, a->at, host, a->count * a->element_bytes));
        return a->at;
    }
    float *elsewhere = a->kind == IMAGES ? put_images(s->dev, host, a->n, a->channels, a->area)
                                         : put_activations(s->dev, host, a->count);
    ok(s->dev->ops->copy(s->dev, a->at, elsewhere, a->count * a->element_bytes));
    ok(s->dev->ops->synchronize(s->dev));
    s->dev->ops->free(s->dev, elsewhere);
    return a->at;
}

static void *put_new(scene *s, const void *host, size_t size_bytes)
{
    return put(s, add(s, BYTES, IS_READ, size_bytes, 0), host);
}

static void *put_random(scene *s, const array *a)
{
    float *host = random_floats(++s->seed, a->count, 1.0f);
    void *at = put(s, a, host);
    free(host);
    return at;
}

static void *random_input(scene *s, array_kind kind, size_t count, size_t shift)
{
    return put_random(s, add(s, kind, IS_READ, count, shift));
}

static void *as_result(array *a, double absolute, double relative)
{
    a->is_result = true;
    a->absolute = absolute;
    a->relative = relative;
    return a->at;
}

static void *exact_result(scene *s, array_kind kind, size_t count, size_t shift)
{
    return as_result(add(s, kind, IS_WRITTEN, count, shift), 0, 0);
}

static void note(scene *s, double value, double tolerance)
{
    s->tolerances[s->n_numbers] = tolerance;
    s->numbers[s->n_numbers++] = value;
}

/* Bytes become numbers, too. */
static float *get(const scene *s, const array *a)
{
    unsigned char *all = NULL;
    size_t first = a->shift * a->element_bytes, end = first + a->count * a->element_bytes;
    ok(memory_alloc(a->size_bytes, (void **)&all));
    ok(s->dev->ops->download(s->dev, all, a->block, a->size_bytes));
    for (size_t i = 0; i < a->size_bytes; i++)
        if ((i < first || i >= end) && all[i] != FILL)
            ck_abort_msg("array %td is written beside its %zu elements", a - s->arrays, a->count);
    float *out = NULL, *from = (float *)(void *)a->at;
    if (a->kind == BYTES) {
        ok(memory_alloc(sizeof *out * a->count, (void **)&out));
        for (size_t i = 0; i < a->count; i++)
            out[i] = all[first + i];
    }
    free(all);
    return a->kind == BYTES    ? out
           : a->kind == FLOATS ? get_floats(s->dev, from, a->count)
           : a->kind == IMAGES ? get_images(s->dev, from, a->n, a->channels, a->area)
                               : get_activations(s->dev, from, a->count);
}

static void expect_near(double got, double want, double tolerance, const char *name, size_t i)
{
    if (!(isnan(got) && isnan(want)) && got != want && !(fabs(got - want) <= tolerance))
        ck_abort_msg("%s, [%zu]: %.9g, want %.9g within %.3g", name, i, got, want, tolerance);
}

static void compare(const scene *cuda, const scene *reference, const char *name)
{
    for (int i = 0; i < cuda->n_numbers; i++)
        expect_near(cuda->numbers[i], reference->numbers[i], reference->tolerances[i], name,
                    (size_t)i);
    for (int i = 0; i < cuda->n; i++) {
        const array *a = &cuda->arrays[i];
        if (!a->is_result)
            continue;
        float *got = get(cuda, a), *want = get(reference, &reference->arrays[i]);
        precision p = a->kind >= ACTIVATIONS ? cuda->dev->precision : PRECISION_F32;
        for (size_t k = 0; k < a->count; k++) {
            double one = (double)rounded(p, want[k]);
            expect_near((double)got[k], one, a->absolute + a->relative * fabs(one), name, k);
        }
        free(got);
        free(want);
    }
}

typedef void run_fn(scene *s, const void *row);

static void check_row(device *dev, device *plain, run_fn *run, const void *row, const char *name)
{
    scene cuda = {.dev = dev}, reference = {.dev = plain};
    run(&reference, row);
    run(&cuda, row);
    compare(&cuda, &reference, name);
    for (int i = 0; i < cuda.n; i++)
        dev->ops->free(dev, cuda.arrays[i].block);
    for (int i = 0; i < reference.n; i++)
        plain->ops->free(plain, reference.arrays[i].block);
}

/* clang-format off */
typedef struct cast_row { size_t count, first; /* of more parameters */ } cast_row;
static const cast_row CASTS[] = {
    {1, 0}, {7, 0}, {8, 0}, {9, 0}, {2047, 0}, {2048, 0}, {2049, 2}, {2050, 4}, {99991, 6},
};
/* clang-format on */

/* A layer of one feature whose input is 1 has the cast weights as its output. */
static void run_cast(scene *s, const void *row)
{
    const cast_row *r = row;
    const device_ops *ops = s->dev->ops;
    const float one = 1.0f;
    float *host = random_floats(1, r->count, 1.0f);
    linear_shape shape = {.in_features = 1, .out_features = (int)r->count};
    linear *plan = NULL;
    for (size_t i = 0; i < r->count; i++)
        host[i] *= ldexpf(1 + (float)(i % 89) * 0x1p-20f, (int)(i % 61) - 30);
    host[r->count / 2] = r->count % 2 == 0 ? INFINITY : NAN;
    ok(ops->linear_create(s->dev, &shape, 1, &plan));
    float *all = (float *)(void *)add(s, FLOATS, IS_READ, r->first + r->count, 0)->at;
    float *part = all + r->first;
    void *x = put(s, add(s, ACTIVATIONS, IS_READ, 1, 0), &one);
    ok(ops->begin_forward(s->dev, all, r->first + r->count));
    ok(ops->upload(s->dev, part, host, sizeof *host * r->count));
    ok(ops->begin_forward(s->dev, part, r->count));
    ok(ops->linear_forward(plan, 1, x, part, NULL, exact_result(s, ACTIVATIONS, r->count, 0)));
    ok(ops->synchronize(s->dev));
    ops->linear_destroy(plan);
    free(host);
}

/* Numbers that all types have. */
static void run_widen(scene *s, const void *row)
{
    const cast_row *r = row;
    float *host = random_floats(1, r->count, 1.0f);
    for (size_t i = 0; i < r->count; i++)
        host[i] = (float)((int)(i * 37 % 201) - 100) / 2;
    const void *from = put(s, add(s, ACTIVATIONS, IS_READ, r->count, r->first), host);
    float *to = exact_result(s, FLOATS, r->count, 0);
    if (is_cuda(s->dev))
        ok(s->dev->ops->accelerator->widen(s->dev, s->dev->precision, from, r->count, to));
    else
        memcpy(to, from, sizeof *host * r->count);
    free(host);
}

/* clang-format off */
typedef struct optimizer_row {
    size_t count, shift;
    float scale; /* of the loss; 0: it is not scaled */
    size_t broken; /* gradient broken - 1 is no number; 0: all are */
    bool ended;    /* a step was not committed */
} optimizer_row;
static const optimizer_row OPTIMIZERS[] = {
    {.count = 1}, {.count = 3}, {.count = 4, .scale = 1024},
    {.count = 5, .scale = 1024, .broken = 5}, {.count = 6, .shift = 1, .scale = 1024, .broken = 1},
    {.count = 511}, {.count = 513, .shift = 2}, {.count = 515, .shift = 3, .scale = 8},
    {.count = 1026, .scale = 1024}, {.count = 1026, .shift = 1, .scale = 2, .broken = 513},
    {.count = 4099, .scale = 2, .broken = 4099}, {.count = 40001, .scale = 1024},
    {.count = 40003, .shift = 1}, {.count = 9, .ended = true},
};
/* clang-format on */

typedef enum rule { SGD, MOMENTUM, NESTEROV, ADAM, ADAMW, ADADELTA, N_RULES } rule;

static void optimize(device *dev, rule which, const optimizer_slice *slice, step_state *state)
{
    sgd_options sgd = {which == SGD ? 0 : 0.9f, 0.01f, which == NESTEROV};
    adam_options adam = {0.9f, 0.999f, 1e-8f, 0.01f, which == ADAMW};
    adadelta_options adadelta = {0.9f, 1e-6f, 0.01f};
    ok(which == ADADELTA ? dev->ops->adadelta_step(dev, slice, state, &adadelta)
       : which >= ADAM   ? dev->ops->adam_step(dev, slice, state, &adam)
                         : dev->ops->sgd_step(dev, slice, state, &sgd));
}

/* Not negative: an average of squares, among others. A step makes some roundings of values below
 * 2. */
static float *optimizer_array(scene *s, const optimizer_row *r)
{
    float *host = random_floats(++s->seed, r->count, 1.0f);
    for (size_t i = 0; i < r->count; i++)
        host[i] += 0.5f;
    array *a = add(s, FLOATS, IS_WRITTEN, r->count, r->shift);
    void *at = put(s, a, host);
    free(host);
    (void)as_result(a, 1e-6, 0);
    return at;
}

/* The reference device knows neither a scale nor skipped steps: it gets what they stand for. */
static void run_optimizer(scene *s, const void *row)
{
    const optimizer_row *r = row;
    bool scaled = r->scale > 0 && is_cuda(s->dev);
    step_state state = {.plan = {.step = 7, .lr = 0.1f, .scale_loss = scaled},
                        .scaling.scale = r->scale,
                        .commit.ended = r->ended,
                        .adam_step_size = 1e-3f,
                        .adam_correction2_sqrt = 0.1f};
    float *host = random_floats(11, r->count, scaled ? r->scale : 1.0f);
    if (r->broken > 0)
        host[r->broken - 1] = r->broken % 4 == 1 ? INFINITY : NAN;
    const float *grad = put(s, add(s, FLOATS, IS_READ, r->count, r->shift), host);
    ok(s->dev->ops->begin_step(s->dev, &state.plan, put_new(s, &state, sizeof state), NULL));
    for (rule which = 0; which < N_RULES; which++) {
        step_state *d_state = put_new(s, &state, sizeof state), after;
        optimizer_slice slice = {.param = optimizer_array(s, r), .grad = grad, .count = r->count};
        slice.state1 = which == SGD ? NULL : optimizer_array(s, r);
        slice.state2 = which < ADAM ? NULL : optimizer_array(s, r);
        if ((r->broken == 0 && !r->ended) || is_cuda(s->dev))
            optimize(s->dev, which, &slice, d_state);
        ok(s->dev->ops->download(s->dev, &after, d_state, sizeof after));
        note(s, is_cuda(s->dev) ? after.scaling.overflow : r->broken > 0, 0);
    }
    free(host);
}

/* clang-format off */
typedef struct begin_row {
    step_plan plan;
    loss_scaling scaling;
    double loss_sum; /* 0: none is given */
    bool has_flag;
} begin_row;
static const begin_row BEGINNINGS[] = {
    {.plan = {.step = 1, .stop = 1}, .has_flag = true},
    {.plan = {.step = 1, .lr = 1, .beta1 = 0.9f, .beta2 = 0.999f}, .loss_sum = 2, .has_flag = true},
    {.plan = {.step = 12345, .lr = 1, .beta1 = 0.9f, .beta2 = 0.999f}, .loss_sum = (double)INFINITY,
     .has_flag = true},
    {.plan = {.step = 7, .lr = 1, .beta2 = 0.5f}, .loss_sum = (double)NAN, .has_flag = true},
    {.plan = {.step = 0, .beta2 = 0.5f, .scale_loss = true}, .scaling = {64, 3, 1, 1}},
    {.plan = {.step = 2, .beta2 = 0.5f, .beta1 = 0.25f, .scale_loss = true}},
    {.plan = {.step = 9, .scale_loss = true}, .scaling = {64, 1999, 1, 0}},
    {.plan = {.step = 9, .scale_loss = true}, .scaling = {64, 1998, 1, 0}},
    {.plan = {.step = 9, .lr = 1, .beta1 = 0.9f, .beta2 = 0.99f, .scale_loss = true},
     .scaling = {64, 5, 1, 1}},
    /* what pow makes of numbers that no optimizer has */
    {.plan = {.step = 7, .lr = 1, .beta1 = NAN, .beta2 = 0.5f}},
    {.plan = {.step = 7, .lr = 1, .beta1 = -0.5f, .beta2 = INFINITY}},
    {.plan = {.step = 7, .lr = 1, .beta1 = -INFINITY, .beta2 = 0.125f}},
    {.plan = {.step = 350, .lr = 1, .beta1 = 0.125f, .beta2 = 8}},
};
/* clang-format on */

/* The reference device's own begins no step with a scaled loss. */
static void begin(const scene *s, const step_plan *plan, step_state *state, float *flag)
{
    if (is_cuda(s->dev))
        ok(s->dev->ops->begin_step(s->dev, plan, state, flag));
    else
        step_begin(plan, state, flag);
}

static void run_begin(scene *s, const void *row)
{
    const begin_row *r = row;
    const device_ops *ops = s->dev->ops;
    step_plan plan = r->plan;
    step_state state = {.scaling = r->scaling}, *d_state = put_new(s, &state, sizeof state);
    float flag = -1, *d_flag = put_new(s, &flag, sizeof flag), *to = r->has_flag ? d_flag : NULL;
    const double *loss_sum = put_new(s, &r->loss_sum, sizeof r->loss_sum);
    plan.loss_sum = r->loss_sum == 0 ? NULL : loss_sum;
    begin(s, &plan, d_state, to);
    ok(ops->download(s->dev, &state, d_state, sizeof state));
    ok(ops->download(s->dev, &flag, d_flag, sizeof flag));
    ck_assert_mem_eq(&state.plan, &plan, sizeof plan);
    note(s, (double)flag, 0);
    note(s, (double)state.scaling.scale, 0);
    note(s, state.scaling.good_steps, 0);
    note(s, (double)state.scaling.skipped, 0);
    note(s, state.scaling.overflow, 0);
    note(s, (double)state.adam_step_size, 1e-6);
    note(s, (double)state.adam_correction2_sqrt, 1e-6);
}

/* clang-format off */
typedef struct commit_row {
    step_plan plan;
    double others[2]; /* what other ranks add to the offer */
    uint32_t aborted, ended;
} commit_row;
static const commit_row COMMITS[] = {
    {.plan = {.step = 5, .commit_anew = true}, .others = {1, STEP_OFFERED + 5}},
    {.plan = {.step = 6, .scale_loss = true}, .others = {1, STEP_OFFERED + 6}},
    {.plan = {.step = 7}, .others = {1, 0}},
    {.plan = {.step = 7}, .others = {(double)NAN, (double)NAN}},
    {.plan = {.step = 7}, .others = {1, STEP_OFFERED + 7}, .aborted = 1},
    {.plan = {.step = 8, .scale_loss = true}, .others = {1, 2 * STEP_OFFERED + 16}, .ended = 1},
};
/* clang-format on */

static void run_commit(scene *s, const void *row)
{
    const commit_row *r = row;
    const device_ops *ops = s->dev->ops;
    const accelerator_ops *own = ops->accelerator;
    double loss = 100, *d_loss = put_new(s, &loss, sizeof loss);
    float wish = 0.25f, *d_wish = put_new(s, &wish, sizeof wish);
    step_state state = {.scaling = {.scale = 64},
                        .commit = {.loss = 9, .images = 9, .steps = 9, .ended = r->ended}};
    step_state *d_state = put_new(s, &state, sizeof state);
    step_vote vote = {put_new(s, &r->aborted, sizeof r->aborted), d_loss, d_wish, 16, 2};
    step_plan plan = r->plan;
    plan.commit_from = d_loss;
    begin(s, &plan, d_state, NULL);
    loss += 2;
    ok(ops->upload(s->dev, d_loss, &loss, sizeof loss));
    own != NULL ? ok(own->commit_offer(s->dev, &vote, d_state)) : step_offer(&vote, d_state);
    ok(ops->download(s->dev, &state, d_state, sizeof state));
    for (int i = 0; i < 2; i++)
        state.commit.offer[i] += r->others[i];
    ok(ops->upload(s->dev, d_state, &state, sizeof state));
    own != NULL ? ok(own->commit_take(s->dev, &vote, d_state)) : step_take(&vote, d_state);
    ok(ops->download(s->dev, &state, d_state, sizeof state));
    ok(ops->download(s->dev, &wish, d_wish, sizeof wish));
    note(s, (double)wish, 0);
    note(s, state.commit.loss, 0);
    note(s, (double)state.commit.images, 0);
    note(s, (double)state.commit.steps, 0);
    note(s, state.commit.ended, 0);
    note(s, state.scaling.good_steps, 0);
}

/* clang-format off */
typedef struct gather_row {
    int n, pixels;
    size_t shift, image_shift; /* of x; of the images */
    augmentation augment;
} gather_row;
enum { SQUARE = AUGMENTATION_SIDE * AUGMENTATION_SIDE };
static const gather_row GATHERS[] = {
    {.n = 1, .pixels = 1}, {.n = 3, .pixels = 27}, {.n = 5, .pixels = 783},
    {.n = 257, .pixels = 12}, {.n = 2, .pixels = 28, .shift = 8}, {.n = 65, .pixels = SQUARE},
    {.n = 3, .pixels = SQUARE, .image_shift = 4}, {.n = 3, .pixels = SQUARE, .shift = 1},
    {.n = 3, .pixels = SQUARE, .augment = {.shift = 40, .seed = 1}},
    {.n = 3, .pixels = SQUARE, .shift = 1, .image_shift = 1, .augment = {.rotate = 180, .seed = 2}},
    {.n = 9, .pixels = SQUARE, .augment = {.scale = 0.5f, .shift = 3, .rotate = 90, .seed = 3}},
    {.n = 9, .pixels = SQUARE, .augment = {.rotate = 1e13f, .seed = 4}}, /* many times round */
};
/* clang-format on */

static void run_gather(scene *s, const void *row)
{
    enum { COUNT = 40, FIRST = 5, OFFSET = 3, ORDER = 300 };
    const gather_row *r = row;
    size_t n = (size_t)r->n, pixels = (size_t)r->pixels;
    bool moved = augmentation_is_on(&r->augment);
    step_state state = {.plan = {.first = FIRST, .epoch = 2}};
    uint8_t pictures[COUNT * SQUARE];
    uint32_t order[ORDER];
    for (size_t i = 0; i < COUNT * pixels; i++)
        pictures[i] = (uint8_t)(i * 7 + i / 256);
    for (uint32_t i = 0; i < ORDER; i++)
        order[i] = i * 11 % COUNT;
    array *images = add(s, BYTES, IS_READ, COUNT * pixels, r->image_shift);
    gather_source source = {.images = put(s, images, pictures),
                            .labels = put_new(s, pictures, COUNT),
                            .order = put_new(s, order, (FIRST + OFFSET + n) * sizeof *order),
                            .pixels = r->pixels,
                            .augment = r->augment};
    array *x = add(s, ACTIVATIONS, IS_WRITTEN, n * pixels, r->shift);
    gather_output out = {
        .x = as_result(x, moved ? 1e-4 : 0, moved ? (double)unit_of(s->dev->precision) : 0),
        .labels = exact_result(s, BYTES, n, 0),
        .samples = exact_result(s, BYTES, n * sizeof *out.samples, 0)};
    ok(s->dev->ops->gather(s->dev, &source, put_new(s, &state, sizeof state), OFFSET, r->n, &out));
    ok(s->dev->ops->synchronize(s->dev));
}

enum { DROPOUT_SAMPLES = 130, DROPOUT_MASK = 16384 };

/* Of n samples; `masked` elements by a mask, or 0: by Philox. */
static dropout drop_of(scene *s, float p, int n, size_t masked)
{
    uint32_t samples[DROPOUT_SAMPLES];
    uint8_t mask[DROPOUT_MASK];
    step_state state = {.plan = {.epoch = 3}};
    ck_assert(n <= DROPOUT_SAMPLES && masked <= DROPOUT_MASK);
    for (uint32_t i = 0; i < DROPOUT_SAMPLES; i++)
        samples[i] = i * 977 + 3;
    for (size_t i = 0; i < DROPOUT_MASK; i++)
        mask[i] = (i * i + i / 3) % 3 != 0;
    dropout drop = {.p = p, .seed = 0x123456789abcdefu, .layer = 1, .first_block = 2};
    drop.samples = put_new(s, samples, sizeof *samples * (size_t)n);
    drop.state = put_new(s, &state, sizeof state);
    drop.keep = masked > 0 ? put_new(s, mask, masked) : NULL;
    return drop;
}

/* clang-format off */
typedef struct pool_row { pool_shape shape; float p; bool is_masked; } pool_row;
static const pool_row POOLS[] = {
    {{16, 2, 2, 1}, 0, false},     {{16, 2, 2, 129}, 0.25f, false}, {{32, 4, 6, 3}, 0.5f, true},
    {{48, 2, 4, 5}, 0.25f, false}, {{64, 24, 24, 2}, 0, false},     {{80, 6, 2, 33}, 0.5f, true},
    {{64, 12, 12, 67}, 0.5f, false},
};
/* clang-format on */

/* The gradient takes the place of what was pooled, as in the network. */
static void run_pool(scene *s, const void *row)
{
    const pool_row *r = row;
    const pool_shape *shape = &r->shape;
    int n = shape->n, channels = shape->channels, area = shape->height * shape->width;
    size_t pooled = (size_t)(n * channels * area / 4);
    dropout drop = drop_of(s, r->p, n, r->is_masked ? pooled : 0);
    array *z = add_images(s, IS_WRITTEN, n, channels, area);
    float *dz = put_random(s, z);
    const float *dy = put_random(s, add_images(s, IS_READ, n, channels, area / 4));
    pool_output out = {as_result(add_images(s, IS_WRITTEN, n, channels, area / 4), 0, 0),
                       add(s, BYTES, IS_WRITTEN, pooled, 0)->at};
    ok(s->dev->ops->pool_forward(s->dev, shape, dz, &drop, &out));
    ok(s->dev->ops->pool_backward(s->dev, shape, &out, dy, r->p, as_result(z, 0, 0)));
}

/* clang-format off */
typedef struct finish_row {
    int n, features;
    size_t shift;
    bool has_bias, relu, is_masked, logits;
    float p;
} finish_row;
static const finish_row FINISHES[] = {
    {1, 128, 0, true, true, false, false, 0},      {3, 130, 0, true, true, false, false, 0.5f},
    {65, 10, 0, true, false, true, false, 0.25f},  {2, 17, 0, false, true, false, false, 0.5f},
    {3, 128, 1, true, true, false, false, 0.5f},   {3, 72, 4, false, false, true, false, 0.5f},
    {5, 1, 0, true, false, false, false, 0},       {64, 512, 0, false, true, false, false, 0.5f},
    {7, 3, 1, false, true, true, false, 0.25f},    {129, 33, 0, true, false, false, true, 0},
    {64, 128, 0, true, false, false, false, 0.5f}, {8, 64, 0, false, true, true, false, 0.5f},
};
/* clang-format on */

/* Equal in every bit: a sum, a comparison, a product, and one rounding. */
static void run_finish(scene *s, const void *row)
{
    const finish_row *r = row;
    size_t features = (size_t)r->features, count = (size_t)r->n * features;
    linear_shape shape = {.in_features = 8, .out_features = r->features, .logits = r->logits};
    linear *plan = NULL;
    float zeros[512] = {0};
    dropout drop = drop_of(s, r->p, r->n, r->is_masked ? count : 0);
    array *bias = add(s, FLOATS, IS_READ, features, 1);
    linear_epilogue epilogue = {r->has_bias ? put_random(s, bias) : put(s, bias, zeros), r->relu,
                                &drop};
    if (!r->has_bias && is_cuda(s->dev))
        epilogue.bias = NULL;
    array *y = add(s, r->logits ? FLOATS : ACTIVATIONS, IS_WRITTEN, count, r->shift);
    (void)put_random(s, y);
    ok(s->dev->ops->linear_create(s->dev, &shape, r->n, &plan));
    ok(s->dev->ops->linear_finish(plan, r->n, &epilogue, as_result(y, 0, 0)));
    ok(s->dev->ops->synchronize(s->dev));
    s->dev->ops->linear_destroy(plan);
}

/* clang-format off */
typedef struct linear_row { int n, in, out; bool logits; size_t shift; } linear_row;
static const linear_row LINEARS[] = {
    {1, 128, 10, true, 0},  {3, 128, 10, true, 1}, {65, 130, 10, true, 0}, {64, 33, 16, true, 0},
    {129, 40, 10, true, 0}, {300, 64, 3, true, 0}, {700, 36, 12, true, 0}, {520, 20, 15, true, 1},
    {40, 21, 13, true, 0},  {7, 30, 14, true, 0},  {3, 9, 11, true, 3},    {9, 36, 2, true, 0},
    {9, 34, 9, true, 0},    {5, 3, 1, true, 0},    {1, 1, 1, true, 0},     {3, 132, 16, true, 0},
    {1, 1, 5, false, 0},    {3, 17, 33, false, 2}, {65, 9, 128, false, 0}, {201, 24, 40, false, 2},
};
/* clang-format on */

/* Of a layer of few outputs all passes are ours, of others what follows the library's products.
 * Sums of multiples of 2^-12 below 2^8: exact in every order. */
static void run_linear(scene *s, const void *row)
{
    const linear_row *r = row;
    const device_ops *ops = s->dev->ops;
    size_t n = (size_t)r->n, in = (size_t)r->in, out = (size_t)r->out, all = (in + 1) * out;
    linear_shape shape = {.in_features = r->in, .out_features = r->out, .logits = r->logits};
    linear *plan = NULL;
    ok(ops->linear_create(s->dev, &shape, r->n, &plan));
    const float *weight = random_input(s, FLOATS, all, r->shift);
    const float *x = random_input(s, ACTIVATIONS, n * in, r->shift);
    const float *dy = random_input(s, ACTIVATIONS, n * out, r->shift);
    linear_epilogue epilogue = {weight + in * out, false, NULL};
    relu_output input = {x, 0.5f};
    ok(ops->begin_forward(s->dev, weight, all));
    if (r->logits)
        ok(ops->linear_forward(plan, r->n, x, weight, &epilogue,
                               exact_result(s, FLOATS, n * out, r->shift)));
    for (int turn = 0; turn < 2; turn++) { /* set, and added */
        array *a = add(s, FLOATS, IS_WRITTEN, all, r->shift);
        float *dw = put_random(s, a);
        param_gradients gradients = {dw, dw + in * out, turn == 1};
        ok(ops->linear_backward_weights(plan, r->n, x, dy, &gradients));
        (void)as_result(a, 0, 0);
        ok(ops->linear_backward_data(plan, r->n, weight, dy, turn == 0 ? NULL : &input,
                                     exact_result(s, ACTIVATIONS, n * in, r->shift)));
    }
    ok(ops->synchronize(s->dev));
    ops->linear_destroy(plan);
}

/* clang-format off */
typedef struct loss_row {
    int n, classes;
    float smoothing;
    bool has_gradient, is_scaled;
    int before;
    size_t shift;
    float odd; /* a logit; 0: it is like the others */
} loss_row;
static const loss_row LOSSES[] = {
    {1, 10, 0, true, false, 0, 0, 0},         {3, 10, 0.125f, true, true, 5, 1, 0},
    {65, 10, 0, false, false, 0, 0, 0},       {129, 10, 0.125f, false, false, 0, 0, 0},
    {65, 7, 0, true, true, 0, 1, 0},          {999, 10, 0.125f, true, false, 128, 0, 0},
    {3, 1, 0, true, false, 0, 0, 0},          {300, 2, 0.125f, true, false, 0, 0, 0},
    {200, 4, 0, false, false, 7, 0, 0},       {3, 1, 0.125f, true, true, 0, 0, 0},
    {3, 9, 0, true, true, 4, 3, 0},           {3, 5, 0.125f, true, true, 0, 0, 0},
    {2, 255, 0, true, true, 0, 0, 0},         {3, 6, 0.125f, true, false, 0, 0, 0},
    {5, 10, 0, true, false, 0, 0, NAN},       {20, 17, 0.125f, false, false, 0, 0, 0},
    {5, 10, 0, true, false, 0, 0, -INFINITY}, {3, 26, 0.125f, true, false, 0, 0, 0},
    {5, 3, 0, true, false, 0, 0, NAN},        {17001, 3, 0.125f, true, false, 0, 1, 0},
    {5, 1, 0, false, false, 0, 0, INFINITY},  {5, 10, 0.125f, false, false, 0, 0, INFINITY},
};
/* clang-format on */

/* 2^-24 for each term of a sum, and a few for exp and log. */
static void run_loss(scene *s, const void *row)
{
    const loss_row *r = row;
    size_t n = (size_t)r->n, count = n * (size_t)r->classes;
    bool scaled = r->is_scaled && is_cuda(s->dev);
    float scale = r->is_scaled ? 1024.0f : 1.0f, factor = scale / (float)r->n;
    double one = (8 + r->classes) * 0x1p-23;
    score totals = {.loss_sum = 5, .last_loss = 2, .correct = 7};
    step_state state = {.plan = {.grad_scale = scaled ? factor / scale : factor}};
    float *host = random_floats(1, count, 16.0f);
    uint8_t *labels = NULL;
    state.plan.scale_loss = scaled;
    state.scaling.scale = scale;
    if (r->odd != 0)
        host[count / 2] = r->odd;
    ok(memory_alloc(n, (void **)&labels));
    for (int i = 0; i < r->n; i++)
        labels[i] = (uint8_t)(i * 3 % r->classes);
    loss_input in = {put(s, add(s, FLOATS, IS_READ, count, r->shift), host),
                     put_new(s, labels, n),
                     r->n,
                     r->classes,
                     r->smoothing,
                     r->before};
    score *d_totals = put_new(s, &totals, sizeof totals);
    array *out = add(s, ACTIVATIONS, IS_WRITTEN, count, r->shift);
    double smallest = s->dev->precision == PRECISION_F16 ? 0x1p-24 : 0;
    float *dlogits =
        as_result(out, one * (double)factor + smallest, (double)unit_of(s->dev->precision));
    out->is_result = r->has_gradient;
    ok(s->dev->ops->cross_entropy(s->dev, &in, put_new(s, &state, sizeof state), d_totals,
                                  r->has_gradient ? dlogits : NULL));
    ok(s->dev->ops->download(s->dev, &totals, d_totals, sizeof totals));
    note(s, totals.loss_sum, one * r->n);
    note(s, totals.last_loss, one);
    note(s, (double)totals.correct, 0);
    free(host);
    free(labels);
}

/* clang-format off */
#define ROWS(table) table, sizeof *(table), sizeof(table) / sizeof *(table)
static const struct {
    const char *name;
    run_fn *run;
    const void *rows;
    size_t row_bytes, count;
    precision type;
} CHECKS[] = {
#define IN_HALF_TYPES(name, run, table) {name " bf16", run, ROWS(table), PRECISION_BF16}, \
    {name " fp16", run, ROWS(table), PRECISION_F16}
#define IN_ALL_TYPES(name, run, table) {name, run, ROWS(table), PRECISION_F32}, \
    IN_HALF_TYPES(name, run, table)
    IN_HALF_TYPES("cast", run_cast, CASTS), IN_HALF_TYPES("widen", run_widen, CASTS),
    {"optimizer", run_optimizer, ROWS(OPTIMIZERS), PRECISION_F32},
    {"begin_step", run_begin, ROWS(BEGINNINGS), PRECISION_F32},
    {"commit", run_commit, ROWS(COMMITS), PRECISION_F32},
    IN_ALL_TYPES("gather", run_gather, GATHERS), IN_ALL_TYPES("pool", run_pool, POOLS),
    IN_ALL_TYPES("epilogue", run_finish, FINISHES), IN_ALL_TYPES("linear", run_linear, LINEARS),
    IN_ALL_TYPES("loss", run_loss, LOSSES),
};
/* clang-format on */

START_TEST(rows_equal_reference)
{
    char name[64];
    device *cuda = open_device("cuda", CHECKS[_i].type);
    device *reference = open_device("reference", PRECISION_F32);
    for (size_t i = 0; i < CHECKS[_i].count; i++) {
        snprintf(name, sizeof name, "%s, row %zu", CHECKS[_i].name, i);
        check_row(cuda, reference, CHECKS[_i].run,
                  (const char *)CHECKS[_i].rows + i * CHECKS[_i].row_bytes, name);
    }
    device_destroy(cuda);
    device_destroy(reference);
}
END_TEST

int main(void)
{
    if (!cuda_choose())
        return TEST_SKIPPED;
    setenv("MNIST_DDP_EMULATED_STRICT", "1", 1); /* a leak is a failure */
    Suite *suite = suite_create("cuda_shapes");
    TCase *core = suite_case(suite, "core", 120);
    tcase_add_loop_test(core, rows_equal_reference, 0, sizeof CHECKS / sizeof *CHECKS);
    return suite_run(suite);
}
