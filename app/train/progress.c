#include "app/train/progress.h"

#include "app/common/version.h"
#include "base/clock.h"
#include "base/log.h"
#include "dist/chunk.h"
#include "kernels/ops.h"

#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { BAR_INTERVAL_NS = 100000000, BAR_CELLS = 30, LOOK_MS = 50 };

static progress_style style_of(const options *o, FILE *out)
{
    if (o->quiet)
        return PROGRESS_SILENT;
    if (strcmp(o->log_format, "pytorch") == 0)
        return PROGRESS_PYTORCH;
    const char *term = getenv("TERM");
    /* A launched rank's stderr is a pipe to the launcher, which says where it leads. */
    bool forwarded = out == stderr && getenv("MNIST_DDP_LOG_TTY") != NULL;
    bool terminal = (isatty(fileno(out)) || forwarded) && term != NULL && strcmp(term, "dumb") != 0;
    return strcmp(o->log_format, "auto") == 0 && o->progress && terminal ? PROGRESS_BAR
                                                                         : PROGRESS_PLAIN;
}

progress progress_open(const rank_context *rank, const rank_signals *signals)
{
    progress p = {.rank = rank,
                  .signals = signals,
                  .out = rank->opts->json ? stderr : stdout,
                  .prints = rank->place.rank == 0};
    p.style = p.prints ? style_of(rank->opts, p.out) : PROGRESS_SILENT;
    return p;
}

/* Returns whether a line can be written: as soon as there is room, or false if the rank is asked to
 * stop before. A pipe that has room takes a whole line (PIPE_BUF). */
static bool takes_a_line(progress *p)
{
    struct pollfd fd = {.fd = fileno(p->out), .events = POLLOUT};
    while (!p->is_cut && poll(&fd, 1, LOOK_MS) <= 0) {
        p->is_cut = rank_signals_asked(p->signals) != 0;
        if (p->is_cut && p->out == stdout)
            LOG_W("stdout: nobody reads it; the rest of the progress is not shown there");
    }
    return !p->is_cut;
}

void progress_line(progress *p, const char *fmt, ...)
{
    if (!p->prints || p->rank->opts->quiet || !takes_a_line(p))
        return;
    va_list args;
    va_start(args, fmt);
    vfprintf(p->out, fmt, args);
    va_end(args);
    fputc('\n', p->out);
    fflush(p->out);
}

/* "gamma 0.7"; "cosine over 938 steps, the first 100 warm-up". */
static void describe_schedule(const schedule_options *o, char *out, size_t size_bytes)
{
    char warmup[48] = "";
    if (o->warmup_steps > 0)
        snprintf(warmup, sizeof warmup, ", the first %lld warm-up", (long long)o->warmup_steps);
    if (schedule_kind_has_end(o->kind))
        snprintf(out, size_bytes, "%s over %lld steps%s", schedule_kind_name(o->kind),
                 (long long)o->total_steps, warmup);
    else if (o->kind == SCHEDULE_STEP)
        snprintf(out, size_bytes, "gamma %g%s", o->gamma, warmup);
    else
        snprintf(out, size_bytes, "the same in every step%s", warmup);
}

void progress_header(progress *p, const char *run_dir, int64_t start_epoch, int64_t start_step)
{
    if (p->style == PROGRESS_PYTORCH)
        return;
    const rank_context *rank = p->rank;
    const rank_settings *s = &rank->settings;
    const strategy_facts *how = strategy_of(rank->opts);
    const options *o = rank->opts;
    char plan[96];
    describe_schedule(&rank->schedule.options, plan, sizeof plan);
    progress_line(p, "mnist_ddp %s: %s, %zu parameters, %s, lr %g, %s, seed %lld",
                  MNIST_DDP_VERSION, model_kind_name(s->model), network_count(rank->net),
                  optimizer_kind_name(s->optimizer.kind), s->schedule.lr, plan, (long long)o->seed);
    char accum[32] = "";
    if (o->accum > 1)
        snprintf(accum, sizeof accum, " x accum %lld", (long long)o->accum);
    progress_line(p,
                  "%s: %d x batch %d%s = global batch %lld; backend %s; device %s, %d thread%s "
                  "per %s",
                  how->title, rank->place.world_size * s->replicas,
                  chunk_size(s->batch_size, s->replicas), accum,
                  (long long)rank_context_global_batch(rank), strategy_backend(rank->strategy),
                  rank->dev->ops->name, s->threads, s->threads == 1 ? "" : "s", how->unit);
    if (rank->dev->emulation != NULL)
        progress_line(p, "NO GPU: %s", rank->dev->emulation);
    const char *folder = rank->location.folder[0] != '\0' ? rank->location.folder : "in memory";
    progress_line(p, "data: %s (%s), %u train and %u test images", folder, rank->location.found_by,
                  rank->train_set.count, rank->test_set.count);
    if (rank->location.embedded)
        progress_line(p, "      these are generated digits, NOT MNIST: name the real files with "
                         "--data-dir DIR");
    progress_line(p, "results: %s", run_dir);
    if (start_epoch > 0 || start_step > 0)
        progress_line(p, "resuming after epoch %lld, step %lld", (long long)start_epoch,
                      (long long)start_step);
}

void progress_epoch_start(progress *p)
{
    p->epoch_started_ns = clock_now_ns();
    p->next_bar_ns = 0;
}

static void draw_bar(progress *p, const step_line *line, double loss)
{
    p->next_bar_ns = clock_now_ns() + BAR_INTERVAL_NS;
    char bar[BAR_CELLS + 1];
    int full = BAR_CELLS * (line->step + 1) / line->steps;
    memset(bar, '=', (size_t)full);
    memset(bar + full, ' ', (size_t)(BAR_CELLS - full));
    bar[BAR_CELLS] = '\0';
    double elapsed = clock_seconds(line->now_ns - p->epoch_started_ns);
    double speed = (double)line->samples * p->rank->place.world_size / (elapsed > 0 ? elapsed : 1);
    fprintf(p->out, "\repoch %lld/%lld [%s] %d/%d loss %.4f %.0f images/s\033[K",
            (long long)line->epoch + 1, (long long)p->rank->opts->epochs, bar, line->step + 1,
            line->steps, loss, speed);
    fflush(p->out);
}

bool progress_wants_step(const progress *p, int step, int steps)
{
    if (p->style == PROGRESS_BAR)
        return step + 1 == steps || clock_now_ns() >= p->next_bar_ns;
    return p->style != PROGRESS_SILENT && step % p->rank->opts->log_interval == 0;
}

void progress_step(progress *p, const step_line *line, double loss)
{
    const options *o = p->rank->opts;
    if (!takes_a_line(p))
        return;
    if (p->style == PROGRESS_BAR) {
        draw_bar(p, line, loss);
        return;
    }
    if (p->style == PROGRESS_PYTORCH) {
        fprintf(p->out, "Train Epoch: %lld [%lld/%u (%.0f%%)]\tLoss: %.6f\n",
                (long long)line->epoch + 1, (long long)line->step * line->batch_n * o->accum,
                p->rank->train_set.count, 100.0 * line->step / line->steps, loss);
    } else {
        fprintf(p->out, "epoch %lld/%lld step %d/%d loss %.4f\n", (long long)line->epoch + 1,
                (long long)o->epochs, line->step + 1, line->steps, loss);
    }
    fflush(p->out);
}

enum { TESTED_BYTES = 96 };

/* "test loss 0.0512, accuracy 98.31% (9831/10000)" */
static void describe_test(const evaluation *test, char out[TESTED_BYTES])
{
    snprintf(out, TESTED_BYTES, "test loss %.4f, accuracy %.2f%% (%lld/%lld)", test->loss,
             100 * evaluation_accuracy(test), (long long)test->correct, (long long)test->images);
}

/* The bar's line ends, and pytorch/examples' lines of a test follow if that is the style. */
static void begin_test_lines(progress *p, const evaluation *test)
{
    if (p->style == PROGRESS_BAR)
        fputs("\r\033[K", p->out);
    if (p->style == PROGRESS_PYTORCH && test != NULL)
        progress_line(p, "\nTest set: Average loss: %.4f, Accuracy: %lld/%lld (%.0f%%)\n",
                      test->loss, (long long)test->correct, (long long)test->images,
                      100 * evaluation_accuracy(test));
}

void progress_test(progress *p, int64_t epoch, int step, int steps, const evaluation *test)
{
    char tested[TESTED_BYTES];
    p->epoch_started_ns += (int64_t)(test->elapsed_s * 1e9);
    begin_test_lines(p, test);
    describe_test(test, tested);
    if (p->style != PROGRESS_PYTORCH)
        progress_line(p, "epoch %lld/%lld step %d/%d: %s", (long long)epoch + 1,
                      (long long)p->rank->opts->epochs, step + 1, steps, tested);
}

void progress_epoch(progress *p, int64_t epoch, double train_s, int64_t images, double train_loss,
                    const evaluation *test)
{
    char tested[TESTED_BYTES] = "";
    begin_test_lines(p, test);
    if (test != NULL)
        describe_test(test, tested);
    if (p->style != PROGRESS_PYTORCH)
        progress_line(p, "epoch %lld/%lld: %.2f s, %.0f images/s, train loss %.4f%s%s",
                      (long long)epoch + 1, (long long)p->rank->opts->epochs, train_s,
                      (double)images / train_s, train_loss, test != NULL ? ", " : "", tested);
}
