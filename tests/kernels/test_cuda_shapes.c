/* The cuda device's operations at sizes and places that no network has, against the reference
 * device and against themselves. A row of a table is one case. Numbers are such that most sums are
 * exact: their order does not show. Convolutions stand in test_cuda_conv.c, NCCL's scaling in
 * test_nccl_graph.c. */
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
    bool is_again; /* the second time on the cuda device, which ends with the same bits */
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

/* Within what the reference's results may differ by; the same bits of the cuda device's own. */
static void compare(const scene *cuda, const scene *other, const char *name)
{
    bool same = is_cuda(other->dev);
    for (int i = 0; i < cuda->n_numbers; i++)
        expect_near(cuda->numbers[i], other->numbers[i], same ? 0 : other->tolerances[i], name,
                    (size_t)i);
    for (int i = 0; i < cuda->n; i++) {
        const array *a = &cuda->arrays[i];
        if (!a->is_result)
            continue;
        float *got = get(cuda, a), *want = get(other, &other->arrays[i]);
        if (same && memcmp(got, want, sizeof *got * a->count) != 0)
            ck_abort_msg("%s: array %d has other bits the second time", name, i);
        precision p = a->kind >= ACTIVATIONS ? cuda->dev->precision : PRECISION_F32;
        for (size_t k = 0; k < a->count && !same; k++) {
            double one = (double)rounded(p, want[k]);
            expect_near((double)got[k], one, a->absolute + a->relative * fabs(one), name, k);
        }
        free(got);
        free(want);
    }
}

typedef void run_fn(scene *s, const void *row);

static void check_row(device *dev, device *reference, run_fn *run, const void *row,
                      const char *name)
{
    scene scenes[] = {{.dev = dev}, {.dev = reference}, {.dev = dev, .is_again = true}};
    for (int k = 0; k < 3; k++)
        run(&scenes[k], row);
    compare(&scenes[0], &scenes[1], name);
    compare(&scenes[0], &scenes[2], name);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < scenes[k].n; i++)
            scenes[k].dev->ops->free(scenes[k].dev, scenes[k].arrays[i].block);
}

/* clang-format off */
typedef struct cast_row { size_t count, first; /* of more parameters */ } cast_row;
static const cast_row CASTS[] = {
    {1, 0}, {7, 0}, {8, 0}, {9, 0}, {2047, 0}, {2048, 0}, {2049, 2}, {2050, 4}, {99991, 6},
};
/* clang-format on */

/* A layer of one feature whose input is 1 has the cast weights as its output: those of now. */
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
    float *y = exact_result(s, ACTIVATIONS, r->count, 0);
    ok(ops->begin_forward(s->dev, all, r->first + r->count));
    ok(ops->linear_forward(plan, 1, x, part, NULL, y));
    ok(ops->upload(s->dev, part, host, sizeof *host * r->count));
    ok(ops->begin_forward(s->dev, part, r->count));
    ok(ops->linear_forward(plan, 1, x, part, NULL, y));
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
    {.count = 40003, .shift = 1}, {.count = 200003, .scale = 2}, {.count = 9, .ended = true},
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

/* The reference device knows neither a scale nor skipped steps: it gets what they stand for. A
 * scale is a power of two: without it the bits are the same. */
static void run_optimizer(scene *s, const void *row)
{
    const optimizer_row *r = row;
    bool scaled = r->scale > 0 && is_cuda(s->dev) && (r->broken > 0 || !s->is_again);
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
typedef struct clip_row {
    size_t count;
    float most, scale; /* of the loss; 0: it is not scaled */
    float odd; /* a gradient; 0: it is like the others */
} clip_row;
static const clip_row CLIPS[] = {
    {1, 0.1f, 1024, 0}, {7, 0.3f, 1024, 0}, {255, 1.6f, 1024, 0}, {257, 1.6f, 0, 0},
    {257, 1e6f, 1024, 0}, {40001, 20, 1024, 0}, {300, 1, 1024, INFINITY}, {300, 1, 1024, NAN},
};
/* clang-format on */

/* Squares are exact, and sums of doubles: the norms differ by some 2^-53 a term at most, and so the
 * factors by one rounding. With a scaled loss, gradients and what they become are scaled alike. */
static void run_clip(scene *s, const void *row)
{
    const clip_row *r = row;
    bool scaled = r->scale > 0 && is_cuda(s->dev) && !s->is_again;
    step_state state = {.plan.scale_loss = scaled, .scaling.scale = r->scale};
    float *host = random_floats(5, r->count, scaled ? r->scale : 1.0f);
    double norm = -1, *d_norm = put_new(s, &norm, sizeof norm);
    array *a = add(s, FLOATS, IS_WRITTEN, r->count, 0);
    if (r->odd != 0)
        host[r->count / 2] = r->odd;
    gradient_clip what = {put(s, a, host), r->count, r->most, d_norm};
    ok(s->dev->ops->clip_gradients(s->dev, &what, put_new(s, &state, sizeof state)));
    ok(s->dev->ops->download(s->dev, &norm, d_norm, sizeof norm));
    ok(s->dev->ops->download(s->dev, host, a->at, sizeof *host * r->count));
    for (size_t i = 0; i < r->count; i++)
        host[i] /= scaled ? r->scale : 1.0f;
    (void)put(s, a, host);
    (void)as_result(a, 0, 0x1p-22);
    note(s, norm, 1e-12 * norm);
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

enum { DROPOUT_SAMPLES = 700, DROPOUT_MASK = 16384 };

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
typedef struct linear_row {
    int n, in, out;
    bool logits;
    size_t shift;
    int channels; /* of an input that is flattened images */
} linear_row;
static const linear_row LINEARS[] = {
    {1, 128, 10, true, 0, 0}, {3, 128, 10, true, 1, 0}, {65, 130, 10, true, 0, 0},
    {64, 33, 16, true, 0, 0}, {129, 40, 10, true, 0, 0}, {300, 64, 3, true, 0, 0},
    {700, 36, 12, true, 0, 0}, {520, 20, 15, true, 1, 0}, {40, 21, 13, true, 0, 0},
    {7, 30, 14, true, 0, 0}, {3, 9, 11, true, 3, 0}, {9, 36, 2, true, 0, 0}, {9, 34, 9, true, 0, 0},
    {5, 3, 1, true, 0, 0}, {1, 1, 1, true, 0, 0}, {3, 132, 16, true, 0, 0},
    {2, 900, 3, true, 0, 0},
};
/* Of more outputs: the library's. */
static const linear_row PRODUCTS[] = {
    {1, 72, 136, false, 0, 0}, {2, 144, 40, false, 0, 16}, {7, 136, 104, false, 0, 0},
    {7, 40, 21, false, 0, 0}, {33, 48, 40, true, 0, 0}, {100, 64, 128, false, 0, 0},
    {64, 136, 24, true, 0, 0}, {32, 144, 40, false, 0, 16}, {1, 1, 5, false, 0, 0},
    {3, 17, 33, false, 2, 0}, {65, 9, 128, false, 0, 0}, {201, 24, 40, false, 2, 0},
    {100, 72, 136, false, 0, 0}, {100, 40, 24, false, 0, 0},
    {700, 8, 9, false, 0, 0}, {400, 8, 9, false, 0, 0},
};
/* What cuBLASLt is to refuse, so that own kernels take over; only the emulated one does. In every
 * way that it has: CUBLAS_STATUS_INVALID_VALUE (7), ARCH_MISMATCH (8), NOT_SUPPORTED (15), no
 * algorithm, or at the call itself. */
static const char REFUSE[] = "MNIST_DDP_EMULATED_REFUSE";
static const char *const REFUSALS[] = {
    "", "RELU_AUX_BIAS:7,DRELU,BGRADB:0",
    "RELU_AUX_BIAS:15@call,RELU_BIAS:7@call,BIAS:8@call,DRELU:7@call,BGRADB:15@call", "DRELU:7"};
enum { N_REFUSALS = sizeof REFUSALS / sizeof REFUSALS[0] };
/* clang-format on */

/* Weights come in PyTorch's order, or go back to it. */
static void reorder(const scene *s, linear_import_op *op, linear *plan, float *weight, size_t count)
{
    float *from = get_floats(s->dev, weight, count), *to = get_floats(s->dev, weight, count);
    ok(op(plan, from, to));
    ok(s->dev->ops->upload(s->dev, weight, to, sizeof *to * count));
    free(from);
    free(to);
}

/* Weights, then biases: odd multiples of 2^-13. No sum of products of multiples of 1/64 and a bias
 * is 0, which cuBLASLt's relu mask is not documented for. */
static float *put_layer(scene *s, linear *plan, size_t weights, size_t biases, size_t shift)
{
    float *host = random_floats(++s->seed, weights + biases, 1.0f);
    for (size_t i = weights; i < weights + biases; i++)
        host[i] = host[i] / 64 + 0x1p-13f;
    float *at = put(s, add(s, FLOATS, IS_READ, weights + biases, shift), host);
    reorder(s, s->dev->ops->linear_import, plan, at, weights);
    ok(s->dev->ops->begin_forward(s->dev, at, weights + biases));
    free(host);
    return at;
}

typedef struct layer {
    scene *s;
    linear_row row;
    linear *plan;
    size_t weights;
    float *x, *weight, *bias;
} layer;

/* Of the input, or its gradient. */
static array *activations_of(const layer *l, array_use use)
{
    const linear_row *r = &l->row;
    return r->channels > 0 ? add_images(l->s, use, r->n, r->channels, r->in / r->channels)
                           : add(l->s, ACTIVATIONS, use, (size_t)(r->n * r->in), r->shift);
}

static layer open_layer(scene *s, const linear_row *r)
{
    layer l = {.s = s, .row = *r, .weights = (size_t)r->in * (size_t)r->out};
    linear_shape shape = {.in_features = r->in, .out_features = r->out, .logits = r->logits};
    if (r->channels > 0) {
        shape.channels = r->channels;
        shape.height = r->in / r->channels;
        shape.width = 1;
    }
    ok(s->dev->ops->linear_create(s->dev, &shape, r->n, &l.plan));
    l.weight = put_layer(s, l.plan, l.weights, (size_t)r->out, r->shift);
    l.bias = l.weight + l.weights;
    l.x = put_random(s, activations_of(&l, IS_READ));
    return l;
}

/* Sums are exact. A half type rounds them; and before a bias below 2^-6 is added, if the library
 * does not add it. */
static float *forward(const layer *l, const linear_epilogue *epilogue)
{
    const linear_row *r = &l->row;
    precision p = l->s->dev->precision;
    double unit = is_half(p) && !r->logits ? (double)unit_of(p) : 0;
    array *y =
        add(l->s, r->logits ? FLOATS : ACTIVATIONS, IS_WRITTEN, (size_t)(r->n * r->out), r->shift);
    float *at = as_result(y, unit / 64, unit);
    ok(l->s->dev->ops->linear_forward(l->plan, r->n, l->x, l->weight, epilogue, at));
    return at;
}

static void backward(const layer *l, const relu_output *input, bool accumulate)
{
    const linear_row *r = &l->row;
    const device_ops *ops = l->s->dev->ops;
    const float *dy = random_input(l->s, ACTIVATIONS, (size_t)(r->n * r->out), r->shift);
    array *a = add(l->s, FLOATS, IS_WRITTEN, l->weights + (size_t)r->out, r->shift);
    float *dw = put_random(l->s, a), *dx = as_result(activations_of(l, IS_WRITTEN), 0, 0);
    param_gradients gradients = {dw, dw + l->weights, accumulate};
    reorder(l->s, ops->linear_import, l->plan, dw, l->weights);
    ok(ops->linear_backward_weights(l->plan, r->n, l->x, dy, &gradients));
    reorder(l->s, ops->linear_export, l->plan, dw, l->weights);
    ok(ops->linear_backward_data(l->plan, r->n, l->weight, dy, input, dx));
    (void)as_result(a, 0, 0);
}

/* Of a layer of few outputs all passes are ours, of others what follows the library's products and
 * what it refuses. What is below a relu and passes it is known by the output, or by the library's
 * mask. */
static void run_linear(scene *s, const void *row)
{
    const linear_row *r = row;
    layer lower = open_layer(s, &(linear_row){.n = r->n, .in = 8, .out = r->in});
    layer l = open_layer(s, r);
    const float *y = forward(&lower, &(linear_epilogue){lower.bias, true, NULL});
    (void)forward(&l, NULL);
    (void)forward(&l, &(linear_epilogue){l.bias, false, NULL});
    if (!r->logits) {
        dropout drop = drop_of(s, 0.5f, r->n, r->n % 4 == 0 ? (size_t)(r->n * r->out) : 0);
        (void)forward(&l, &(linear_epilogue){l.bias, true, NULL});
        (void)forward(&l, &(linear_epilogue){l.bias, true, &drop});
    }
    backward(&l, NULL, false);
    backward(&l, &(relu_output){l.x, 0.5f}, true);
    backward(&l, r->channels > 0 ? NULL : &(relu_output){y, 0}, false);
    ok(s->dev->ops->synchronize(s->dev));
    s->dev->ops->linear_destroy(l.plan);
    s->dev->ops->linear_destroy(lower.plan);
}

/* clang-format off */
typedef struct loss_row {
    int n, classes;
    float smoothing;
    bool is_scaled;
    int before;
    size_t shift;
    float odd; /* a logit; 0: it is like the others */
} loss_row;
static const loss_row LOSSES[] = {
    {1, 10, 0, false, 0, 0, 0}, {3, 10, 0.125f, true, 5, 1, 0}, {65, 10, 0, false, 0, 0, 0},
    {129, 10, 0.125f, false, 0, 0, 0}, {65, 7, 0, true, 0, 1, 0},
    {999, 10, 0.125f, false, 128, 0, 0}, {3, 1, 0, false, 0, 0, 0},
    {300, 2, 0.125f, false, 0, 0, 0}, {200, 4, 0, false, 7, 0, 0}, {3, 1, 0.125f, true, 0, 0, 0},
    {3, 9, 0, true, 4, 3, 0}, {3, 5, 0.125f, true, 0, 0, 0}, {2, 255, 0, true, 0, 0, 0},
    {3, 6, 0.125f, false, 0, 0, 0}, {5, 10, 0, false, 0, 0, NAN}, {20, 17, 0.125f, false, 0, 0, 0},
    {5, 10, 0, false, 0, 0, -INFINITY}, {3, 26, 0.125f, false, 0, 0, 0},
    {5, 3, 0, false, 0, 0, NAN}, {17001, 3, 0.125f, false, 0, 1, 0},
    {5, 1, 0, false, 0, 0, INFINITY}, {5, 10, 0.125f, false, 0, 0, INFINITY},
    {17001, 10, 0, true, 0, 0, 0},
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
    const score before = {.loss_sum = 5, .last_loss = 2, .correct = 7};
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
    array *out = add(s, ACTIVATIONS, IS_WRITTEN, count, r->shift);
    double smallest = s->dev->precision == PRECISION_F16 ? 0x1p-24 : 0;
    float *dlogits =
        as_result(out, one * (double)factor + smallest, (double)unit_of(s->dev->precision));
    score totals[2];
    for (int turn = 0; turn < 2; turn++) { /* nothing changes if no gradient is wanted */
        score *d_totals = put_new(s, &before, sizeof before);
        ok(s->dev->ops->cross_entropy(s->dev, &in, put_new(s, &state, sizeof state), d_totals,
                                      turn == 0 ? dlogits : NULL));
        ok(s->dev->ops->download(s->dev, &totals[turn], d_totals, sizeof before));
    }
    note(s, totals[0].loss_sum, one * r->n);
    note(s, totals[0].last_loss, one);
    note(s, (double)totals[0].correct, 0);
    expect_same(&totals[1], &totals[0], sizeof before);
    free(host);
    free(labels);
}

/* clang-format off */
#define ROWS(table) table, sizeof *(table), sizeof(table) / sizeof *(table)
typedef struct check {
    const char *name;
    run_fn *run;
    const void *rows;
    size_t row_bytes, count;
    precision type;
} check;
static const check CHECKS[] = {
#define IN_HALF_TYPES(name, run, table) {name " bf16", run, ROWS(table), PRECISION_BF16}, \
    {name " fp16", run, ROWS(table), PRECISION_F16}
#define IN_ALL_TYPES(name, run, table) {name, run, ROWS(table), PRECISION_F32}, \
    IN_HALF_TYPES(name, run, table)
    IN_ALL_TYPES("cast", run_cast, CASTS), IN_HALF_TYPES("widen", run_widen, CASTS),
    {"optimizer", run_optimizer, ROWS(OPTIMIZERS), PRECISION_F32},
    {"clip", run_clip, ROWS(CLIPS), PRECISION_F32},
    {"begin_step", run_begin, ROWS(BEGINNINGS), PRECISION_F32},
    {"commit", run_commit, ROWS(COMMITS), PRECISION_F32},
    IN_ALL_TYPES("gather", run_gather, GATHERS), IN_ALL_TYPES("pool", run_pool, POOLS),
    IN_ALL_TYPES("epilogue", run_finish, FINISHES), IN_ALL_TYPES("linear", run_linear, LINEARS),
    IN_ALL_TYPES("loss", run_loss, LOSSES),
};
/* clang-format on */

static void check_rows(const check *c, precision p)
{
    char name[64];
    device *cuda = open_device("cuda", p), *reference = open_device("reference", PRECISION_F32);
    for (size_t i = 0; i < c->count; i++) {
        snprintf(name, sizeof name, "%s, row %zu", c->name, i);
        check_row(cuda, reference, c->run, (const char *)c->rows + i * c->row_bytes, name);
    }
    device_destroy(cuda);
    device_destroy(reference);
}

START_TEST(rows_equal_reference)
{
    check_rows(&CHECKS[_i], CHECKS[_i].type);
}
END_TEST

START_TEST(products_equal_reference)
{
    static const check products = {"product", run_linear, ROWS(PRODUCTS), PRECISION_F32};
    setenv(REFUSE, REFUSALS[_i / N_PRECISIONS], 1);
    check_rows(&products, PRECISIONS[_i % N_PRECISIONS]);
    unsetenv(REFUSE); /* the next test may run in this process */
}
END_TEST

/* A refusal is noted once for an epilogue and its types, and goes on being known. */
START_TEST(refusals_are_noted)
{
    static const char *const epilogues[] = {"RELU_AUX_BIAS", "RELU_BIAS", "BGRADB"};
    static const linear_row rows[] = {{.n = 7, .in = 72, .out = 136}, {.n = 2, .in = 72, .out = 9}};
    device *cuda = open_device("cuda", PRECISION_BF16);
    device *reference = open_device("reference", PRECISION_F32);
    device_choice note;
    int notes = 0;
    setenv(REFUSE, "RELU_AUX_BIAS:0,RELU_BIAS:7,BGRADB:15@call", 1);
    for (int turn = 0; turn < 4; turn++)
        check_row(cuda, reference, run_linear, &rows[turn % 2], "refused");
    unsetenv(REFUSE);
    for (; cuda->ops->choice(cuda, notes, &note); notes++) {
        ck_assert_int_lt(notes, 3);
        ck_assert_str_eq(note.library, "cublaslt");
        ck_assert_str_eq(note.pass, epilogues[notes]);
        ck_assert_str_eq(note.subject, notes < 2 ? "bf16 to bf16" : "bf16 to f32");
        ck_assert_int_eq(note.engine, -1);
    }
    ck_assert_int_eq(notes, 3);
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
    tcase_add_loop_test(core, products_equal_reference, 0, N_REFUSALS * N_PRECISIONS);
    if (!cuda_is_real())
        tcase_add_test(core, refusals_are_noted);
    return suite_run(suite);
}
