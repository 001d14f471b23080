/* One step of DistributedDataParallel, by hand: nn.Linear(10, 10), MSELoss, SGD with lr 0.001, a
 * batch of 20 on each rank. */
#include "app/demo/demo.h"

#include <math.h>
#include <stdio.h>

enum { IN = 10, OUT = 10, BATCH = 20, WEIGHTS = OUT * IN, COUNT = WEIGHTS + OUT };
#define LR 0.001

/* A sum is taken in float64, and kept as PyTorch does in float32. */
typedef struct linear {
    float parameters[COUNT]; /* the weight (OUT, IN), then the bias */
    float gradients[COUNT];
    double loss;
} linear;

/* The numbers of this demonstration: small, of both signs, and the same everywhere. */
static float number(int seed, int i)
{
    return (float)((i * 7 + seed * 13) % 23 - 11) / 16;
}

/* Sample `sample` of the rank's batch. */
static void read_sample(int rank, int sample, float x[IN], float target[OUT])
{
    for (int i = 0; i < IN; i++) {
        x[i] = number(2 + rank, sample * IN + i);
        target[i] = number(5 + rank, sample * OUT + i * 3);
    }
}

/* The gradients of the mean of the squared errors of `ranks` ranks, from `first` on. */
static void backward(linear *net, int first, int ranks)
{
    double sums[COUNT] = {0}, loss = 0;
    double scale = 1.0 / (BATCH * OUT * ranks);
    float x[IN], target[OUT];
    for (int rank = first; rank < first + ranks; rank++)
        for (int sample = 0; sample < BATCH; sample++) {
            read_sample(rank, sample, x, target);
            for (int o = 0; o < OUT; o++) {
                double y = (double)net->parameters[WEIGHTS + o];
                for (int i = 0; i < IN; i++)
                    y += (double)net->parameters[o * IN + i] * (double)x[i];
                double error = y - (double)target[o];
                loss += error * error * scale;
                for (int i = 0; i < IN; i++)
                    sums[o * IN + i] += 2 * error * (double)x[i] * scale;
                sums[WEIGHTS + o] += 2 * error * scale;
            }
        }
    for (int i = 0; i < COUNT; i++)
        net->gradients[i] = (float)sums[i];
    net->loss = loss;
}

static void tell(demo *d, const char *who, const float values[COUNT])
{
    demo_row(d, "%s|#%.17g|#%.17g|#%.17g|#%.17g", who, (double)values[0], (double)values[1],
             (double)values[2], (double)values[3]);
}

static void say_columns(demo *d, const char *what)
{
    demo_columns(d, "|%s[0][0]|%s[0][1]|%s[0][2]|%s[0][3]", what, what, what, what);
}

/* Shows this rank's first ones. */
static status show_own(demo *d, const char *what, const float values[COUNT])
{
    char label[32];
    snprintf(label, sizeof label, "rank %d", d->rank);
    say_columns(d, what);
    tell(d, label, values);
    return demo_show(d);
}

static status show_start(demo *d, const linear *net)
{
    demo_begin(d, "model = DDP(nn.Linear(10, 10)) on %d ranks", d->world_size);
    demo_say(
        d, "The model is a matrix of 10 x 10 weights and 10 biases: 110 numbers. DDP sends rank "
           "0's to all, so all ranks begin with the same ones. Below are the first four weights.");
    return show_own(d, "weight", net->parameters);
}

static status show_gradients(demo *d, const linear *net)
{
    demo_begin(d, "loss = MSELoss()(model(x), y)");
    demo_say(d, "Each rank has a batch of its own, 20 samples. So each has another loss.");
    demo_columns(d, "|loss");
    demo_row(d, "rank %d|#%.17g", d->rank, net->loss);
    TRY(demo_show(d));
    demo_begin(d, "loss.backward(), before the ranks talk");
    if (d->world_size == 1)
        demo_say(d, "There is one rank, so there is nothing to average.");
    else
        demo_say(d,
                 "And each has other gradients. If every rank made its step now, there would be %d "
                 "different models.",
                 d->world_size);
    return show_own(d, "grad", net->gradients);
}

/* How far two arrays are apart, at most. */
static double distance(const float *a, const float *b)
{
    double most = 0;
    for (int i = 0; i < COUNT; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

static json_t *list_of(const float *values)
{
    json_t *list = json_array();
    for (int i = 0; i < COUNT; i++)
        json_array_append_new(list, json_real((double)values[i]));
    return list;
}

static status average(demo *d, linear *net)
{
    const collective mean = {.kind = COLLECTIVE_ALL_REDUCE,
                             .op = REDUCE_SUM,
                             .type = DTYPE_F32,
                             .in = net->gradients,
                             .out = net->gradients,
                             .count = COUNT,
                             .prescale = 1.0f / (float)d->world_size};
    return process_group_run(d->group, &mean, NULL);
}

static status show_average(demo *d, linear *net)
{
    linear whole = *net;
    TRY(average(d, net));
    demo_begin(d, "loss.backward(), after DDP's all-reduce");
    demo_say(
        d,
        "Each rank divides its gradients by %d, and the all-reduce adds up those of all ranks. "
        "From here on all ranks have the same ones, to the last bit.",
        d->world_size);
    TRY(show_own(d, "grad", net->gradients));
    backward(&whole, 0, d->world_size);
    demo_begin(d, "The same as one process with all samples");
    demo_say(d,
             "The mean of the ranks' means is the mean over all %d samples, as all batches are "
             "equally large. One process that has all of them gets the same gradients, but for "
             "the rounding of a float: they differ by %.1g at most.",
             d->world_size * BATCH, distance(whole.gradients, net->gradients));
    say_columns(d, "grad");
    if (d->rank == 0) {
        tell(d, "DDP, each rank", net->gradients);
        tell(d, "one process", whole.gradients);
    }
    demo_fact(d, "distance", json_real(distance(whole.gradients, net->gradients)));
    demo_fact(d, "gradients", list_of(net->gradients));
    return demo_show(d);
}

static status show_step(demo *d, linear *net)
{
    for (int i = 0; i < COUNT; i++)
        net->parameters[i] -= (float)LR * net->gradients[i];
    demo_begin(d, "optimizer.step()");
    demo_say(d, "SGD takes 0.001 of the gradient from each weight. All ranks began with the same "
                "weights and have the same gradients: so they have the same weights again, and "
                "nobody had to send them.");
    demo_fact(d, "parameters", list_of(net->parameters));
    return show_own(d, "weight", net->parameters);
}

status linear_demo(demo *d)
{
    linear net;
    for (int i = 0; i < COUNT; i++)
        net.parameters[i] = number(1, i) / 4;
    TRY(process_group_broadcast(d->group, net.parameters, COUNT, DTYPE_F32, 0, NULL));
    backward(&net, d->rank, 1);
    demo_fact(d, "loss", json_real(net.loss));
    TRY(show_start(d, &net));
    TRY(show_gradients(d, &net));
    TRY(show_average(d, &net));
    return show_step(d, &net);
}
