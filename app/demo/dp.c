/* DataParallel: one process, a thread per replica. All numbers are those of a training with
 * --mode=dp, from its trace: the bytes of a transfer say how many images went. */
#include "app/demo/demo.h"

#include "data/dataset.h"
#include "model/network.h"

#include <stdio.h>
#include <string.h>

enum { REPLICAS = 3, REPLICAS_MAX = 8, BATCH = 30, STEP = 2, SPANS_MAX = 4096 };

/* What crosses the link between the master and one replica in a step. */
enum { PARAMETERS, IMAGES, NUMBERS, LOGITS, DLOGITS, GRADIENTS, KINDS };
static const struct {
    const char *name;
    bool is_sent; /* by the master */
} KIND[KINDS] = {{"weights", true},
                 {"images", true},
                 {"numbers of images", true},
                 {"outputs", false},
                 {"gradients of outputs", true},
                 {"gradients of weights", false}};

typedef struct dp {
    demo *d;
    int replicas, batch;
    int64_t links[REPLICAS_MAX][KINDS]; /* bytes; [0], the master's own, is empty */
    int64_t sent, received;             /* by the master, in a step */
} dp;

static int rows_of(const dp *p, int replica)
{
    int rows = p->batch;
    if (replica > 0)
        return (int)(p->links[replica][IMAGES] / (int64_t)(DATASET_PIXELS * sizeof(float)));
    for (int i = 1; i < p->replicas; i++)
        rows -= rows_of(p, i);
    return rows;
}

/* A replica first gets the parameters, then images, then their numbers, then the logits'
 * gradients; so its receives are told apart by their order. */
static void note_transfer(int64_t link[KINDS], const step_span *s)
{
    static const int received[] = {IMAGES, NUMBERS, DLOGITS};
    if (strcmp(s->name, "broadcast") == 0)
        link[PARAMETERS] = s->bytes;
    else if (strcmp(s->name, "send") == 0)
        link[LOGITS] = s->bytes;
    else if (strcmp(s->name, "reduce") == 0)
        link[GRADIENTS] = s->bytes;
    for (int i = 0; i < 3 && strcmp(s->name, "recv") == 0; i++)
        if (link[received[i]] == 0) {
            link[received[i]] = s->bytes;
            break;
        }
}

static status read_links(dp *p)
{
    static step_span spans[SPANS_MAX];
    char lane[64];
    size_t n = training_run_spans(p->d, STEP, spans, SPANS_MAX);
    for (int i = 1; i < p->replicas; i++) {
        snprintf(lane, sizeof lane, "transfers of replica %d", i);
        for (size_t k = 0; k < n; k++)
            if (strcmp(spans[k].lane, lane) == 0)
                note_transfer(p->links[i], &spans[k]);
    }
    p->sent = training_run_bytes(p->d, "sent");
    p->received = training_run_bytes(p->d, "received");
    return n > 0 ? STATUS_OK : FAIL(STATUS_INVALID, "the trace has no step %d", (int)STEP);
}

/* A training of STEP steps, as `flags` say it: each of `n` devices takes `images` in a step. */
static status train(dp *p, const char *flags, int n, int images)
{
    return training_run_do(p->d, "%s=%d --batch-size=%d -- --epochs=1 --limit=%d --no-save-model",
                           flags, p->replicas, images, STEP * n * images);
}

static status show_start(dp *p)
{
    demo_begin(p->d, "model = nn.DataParallel(model) on %d replicas", p->replicas);
    demo_say(p->d,
             "DataParallel is one process with a thread for each device. Each thread has a copy "
             "of the model, a replica. Replica 0 is the master: it has the weights, the batch and "
             "the optimizer.");
    demo_say(p->d, "What follows is step %d of a real training:", (int)STEP);
    demo_say(p->d, "%s", p->d->child.line);
    return demo_show(p->d);
}

static status show_copies(dp *p)
{
    demo_begin(p->d, "output = model(input): the weights go out");
    demo_say(p->d,
             "Before every batch the master copies all weights to the other replicas. Those of "
             "the step before are old: only the master's optimizer makes steps.");
    for (int i = 1; i < p->replicas; i++)
        if (p->links[i][PARAMETERS] > 0)
            demo_arrow(p->d, 0, i, "weights, %lld bytes", (long long)p->links[i][PARAMETERS]);
    return demo_show(p->d);
}

static void tell_sizes(dp *p, const char *who, int rows)
{
    demo_row(p->d, "%s|[%d, 1, 28, 28]|[%d, %d]", who, rows, rows, NETWORK_CLASSES);
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
            demo_arrow(p->d, 0, i, "%d images, %lld bytes", rows_of(p, i),
                       (long long)p->links[i][IMAGES]);
    demo_columns(p->d, "|input size|output size");
    for (int i = 0; i < p->replicas; i++) {
        snprintf(who, sizeof who, "inside, replica %d", i);
        if (rows_of(p, i) > 0)
            tell_sizes(p, who, rows_of(p, i));
        else
            demo_row(p->d, "%s|idle|", who);
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
        if (p->links[i][GRADIENTS] > 0)
            demo_arrow(p->d, i, 0, "gradients, %lld bytes", (long long)p->links[i][GRADIENTS]);
    return demo_show(p->d);
}

static status show_traffic(dp *p)
{
    demo_begin(p->d, "What the master sends and receives in one step");
    demo_say(p->d, "All of it goes over the master's link. The images are few bytes. The weights "
                   "and their gradients are many, and go once to or from each other replica.");
    demo_columns(p->d, "bytes|sent|received");
    for (int kind = 0; kind < KINDS; kind++) {
        long long sum = 0;
        for (int i = 1; i < p->replicas; i++)
            sum += p->links[i][kind];
        demo_row(p->d, "%s|#%lld|#%lld", KIND[kind].name, KIND[kind].is_sent ? sum : 0,
                 KIND[kind].is_sent ? 0 : sum);
    }
    demo_row(p->d, "all|#%lld|#%lld", (long long)p->sent, (long long)p->received);
    demo_fact(p->d, "sent", json_integer(p->sent));
    demo_fact(p->d, "received", json_integer(p->received));
    return demo_show(p->d);
}

/* The same number of devices, each with a part of the batch. */
static status show_ddp(dp *p)
{
    int part = (p->batch - 1) / p->replicas + 1;
    TRY(train(p, "--mode=ddp --nproc-per-node", p->replicas, part));
    int64_t sent = training_run_bytes(p->d, "sent_busiest");
    int64_t received = training_run_bytes(p->d, "received_busiest");
    demo_begin(p->d, "DistributedDataParallel beside it");
    demo_say(p->d,
             "With DDP there are %d processes. Each has its own batch of %d and its own optimizer. "
             "Only gradients travel, and no rank is a master: the busiest of a real run:",
             p->replicas, part);
    demo_columns(p->d, "bytes of one step|sent|received");
    demo_row(p->d, "dp, master|#%lld|#%lld", (long long)p->sent, (long long)p->received);
    demo_row(p->d, "ddp, busiest rank|#%lld|#%lld", (long long)sent, (long long)received);
    demo_fact(p->d, "ddp_sent", json_integer(sent));
    demo_fact(p->d, "ddp_received", json_integer(received));
    return demo_show(p->d);
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
    TRY(train(&p, "--mode=dp --replicas", 1, p.batch));
    TRY(read_links(&p));
    TRY(show_start(&p));
    TRY(show_copies(&p));
    TRY(show_cut(&p));
    TRY(show_return(&p));
    TRY(show_traffic(&p));
    return show_ddp(&p);
}
