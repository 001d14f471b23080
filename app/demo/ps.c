/* A parameter server: all ranks send their gradients to rank 0, which alone makes the step and
 * sends the new weights to all. First with one weight, by real sends and receives; then the bytes
 * of a real training. */
#include "app/demo/demo.h"

#include <stdio.h>

#define LR 0.5

enum { STEPS = 2 };

typedef struct ps {
    demo *d;
    double weight, gradient, mean; /* mean: of rank 0 */
} ps;

static void tell(const ps *p, double value)
{
    const char *what = p->d->rank == 0 ? ", the server" : "";
    demo_row(p->d, "rank %d%s|#%.17g", p->d->rank, what, value);
}

static status show_gradients(ps *p)
{
    demo_begin(p->d, "A parameter server and its %d ranks", p->d->world_size);
    demo_say(p->d, "Before there were all-reduces, one process had the weights: the parameter "
                   "server. Here it is rank 0. It trains as the others do. To see who sends what, "
                   "let the model be one weight.");
    demo_say(p->d,
             "All have the weight %g. Each has another batch, so another gradient:", p->weight);
    demo_columns(p->d, "|gradient");
    tell(p, p->gradient);
    return demo_show(p->d);
}

static status show_push(ps *p)
{
    int n = p->d->world_size;
    demo_begin(p->d, "Gradients go to the server");
    demo_say(p->d, "Rank 0 receives the gradient of each other rank, and takes the mean.");
    if (p->d->rank > 0) {
        TRY(process_group_send(p->d->group, &p->gradient, 1, DTYPE_F64, 0, NULL));
        demo_arrow(p->d, p->d->rank, 0, "gradient %g", p->gradient);
    } else {
        p->mean = p->gradient / n;
        for (int from = 1; from < n; from++) {
            double got = 0;
            TRY(process_group_recv(p->d->group, &got, 1, DTYPE_F64, from, NULL));
            p->mean += got / n;
        }
        demo_columns(p->d, "|mean");
        tell(p, p->mean);
    }
    return demo_show(p->d);
}

static status show_pull(ps *p)
{
    demo_begin(p->d, "New weights come back");
    if (p->d->rank > 0) {
        TRY(process_group_recv(p->d->group, &p->weight, 1, DTYPE_F64, 0, NULL));
    } else {
        double before = p->weight;
        p->weight -= LR * p->mean;
        demo_say(p->d,
                 "Rank 0 makes the step: %g - %g x %g = %g. The optimizer and its state are there "
                 "alone. It sends the new weight to each.",
                 before, LR, p->mean, p->weight);
        for (int to = 1; to < p->d->world_size; to++) {
            TRY(process_group_send(p->d->group, &p->weight, 1, DTYPE_F64, to, NULL));
            demo_arrow(p->d, p->d->rank, to, "weight %g", p->weight);
        }
    }
    demo_columns(p->d, "|weight");
    tell(p, p->weight);
    demo_fact(p->d, "weight", json_real(p->weight));
    return demo_show(p->d);
}

/* Rank 0: a real training, and a row about the busiest rank of it. */
static status train(ps *p, const char *mode)
{
    char key[32];
    int ranks = p->d->world_size;
    TRY(training_run_do(p->d,
                        "--mode=%s --nproc-per-node=%d -- "
                        "--batch-size=8 --epochs=1 --limit=%d --no-save-model",
                        mode, ranks, 8 * STEPS * ranks));
    int64_t sent = training_run_bytes(p->d, "sent_busiest");
    int64_t received = training_run_bytes(p->d, "received_busiest");
    demo_row(p->d, "%s|#%lld|#%lld", mode, (long long)sent, (long long)received);
    snprintf(key, sizeof key, "%s_sent", mode);
    demo_fact(p->d, key, json_integer(sent));
    snprintf(key, sizeof key, "%s_received", mode);
    demo_fact(p->d, key, json_integer(received));
    return STATUS_OK;
}

static status show_training(ps *p)
{
    demo_begin(p->d, "The same with a real model");
    demo_columns(p->d, "--mode|sent|received");
    if (p->d->rank == 0) {
        TRY(train(p, "ddp"));
        TRY(train(p, "ps"));
        int64_t parameters = (int64_t)training_run_number(p->d, NULL, "parameters");
        demo_say(p->d,
                 "%s. The model has %lld weights of 4 bytes: S = %lld bytes. Below are the bytes "
                 "of one step that the busiest rank sends and receives; with ps that is the "
                 "server.",
                 p->d->child.line, (long long)parameters, (long long)(4 * parameters));
        demo_fact(p->d, "parameters", json_integer(parameters));
    }
    return demo_show(p->d);
}

static status show_scaling(ps *p)
{
    demo_begin(p->d, "With more ranks");
    demo_say(p->d, "The server sends S to each of N - 1 others. A rank of a ring sends 2 (N - 1) / "
                   "N of S (mnist_ddp demo ring). So the server's link is what a large job "
                   "waits for.");
    demo_columns(p->d, "ranks|server sends|rank of a ring sends");
    for (int ranks = 2; ranks <= 1024 && p->d->rank == 0; ranks *= ranks < 16 ? 2 : 8)
        demo_row(p->d, "#%d|%4d S|%.3f S", ranks, ranks - 1, 2.0 * (ranks - 1) / ranks);
    return demo_show(p->d);
}

status ps_demo(demo *d)
{
    ps p = {.d = d, .weight = 1, .gradient = 0.25 * (d->rank + 1)};
    TRY(show_gradients(&p));
    TRY(show_push(&p));
    TRY(show_pull(&p));
    TRY(show_training(&p));
    return show_scaling(&p);
}
