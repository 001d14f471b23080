#include "app/report/run_eval.h"

#include "app/common/json_value.h"
#include "app/common/run_files.h"
#include "app/report/html.h"
#include "app/report/run_tables.h"

#include <math.h>
#include <stdbool.h>

enum { CLASSES = 10, TEXT_BYTES = 160, FEW_MISTAKES = 6, SMALL_SIDE = 7 };

const char RUN_EVAL_STYLE[] =
    ":root{--hit:0,114,178;--miss:213,94,0}\n"
    "@media(prefers-color-scheme:dark){:root{--hit:90,180,240;--miss:255,147,80}}\n"
    ".confusion th,.confusion td{padding:.28rem .12rem;text-align:center;font-weight:normal;"
    "border:1px solid var(--grid);min-width:1.75rem;font-variant-numeric:tabular-nums}\n"
    ".confusion th:first-child{text-align:left;padding-right:.4rem}\n"
    ".confusion th,.confusion td,.classes th{white-space:nowrap;overflow-wrap:normal}\n"
    "@media(max-width:34rem){.confusion{font-size:.68rem}.classes th,.classes td{padding:.25rem "
    ".35rem}.confusion th,.confusion td{padding:.28rem .05rem;min-width:1.4rem}}\n"
    "@media(min-width:70rem){.confusion th,.confusion td{padding:.4rem .2rem;min-width:2.5rem}}\n"
    ".confusion .hit{background:rgba(var(--hit),var(--a));font-weight:600}\n"
    ".confusion .miss{background:rgba(var(--miss),var(--a))}\n"
    ".classes td{white-space:nowrap}\n.classes .share{width:40%;min-width:2.5rem}\n"
    ".share i{display:block;height:.8rem;margin-top:.3rem;background:rgb(var(--miss));"
    "border-radius:.15rem}\n"
    ".pictures{display:flex;flex-wrap:wrap;gap:.9rem}\n"
    ".pictures figure{width:5.6rem;font-size:.85rem;line-height:1.35}\n"
    ".pictures img{display:block;width:100%;image-rendering:pixelated;border-radius:.2rem;"
    "margin-bottom:.25rem}\n"
    ".filters{gap:.45rem}\n.filters img{width:3.6rem;margin:0;border:1px solid var(--grid)}\n"
    ".filters.large img{width:5.6rem}\n";

typedef struct section {
    FILE *out;
    const run_data *run;
    const json_t *eval;
    bool explained; /* else an earlier run's section is */
} section;

static int64_t count_of(const json_t *eval, int label, int predicted)
{
    const json_t *row = json_array_get(json_object_get(eval, "confusion"), (size_t)label);
    json_int_t n = json_integer_value(json_array_get(row, (size_t)predicted));
    return n >= 0 && n <= INT32_MAX ? n : 0; /* a file of others may hold any */
}

static int64_t images_of(const json_t *eval, int label)
{
    int64_t n = 0;
    for (int predicted = 0; predicted < CLASSES; predicted++)
        n += count_of(eval, label, predicted);
    return n;
}

/* NaN if there is no number. */
static double number_of(const json_t *object, const char *key, int i)
{
    const json_t *value = json_array_get(json_object_get(object, key), (size_t)i);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static const char *name_of(const json_t *eval, int c)
{
    const char *name =
        json_string_value(json_array_get(json_object_get(eval, "classes"), (size_t)c));
    return name != NULL ? name : "?";
}

/* A digit's number is its name. */
static void put_class(const section *s, int c)
{
    const char *name = name_of(s->eval, c);
    fprintf(s->out, "%d", c);
    if (name[0] != '\0' && name[1] != '\0') {
        fputc(' ', s->out);
        html_text(s->out, name);
    }
}

/* The classes that are confused most often, and how often; 0: none are. */
static int64_t find_worst_pair(const json_t *eval, int *label, int *predicted)
{
    int64_t most = 0;
    for (int a = 0; a < CLASSES; a++)
        for (int b = 0; b < CLASSES; b++)
            if (a != b && count_of(eval, a, b) > most) {
                most = count_of(eval, a, b);
                *label = a;
                *predicted = b;
            }
    return most;
}

/* Shaded by its share: what is right of its row, a mistake of the most frequent one. */
static void put_cell(const section *s, int label, int predicted, int64_t most)
{
    int64_t count = count_of(s->eval, label, predicted), all = images_of(s->eval, label);
    bool hit = label == predicted;
    double share = (double)count / (double)(hit ? (all > 0 ? all : 1) : most);
    double strength = hit ? 0.1 + 0.35 * share : 0.06 + 0.54 * sqrt(share);
    if (count == 0) {
        fprintf(s->out, "<td class=\"faint\">%s</td>", hit ? "<b>0</b>" : "\u00b7");
        return;
    }
    fprintf(s->out, "<td class=\"%s\" style=\"--a:%.2f\" title=\"", hit ? "hit" : "miss", strength);
    html_text(s->out, name_of(s->eval, label));
    fputs(hit ? " recognised" : " taken for ", s->out);
    html_text(s->out, hit ? "" : name_of(s->eval, predicted));
    fprintf(s->out, ": %lld\">%lld</td>", (long long)count, (long long)count);
}

static void put_confusion(const section *s)
{
    int worst, taken_for;
    int64_t most = find_worst_pair(s->eval, &worst, &taken_for);
    fputs("<div>\n", s->out);
    html_tagged(s->out, "h3", "Confusion matrix");
    fputs("<div class=\"wide\"><table class=\"confusion\">\n<thead><tr><th></th>", s->out);
    for (int c = 0; c < CLASSES; c++)
        fprintf(s->out, "<th>%d</th>", c);
    fputs("</tr></thead>\n<tbody>\n", s->out);
    for (int label = 0; label < CLASSES; label++) {
        fputs("<tr><th>", s->out);
        put_class(s, label);
        fputs("</th>", s->out);
        for (int predicted = 0; predicted < CLASSES; predicted++)
            put_cell(s, label, predicted, most);
        fputs("</tr>\n", s->out);
    }
    fputs("</tbody>\n</table></div>\n", s->out);
    if (s->explained)
        fputs(
            "<p class=\"faint\">Rows: the true class. Columns: what the model says. Bold and blue: "
            "right. Orange: mistaken, the stronger the more often.</p>\n",
            s->out);
    fputs("</div>\n", s->out);
}

static void put_percent(const section *s, double share)
{
    if (isfinite(share))
        fprintf(s->out, "<td class=\"n\">%.1f %%</td>", 100 * share);
    else
        fputs("<td class=\"n\">\u2013</td>", s->out);
}

static void put_classes(const section *s)
{
    double least = 1;
    for (int c = 0; c < CLASSES; c++)
        least = fmin(least, number_of(s->eval, "recall", c)); /* passes NaN over */
    fputs("<div>\n", s->out);
    html_tagged(s->out, "h3", "Accuracy of each class");
    fputs("<div class=\"wide\"><table class=\"classes\">\n<thead><tr><th>class</th><th>images</th>"
          "<th>recall</th><th>precision</th><th class=\"share\">mistaken</th></tr></thead>\n"
          "<tbody>\n",
          s->out);
    for (int c = 0; c < CLASSES; c++) {
        double recall = number_of(s->eval, "recall", c);
        fputs("<tr><td>", s->out);
        put_class(s, c);
        fprintf(s->out, "</td><td class=\"n\">%lld</td>", (long long)images_of(s->eval, c));
        put_percent(s, recall);
        put_percent(s, number_of(s->eval, "precision", c));
        double width = recall < 1 && least < 1 ? 100 * (1 - recall) / (1 - least) : 0;
        fprintf(s->out, "<td class=\"share\"><i style=\"width:%.1f%%\"></i></td></tr>\n", width);
    }
    fputs(
        "</tbody>\n</table></div>\n<p class=\"faint\">Recall: of the class' images, those that are "
        "recognised. Precision: of those taken for the class, those that are of it. The bar is "
        "what recall leaves.</p>\n</div>\n",
        s->out);
}

/* Nothing of one whose pixels are no picture. */
static status put_mistake(const section *s, const json_t *m)
{
    uint8_t pixels[IMAGE_MAX_SIDE * IMAGE_MAX_SIDE];
    char text[TEXT_BYTES];
    int label = (int)json_integer_value(json_object_get(m, "label"));
    int predicted = (int)json_integer_value(json_object_get(m, "predicted"));
    long long index = json_integer_value(json_object_get(m, "index"));
    const char *true_name = name_of(s->eval, label), *name = name_of(s->eval, predicted);
    double sure = number_of(m, "probabilities", predicted);
    if (!json_value_bytes(json_object_get(m, "pixels"), (int)sizeof pixels, pixels))
        return STATUS_OK;
    snprintf(text, sizeof text, "test image %lld: %s, taken for %s", index, true_name, name);
    fputs("<figure>", s->out);
    TRY(image_write(s->out, IMAGE_MAX_SIDE, pixels, IMAGE_GREYS, text));
    fputs("<figcaption><b>", s->out);
    html_text(s->out, true_name);
    fputs(" \u2192 ", s->out);
    html_text(s->out, name);
    fputs("</b><br><span class=\"faint\">", s->out);
    if (isfinite(sure))
        fprintf(s->out, "%.1f %%<br>", 100 * sure);
    fprintf(s->out, "no. %lld</span></figcaption></figure>\n", index);
    return STATUS_OK;
}

static status put_mistakes(const section *s, size_t most)
{
    const json_t *list = json_object_get(s->eval, "mistakes");
    size_t n = json_array_size(list);
    html_tagged(s->out, "h3", "The worst mistakes");
    if (n == 0) {
        html_tagged(s->out, "p", "There are none.");
        return STATUS_OK;
    }
    if (s->explained)
        fputs(
            "<p class=\"faint\">The true class \u2192 what the model says, how sure it is, and the "
            "image's number in the test set. The greatest loss comes first.</p>\n",
            s->out);
    fputs("<div class=\"pictures\">\n", s->out);
    for (size_t i = 0; i < n && i < most; i++)
        TRY(put_mistake(s, json_array_get(list, i)));
    fputs("</div>\n", s->out);
    return STATUS_OK;
}

static status put_filters(const section *s)
{
    const json_t *filters = json_object_get(s->eval, "filters");
    const json_t *pictures = json_object_get(filters, "pixels");
    uint8_t pixels[IMAGE_MAX_SIDE * IMAGE_MAX_SIDE];
    char text[TEXT_BYTES];
    int side = (int)json_integer_value(json_object_get(filters, "side"));
    int outputs = (int)json_integer_value(json_object_get(filters, "outputs"));
    int n = (int)json_array_size(pictures);
    if (side < 1 || side > IMAGE_MAX_SIDE || n == 0)
        return STATUS_OK;
    html_tagged(s->out, "h3", "What the first layer looks for");
    fputs("<p class=\"faint\">", s->out);
    html_text(s->out, json_string_value(json_object_get(filters, "parameter")));
    fprintf(s->out, ", %d x %d weights of ", side, side);
    fprintf(s->out, n < outputs ? "the first %d of %d outputs. " : "each of the %d outputs. ", n,
            outputs);
    fputs("Ink on orange raises an output, on blue it lowers it; each picture has a scale of its "
          "own.</p>\n",
          s->out);
    fprintf(s->out, "<div class=\"pictures filters%s\">\n", side > SMALL_SIDE ? " large" : "");
    for (int i = 0; i < n; i++) {
        if (!json_value_bytes(json_array_get(pictures, (size_t)i), side * side, pixels))
            continue;
        snprintf(text, sizeof text, "output %d, greatest weight %.3g", i,
                 number_of(filters, "scales", i));
        TRY(image_write(s->out, side, pixels, IMAGE_SIGNED, text));
        fputc('\n', s->out);
    }
    fputs("</div>\n", s->out);
    return STATUS_OK;
}

static void put_absent(const section *s)
{
    fputs("<p>There is no " RUN_FILE_EVAL ": the run has not ended, was interrupted or is of an "
          "older program. To test the model that it has saved: <code>mnist_ddp eval --checkpoint ",
          s->out);
    html_text(s->out, s->run->folder);
    fputs(" --out ", s->out);
    html_text(s->out, s->run->folder);
    fputs("</code>, then <code>mnist_ddp report ", s->out);
    html_text(s->out, s->run->folder);
    fputs("</code>.</p>\n", s->out);
}

static void put_worst_pair(const section *s)
{
    int label = 0, predicted = 0;
    int64_t most = find_worst_pair(s->eval, &label, &predicted);
    if (most == 0)
        return;
    fputs(" Most often ", s->out);
    html_text(s->out, name_of(s->eval, label));
    fputs(" is taken for ", s->out);
    html_text(s->out, name_of(s->eval, predicted));
    fprintf(s->out, " (%lld times).", (long long)most);
}

static void put_summary(const section *s)
{
    const json_t *lines = s->run->lines, *step = json_object_get(s->eval, "step");
    double last = run_data_number(json_array_get(lines, json_array_size(lines) - 1), "step");
    fprintf(s->out, "<p>%lld of %lld test images are right",
            (long long)json_integer_value(json_object_get(s->eval, "correct")),
            (long long)json_integer_value(json_object_get(s->eval, "images")));
    if (json_is_integer(step))
        fprintf(s->out, " after step %lld", (long long)json_integer_value(step));
    if (json_is_integer(step) && last > (double)json_integer_value(step))
        fputs(", and the run has gone on since", s->out);
    fputs(".", s->out);
    put_worst_pair(s);
    fputs("</p>\n", s->out);
}

static status put_alone(const section *s)
{
    put_summary(s);
    fputs("<div class=\"charts\">\n", s->out);
    put_confusion(s);
    put_classes(s);
    fputs("</div>\n", s->out);
    TRY(put_mistakes(s, SIZE_MAX));
    return put_filters(s);
}

status run_eval_write(FILE *out, const run_data *runs, int n)
{
    html_tagged(out, "h2", "What the model has learned");
    fputs(n > 1 ? "<div class=\"charts\">\n" : "", out);
    for (int run = 0; run < n; run++) {
        const section s = {out, &runs[run], runs[run].eval, run == 0};
        if (n > 1) {
            fputs("<div><div>", out);
            run_tables_key(out, &runs[run], run);
            fputs("</div>\n", out);
        }
        if (s.eval == NULL)
            put_absent(&s);
        else if (n == 1)
            TRY(put_alone(&s));
        else {
            put_summary(&s);
            put_confusion(&s);
            TRY(put_mistakes(&s, FEW_MISTAKES));
        }
        fputs(n > 1 ? "</div>\n" : "", out);
    }
    fputs(n > 1 ? "</div>\n" : "", out);
    return STATUS_OK;
}
