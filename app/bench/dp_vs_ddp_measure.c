#include "app/bench/dp_vs_ddp.h"
#include "base/clock.h"
#include "base/log.h"
#include "dist/plain_message.h"

#include <math.h>
#include <string.h>

enum { GIVE_UP = 2 }; /* failures in a row: as often as a case is tried in vain */

static const double PEER_ACCURACY =
    0.85; /* under it a run has not learned: its speed is no one's */

/* A run of PyTorch that does not learn is not measured against. */
static status check_peer(const bench_sample *s)
{
    if (!isfinite(s->last_loss) || !(s->test_acc >= PEER_ACCURACY))
        return FAIL(STATUS_PEER, "does not count: loss %g, accuracy %.1f %% (at least %.0f %%)",
                    s->last_loss, 100 * s->test_acc, 100 * PEER_ACCURACY);
    return STATUS_OK;
}

static status measure_one(const bench_commands *commands, bench_child *place, bench_row *row,
                          bench_sample *out)
{
    bench_words words;
    json_t *line = NULL;
    bench_commands_make(commands, row->c, &words);
    bench_words_line(&words, row->command, sizeof row->command);
    bench_child_tidy(place);
    status st = bench_child_run(place, &words, &line);
    if (st == STATUS_OK)
        st = bench_sample_read(line, (int)commands->opts->warmup, row->c->global_batch, out);
    if (st == STATUS_OK && row->c->torch)
        st = check_peer(out);
    json_decref(line);
    return st;
}

/* How far this is, for whoever waits. */
typedef struct pace {
    int64_t started_ns;
    int done, all;
} pace;

static void tell(pace *p, const char *name, int repeat, int repeats, const bench_sample *s)
{
    p->done++;
    double left_s = clock_seconds(clock_now_ns() - p->started_ns) * (p->all - p->done) / p->done;
    LOG_I("repeat %d of %d, run %d of %d: %s: %.0f images/s; about %.0f s left", repeat + 1,
          repeats, p->done, p->all, name, s->images_per_s, left_s);
}

void dp_vs_ddp_measure(const bench_commands *commands, bench_child *place, bench_rows *rows)
{
    char name[BENCH_CASE_BYTES];
    int n = rows->cases->count;
    pace p = {clock_now_ns(), 0, n * rows->repeats};
    for (int repeat = 0; repeat < rows->repeats; repeat++)
        for (int i = 0; i < n && !bench_child_stopped(place); i++) {
            bench_row *row = &rows->list[i];
            bench_case_name(row->c, name);
            if (row->failures >= GIVE_UP)
                continue;
            status st = measure_one(commands, place, row, &row->samples[repeat]);
            if (place->stopped)
                return;
            if (st == STATUS_OK) {
                row->counts[repeat] = true;
                row->failures = 0;
                tell(&p, name, repeat, rows->repeats, &row->samples[repeat]);
                continue;
            }
            plain_message(row->failure, sizeof row->failure);
            row->failures++;
            bool gives_up = row->failures >= GIVE_UP;
            p.all -= gives_up ? rows->repeats - repeat : 1;
            LOG_W("%s: %s%s", name, row->failure, gives_up ? "; it is not tried again" : "");
        }
}
