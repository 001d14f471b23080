#include "app/report/run_page.h"

#include "app/common/run_files.h"
#include "app/report/chart.h"
#include "app/report/html.h"
#include "app/report/run_charts.h"
#include "app/report/run_data.h"
#include "app/report/run_eval.h"
#include "app/report/run_tables.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As docs/modes.md has it. A phase has one colour in all bars; scatter and gather share theirs. */
static const struct {
    const char *name, *meaning;
    int colour;
} KINDS[] = {
    {"data", "indices to pixels, on the device", 0},
    {"broadcast", "parameters on the move", 6},
    {"scatter", "inputs on their way to the replicas", 7},
    {"forward", "the network's outputs and the loss", 1},
    {"gather", "outputs on their way to the master", 7},
    {"backward", "the gradients, and all that is sent meanwhile", 2},
    {"reduce", "gradients on the move that backward does not hide", 3},
    {"waiting", "for a rank or replica that has not come yet", 4},
    {"optimizer", "the new weights", 5},
    {"accelerator", "a replayed CUDA graph, which is all of a step", 2},
};
enum { N_KINDS = sizeof KINDS / sizeof KINDS[0] };

/* One part of a bar, or its legend: a phase that took time. */
typedef struct part {
    int kind;
    double seconds, share;
} part;

enum { SPAN_BYTES = 128 };

/* Of the steps' time, from which on waiting has a sentence of its own. */
static const double MUCH = 0.2;

/* Returns how many there are. */
static int list_parts(const json_t *phases, part out[N_KINDS])
{
    double total = 0;
    int n = 0;
    for (int kind = 0; kind < N_KINDS; kind++) {
        double seconds = json_number_value(json_object_get(phases, KINDS[kind].name));
        if (seconds > 0)
            out[n++] = (part){.kind = kind, .seconds = seconds};
        total += seconds;
    }
    for (int i = 0; i < n; i++)
        out[i].share = out[i].seconds / total;
    return n;
}

/* Which steps the phases are of, if the run was resumed; else "". */
static void span_text(const run_data *run, char out[SPAN_BYTES])
{
    const json_t *starts = json_object_get(run->config, "starts");
    const char *date = json_string_value(json_object_get(run->result, "date"));
    size_t n = json_array_size(starts), at = n;
    out[0] = '\0';
    while (date != NULL && at > 0) {
        const char *of_start =
            json_string_value(json_object_get(json_array_get(starts, --at), "date"));
        if (of_start == NULL || strcmp(of_start, date) != 0)
            continue;
        double from = run_data_number(json_array_get(starts, at), "step");
        double to = run_data_number(json_array_get(starts, at + 1), "step");
        if (from > 0)
            snprintf(out, SPAN_BYTES, ", since the resume at step %.0f", from);
        if (isfinite(to))
            snprintf(out + strlen(out), SPAN_BYTES - strlen(out), ", until the resume at step %.0f",
                     to);
        return;
    }
}

static void put_bar(FILE *out, const part *parts, int n)
{
    fputs("<div class=\"bar\">", out);
    for (int i = 0; i < n; i++)
        fprintf(out, "<span style=\"flex:%.4f;background:var(--c%d)\"></span>", parts[i].share,
                KINDS[parts[i].kind].colour);
    fputs("</div>\n<p class=\"faint\">", out);
    for (int i = 0; i < n; i++) {
        fprintf(out,
                "<span class=\"part\"><span class=\"key\" style=\"background:var(--c%d)\"></span>",
                KINDS[parts[i].kind].colour);
        fputs(KINDS[parts[i].kind].name, out);
        fprintf(out, " %.3g s (%.1f %%)</span> ", parts[i].seconds, 100 * parts[i].share);
    }
    fputs("</p>\n", out);
}

/* Whom rank 0 waited for, as far as rank 0 knows: with two ranks it was the other one. */
static void put_lateness(FILE *out, const run_data *run, const part *waiting)
{
    int world = (int)json_integer_value(json_object_get(run->result, "world"));
    bool dp = json_integer_value(json_object_get(run->result, "replicas")) > 1;
    if (waiting->share < MUCH || (world < 2 && !dp))
        return;
    fprintf(out, "<p>%.0f %% of the time rank 0 waited for ", 100 * waiting->share);
    if (dp)
        fputs("replicas, which came later.</p>\n", out);
    else if (world == 2)
        fputs("rank 1, which came later.</p>\n", out);
    else
        fputs("other ranks, which came later; <code>--trace FILE</code> shows which.</p>\n", out);
}

static void put_note(FILE *out, const run_data *run)
{
    const char *note = json_string_value(json_object_get(run->result, "bind_note"));
    if (json_integer_value(json_object_get(run->result, "world")) < 2 || note == NULL ||
        note[0] == '\0')
        return;
    fputs("<p>Rank 0 was not bound to cores of its own: ", out);
    html_text(out, note);
    fputs(".</p>\n", out);
}

static const char *heading(const run_data *runs, int n, char text[2 * SPAN_BYTES])
{
    char span[SPAN_BYTES];
    span_text(&runs[0], span);
    snprintf(text, 2 * SPAN_BYTES, "Where the steps' time went, on rank 0%s", n == 1 ? span : "");
    return text;
}

/* Notes in `shown` what stands in the bar. */
static void put_run(FILE *out, const run_data *run, bool shown[N_KINDS])
{
    const json_t *phases = json_object_get(run->result, "phases");
    part parts[N_KINDS];
    int n = list_parts(phases, parts);
    if (n == 0) {
        fputs("<p>Known if the run ends: rank 0 then writes " RUN_FILE_RESULT ".</p>\n", out);
        return;
    }
    put_bar(out, parts, n);
    for (int i = 0; i < n; i++) {
        const char *name = KINDS[parts[i].kind].name;
        shown[parts[i].kind] = true;
        if (strcmp(name, "waiting") == 0)
            put_lateness(out, run, &parts[i]);
    }
    put_note(out, run);
}

/* A heading and a bar per run. A run without phases, as one that goes on or was interrupted, has a
 * sentence. */
static void run_phases_write(FILE *out, const run_data *runs, int n)
{
    bool shown[N_KINDS] = {false};
    char text[2 * SPAN_BYTES];
    const char *before = "<p class=\"faint\">";
    html_tagged(out, "h2", heading(runs, n, text));
    for (int run = 0; run < n; run++) {
        if (n > 1) {
            fputs("<div>", out);
            run_tables_key(out, &runs[run], run);
            span_text(&runs[run], text);
            fprintf(out, "%s</div>\n", text);
        }
        put_run(out, &runs[run], shown);
    }
    for (int kind = 0; kind < N_KINDS; kind++) {
        if (!shown[kind])
            continue;
        fprintf(out, "%s<b>%s</b>: %s", before, KINDS[kind].name, KINDS[kind].meaning);
        before = "; ";
    }
    fputs(before[0] == ';' ? ".</p>\n" : "", out);
}

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
