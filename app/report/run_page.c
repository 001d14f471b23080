#include "app/report/run_page.h"

#include "app/common/run_files.h"
#include "app/report/chart.h"
#include "app/report/html.h"
#include "app/report/image.h"
#include "app/report/run_charts.h"
#include "app/report/run_data.h"
#include "app/report/run_eval.h"
#include "app/report/run_phases.h"
#include "app/report/run_tables.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text_stream.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char STYLE[] =
    ":root{color-scheme:light dark;--ink:#222;--page:#fff;--soft:#f4f4f4}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e6e6;--page:#16181b;--soft:#23262b}}\n"
    "body{font:16px/1.5 sans-serif;margin:1.5rem auto;max-width:80rem;padding:0 1rem;"
    "color:var(--ink);background:var(--page)}\n"
    "h1,h2,h3{line-height:1.2;overflow-wrap:anywhere}\nh2{margin-top:2.2rem}\n"
    "h3{font-size:1rem;margin:0 0 .3rem}\np+h3,div+h3{margin-top:1.8rem}\n"
    ".charts{display:grid;gap:1.5rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,28rem),"
    "1fr))}\n"
    "figure{margin:0;min-width:0}\n.faint{color:var(--faint);font-size:.85rem}\n"
    ".tiles{display:flex;flex-wrap:wrap;gap:.8rem}\n"
    ".tiles div{background:var(--soft);border-radius:.4rem;padding:.5rem .9rem}\n"
    ".tiles b{display:block;font-size:1.4rem;font-weight:600}\n"
    ".key{display:inline-block;width:.8rem;height:.8rem;border-radius:.2rem;margin-right:.4rem}\n"
    ".wide{overflow-x:auto}\ntable{border-collapse:collapse;font-size:.85rem}\n"
    "th,td{padding:.25rem .7rem;text-align:left;border-bottom:1px solid var(--grid);"
    "vertical-align:top;overflow-wrap:anywhere}\nth,td.n{overflow-wrap:normal}\n"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}\ntr.differs "
    "td{background:var(--soft)}"
    "\ncode{background:var(--soft);padding:.1em .3em;overflow-wrap:anywhere}\n"
    "summary{cursor:pointer;margin:.6rem 0}\n"
    ".bar{display:flex;height:1.4rem;border-radius:.2rem;overflow:hidden;margin:.3rem 0}\n"
    ".bar span{min-width:1px}\n.part{white-space:nowrap;margin-right:.8rem}\n";

/* The page while it is written. */
typedef struct page {
    FILE *out;
    run_data runs[RUN_PAGE_MAX];
    int n;
} page;

/* The last line that has a value under `key`; NULL. With `best`, the line with the greatest one. */
static const json_t *find_line(const run_data *run, const char *key, bool best)
{
    const json_t *found = NULL;
    for (size_t i = 0; i < json_array_size(run->lines); i++) {
        const json_t *line = json_array_get(run->lines, i);
        double value = run_data_number(line, key);
        if (isfinite(value) && (!best || found == NULL || value > run_data_number(found, key)))
            found = line;
    }
    return found;
}

/* Of the run's fastest epoch, in any of its sessions. A run without such lines has the figure of
 * its result, which is that of the last session. */
static double best_rate(const run_data *run)
{
    double best = (double)NAN;
    for (size_t i = 0; i < json_array_size(run->lines); i++) {
        const json_t *line = json_array_get(run->lines, i);
        const char *event = json_string_value(json_object_get(line, "event"));
        if (event != NULL && strcmp(event, "epoch") == 0)
            best = fmax(best, run_data_number(line, "images_per_s"));
    }
    return isfinite(best) ? best : run_data_number(run->result, "images_per_s");
}

/* Whether the result is that of the run's last start: else its last session is under way, or was
 * interrupted. */
static bool has_ended(const run_data *run)
{
    const char *of_result = json_string_value(json_object_get(run->result, "date"));
    const char *of_start = json_string_value(json_object_get(run->config, "date"));
    return run->result != NULL &&
           (of_result == NULL || of_start == NULL || strcmp(of_result, of_start) == 0);
}

/* What a run has come to, as a row of a table or as a tile. */
typedef struct outcome {
    const char *name;
    char text[RUN_DATA_TEXT_BYTES];
} outcome;

enum { OUTCOMES = 8 };

static void say(outcome *o, const char *name, const char *fmt, double value)
{
    o->name = name;
    if (isfinite(value))
        snprintf(o->text, sizeof o->text, fmt, value);
    else
        strcpy(o->text, "\u2013");
}

/* Of the page's run with this number. */
static void find_outcomes(const page *p, int number, outcome out[OUTCOMES])
{
    const run_data *run = &p->runs[number];
    bool ended = true;
    for (int i = 0; i < p->n; i++)
        ended = ended && has_ended(&p->runs[i]);
    const json_t *last = find_line(run, "test_acc", false),
                 *best = find_line(run, "test_acc", true);
    const json_t *end = json_array_get(run->lines, json_array_size(run->lines) - 1);
    double accuracy = run_data_number(last, "test_acc");
    say(&out[0], "test accuracy", "%.2f %%",
        100 * (isfinite(accuracy) ? accuracy : run_data_number(run->result, "test_acc")));
    say(&out[1], "best test accuracy", "%.2f %%", 100 * run_data_number(best, "test_acc"));
    say(&out[2], "test loss", "%.4f", run_data_number(last, "test_loss"));
    say(&out[3], "training loss, last epoch", "%.4f",
        run_data_number(find_line(run, "train_loss", false), "train_loss"));
    say(&out[4], "images/s, best epoch", "%.0f", best_rate(run));
    say(&out[5], ended ? "steps" : "last logged step", "%.0f", run_data_number(end, "step"));
    say(&out[6], "seconds", "%.1f", run_data_number(end, "time_s"));
    say(&out[7], "best validation accuracy", "%.2f %%",
        100 * run_data_number(find_line(run, "val_acc", true), "val_acc"));
}

/* The last one only if a run has validation images. */
static int count_outcomes(const page *p)
{
    bool validated = false;
    for (int run = 0; run < p->n; run++)
        validated = validated || find_line(&p->runs[run], "val_acc", false) != NULL;
    return validated ? OUTCOMES : OUTCOMES - 1;
}

/* The page of one run lies beside its log. */
static void put_log(page *p)
{
    char path[FILE_PATH_BYTES];
    if (file_join(p->runs[0].folder, RUN_FILE_LOG, path) == STATUS_OK && file_exists(path))
        fputs(", <a href=\"" RUN_FILE_LOG "\">" RUN_FILE_LOG "</a>", p->out);
}

/* The run in a line: what was trained, how, when, and by what. */
static void put_subtitle(page *p)
{
    static const char *const facts[] = {"model", "optimizer_name", "mode", "world", "device"};
    static const char *const before[] = {"", " with ", ", ", ", world size ", ", on "};
    const json_t *run = json_object_get(p->runs[0].config, "run");
    const char *date = json_string_value(json_object_get(p->runs[0].config, "date"));
    char text[RUN_DATA_TEXT_BYTES];
    if (run == NULL || date == NULL)
        return;
    fputs("<p class=\"faint\">", p->out);
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        run_data_text(json_object_get(run, facts[i]), text);
        fputs(before[i], p->out);
        html_text(p->out, text);
    }
    fputs(", ", p->out);
    html_text(p->out, date);
    put_log(p);
    fputs("</p>\n", p->out);
}

static void put_tiles(page *p)
{
    outcome all[OUTCOMES];
    find_outcomes(p, 0, all);
    fputs("<div class=\"tiles\">\n", p->out);
    for (int i = 0; i < count_outcomes(p); i++)
        fprintf(p->out, "<div><b>%s</b>%s</div>\n", all[i].text, all[i].name);
    fputs("</div>\n", p->out);
}

static void put_run_table(page *p)
{
    outcome all[OUTCOMES];
    int n = count_outcomes(p);
    fputs("<div class=\"wide\"><table>\n<thead><tr><th>run</th>", p->out);
    find_outcomes(p, 0, all);
    for (int i = 0; i < n; i++)
        fprintf(p->out, "<th>%s</th>", all[i].name);
    fputs("</tr></thead>\n<tbody>\n", p->out);
    for (int run = 0; run < p->n; run++) {
        find_outcomes(p, run, all);
        fputs("<tr><td>", p->out);
        run_tables_key(p->out, &p->runs[run], run);
        fputs("</td>", p->out);
        for (int i = 0; i < n; i++)
            fprintf(p->out, "<td class=\"n\">%s</td>", all[i].text);
        fputs("</tr>\n", p->out);
    }
    fputs("</tbody>\n</table></div>\n", p->out);
}

/* Of a run with --trace: a few of its steps. A page without it is still a page. */
static void put_trace(page *p)
{
    char path[FILE_PATH_BYTES];
    status st = file_join(p->runs[0].folder, RUN_FILE_TRACE, path);
    if (p->n > 1 || (st == STATUS_OK && !file_exists(path)))
        return;
    fputs("<h2>What every rank did when</h2>\n"
          "<p class=\"faint\">Three steps. The trace's own page says more.</p>\n<figure>",
          p->out);
    if (st == STATUS_OK)
        st = image_write_svg(p->out, path, "width:100%", "every rank's spans of time");
    if (st != STATUS_OK)
        LOG_W("the report has no picture of the trace: %s", status_text());
    fputs("</figure>\n", p->out);
}

static status put_page(page *p)
{
    html_begin(p->out, p->n > 1 ? "Runs side by side" : p->runs[0].name,
               (const char *const[]){STYLE, CHART_STYLE, RUN_EVAL_STYLE, NULL});
    if (p->n > 1) {
        run_tables_differences(p->out, p->runs, p->n);
        put_run_table(p);
    } else {
        put_subtitle(p);
        put_tiles(p);
    }
    TRY(run_charts_write(p->out, p->runs, p->n));
    run_phases_write(p->out, p->runs, p->n);
    put_trace(p);
    TRY(run_eval_write(p->out, p->runs, p->n));
    run_tables_write(p->out, p->runs, p->n);
    html_end(p->out);
    return STATUS_OK;
}

static status write_page(page *p, const char *path)
{
    text_stream stream;
    TRY(text_stream_open(&stream));
    p->out = stream.file;
    return text_stream_save(&stream, put_page(p), path);
}

status run_page_write(const char *path, const char *const *folders, int n)
{
    page p = {0};
    status st = STATUS_OK;
    if (n > RUN_PAGE_MAX)
        return FAIL(STATUS_INVALID, "%d runs: one page shows at most %d", n, RUN_PAGE_MAX);
    for (; p.n < n && st == STATUS_OK; p.n += st == STATUS_OK)
        st = run_data_read(folders[p.n], &p.runs[p.n]);
    if (st == STATUS_OK)
        st = write_page(&p, path);
    for (int run = 0; run < p.n; run++)
        run_data_close(&p.runs[run]);
    return st;
}
