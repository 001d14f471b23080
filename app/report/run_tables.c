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

static void put_row(tables *t, const char *name, text_fn *text_of)
{
    char first[RUN_DATA_TEXT_BYTES], text[RUN_DATA_TEXT_BYTES];
    bool differs = false;
    text_of(&t->runs[0], name, first);
    for (int run = 1; run < t->n; run++) {
        text_of(&t->runs[run], name, text);
        differs = differs || strcmp(first, text) != 0;
    }
    fprintf(t->out, "<tr%s><td>", differs ? " class=\"differs\"" : "");
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

static void put_settings(tables *t, bool defaults)
{
    const json_t *value;
    const char *name;
    begin_table(t);
    for (int run = 0; run < t->n; run++)
        json_object_foreach(json_object_get(t->runs[run].config, "settings"), name, value)
        {
            if (!has_row(t, run, "settings", name) && is_default(t, name) == defaults)
                put_row(t, name, setting_text);
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

static void put_facts(tables *t)
{
    const json_t *value;
    const char *name;
    html_tagged(t->out, "h2", "The run and its machine");
    begin_table(t);
    for (int run = 0; run < t->n; run++)
        json_object_foreach(json_object_get(t->runs[run].config, "run"), name, value)
        {
            if (!has_row(t, run, "run", name))
                put_row(t, name, fact_text);
        }
    end_table(t);
}

void run_tables_write(FILE *out, const run_data *runs, int n)
{
    tables all = {out, runs, n}, *t = &all;
    fputs(n == 1 ? "<div class=\"charts\">\n<div>\n" : "", t->out);
    html_tagged(t->out, "h2", "Settings");
    for (int run = 0; run < t->n; run++)
        put_command(t, &t->runs[run]);
    put_settings(t, false);
    fputs("<details><summary>the others, which have their defaults</summary>\n", t->out);
    put_settings(t, true);
    fputs("</details>\n", t->out);
    fputs(n == 1 ? "</div>\n<div>\n" : "", t->out);
    put_facts(t);
    fputs(n == 1 ? "</div>\n</div>\n" : "", t->out);
}
