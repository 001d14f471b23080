#include "app/train/report.h"

#include "app/modes/replicas.h"
#include "app/nccl_record.h"
#include "app/version.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "dist/chunk.h"
#include "kernels/ops.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define MIB (1024.0 * 1024.0)

enum { BAR_INTERVAL_NS = 100000000, BAR_CELLS = 30 };

static report_style style_of(const options *o, FILE *out)
{
    if (o->quiet)
        return REPORT_SILENT;
    if (strcmp(o->log_format, "pytorch") == 0)
        return REPORT_PYTORCH;
    const char *term = getenv("TERM");
    /* A launched rank's stderr is a pipe to the launcher, which says where it leads. */
    bool forwarded = out == stderr && getenv("MNIST_DDP_LOG_TTY") != NULL;
    bool terminal = (isatty(fileno(out)) || forwarded) && term != NULL && strcmp(term, "dumb") != 0;
    return strcmp(o->log_format, "auto") == 0 && o->progress && terminal ? REPORT_BAR
                                                                         : REPORT_PLAIN;
}

report report_open(const job *j)
{
    report r = {.j = j, .out = j->opts->json ? stderr : stdout, .prints = j->place.rank == 0};
    r.style = r.prints ? style_of(j->opts, r.out) : REPORT_SILENT;
    return r;
}

void report_line(report *r, const char *fmt, ...)
{
    if (!r->prints || r->j->opts->quiet)
        return;
    va_list args;
    va_start(args, fmt);
    vfprintf(r->out, fmt, args);
    va_end(args);
    fputc('\n', r->out);
    fflush(r->out);
}

static const char *backend_of(const job *j)
{
    return j->others != NULL ? replicas_backend(j->others) : process_group_backend(j->group);
}

void report_header(report *r, const char *run_dir, int64_t start_epoch, int64_t start_step)
{
    if (r->style == REPORT_PYTORCH)
        return;
    const job *j = r->j;
    const options *o = j->opts;
    report_line(r, "mnist_ddp %s: %s, %zu parameters, %s, lr %g, gamma %g, seed %lld",
                MNIST_DDP_VERSION, model_kind_name(j->model), network_count(j->net),
                optimizer_kind_name(j->optimizer.kind), j->lr, o->gamma, (long long)o->seed);
    char accum[32] = "";
    if (o->accum > 1)
        snprintf(accum, sizeof accum, " x accum %lld", (long long)o->accum);
    bool has_replicas = j->others != NULL, is_ddp = j->mode == &step_ddp;
    report_line(r,
                "%s%s%s: %d x batch %d%s = global batch %lld; backend %s; device %s, %d thread%s "
                "per %s",
                is_ddp ? "" : "mode ", is_ddp ? "" : j->mode->name,
                is_ddp         ? "ranks"
                : has_replicas ? ", replicas"
                               : ", ranks",
                has_replicas ? j->replicas : j->place.world_size,
                has_replicas ? chunk_size(j->batch_size, j->replicas) : j->batch_size, accum,
                (long long)job_global_batch(j), backend_of(j), j->dev->ops->name, j->threads,
                j->threads == 1 ? "" : "s", has_replicas ? "replica" : "rank");
    if (j->dev->emulation != NULL)
        report_line(r, "NO GPU: %s", j->dev->emulation);
    const char *folder = j->location.folder[0] != '\0' ? j->location.folder : "in memory";
    report_line(r, "data: %s (%s), %u train and %u test images", folder, j->location.found_by,
                j->train_set.count, j->test_set.count);
    if (j->location.embedded)
        report_line(r, "      these are generated digits, NOT MNIST: name the real files with "
                       "--data-dir DIR");
    report_line(r, "results: %s", run_dir);
    if (start_epoch > 0 || start_step > 0)
        report_line(r, "resuming behind epoch %lld, step %lld", (long long)start_epoch,
                    (long long)start_step);
}

void report_epoch_start(report *r)
{
    r->epoch_started_ns = clock_now_ns();
    r->next_bar_ns = 0;
}

static void draw_bar(report *r, const step_line *line, double loss)
{
    r->next_bar_ns = clock_now_ns() + BAR_INTERVAL_NS;
    char bar[BAR_CELLS + 1];
    int full = BAR_CELLS * (line->step + 1) / line->steps;
    memset(bar, '=', (size_t)full);
    memset(bar + full, ' ', (size_t)(BAR_CELLS - full));
    bar[BAR_CELLS] = '\0';
    double elapsed = clock_seconds(line->now_ns - r->epoch_started_ns);
    double speed = (double)line->samples * r->j->place.world_size / (elapsed > 0 ? elapsed : 1);
    fprintf(r->out, "\repoch %lld/%lld [%s] %d/%d loss %.4f %.0f images/s\033[K",
            (long long)line->epoch + 1, (long long)r->j->opts->epochs, bar, line->step + 1,
            line->steps, loss, speed);
    fflush(r->out);
}

bool report_wants_step(const report *r, int step, int steps)
{
    if (r->style == REPORT_BAR)
        return step + 1 == steps || clock_now_ns() >= r->next_bar_ns;
    return r->style != REPORT_SILENT && step % r->j->opts->log_interval == 0;
}

void report_step(report *r, const step_line *line, double loss)
{
    const options *o = r->j->opts;
    if (r->style == REPORT_BAR) {
        draw_bar(r, line, loss);
        return;
    }
    if (r->style == REPORT_PYTORCH) {
        fprintf(r->out, "Train Epoch: %lld [%lld/%u (%.0f%%)]\tLoss: %.6f\n",
                (long long)line->epoch + 1, (long long)line->step * line->batch_n * o->accum,
                r->j->train_set.count, 100.0 * line->step / line->steps, loss);
    } else {
        fprintf(r->out, "epoch %lld/%lld step %d/%d loss %.4f\n", (long long)line->epoch + 1,
                (long long)o->epochs, line->step + 1, line->steps, loss);
    }
    fflush(r->out);
}

void report_epoch(report *r, int64_t epoch, double train_s, int64_t images, double train_loss,
                  const evaluation *test)
{
    if (r->style == REPORT_BAR)
        fputs("\r\033[K", r->out);
    char tested[96] = "";
    if (test != NULL)
        snprintf(tested, sizeof tested, ", test loss %.4f, accuracy %.2f%% (%lld/%lld)", test->loss,
                 100 * evaluation_accuracy(test), (long long)test->correct,
                 (long long)test->images);
    if (r->style == REPORT_PYTORCH && test != NULL)
        report_line(r, "\nTest set: Average loss: %.4f, Accuracy: %lld/%lld (%.0f%%)\n", test->loss,
                    (long long)test->correct, (long long)test->images,
                    100 * evaluation_accuracy(test));
    if (r->style != REPORT_PYTORCH)
        report_line(r, "epoch %lld/%lld: %.2f s, %.0f images/s, train loss %.4f%s",
                    (long long)epoch + 1, (long long)r->j->opts->epochs, train_s,
                    (double)images / train_s, train_loss, tested);
}

/* Three decimals: as many as the clocks are good for. */
static double rounded(double value, double per_unit)
{
    return round(value * per_unit) / per_unit;
}

static json_t *seconds(int64_t ns)
{
    return json_real(rounded(clock_seconds(ns), 1e6));
}

static void add_phases(json_t *object, const timeline *time, const run_results *results)
{
    static const moment also_outside[] = {MOMENT_LOAD, MOMENT_FORWARD, MOMENT_BACKWARD,
                                          MOMENT_OPTIMIZER, MOMENT_ACCELERATOR};
    json_t *all = json_object();
    for (int i = 0; i < N_PHASES; i++)
        if (i != MOMENT_WAITING || results->knows_waiting)
            json_object_set_new(all, moment_about((moment)i)->name, seconds(time->ns[i]));
    json_object_set_new(object, "phases", all);
    for (size_t i = 0; i < sizeof also_outside / sizeof also_outside[0]; i++)
        json_object_set_new(object, moment_about(also_outside[i])->name,
                            seconds(time->ns[also_outside[i]]));
    if (results->knows_exposed)
        json_object_set_new(object, "comm_exposed", seconds(timeline_exposed_ns(time)));
    if (results->comm_ns >= 0) {
        json_object_set_new(object, "comm_total", seconds(results->comm_ns));
        json_object_set_new(object, "comm", seconds(results->comm_ns));
    }
}

/* Per optimizer step. */
static void add_bytes(json_t *object, const run_results *results)
{
    const struct {
        const char *name;
        int64_t total;
    } all[] = {{"sent", results->bytes.sent},
               {"received", results->bytes.received},
               {"sent_busiest", results->busiest.sent},
               {"received_busiest", results->busiest.received}};
    json_t *bytes = json_object();
    int64_t steps = results->steps > 0 ? results->steps : 1;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        json_object_set_new(bytes, all[i].name, json_integer((all[i].total + steps / 2) / steps));
    json_object_set_new(object, "bytes", bytes);
    json_t *peaks = json_array();
    for (int i = 0; i < results->n_peaks; i++)
        json_array_append_new(peaks, json_real(rounded((double)results->peaks[i] / MIB, 1e3)));
    json_object_set_new(object, "peak_mib", peaks);
}

/* What the device's libraries chose, or would not do: an array per library. */
static json_t *libraries_of(const device *dev)
{
    json_t *all = json_object();
    device_choice c;
    for (int i = 0; dev->ops->choice != NULL && dev->ops->choice(dev, i, &c); i++) {
        if (json_object_get(all, c.library) == NULL)
            json_object_set_new(all, c.library, json_array());
        json_t *one = json_object();
        json_object_set_new(one, "subject", json_string(c.subject));
        json_object_set_new(one, "pass", json_string(c.pass));
        json_object_set_new(one, "batch", json_integer(c.batch));
        json_object_set_new(one, "piece", json_integer(c.piece));
        json_object_set_new(one, "engine", json_integer(c.engine));
        json_object_set_new(one, "workspace_bytes", json_integer(c.workspace_bytes));
        json_object_set_new(one, "notes", json_string(c.notes));
        json_array_append_new(json_object_get(all, c.library), one);
    }
    return all;
}

status report_json(const job *j, const run_results *results, char **out)
{
    json_t *object = json_object(), *train_s = json_array();
    double best = HUGE_VAL;
    for (int i = 0; i < results->epochs; i++) {
        json_array_append_new(train_s, json_real(rounded(results->train_s[i], 1e6)));
        best = fmin(best, results->train_s[i]);
    }
    double speed = results->epochs > 0 ? (double)results->images_per_epoch / best : 0;
    json_object_set_new(object, "system", json_string("mnist_ddp " MNIST_DDP_VERSION));
    json_object_set_new(object, "mode", json_string(j->mode->name));
    json_object_set_new(object, "world", json_integer(j->place.world_size));
    json_object_set_new(object, "replicas", json_integer(j->replicas));
    json_object_set_new(object, "model", json_string(model_kind_name(j->model)));
    json_object_set_new(object, "backend", json_string(backend_of(j)));
    if (strcmp(backend_of(j), "nccl") == 0)
        json_object_set_new(object, "nccl", nccl_record());
    json_object_set_new(object, "device", json_string(j->dev->ops->name));
    json_object_set_new(object, "threads", json_integer(j->threads));
    json_object_set_new(object, "precision", json_string(precision_name(j->dev->precision)));
    if (j->dev->stream != NULL) {
        json_object_set_new(object, "gpu", json_string(j->dev->description));
        json_object_set_new(object, "graph", json_boolean(results->graph));
        json_object_set_new(object, "emulated", json_boolean(j->dev->emulation != NULL));
        json_object_set_new(object, "libraries", libraries_of(j->dev));
    }
    json_object_set_new(object, "batch", json_integer(j->batch_size));
    json_object_set_new(object, "global_batch", json_integer(job_global_batch(j)));
    json_object_set_new(object, "images_per_epoch", json_integer(results->images_per_epoch));
    json_object_set_new(object, "train_s", train_s);
    json_object_set_new(object, "images_per_s", json_integer((json_int_t)speed));
    json_object_set_new(object, "setup_s", json_real(rounded(results->setup_s, 1e6)));
    bool tested = results->test.images > 0;
    json_object_set_new(object, "eval_s",
                        tested ? json_real(rounded(results->test.elapsed_s, 1e6)) : json_null());
    json_object_set_new(object, "test_acc",
                        tested ? json_real(evaluation_accuracy(&results->test)) : json_null());
    json_object_set_new(object, "last_loss", json_real(rounded(results->last_loss, 1e4)));
    json_object_set_new(object, "rss_mib", json_integer(results->rss_mib));
    json_object_set_new(object, "private_mib", json_integer(results->private_mib));
    json_object_set_new(object, "steps", json_integer(results->steps));
    json_object_set_new(object, "failed_checkpoints", json_integer(results->failed_checkpoints));
    add_phases(object, &j->timeline, results);
    add_bytes(object, results);
    status st = json_text_print(object, JSON_COMPACT | JSON_REAL_PRECISION(10), out);
    json_decref(object);
    return st;
}
