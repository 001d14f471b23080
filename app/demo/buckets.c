/* DDP's buckets in a real training: which tensors each has, when it left and when it was there, and
 * what time that saved. */
#include "app/demo/demo.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 8, SPANS_MAX = 2048, BAR = 40, DELAY_MS = 10 };

typedef struct buckets {
    demo *d;
    int64_t delay_ms; /* each all-reduce's */
    int steps, step;  /* step: the quickest of them */
    step_span spans[SPANS_MAX];
    size_t n;
} buckets;

/* Of one step: when backward ended, and how long it waited after that. */
typedef struct costs {
    double backward_end_ms, waits_ms, step_ms;
} costs;

/* The step that other processes of this machine have disturbed least. The first one is left out:
 * it still warms caches. */
static status choose_step(buckets *b)
{
    double least_ms = 0;
    b->steps = (int)training_run_number(b->d, NULL, "steps");
    for (int step = 2; step <= b->steps; step++) {
        size_t n = training_run_spans(b->d, step, b->spans, 1);
        if (n > 0 && (b->step == 0 || b->spans[0].end_ms < least_ms)) {
            b->step = step;
            least_ms = b->spans[0].end_ms;
        }
    }
    b->n = training_run_spans(b->d, b->step, b->spans, SPANS_MAX);
    return b->n > 0 ? STATUS_OK
                    : FAIL(STATUS_INVALID,
                           "the data set has only one batch; give a smaller --batch-size");
}

static status train(buckets *b, bool overlap)
{
    const options *o = b->d->opts;
    int ranks = b->d->world_size;
    char cap[40] = "";
    if (o->bucket_cap_mb > 0)
        snprintf(cap, sizeof cap, " --bucket-cap-mb=%g", o->bucket_cap_mb);
    TRY(training_run_do(b->d,
                        "--nproc-per-node=%d%s%s --inject-delay-ms=%lld -- --batch-size=%lld "
                        "--epochs=1 --limit=%lld --no-save-model",
                        ranks, cap, overlap ? "" : " --no-overlap", (long long)b->delay_ms,
                        (long long)o->batch_size, (long long)o->batch_size * STEPS * ranks));
    b->step = 0;
    return choose_step(b);
}

/* "bucket 1", of a bucket's all-reduce. */
static const char *name_of(const step_span *bucket)
{
    const char *name = strstr(bucket->name, "bucket");
    return name != NULL ? name : bucket->name;
}

/* A row per tensor; the bucket's name and bytes stand in its first one. */
static void tell_tensors(demo *d, const step_span *bucket)
{
    char tensor[64];
    bool first = true;
    for (const char *at = bucket->parameters; *at != '\0'; first = false) {
        int length = (int)strcspn(at, ",");
        snprintf(tensor, sizeof tensor, "%.*s", length, at);
        if (first)
            demo_row(d, "%s|#%lld|%s", name_of(bucket), (long long)bucket->bytes, tensor);
        else
            demo_row(d, "||%s", tensor);
        at += length;
        at += strspn(at, ", ");
    }
}

static status show_buckets(buckets *b)
{
    json_t *all = json_array();
    demo_begin(b->d, "The buckets of DDP on %d ranks", b->d->world_size);
    demo_say(b->d, "%s", b->d->child.line);
    demo_say(b->d, "To send each gradient alone costs a wait each. To send all at once means to "
                   "wait for the last one. So DDP packs them into buckets, from the last layer to "
                   "the first: backward computes them in this order.");
    if (b->d->opts->bucket_cap_mb > 0)
        demo_say(b->d,
                 "A bucket is full at %g MiB, as --bucket-cap-mb says, the first one too. "
                 "No tensor is split.",
                 b->d->opts->bucket_cap_mb);
    else
        demo_say(b->d, "The first bucket is full at 1 MiB, so that it leaves early, and the others "
                       "at 25 MiB. --bucket-cap-mb changes that. No tensor is split.");
    demo_columns(b->d, "|bytes|gradients of");
    for (size_t i = 0; i < b->n; i++)
        if (b->spans[i].parameters != NULL) {
            tell_tensors(b->d, &b->spans[i]);
            json_array_append_new(all, json_pack("{s:s, s:I}", "tensors", b->spans[i].parameters,
                                                 "bytes", (json_int_t)b->spans[i].bytes));
        }
    demo_fact(b->d, "buckets", all);
    return demo_show(b->d);
}

/* What a row of the timeline is about. */
static bool is_shown(const step_span *s)
{
    return s->parameters != NULL || strcmp(s->name, "forward") == 0 ||
           strcmp(s->name, "ddp_wait") == 0 || strcmp(s->name, "optimizer") == 0 ||
           strstr(s->name, " backward") != NULL;
}

/* "   ======   ", from and to as shares of a step. */
static void draw(double from, double to, char mark, char out[BAR + 1])
{
    int first = (int)(from * BAR), end = (int)(to * BAR);
    first = first < BAR ? first : BAR - 1;
    end = end > first ? end : first + 1;
    end = end < BAR ? end : BAR;
    memset(out, ' ', BAR);
    memset(out + first, mark, (size_t)(end - first));
    out[BAR] = '\0';
}

static void tell_span(const buckets *b, const step_span *s)
{
    char bar[BAR + 1];
    double step_ms = b->spans[0].end_ms;
    bool sends = s->parameters != NULL;
    draw(s->begin_ms / step_ms, s->end_ms / step_ms, sends ? '=' : '#', bar);
    const char *name = sends ? name_of(s) : strcmp(s->name, "ddp_wait") == 0 ? "waits" : s->name;
    demo_row(b->d, "%s|%6.2f|%6.2f|%s", name, s->begin_ms, s->end_ms, bar);
}

static status show_timeline(buckets *b, bool overlap)
{
    demo_begin(b->d, "A step of rank 0 %s overlap", overlap ? "with" : "without");
    if (overlap) {
        demo_say(b->d,
                 "The quickest of %d steps. Times are milliseconds since it began. A layer's "
                 "gradients are ready by the end of its backward. A bucket leaves when its last "
                 "gradient is ready, while backward goes on with the layers before.",
                 b->steps);
        if (b->delay_ms > 0)
            demo_say(b->d,
                     "Two processes of one machine talk so fast that there is little to hide. So "
                     "here each all-reduce takes %lld ms more, as on a slow network. "
                     "--inject-delay-ms=0 shows it without.",
                     (long long)b->delay_ms);
    } else {
        demo_say(b->d, "The same with --no-overlap. All buckets leave after backward, and the rank "
                       "can only wait.");
    }
    demo_columns(b->d, "|from|to|");
    for (size_t i = 0; i < b->n; i++)
        if (is_shown(&b->spans[i]))
            tell_span(b, &b->spans[i]);
    return demo_show(b->d);
}

/* Rank 0 alone trains; the others only are counted. */
static status measure(buckets *b, bool overlap, costs *out)
{
    if (b->d->rank > 0)
        return STATUS_OK;
    TRY(train(b, overlap));
    json_t *sent_ms = json_array();
    out->step_ms = b->spans[0].end_ms;
    for (size_t i = 0; i < b->n; i++) {
        const step_span *s = &b->spans[i];
        if (strcmp(s->name, "backward") == 0)
            out->backward_end_ms = s->end_ms;
        if (strcmp(s->name, "ddp_wait") == 0)
            out->waits_ms = s->end_ms - s->begin_ms;
        if (s->parameters != NULL)
            json_array_append_new(sent_ms, json_real(s->begin_ms));
    }
    demo_fact(b->d, overlap ? "overlap" : "no_overlap",
              json_pack("{s:f, s:f, s:f, s:o}", "backward_end_ms", out->backward_end_ms, "waits_ms",
                        out->waits_ms, "step_ms", out->step_ms, "sent_ms", sent_ms));
    return STATUS_OK;
}

static status show_costs(buckets *b, const costs *with, const costs *without)
{
    demo_begin(b->d, "What overlap hides");
    demo_say(b->d, "What is sent while backward goes on costs no time. Only what the rank waits "
                   "for after backward does, and the last bucket always is: nothing is left to "
                   "compute when it leaves.");
    demo_columns(b->d, "|rank 0 waits|step");
    if (b->d->rank == 0) {
        demo_row(b->d, "with overlap|%8.2f ms|%8.2f ms", with->waits_ms, with->step_ms);
        demo_row(b->d, "--no-overlap|%8.2f ms|%8.2f ms", without->waits_ms, without->step_ms);
    }
    return demo_show(b->d);
}

static status show_all(buckets *b)
{
    costs with = {0}, without = {0};
    TRY(measure(b, true, &with));
    TRY(show_buckets(b));
    TRY(show_timeline(b, true));
    TRY(measure(b, false, &without));
    TRY(show_timeline(b, false));
    return show_costs(b, &with, &without);
}

status buckets_demo(demo *d)
{
    buckets *b = NULL;
    bool asked = options_given(d->opts, "inject_delay_ms");
    TRY(memory_alloc(sizeof *b, (void **)&b));
    b->d = d;
    b->delay_ms = asked ? d->opts->inject_delay_ms : DELAY_MS;
    status st = show_all(b);
    free(b);
    return st;
}
