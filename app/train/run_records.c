#include "app/train/run_records.h"

#include "app/common/run_log.h"
#include "app/common/version.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/chunk.h"
#include "kernels/ops.h"

#include <ctype.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The log, and the status line below it. */

/* Between two lines of the log about steps. */
static const int64_t LINE_NS = 2000000000;

enum { LINE_BYTES = 1024, LOOK_MS = 50 };

static progress_style style_of(const options *o)
{
    return strcmp(o->log_format, "pytorch") == 0 ? PROGRESS_PYTORCH : PROGRESS_PLAIN;
}

/* Where a status line may be drawn: on the terminal that the launcher has passed on, which leads
 * all that its ranks say past the line; else on stderr, unless another process may show our log
 * on the same terminal. -1: nowhere. */
static int find_terminal(const options *o, FILE *log)
{
    const char *passed = getenv("MNIST_DDP_LOG_TTY");
    int fd = STDERR_FILENO;
    if (passed != NULL && !number_parse(passed, 0, INT_MAX, &fd))
        return -1;
    bool is_wanted = strcmp(o->log_format, "auto") == 0 && o->progress && !o->quiet;
    if (!is_wanted || !terminal_of(fd).erases)
        return -1;
    if (passed != NULL)
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return passed == NULL && terminal_may_follow(fileno(log)) ? -1 : fd;
}

void progress_open(const rank_context *rank, const rank_signals *signals, int64_t started_ns,
                   progress *out)
{
    const options *o = rank->opts;
    *out = (progress){.rank = rank,
                      .signals = signals,
                      .out = o->json ? stderr : stdout,
                      .prints = rank->place.rank == 0,
                      .is_quiet = o->quiet,
                      .terminal_fd = -1,
                      .started_ns = started_ns};
    if (!out->prints)
        return;
    out->style = style_of(o);
    out->terminal = terminal_of(fileno(out->out));
    out->terminal_fd = find_terminal(o, out->out);
    out->by = out->style == PROGRESS_PYTORCH || options_given(o, "log-interval") ? PROGRESS_BY_STEPS
                                                                                 : PROGRESS_BY_TIME;
}

/* The first step takes longer than the others: as soon as there is a second one, time counts from
 * its end. Tests and checkpoints count: as many are to come. */
static void estimate_end(pace *p, const rank_context *rank, const step_facts *f)
{
    int64_t step = f->epoch * f->steps + f->step;
    int64_t left = rank->opts->epochs * f->steps - step - 1;
    int64_t since_ns = p->is_under_way ? p->first_ns : p->epoch_started_ns;
    int64_t done = p->is_under_way ? step - p->first_step : 1;
    if (!p->is_under_way) {
        p->is_under_way = true;
        p->first_step = step;
        p->first_ns = f->now_ns;
    }
    if (done > 0)
        p->end_ns =
            f->now_ns + (int64_t)((double)(f->now_ns - since_ns) * (double)left / (double)done);
}

static void pace_note(pace *p, const rank_context *rank, const step_facts *f)
{
    double elapsed_s = clock_seconds(f->now_ns - p->epoch_started_ns);
    p->images_per_s =
        (double)f->samples * rank->sharing.world_size / (elapsed_s > 0 ? elapsed_s : 1);
    p->steps_per_s = p->images_per_s / (double)rank_context_global_batch(rank);
    estimate_end(p, rank, f);
}

/* A wait that is shown lasts a second, and whom it is for is looked up once a second. */
static const int64_t SHOWN_NS = 1000000000;

enum { MOST_NAMED = 3 };

/* What is left out last, and so on. */
enum {
    STEPS_PRIORITY = 1,
    PASSED_PRIORITY,
    IMAGES_PRIORITY,
    BAR_PRIORITY,
    LOSS_PRIORITY,
    LEFT_PRIORITY,
    DOING_PRIORITY,
    EPOCH_PRIORITY
};

/* Whom the ranks of this host wait for if all of them have come. */
static void name_nodes(const rendezvous_place *place, char out[LATE_RANKS_BYTES])
{
    int nodes = place->local_world_size > 0 ? place->world_size / place->local_world_size : 1;
    snprintf(out, LATE_RANKS_BYTES, "%s",
             nodes == 2  ? "node 1"
             : nodes > 2 ? "another node"
                         : "the other ranks");
}

/* Ranks of this host that have not entered the collective: "rank 1", "rank 1 (stopped), rank 3". */
static void name_late(const rank_context *rank, uint64_t awaited, char out[LATE_RANKS_BYTES])
{
    const char *folder = rank_context_dump_folder();
    int named = 0, length = 0;
    for (int r = 0; folder != NULL && r < rank->place.local_world_size; r++) {
        rank_snapshot s;
        if (r == rank->place.rank || rank_status_read(folder, r, &s) != STATUS_OK ||
            s.attempt != (int)rendezvous_place_attempt(&rank->place) || s.entered >= awaited)
            continue;
        if (named++ < MOST_NAMED)
            length += snprintf(out + length, (size_t)(LATE_RANKS_BYTES - length), "%srank %d%s",
                               named > 1 ? ", " : "", r,
                               s.state == RANK_STOPPED ? " (stopped)"
                               : s.state == RANK_GONE  ? " (gone)"
                                                       : "");
    }
    if (named > MOST_NAMED)
        snprintf(out + length, (size_t)(LATE_RANKS_BYTES - length), ", ...");
    if (named == 0)
        name_nodes(&rank->place, out);
}

/* Does rank 0 wait for others, for a second or longer? */
static bool look_for_late(progress *p, const rank_snapshot *own, int64_t now_ns)
{
    if (own->waits != p->waits || own->waits == 0) {
        p->waits = own->waits;
        p->since_ns = now_ns;
        p->looked_ns = 0;
    }
    if (p->waits == 0 || now_ns - p->since_ns < SHOWN_NS)
        return false;
    if (now_ns - p->looked_ns >= SHOWN_NS) {
        p->looked_ns = now_ns;
        name_late(p->rank, p->waits, p->late);
    }
    return true;
}

/* So many columns has a number up to this one: what stands after it keeps its place. */
static int digits(int number)
{
    return snprintf(NULL, 0, "%d", number);
}

static void tell_training(const progress *p, status_parts *out)
{
    int steps = p->step.steps;
    status_parts_add(out, DOING_PRIORITY, "%*d/%d", digits(steps), p->step.step + 1, steps);
    status_parts_add(out, LOSS_PRIORITY, "loss %.4f", p->step.loss);
    status_parts_add(out, IMAGES_PRIORITY, "%.0f images/s", p->pace.images_per_s);
    status_parts_add(out, STEPS_PRIORITY,
                     p->pace.steps_per_s < 10 ? "%.1f steps/s" : "%.0f steps/s",
                     p->pace.steps_per_s);
}

static void tell_evaluation(const rank_context *rank, status_parts *out)
{
    const dataset *set = atomic_load_explicit(&rank->evaluated, memory_order_relaxed);
    uint32_t tested = atomic_load_explicit(&rank->tested, memory_order_relaxed);
    uint32_t images = set != NULL ? set->count : rank->test_set.count;
    status_parts_add(out, DOING_PRIORITY, "%s %*" PRIu32 "/%" PRIu32 " images",
                     set == &rank->val_set ? "validating" : "testing", digits((int)images),
                     tested < images ? tested : images, images);
}

/* What rank 0 does now. */
static void tell_doing(progress *p, int64_t now_ns, status_parts *out)
{
    const rank_context *rank = p->rank;
    rank_snapshot own;
    rank_status_look(rank->page, &own);
    if (look_for_late(p, &own, now_ns))
        status_parts_add(out, DOING_PRIORITY, "waiting for %s (%.0f s)", p->late,
                         clock_seconds(now_ns - p->since_ns));
    else if (own.now == MOMENT_EVALUATION)
        tell_evaluation(rank, out);
    else if (own.now == MOMENT_CHECKPOINT)
        status_parts_add(out, DOING_PRIORITY, "saving a checkpoint");
    else if (p->step.steps == 0)
        status_parts_add(out, DOING_PRIORITY, "starting");
    else
        tell_training(p, out);
}

static void tell_time(const progress *p, int64_t now_ns, status_parts *out)
{
    int64_t left_ns = p->pace.end_ns - now_ns; /* <= 0: not known, or the last test goes on */
    status_parts_add_time(out, PASSED_PRIORITY, clock_seconds(now_ns - p->started_ns), "passed");
    if (left_ns > 0)
        status_parts_add_time(out, LEFT_PRIORITY, clock_seconds(left_ns), "left");
}

static void tell_bar(void *ctx, status_parts *out)
{
    progress *p = ctx;
    int64_t now_ns = clock_now_ns();
    status_parts_add(out, EPOCH_PRIORITY, "epoch %" PRId64 "/%" PRId64, p->step.epoch + 1,
                     p->rank->opts->epochs);
    tell_doing(p, now_ns, out);
    tell_time(p, now_ns, out);
    out->bar_priority = BAR_PRIORITY;
    if (p->step.steps > 0)
        out->done = (double)(p->step.step + 1) / p->step.steps;
    atomic_store_explicit(&p->bar_has_step, true, memory_order_relaxed);
}

static void open_bar(progress *p)
{
    status_line_open(p->terminal_fd, tell_bar, p, &p->bar);
    bool is_there = p->terminal.erases || p->out == stderr; /* the log, on this terminal */
    p->bar_tells_steps = p->bar.is_drawn && p->by == PROGRESS_BY_TIME && is_there;
}

void progress_close_bar(progress *p)
{
    status_line_close(&p->bar);
}

/* Returns whether a line can be written: as soon as there is room, or false if the rank is asked to
 * stop before. A pipe that has room takes a whole line (PIPE_BUF). */
static bool takes_a_line(progress *p)
{
    struct pollfd fd = {.fd = fileno(p->out), .events = POLLOUT};
    while (fd.fd >= 0 && !p->is_cut && poll(&fd, 1, LOOK_MS) <= 0) {
        p->is_cut = rank_signals_asked(p->signals) != 0;
        if (p->is_cut && p->out == stdout)
            LOG_W("stdout: nobody reads it; the rest of the progress is not shown there");
    }
    return !p->is_cut;
}

/* In one write, which takes the place of a status line. */
static void show(progress *p, const char *text, size_t length)
{
    char line[LINE_BYTES + TERMINAL_FORMAT_BYTES];
    if (!takes_a_line(p))
        return;
    fwrite(line, 1, terminal_format(p->terminal, text, length, line), p->out);
    fflush(p->out);
}

/* To the run's log, and if `is_shown` to `out`. */
__attribute__((format(printf, 3, 4))) static void print(progress *p, bool is_shown, const char *fmt,
                                                        ...)
{
    char text[LINE_BYTES];
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    length = length < LINE_BYTES ? length : LINE_BYTES - 1;
    run_log_say(text, (size_t)length);
    if (is_shown)
        show(p, text, (size_t)length);
}

void progress_line(progress *p, const char *fmt, ...)
{
    char text[LINE_BYTES];
    if (!p->prints)
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    print(p, !p->is_quiet, "%s\n", text);
}

void progress_path(progress *p, const char *what, const char *path)
{
    char shown[LINE_BYTES];
    printable_copy(PRINTABLE_LINE, path, shown, sizeof shown);
    progress_line(p, "%s: %s", what, shown);
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

/* " (0.001 x 4 ranks)" */
static void describe_scaling(const rank_context *rank, char *out, size_t size_bytes)
{
    int ranks = rank->place.world_size;
    out[0] = '\0';
    if (rank->opts->scale_lr)
        snprintf(out, size_bytes, " (%g x %d rank%s)", rank->settings.lr, ranks,
                 ranks == 1 ? "" : "s");
}

void progress_name_place(int64_t epoch, int64_t step, char out[PROGRESS_PLACE_BYTES])
{
    if (step > 0)
        snprintf(out, PROGRESS_PLACE_BYTES, "step %lld of epoch %lld", (long long)step,
                 (long long)epoch + 1);
    else if (epoch > 0)
        snprintf(out, PROGRESS_PLACE_BYTES, "epoch %lld", (long long)epoch);
    else
        snprintf(out, PROGRESS_PLACE_BYTES, "no step");
}

static void resume_header(progress *p, int64_t epoch, int64_t step)
{
    char place[PROGRESS_PLACE_BYTES];
    p->start_epoch = epoch;
    progress_name_place(epoch, step, place);
    if (epoch > 0 || step > 0)
        progress_line(p, "resuming after %s", place);
}

/* --mesh: who lies where. */
static void draw_mesh(progress *p)
{
    char line[LINE_BYTES];
    const mesh *m = &p->rank->mesh;
    for (int i = 0; i <= m->dp.world_size && p->rank->opts->mesh != NULL; i++) {
        mesh_draw_line(m, i, line, sizeof line);
        progress_line(p, "%s", line);
    }
}

void progress_header(progress *p, const char *run_dir, int64_t start_epoch, int64_t start_step)
{
    if (p->style == PROGRESS_PYTORCH)
        return;
    const rank_context *rank = p->rank;
    const rank_settings *s = &rank->settings;
    const strategy_facts *how = strategy_of(rank->opts);
    const options *o = rank->opts;
    char plan[96], scaled[48];
    describe_schedule(&rank->schedule.options, plan, sizeof plan);
    describe_scaling(rank, scaled, sizeof scaled);
    progress_line(p, "mnist_ddp %s: %s, %zu parameters, %s, lr %g%s, %s, seed %lld",
                  MNIST_DDP_VERSION, model_kind_name(s->model), network_model_count(rank->net),
                  optimizer_kind_name(s->optimizer.kind), s->schedule.lr, scaled, plan,
                  (long long)o->seed);
    char accum[32] = "", devices[32];
    const mesh *m = &rank->mesh;
    int trained = rank->place.world_size - how->has_server;
    int n = snprintf(devices, sizeof devices, "%d", trained * s->replicas);
    if (m->dp.world_size > 1 && m->model.world_size > 1)
        snprintf(devices + n, sizeof devices - (size_t)n, " (%d x %d)", m->dp.world_size,
                 m->model.world_size);
    if (o->accum > 1)
        snprintf(accum, sizeof accum, " x accum %lld", (long long)o->accum);
    progress_line(p,
                  "%s: %s %s batch %d%s = global batch %lld; backend %s; device %s, %d thread%s "
                  "per %s",
                  how->title, devices, how->cuts_model ? "with" : "x",
                  chunk_size(s->batch_size, how->cuts_model ? 1 : s->replicas), accum,
                  (long long)rank_context_global_batch(rank), strategy_backend(rank->strategy),
                  rank->dev->ops->name, s->threads, s->threads == 1 ? "" : "s", how->unit);
    draw_mesh(p);
    if (rank->dev->emulation != NULL)
        progress_line(p, "NO GPU: %s", rank->dev->emulation);
    const char *folder = rank->location.folder[0] != '\0' ? rank->location.folder : "in memory";
    char held[48] = "", shown[LINE_BYTES];
    printable_copy(PRINTABLE_LINE, folder, shown, sizeof shown);
    if (rank->val_set.count > 0)
        snprintf(held, sizeof held, ", %u validation", rank->val_set.count);
    progress_line(p, "data: %s (%s), %u train%s and %u test images", shown, rank->location.found_by,
                  rank->train_set.count, held, rank->test_set.count);
    if (rank->location.embedded)
        progress_line(
            p, "      these are generated digits, NOT MNIST: mnist_ddp data fetch gets the real "
               "files, --data-dir DIR names them");
    if (!o->dry_run)
        progress_path(p, "results", run_dir);
    resume_header(p, start_epoch, start_step);
    p->step.epoch = start_epoch;
    open_bar(p);
}

void progress_epoch_start(progress *p)
{
    p->pace.epoch_started_ns = clock_now_ns();
}

/* The bar is to show the last step of an epoch, and another one after what it has shown. */
static bool bar_wants_step(const progress *p, int step, int steps)
{
    return atomic_load_explicit(&p->bar_has_step, memory_order_relaxed) ||
           (p->bar.is_drawn && step + 1 == steps);
}

static bool line_is_due(const progress *p, int step)
{
    if (!p->prints)
        return false;
    return p->by == PROGRESS_BY_STEPS ? step % p->rank->opts->log_interval == 0
                                      : clock_passed(p->next_line_ns);
}

static bool progress_wants_step(const progress *p, int step, int steps)
{
    return bar_wants_step(p, step, steps) || line_is_due(p, step);
}

static bool shows_steps(const progress *p)
{
    return !p->is_quiet && !p->bar_tells_steps;
}

/* ", 8405 images/s, 1:05 passed, 3:40 left"; nothing of that in the first two seconds. */
static void print_timed(progress *p, const step_facts *f)
{
    char passed[STATUS_TIME_BYTES], left[STATUS_TIME_BYTES], rest[96] = "";
    p->next_line_ns = f->now_ns + LINE_NS;
    status_parts_time(clock_seconds(f->now_ns - p->started_ns), passed);
    status_parts_time(clock_seconds(p->pace.end_ns - f->now_ns), left);
    if (f->now_ns - p->pace.first_ns >= LINE_NS)
        snprintf(rest, sizeof rest, ", %.0f images/s, %s passed, %s left", p->pace.images_per_s,
                 passed, left);
    print(p, shows_steps(p), "epoch %lld/%lld step %d/%d loss %.4f%s\n", (long long)f->epoch + 1,
          (long long)p->rank->opts->epochs, f->step + 1, f->steps, f->loss, rest);
}

static void print_step(progress *p, const step_facts *f)
{
    const options *o = p->rank->opts;
    if (p->by == PROGRESS_BY_TIME)
        print_timed(p, f);
    else if (p->style == PROGRESS_PYTORCH)
        print(p, shows_steps(p), "Train Epoch: %lld [%lld/%u (%.0f%%)]\tLoss: %.6f\n",
              (long long)f->epoch + 1, (long long)f->step * f->batch_n * o->accum,
              p->rank->train_set.count, 100.0 * f->step / f->steps, f->loss);
    else
        print(p, shows_steps(p), "epoch %lld/%lld step %d/%d loss %.4f\n", (long long)f->epoch + 1,
              (long long)o->epochs, f->step + 1, f->steps, f->loss);
}

/* "nan", whatever its sign. */
static double plain(double loss)
{
    return isnan(loss) ? (double)NAN : loss;
}

static void progress_step(progress *p, const step_facts *made)
{
    step_facts f = *made;
    f.loss = plain(f.loss);
    if (p->bar.open)
        pthread_mutex_lock(&p->bar.lock);
    pace_note(&p->pace, p->rank, &f);
    p->step = f;
    if (p->bar.open)
        pthread_mutex_unlock(&p->bar.lock);
    atomic_store_explicit(&p->bar_has_step, false, memory_order_relaxed);
    rank_status_pace(p->rank->page, f.loss, p->pace.images_per_s);
    if (line_is_due(p, f.step))
        print_step(p, &f);
}

enum { TESTED_BYTES = 128 };

/* "test loss 0.0512, accuracy 98.31% (9831/10000)" */
static void describe_test(const progress *p, const evaluation *test, char out[TESTED_BYTES])
{
    const char *on = p->terminal.colours ? TERMINAL_GREEN : "";
    const char *off = p->terminal.colours ? TERMINAL_PLAIN : "";
    snprintf(out, TESTED_BYTES, "%s loss %.4f, accuracy %s%.2f%%%s (%lld/%lld)", test->name,
             test->loss, on, 100 * evaluation_accuracy(test), off, (long long)test->correct,
             (long long)test->images);
}

/* The lines of pytorch/examples. */
static void print_pytorch_test(progress *p, const evaluation *test)
{
    progress_line(p, "\n%c%s set: Average loss: %.4f, Accuracy: %lld/%lld (%.0f%%)\n",
                  toupper((unsigned char)test->name[0]), test->name + 1, test->loss,
                  (long long)test->correct, (long long)test->images,
                  100 * evaluation_accuracy(test));
}

static void progress_test(progress *p, const test_facts *f)
{
    char tested[TESTED_BYTES];
    p->pace.epoch_started_ns += (int64_t)(f->found->elapsed_s * 1e9);
    describe_test(p, f->found, tested);
    if (p->style == PROGRESS_PYTORCH)
        print_pytorch_test(p, f->found);
    else if (f->steps == 0)
        progress_line(p, "%s", tested);
    else
        progress_line(p, "epoch %lld/%lld step %d/%d: %s", (long long)f->epoch + 1,
                      (long long)p->rank->opts->epochs, f->step + 1, f->steps, tested);
}

static void progress_epoch(progress *p, const epoch_facts *f)
{
    char tested[TESTED_BYTES] = "";
    if (f->tested != NULL)
        describe_test(p, f->tested, tested);
    if (p->style != PROGRESS_PYTORCH)
        progress_line(p, "epoch %lld/%lld: %.2f s, %.0f images/s, train loss %.4f%s%s",
                      (long long)f->epoch + 1, (long long)p->rank->opts->epochs, f->train_s,
                      (double)f->images / f->train_s, plain(f->train_loss),
                      f->tested != NULL ? ", " : "", tested);
    else if (f->tested != NULL)
        print_pytorch_test(p, f->tested);
}

void progress_end(progress *p, int64_t epochs)
{
    long long first = (long long)p->start_epoch + 1, last = (long long)(p->start_epoch + epochs);
    double took_s = clock_seconds(clock_now_ns() - p->started_ns);
    if (p->style == PROGRESS_PYTORCH)
        return;
    if (first == 1 || epochs == 0)
        progress_line(p, "finished: %lld epoch%s in %.1f s", (long long)epochs,
                      epochs == 1 ? "" : "s", took_s);
    else if (first == last)
        progress_line(p, "finished: epoch %lld in %.1f s", last, took_s);
    else
        progress_line(p, "finished: epochs %lld to %lld in %.1f s", first, last, took_s);
}

/* metrics.jsonl and the event file. */

static bool keeps_step(const run_records *r, const step_facts *f)
{
    return r->metrics != NULL && f->step % r->rank->opts->log_interval == 0;
}

static void keep_step(run_records *r, const step_facts *f)
{
    double images = (double)(f->samples - r->rate_since) * r->rank->sharing.world_size;
    metrics_entry entry = {.event = METRICS_STEP,
                           .step = f->number,
                           .epoch = f->epoch,
                           .now_ns = f->now_ns,
                           .loss = f->loss,
                           .grad_norm = f->grad_norm,
                           .lr = f->lr,
                           .images_per_s = images / clock_seconds(f->now_ns - r->rate_since_ns)};
    r->rate_since_ns = f->now_ns;
    r->rate_since = f->samples;
    metrics_add(r->metrics, &entry);
}

/* Sets what was found, or that nothing was (NULL). */
static void note_test(const run_records *r, const evaluation *found, metrics_entry *entry)
{
    double loss = found != NULL ? found->loss : (double)NAN;
    double accuracy = found != NULL ? evaluation_accuracy(found) : (double)NAN;
    bool on_test = found == &r->result->test;
    entry->test_loss = on_test ? loss : (double)NAN;
    entry->test_acc = on_test ? accuracy : (double)NAN;
    entry->val_loss = on_test ? (double)NAN : loss;
    entry->val_acc = on_test ? (double)NAN : accuracy;
    entry->validates = r->rank->val_set.count > 0;
}

static void keep_test(run_records *r, const test_facts *f)
{
    metrics_entry entry = {.event =
                               f->found == &r->result->test ? METRICS_TEST : METRICS_VALIDATION,
                           .step = f->number,
                           .epoch = f->epoch,
                           .now_ns = clock_now_ns()};
    note_test(r, f->found, &entry);
    metrics_add(r->metrics, &entry);
}

/* An epoch that was resumed after its last step has no images. */
static double epoch_rate(const epoch_facts *f)
{
    return f->images > 0 ? (double)f->images / f->train_s : (double)NAN;
}

static void keep_epoch(run_records *r, const epoch_facts *f)
{
    metrics_entry entry = {.event = METRICS_EPOCH,
                           .step = f->number,
                           .epoch = f->epoch,
                           .now_ns = clock_now_ns(),
                           .loss = f->train_loss,
                           .lr = f->lr,
                           .images_per_s = epoch_rate(f)};
    note_test(r, f->tested, &entry);
    metrics_add(r->metrics, &entry);
}

/* --event-log (app/common/event_log.h). */

static status open_events(run_records *r)
{
    char host[HOST_NAME_MAX + 1] = "", node[HOST_NAME_MAX + 32];
    const rendezvous_place *place = &r->rank->place;
    (void)gethostname(host, sizeof host - 1);
    snprintf(node, sizeof node, "%s_%d", host, (int)getpid());
    r->step = (event_log_step){.round = rendezvous_place_attempt(place),
                               .rank = place->rank,
                               .world_size = place->world_size};
    return event_log_open(r->rank->opts->event_log, place->run_id, node, &r->events);
}

void run_records_round(run_records *r, const position *at, event_log_opening *opening)
{
    if (r->events == NULL)
        return;
    opening->round = r->step.round;
    opening->rank = r->step.rank;
    opening->world_size = r->step.world_size;
    opening->step = at->step;
    opening->epoch = at->epoch;
    event_log_opens(r->events, opening);
}

static void log_step_begins(run_records *r, const position *at, int step)
{
    const uint32_t *indices;
    if (r->events == NULL)
        return;
    r->step.step = at->step + 1;
    r->step.epoch = at->epoch + 1;
    if (!r->rank->opts->event_log_steps)
        return;
    r->step.samples = loader_step_indices(r->rank->loader, step, &indices);
    r->step.hash = 0;
    for (int64_t i = 0; i < r->step.samples; i++)
        r->step.hash += event_log_sample(indices[i]);
    event_log_step_begins(r->events, &r->step);
}

/* result.json. */

/* A replayed step moves as many bytes as its recording did; no call counts them. The run's first
 * step has ended only when the device has done it. */
static status count_step(run_records *r)
{
    result *to = r->result;
    device *dev = r->rank->dev;
    device_use after = strategy_use(r->rank->strategy, 0);
    device_use step = {.sent_bytes = after.sent_bytes - r->before.sent_bytes,
                       .received_bytes = after.received_bytes - r->before.received_bytes};
    if (!to->graph || step.sent_bytes > 0 || step.received_bytes > 0)
        r->moved[r->is_short] = step;
    to->moved.sent_bytes += r->moved[r->is_short].sent_bytes;
    to->moved.received_bytes += r->moved[r->is_short].received_bytes;
    if (++to->steps > 1)
        return STATUS_OK;
    TRY(dev->ops->synchronize(dev));
    to->setup_s = clock_seconds(clock_now_ns() - r->started_ns);
    return STATUS_OK;
}

static void count_epoch(run_records *r, const epoch_facts *f)
{
    result *to = r->result;
    to->train_s[to->epochs++] = f->train_s;
    to->images_per_epoch = f->images;
    to->images_per_s = fmax(to->images_per_s, epoch_rate(f));
}

/* Who records what. */

status run_records_open(const rank_context *rank, run_records *r)
{
    r->rank = rank;
    TRY(open_events(r));
    return readback_open(rank->dev, sizeof(score), &r->totals);
}

void run_records_close(run_records *r)
{
    event_log_close(r->events);
    readback_close(&r->totals);
    metrics_close(r->metrics);
    *r = (run_records){0};
}

void run_records_begin_rate(run_records *r, uint32_t samples)
{
    r->rate_since_ns = clock_now_ns();
    r->rate_since = samples;
}

void run_records_step_begins(run_records *r, const position *at, int step)
{
    log_step_begins(r, at, step);
    r->before = strategy_use(r->rank->strategy, 0);
    r->is_short =
        loader_step_samples(r->rank->loader, step) < loader_step_samples(r->rank->loader, 0);
}

status run_records_step_ends(run_records *r)
{
    if (r->events != NULL && !r->has_stepped)
        event_log_first_step(r->events, &r->step);
    r->has_stepped = true;
    return count_step(r);
}

status run_records_publish_step(run_records *r, const step_facts *f, const score *totals)
{
    bool shows = progress_wants_step(r->progress, f->step, f->steps), keeps = keeps_step(r, f);
    if (!shows && !keeps)
        return STATUS_OK;
    TRY(run_records_say(r));
    TRY(readback_start(&r->totals, totals));
    r->late = *f;
    r->late.now_ns = clock_now_ns();
    r->shows = shows;
    r->keeps = keeps;
    bool is_there = r->totals.dev->ops->accelerator == NULL;
    return is_there ? run_records_say(r) : STATUS_OK;
}

status run_records_say(run_records *r)
{
    if (!r->totals.under_way)
        return STATUS_OK;
    TRY(readback_wait(&r->totals));
    const score *totals = r->totals.seen;
    r->late.loss = totals->last_loss;
    r->late.grad_norm = totals->grad_norm;
    if (r->keeps)
        keep_step(r, &r->late);
    if (r->shows)
        progress_step(r->progress, &r->late);
    return STATUS_OK;
}

status run_records_flush(run_records *r)
{
    TRY(run_records_say(r));
    run_records_keep(r);
    return STATUS_OK;
}

void run_records_keep(run_records *r)
{
    metrics_flush(r->metrics);
}

void run_records_test(run_records *r, const test_facts *f)
{
    keep_test(r, f);
    progress_test(r->progress, f);
}

void run_records_epoch(run_records *r, const epoch_facts *f)
{
    keep_epoch(r, f);
    progress_epoch(r->progress, f);
    count_epoch(r, f);
}

void run_records_checkpoint(run_records *r, status st)
{
    if (st == STATUS_OK)
        return;
    LOG_E("checkpoint not written: %s", status_text());
    r->result->failed_checkpoints++;
}
