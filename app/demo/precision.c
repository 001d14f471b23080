/* What 16-bit floats do to gradients: those of a real batch, from a network that has trained for a
 * while, rounded in software. */
#include "app/demo/demo.h"

#include "base/half.h"
#include "base/memory.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "kernels/device_kind.h"
#include "kernels/ops.h"
#include "model/network.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 30 };
#define LR 0.05f

typedef struct numbers {
    demo *d;
    device *dev;
    dataset set;
    loader *load;
    network *net;
    step_state state; /* the device is a host: its memory is ours */
    const char *found_by;
    int steps; /* made before */
    size_t count;
    float *gradients; /* the last batch's, as float32 has them */
    float *scaled;    /* room for as many */
} numbers;

static status open_network(numbers *p)
{
    const options *opts = p->d->opts;
    dataset_location where;
    model_kind kind;
    TRY(model_kind_parse(opts->model, &kind));
    TRY(device_create(&(device_options){.name = "cpu", .threads = 1}, &p->dev));
    TRY(dataset_locate(DATASET_MNIST, opts->data_dir, &where));
    TRY(dataset_open(&where, DATASET_TRAIN, &p->set));
    p->found_by = where.embedded ? "generated digits" : "MNIST";
    loader_options how = {.batch_size = (int)opts->batch_size,
                          .accum = 1,
                          .sampler = {.samples = p->set.count,
                                      .world_size = 1,
                                      .seed = (uint64_t)opts->seed,
                                      .shuffle = true},
                          .state = &p->state};
    TRY(loader_create(p->dev, &p->set, &how, &p->load));
    network_options net = {.kind = kind, .max_batch = how.batch_size, .seed = (uint64_t)opts->seed};
    TRY(network_create(p->dev, &net, &p->net));
    p->count = network_count(p->net);
    TRY(memory_alloc(sizeof(float) * p->count, (void **)&p->gradients));
    return memory_alloc(sizeof(float) * p->count, (void **)&p->scaled);
}

static void close_network(numbers *p)
{
    free(p->gradients);
    free(p->scaled);
    network_destroy(p->net);
    loader_destroy(p->load);
    dataset_close(&p->set);
    device_destroy(p->dev);
}

/* Forward and backward of step `step`, whose loss is multiplied by `scale`. */
static status backward(numbers *p, int step, float scale)
{
    batch in;
    step_plan plan = {.step = step + 1};
    loader_plan_step(p->load, step, &plan);
    plan.grad_scale = scale / (float)loader_step_samples(p->load, step);
    TRY(p->dev->ops->begin_step(p->dev, &plan, &p->state, NULL));
    TRY(loader_next(p->load, &in));
    TRY(network_forward(p->net, &in, NETWORK_TRAIN));
    return network_backward(p->net, false, NULL, NULL);
}

static status train(numbers *p)
{
    float *weights = network_parameters(p->net);
    const float *gradients = network_gradients(p->net);
    TRY(loader_start_epoch(p->load, 0));
    p->steps = loader_steps(p->load) > STEPS ? STEPS : loader_steps(p->load) - 1;
    for (int step = 0; step < p->steps; step++) {
        TRY(backward(p, step, 1));
        for (size_t i = 0; i < p->count; i++)
            weights[i] -= LR * gradients[i];
    }
    TRY(backward(p, p->steps, 1));
    return network_export(p->net, gradients, p->gradients);
}

/* What became of gradients in a format. */
typedef struct fate {
    int64_t zero, infinite;
    double error; /* the mean relative one, over those that stay */
} fate;

typedef struct format {
    const char *name;
    float (*round)(float value);
    int exponent_bits, fraction_bits;
    float smallest, largest, after_one; /* the first number above 1 */
} format;

static float round_f16(float value)
{
    return f16_to_f32(f32_to_f16(value));
}

static float round_bf16(float value)
{
    return bf16_to_f32(f32_to_bf16(value));
}

static float keep_f32(float value)
{
    return value;
}

enum { F32, F16, BF16, FORMATS };
static const format formats[FORMATS] = {
    {"float32", keep_f32, 8, 23, 0x1p-149f, FLT_MAX, 1 + FLT_EPSILON},
    {"fp16", round_f16, 5, 10, 0x1p-24f, 65504, 1 + 0x1p-10f},
    {"bf16", round_bf16, 8, 7, 0x1p-133f, 0x1.fep127f, 1 + 0x1p-7f},
};

static fate look_at(const numbers *p, const float *values, const format *in)
{
    fate f = {0};
    int64_t stay = 0;
    for (size_t i = 0; i < p->count; i++) {
        double was = (double)values[i], is = (double)in->round(values[i]);
        if (!(fabs(was) > 0))
            continue;
        f.zero += fabs(is) > 0 ? 0 : 1;
        f.infinite += isfinite(is) ? 0 : 1;
        if (fabs(is) > 0 && isfinite(is)) {
            f.error += fabs(is / was - 1);
            stay++;
        }
    }
    f.error /= stay > 0 ? (double)stay : 1;
    return f;
}

static status show_formats(demo *d)
{
    demo_begin(d, "Two floats of 16 bits");
    demo_say(d, "A float has bits of exponent, which say how large or small it may be, and bits of "
                "fraction, which say how exact it is. Half the bits are half the bytes to "
                "send, and tensor cores multiply them faster. fp16 has the finer steps, bf16 has "
                "float32's range.");
    demo_columns(d, "|exponent|fraction|smallest|largest|next after 1");
    for (int i = 0; i < FORMATS; i++) {
        const format *f = &formats[i];
        demo_row(d, "%s|#%d|#%d|#%.17g|#%.17g|%.8g", f->name, f->exponent_bits, f->fraction_bits,
                 (double)f->smallest, (double)f->largest, (double)f->after_one);
    }
    return demo_show(d);
}

static int compare_sizes(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The sizes of all gradients that are not 0, ascending, in p->scaled; how many. */
static size_t sort_sizes(numbers *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->count; i++)
        if (fabsf(p->gradients[i]) > 0)
            p->scaled[n++] = fabsf(p->gradients[i]);
    qsort(p->scaled, n, sizeof *p->scaled, compare_sizes);
    return n;
}

static status show_gradients(numbers *p)
{
    static const struct {
        const char *name;
        double share;
    } places[] = {
        {"smallest", 0}, {"1 in 1000 is smaller", 0.001}, {"median", 0.5}, {"largest", 1}};
    size_t n = sort_sizes(p);
    demo_begin(p->d, "The gradients of a real batch");
    demo_say(p->d,
             "The model %s has made %d steps on %s. Below are sizes of its next gradients: "
             "%zu of %zu are not 0. ReLU, pooling or dropout has switched off what the others "
             "learn from.",
             p->d->opts->model, p->steps, p->found_by, n, p->count);
    demo_columns(p->d, "gradient|float32|fp16|bf16");
    for (size_t i = 0; i < sizeof places / sizeof places[0] && n > 0; i++) {
        float size = p->scaled[(size_t)(places[i].share * (double)(n - 1))];
        demo_row(p->d, "%s|#%.17g|#%.17g|#%.17g", places[i].name, (double)size,
                 (double)formats[F16].round(size), (double)formats[BF16].round(size));
    }
    demo_fact(p->d, "gradients", json_integer((json_int_t)n));
    return demo_show(p->d);
}

static status show_rounding(numbers *p)
{
    demo_begin(p->d, "Rounded to 16 bits");
    demo_say(p->d, "A gradient below half of fp16's smallest number becomes 0: underflow. Its "
                   "weight does not move, as if there had been nothing to learn.");
    demo_columns(p->d, "|became 0");
    for (int i = F16; i < FORMATS; i++) {
        char fact[24];
        fate f = look_at(p, p->gradients, &formats[i]);
        demo_row(p->d, "%s|#%lld", formats[i].name, (long long)f.zero);
        snprintf(fact, sizeof fact, "%s_zero", formats[i].name);
        demo_fact(p->d, fact, json_integer(f.zero));
    }
    return demo_show(p->d);
}

/* The same batch again, with the loss times `factor`; a row of what the format makes of it. */
static status tell_scaled(numbers *p, const format *in, int factor, json_t *facts)
{
    TRY(backward(p, p->steps, (float)factor));
    TRY(network_export(p->net, network_gradients(p->net), p->scaled));
    fate f = look_at(p, p->scaled, in);
    demo_row(p->d, "%s|#%d|#%lld|#%lld|%.3f %%", in->name, factor, (long long)f.zero,
             (long long)f.infinite, 100 * f.error);
    json_array_append_new(facts, json_pack("[s, i, I, I, f]", in->name, factor, (json_int_t)f.zero,
                                           (json_int_t)f.infinite, f.error));
    return STATUS_OK;
}

static status show_scaling(numbers *p)
{
    static const struct {
        int format, factor;
    } runs[] = {{F16, 1},       {F16, 1 << 4},  {F16, 1 << 8}, {F16, 1 << 12},
                {F16, 1 << 16}, {F16, 1 << 24}, {BF16, 1}};
    json_t *facts = json_array();
    demo_begin(p->d, "Loss scaling");
    demo_say(p->d, "The loss is multiplied before backward, and so are all gradients. The "
                   "optimizer divides by the same number, in float32. Below is the same batch "
                   "with several factors, and how far a number is off that is not lost.");
    demo_say(p->d,
             "Too large a factor makes infinities. Then torch.amp.GradScaler leaves out the "
             "step and halves the factor; it begins with 65536. --amp=fp16 does the same on a GPU. "
             "bf16 needs no factor, but has the coarser steps.");
    demo_columns(p->d, "|loss times|became 0|infinite|off by, in the mean");
    demo_fact(p->d, "scales", facts);
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
        TRY(tell_scaled(p, &formats[runs[i].format], runs[i].factor, facts));
    return demo_show(p->d);
}

static status show_steps(numbers *p)
{
    int64_t moved[FORMATS] = {0}, all = 0;
    TRY(network_export(p->net, network_parameters(p->net), p->scaled));
    for (size_t i = 0; i < p->count; i++) {
        if (!(fabsf(p->gradients[i]) > 0))
            continue;
        all++;
        for (int f = 0; f < FORMATS; f++) {
            float before = formats[f].round(p->scaled[i]);
            float after = formats[f].round(before - LR * p->gradients[i]);
            moved[f] += half_bits_of(after) != half_bits_of(before) ? 1 : 0;
        }
    }
    demo_begin(p->d, "Why the weights stay float32");
    demo_say(p->d,
             "A step is small beside its weight: here %g times the gradient. If it is less than "
             "half of the way to the format's next number, the weight stays what it was. The "
             "smaller the learning rate, the more steps are lost. So mixed precision multiplies "
             "in 16 bits and keeps the weights in 32.",
             (double)LR);
    demo_columns(p->d, "weights kept as|moved by this step");
    for (int f = 0; f < FORMATS; f++)
        demo_row(p->d, "%s|%.2f %%", formats[f].name,
                 all > 0 ? 100.0 * (double)moved[f] / (double)all : 0);
    demo_fact(p->d, "moved",
              json_pack("[I, I, I]", (json_int_t)moved[F32], (json_int_t)moved[F16],
                        (json_int_t)moved[BF16]));
    return demo_show(p->d);
}

static status show_all(numbers *p)
{
    TRY(open_network(p));
    TRY(train(p));
    TRY(show_formats(p->d));
    TRY(show_gradients(p));
    TRY(show_rounding(p));
    TRY(show_scaling(p));
    return show_steps(p);
}

status precision_demo(demo *d)
{
    numbers p = {.d = d};
    status st = show_all(&p);
    close_network(&p);
    return st;
}
