#include "app/report/run_tables.h"

#include "app/report/html.h"

#include <stdbool.h>
#include <string.h>

typedef struct tables {
    FILE *out;
    const run_data *runs;
    int n;
} tables;

static const json_t *facts_of(const run_data *run)
{
    const json_t *facts = json_object_get(run->config, "run");
    return facts != NULL ? facts : run->result;
}

/* Whether a run before `run` has this name under `key`: then it has its row. */
static bool has_row(const tables *t, int run, const char *key, const char *name)
{
    for (int before = 0; before < run; before++)
        if (json_object_get(json_object_get(t->runs[before].config, key), name) != NULL)
            return true;
    return false;
}

void run_tables_key(FILE *out, const run_data *run, int colour)
{
    fprintf(out, "<span class=\"key\" style=\"background:var(--c%d)\"></span>", colour);
    html_text(out, run->name);
}

/* The setting's value. */
static void setting_text(const run_data *run, const char *name, char out[RUN_DATA_TEXT_BYTES])
{
    const json_t *settings = json_object_get(run->config, "settings");
    run_data_text(json_object_get(json_object_get(settings, name), "value"), out);
}

/* The value that the run had: of a setting that was not given, what came of it. */
static void effective_text(const run_data *run, const char *name, char out[RUN_DATA_TEXT_BYTES])
{
    setting_text(run, name, out);
    if (out[0] == '\0')
        run_data_text(json_object_get(facts_of(run), name), out);
}

static void fact_text(const run_data *run, const char *name, char out[RUN_DATA_TEXT_BYTES])
{
    const json_t *value = json_object_get(facts_of(run), name);
    run_data_text(json_is_array(value) ? json_array_get(value, 0) : value, out);
    if (json_array_size(value) > 1)
        snprintf(out + strlen(out), RUN_DATA_TEXT_BYTES - strlen(out), " and %zu more",
                 json_array_size(value) - 1);
}

static bool is_default(const tables *t, const char *name)
{
    for (int run = 0; run < t->n; run++) {
        const json_t *setting =
            json_object_get(json_object_get(t->runs[run].config, "settings"), name);
        const char *origin = json_string_value(json_object_get(setting, "origin"));
        if (origin != NULL && strcmp(origin, "default") != 0)
            return false;
    }
    return true;
}

typedef void text_fn(const run_data *run, const char *name, char out[RUN_DATA_TEXT_BYTES]);

static bool differs(const tables *t, const char *name, text_fn *text_of)
{
    char first[RUN_DATA_TEXT_BYTES], text[RUN_DATA_TEXT_BYTES];
    text_of(&t->runs[0], name, first);
    for (int run = 1; run < t->n; run++) {
        text_of(&t->runs[run], name, text);
        if (strcmp(first, text) != 0)
            return true;
    }
    return false;
}

static void put_row(tables *t, const char *name, text_fn *text_of)
{
    char text[RUN_DATA_TEXT_BYTES];
    fprintf(t->out, "<tr%s><td>", differs(t, name, text_of) ? " class=\"differs\"" : "");
    html_text(t->out, name);
    fputs("</td>", t->out);
    for (int run = 0; run < t->n; run++) {
        text_of(&t->runs[run], name, text);
        fputs("<td>", t->out);
        html_text(t->out, text);
        fputs("</td>", t->out);
    }
    fputs("</tr>\n", t->out);
}

static void begin_table(tables *t)
{
    fputs("<div class=\"wide\"><table>\n", t->out);
    if (t->n < 2)
        return;
    fputs("<thead><tr><th></th>", t->out);
    for (int run = 0; run < t->n; run++) {
        fputs("<th>", t->out);
        run_tables_key(t->out, &t->runs[run], run);
        fputs("</th>", t->out);
    }
    fputs("</tr></thead>\n", t->out);
}

static void end_table(tables *t)
{
    fputs("</table></div>\n", t->out);
}

/* Several runs show the rows in which they differ, one run those that are not its defaults: the
 * others are folded away. */
static bool is_folded(const tables *t, const char *name, text_fn *text_of)
{
    return t->n > 1 ? !differs(t, name, text_of) : is_default(t, name);
}

static void put_settings(tables *t, bool folded)
{
    const json_t *value;
    const char *name;
    begin_table(t);
    for (int run = 0; run < t->n; run++)
        json_object_foreach(json_object_get(t->runs[run].config, "settings"), name, value)
        {
            if (!has_row(t, run, "settings", name) && is_folded(t, name, effective_text) == folded)
                put_row(t, name, t->n > 1 ? effective_text : setting_text);
        }
    end_table(t);
}

static void put_command(tables *t, const run_data *run)
{
    const json_t *word;
    size_t i;
    fputs("<p><code>", t->out);
    json_array_foreach(json_object_get(run->config, "command"), i, word)
    {
        fputs(i > 0 ? " " : "", t->out);
        html_text(t->out, json_string_value(word));
    }
    fputs("</code></p>\n", t->out);
}

static void put_facts(tables *t, bool folded)
{
    const json_t *value;
    const char *name;
    begin_table(t);
    for (int run = 0; run < t->n; run++)
        json_object_foreach(json_object_get(t->runs[run].config, "run"), name, value)
        {
            if (!has_row(t, run, "run", name) &&
                (t->n > 1 && !differs(t, name, fact_text)) == folded)
                put_row(t, name, fact_text);
        }
    end_table(t);
}

/* Settings that say where a run's files are and what it prints, not what it trains. */
static bool is_aside(const char *name)
{
    static const char *const names[] = {
        "run_dir", "resume", "quiet",      "json",       "progress", "log_format", "log_interval",
        "keep",    "config", "save_every", "save_model", "trace",    "trace_steps"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

/* "lr 1 | 0.1" */
static void put_difference(tables *t, const char *name, text_fn *text_of)
{
    char text[RUN_DATA_TEXT_BYTES];
    fputs("<b>", t->out);
    html_text(t->out, name);
    fputs("</b>", t->out);
    for (int run = 0; run < t->n; run++) {
        text_of(&t->runs[run], name, text);
        fputs(run > 0 ? " | " : " ", t->out);
        html_text(t->out, text[0] != '\0' ? text : "\u2013");
    }
}

void run_tables_differences(FILE *out, const run_data *runs, int n)
{
    static const char *const facts[] = {"world", "device", "gpu", "processor", "system"};
    tables all = {out, runs, n}, *t = &all;
    const json_t *value;
    const char *name, *before = "<p>They differ in: ";
    for (int run = 0; run < n; run++)
        json_object_foreach(json_object_get(runs[run].config, "settings"), name, value)
        {
            if (is_aside(name) || has_row(t, run, "settings", name) ||
                !differs(t, name, effective_text))
                continue;
            fputs(before, out);
            put_difference(t, name, effective_text);
            before = "; ";
        }
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        if (differs(t, facts[i], fact_text)) {
            fputs(before, out);
            put_difference(t, facts[i], fact_text);
            before = "; ";
        }
    fputs(before[0] == ';' ? "</p>\n" : "<p>They have the same settings.</p>\n", out);
}

void run_tables_write(FILE *out, const run_data *runs, int n)
{
    tables all = {out, runs, n}, *t = &all;
    fputs(n == 1 ? "<div class=\"charts\">\n<div>\n" : "", t->out);
    html_tagged(t->out, "h2", "Settings");
    for (int run = 0; run < t->n; run++)
        put_command(t, &t->runs[run]);
    put_settings(t, false);
    fprintf(t->out, "<details><summary>the others, which %s</summary>\n",
            n > 1 ? "are the same in all runs" : "have their defaults");
    put_settings(t, true);
    fputs("</details>\n", t->out);
    fputs(n == 1 ? "</div>\n<div>\n" : "", t->out);
    html_tagged(t->out, "h2", "The run and its machine");
    put_facts(t, false);
    if (n > 1) {
        fputs("<details><summary>what is the same in all runs</summary>\n", t->out);
        put_facts(t, true);
        fputs("</details>\n", t->out);
    }
    fputs(n == 1 ? "</div>\n</div>\n" : "", t->out);
}
