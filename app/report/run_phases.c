#include "app/report/run_phases.h"

#include "app/common/run_files.h"
#include "app/report/chart.h"
#include "app/report/html.h"
#include "app/report/run_tables.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
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

void run_phases_write(FILE *out, const run_data *runs, int n)
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
