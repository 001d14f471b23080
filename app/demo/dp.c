/* DataParallel: one process, a thread per replica. All numbers are those of a training with
 * --mode=dp, from its trace: the bytes of a transfer say how many images went. */
#include "app/demo/demo_table.h"
#include "app/demo/step_spans.h"
#include "app/demo/training_run.h"

#include "data/dataset.h"
#include "model/network.h"

#include <stdio.h>
#include <string.h>

enum { REPLICAS = 3, REPLICAS_MAX = 8, BATCH = 30, STEP = 2, SPANS_MAX = 4096, LINE_BYTES = 512 };

/* What crosses the link between the master and one replica in a step. */
typedef struct link_bytes {
    int64_t parameters, images, numbers, logits, dlogits, gradients;
} link_bytes;

typedef struct dp {
    demo *d;
    training_run run;
    int replicas, batch;
    link_bytes links[REPLICAS_MAX]; /* [0], the master's own, is empty */
    int64_t sent, received;         /* by the master, in a step */
} dp;

static int rows_of(const dp *p, int replica)
{
    int rows = p->batch;
    if (replica > 0)
        return (int)(p->links[replica].images / (int64_t)(DATASET_PIXELS * sizeof(float)));
    for (int i = 1; i < p->replicas; i++)
        rows -= rows_of(p, i);
    return rows;
}

/* A replica first gets the parameters, then images, then their numbers, then the logits'
 * gradients; so its receives are told apart by their order. */
static void note_transfer(link_bytes *link, const step_span *s)
{
    int64_t *received[] = {&link->images, &link->numbers, &link->dlogits};
    if (strcmp(s->name, "broadcast") == 0)
        link->parameters = s->bytes;
    else if (strcmp(s->name, "send") == 0)
        link->logits = s->bytes;
    else if (strcmp(s->name, "reduce") == 0)
        link->gradients = s->bytes;
    for (size_t i = 0; i < 3 && strcmp(s->name, "recv") == 0; i++)
        if (*received[i] == 0) {
            *received[i] = s->bytes;
            break;
        }
}

static status read_links(dp *p)
{
    static step_span spans[SPANS_MAX];
    char lane[64];
    size_t n = step_spans_read(p->run.trace, STEP, spans, SPANS_MAX);
    for (int i = 1; i < p->replicas; i++) {
        snprintf(lane, sizeof lane, "transfers of replica %d", i);
        for (size_t k = 0; k < n; k++)
            if (strcmp(spans[k].lane, lane) == 0)
                note_transfer(&p->links[i], &spans[k]);
    }
    p->sent = training_run_bytes(&p->run, "sent");
    p->received = training_run_bytes(&p->run, "received");
    return n > 0 ? STATUS_OK : FAIL(STATUS_INVALID, "the trace has no step %d", (int)STEP);
}

static status train(dp *p, char line[LINE_BYTES])
{
    training_run_begin(&p->run);
    bench_words_add(&p->run.words, "--mode=dp");
    bench_words_add(&p->run.words, "--replicas=%d", p->replicas);
    bench_words_add(&p->run.words, "--batch-size=%d", p->batch);
    training_run_line(&p->run, line, LINE_BYTES);
    bench_words_add(&p->run.words, "--epochs=1");
    bench_words_add(&p->run.words, "--limit=%d", STEP * p->batch);
    bench_words_add(&p->run.words, "--no-save-model");
    return training_run_do(&p->run);
}

static status show_start(dp *p, const char *line)
{
    demo_begin(p->d, "model = nn.DataParallel(model) on %d replicas", p->replicas);
    demo_say(p->d,
             "DataParallel is one process with a thread for each device. Each thread has a copy "
             "of the model, a replica. Replica 0 is the master: it has the weights, the batch and "
             "the optimizer.");
    demo_say(p->d, "What follows is step %d of a real training:", (int)STEP);
    demo_say(p->d, "%s", line);
    return demo_show(p->d);
}

static status show_copies(dp *p)
{
    demo_begin(p->d, "output = model(input): the weights go out");
    demo_say(p->d,
             "Before every batch the master copies all weights to the other replicas. Those of "
             "the step before are old: only the master's optimizer makes steps.");
    for (int i = 1; i < p->replicas; i++)
        if (p->links[i].parameters > 0)
            demo_arrow_between(p->d, 0, i, "weights, %lld bytes",
                               (long long)p->links[i].parameters);
    return demo_show(p->d);
}

static void tell_sizes(dp *p, const char *who, int rows)
{
    char input[40], output[40];
    snprintf(input, sizeof input, "[%d, 1, 28, 28]", rows);
    snprintf(output, sizeof output, "[%d, %d]", rows, NETWORK_CLASSES);
    demo_row(p->d, json_pack("[s, s, s]", who, input, output));
}

static status show_cut(dp *p)
{
    char who[48];
    json_t *rows = json_array();
    demo_begin(p->d, "The batch of %d is cut", p->batch);
    demo_say(p->d, "The master cuts the batch as torch.chunk does and sends each replica its part. "
                   "Inside, model(x) sees a part. Outside, you see the whole batch. The "
                   "labels stay with the master: the others compute no loss.");
    for (int i = 1; i < p->replicas; i++)
        if (rows_of(p, i) > 0)
            demo_arrow_between(p->d, 0, i, "%d images, %lld bytes", rows_of(p, i),
                               (long long)p->links[i].images);
    demo_columns(p->d, "", "input size", "output size", NULL);
    for (int i = 0; i < p->replicas; i++) {
        snprintf(who, sizeof who, "inside, replica %d", i);
        if (rows_of(p, i) > 0)
            tell_sizes(p, who, rows_of(p, i));
        else
            demo_row(p->d, json_pack("[s, s, s]", who, "idle", ""));
        json_array_append_new(rows, json_integer(rows_of(p, i)));
    }
    tell_sizes(p, "outside", p->batch);
    demo_fact(p->d, "rows", rows);
    return demo_show(p->d);
}

static status show_return(dp *p)
{
    demo_begin(p->d, "loss.backward(), optimizer.step()");
    demo_say(p->d, "The outputs come to the master, which computes the loss of the whole batch "
                   "while the others wait. It sends each the gradient of its outputs. Each goes "
                   "backward, and the master adds up the gradients of all weights.");
    for (int i = 1; i < p->replicas; i++)
        if (p->links[i].gradients > 0)
            demo_arrow_between(p->d, i, 0, "gradients, %lld bytes",
                               (long long)p->links[i].gradients);
    return demo_show(p->d);
}

static status show_traffic(dp *p)
{
    link_bytes sum = {0};
    for (int i = 1; i < p->replicas; i++) {
        const link_bytes *link = &p->links[i];
        sum.parameters += link->parameters;
        sum.images += link->images;
        sum.numbers += link->numbers;
        sum.logits += link->logits;
        sum.dlogits += link->dlogits;
        sum.gradients += link->gradients;
    }
    demo_begin(p->d, "What the master sends and receives in one step");
    demo_say(p->d, "All of it goes over the master's link. The images are few bytes. The weights "
                   "and their gradients are many, and go once to or from each other replica.");
    demo_columns(p->d, "bytes", "sent", "received", NULL);
    demo_row(p->d, json_pack("[s, I, i]", "weights", (json_int_t)sum.parameters, 0));
    demo_row(p->d, json_pack("[s, I, i]", "images", (json_int_t)sum.images, 0));
    demo_row(p->d, json_pack("[s, I, i]", "numbers of images", (json_int_t)sum.numbers, 0));
    demo_row(p->d, json_pack("[s, i, I]", "outputs", 0, (json_int_t)sum.logits));
    demo_row(p->d, json_pack("[s, I, i]", "gradients of outputs", (json_int_t)sum.dlogits, 0));
    demo_row(p->d, json_pack("[s, i, I]", "gradients of weights", 0, (json_int_t)sum.gradients));
    demo_row(p->d, json_pack("[s, I, I]", "all", (json_int_t)p->sent, (json_int_t)p->received));
    demo_fact(p->d, "sent", json_integer(p->sent));
    demo_fact(p->d, "received", json_integer(p->received));
    return demo_show(p->d);
}

/* The same number of devices, each with a part of the batch. */
static status show_ddp(dp *p)
{
    int part = (p->batch - 1) / p->replicas + 1;
    training_run_begin(&p->run);
    bench_words_add(&p->run.words, "--mode=ddp");
    bench_words_add(&p->run.words, "--nproc-per-node=%d", p->replicas);
    bench_words_add(&p->run.words, "--batch-size=%d", part);
    bench_words_add(&p->run.words, "--epochs=1");
    bench_words_add(&p->run.words, "--limit=%d", STEP * p->replicas * part);
    bench_words_add(&p->run.words, "--no-save-model");
    TRY(training_run_do(&p->run));
    int64_t sent = training_run_bytes(&p->run, "sent_busiest");
    int64_t received = training_run_bytes(&p->run, "received_busiest");
    demo_begin(p->d, "DistributedDataParallel beside it");
    demo_say(p->d,
             "With DDP there are %d processes. Each has its own batch of %d and its own optimizer. "
             "Only gradients travel, and no rank is a master: the busiest of a real run:",
             p->replicas, part);
    demo_columns(p->d, "bytes of one step", "sent", "received", NULL);
    demo_row(p->d,
             json_pack("[s, I, I]", "dp, master", (json_int_t)p->sent, (json_int_t)p->received));
    demo_row(p->d,
             json_pack("[s, I, I]", "ddp, busiest rank", (json_int_t)sent, (json_int_t)received));
    demo_fact(p->d, "ddp_sent", json_integer(sent));
    demo_fact(p->d, "ddp_received", json_integer(received));
    return demo_show(p->d);
}

static status show_all(dp *p)
{
    char line[LINE_BYTES];
    TRY(training_run_open(p->d, &p->run));
    TRY(train(p, line));
    TRY(read_links(p));
    TRY(show_start(p, line));
    TRY(show_copies(p));
    TRY(show_cut(p));
    TRY(show_return(p));
    TRY(show_traffic(p));
    return show_ddp(p);
}

static int replicas_of(const options *opts)
{
    return opts->replicas > 0 ? (int)opts->replicas : REPLICAS;
}

status dp_check_demo(const options *opts, int world_size)
{
    int replicas = replicas_of(opts);
    (void)world_size;
    return replicas >= 2 && replicas <= REPLICAS_MAX
               ? STATUS_OK
               : FAIL(STATUS_INVALID, "demo dp: --replicas=%d; it shows 2 to %d", replicas,
                      REPLICAS_MAX);
}

status dp_demo(demo *d)
{
    dp p = {.d = d,
            .replicas = replicas_of(d->opts),
            .batch = options_given(d->opts, "batch_size") ? (int)d->opts->batch_size : BATCH};
    d->member = "replica";
    status st = show_all(&p);
    training_run_close(&p.run);
    return st;
}
