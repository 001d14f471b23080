#include "app/train/eval_document.h"

#include "app/common/json_value.h"
#include "app/common/run_files.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"
#include "data/idx.h"
#include "model/network.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static double rank_of(double loss)
{
    return isfinite(loss) ? loss : HUGE_VAL;
}

/* The list stays in order; images come in theirs. */
static void note_mistake(tally *t, mistake m)
{
    int at = t->n_worst;
    while (at > 0 && rank_of(m.loss) > rank_of(t->worst[at - 1].loss))
        at--;
    if (at == TALLY_MISTAKES)
        return;
    if (t->n_worst < TALLY_MISTAKES)
        t->n_worst++;
    memmove(&t->worst[at + 1], &t->worst[at], sizeof t->worst[0] * (size_t)(t->n_worst - 1 - at));
    t->worst[at] = m;
}

tally tally_of(const dataset *set, const float *logits)
{
    tally t = {.images = set->count};
    for (uint32_t i = 0; i < set->count; i++) {
        const float *row = logits + (size_t)i * NETWORK_CLASSES;
        int label = set->labels[i], predicted = prediction_of(row).label;
        double loss = prediction_loss(row, label);
        t.loss_sum += loss;
        t.confusion[label][predicted]++;
        t.correct += predicted == label;
        if (predicted != label)
            note_mistake(&t, (mistake){i, loss});
    }
    return t;
}

static double share(int64_t part, int64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : (double)NAN;
}

double tally_accuracy(const tally *t)
{
    return share(t->correct, t->images);
}

double tally_loss(const tally *t)
{
    return isnan(t->loss_sum) ? (double)NAN : t->loss_sum / (double)t->images;
}

double tally_recall(const tally *t, int c)
{
    int64_t all = 0;
    for (int predicted = 0; predicted < NETWORK_CLASSES; predicted++)
        all += t->confusion[c][predicted];
    return share(t->confusion[c][c], all);
}

double tally_precision(const tally *t, int c)
{
    int64_t all = 0;
    for (int label = 0; label < NETWORK_CLASSES; label++)
        all += t->confusion[label][c];
    return share(t->confusion[c][c], all);
}

enum { NAME = 12, COLUMN = 6, TABLE_COLUMNS = 80 }; /* letters */

static void print_percent(FILE *out, double value)
{
    if (isfinite(value))
        fprintf(out, "%*.1f", COLUMN, 100 * value);
    else
        fprintf(out, "%*s", COLUMN, "-");
}

static void print_row(const tally *t, int label, const char *name, FILE *out)
{
    bool is_digit = name[1] == '\0';
    fprintf(out, "%d %-*.*s", label, NAME - 1, NAME - 1, is_digit ? "" : name);
    for (int predicted = 0; predicted < NETWORK_CLASSES; predicted++) {
        int64_t count = t->confusion[label][predicted];
        if (count > 0)
            fprintf(out, "%*lld", COLUMN, (long long)count);
        else
            fprintf(out, "%*s", COLUMN, ".");
    }
    fputc(' ', out);
    print_percent(out, tally_recall(t, label));
    fputc('\n', out);
}

/* For a terminal on which the table has no room: a line for each class. */
static void print_list(const tally *t, const char *const classes[NETWORK_CLASSES], FILE *out)
{
    char text[256];
    fputc('\n', out);
    for (int c = 0; c < NETWORK_CLASSES; c++) {
        int most = c == 0;
        for (int other = 0; other < NETWORK_CLASSES; other++)
            if (other != c && t->confusion[c][other] > t->confusion[c][most])
                most = other;
        snprintf(text, sizeof text,
                 "%s: recall %.1f %%, precision %.1f %%, most taken for %s: %lld", classes[c],
                 100 * tally_recall(t, c), 100 * tally_precision(t, c), classes[most],
                 (long long)t->confusion[c][most]);
        paragraph_print(out, 0, 2, text);
    }
}

void tally_print(const tally *t, const char *const classes[NETWORK_CLASSES], FILE *out)
{
    if (paragraph_columns(out) < TABLE_COLUMNS) {
        print_list(t, classes, out);
        return;
    }
    fputs("\nRows: the true class. Columns: what the model says. Recall and precision in %.\n\n",
          out);
    fprintf(out, "%*s", NAME + 1, "");
    for (int c = 0; c < NETWORK_CLASSES; c++)
        fprintf(out, "%*d", COLUMN, c);
    fputs(" recall\n", out);
    for (int label = 0; label < NETWORK_CLASSES; label++)
        print_row(t, label, classes[label], out);
    fprintf(out, "%-*s", NAME + 1, "precision");
    for (int c = 0; c < NETWORK_CLASSES; c++)
        print_percent(out, tally_precision(t, c));
    fputc('\n', out);
}

enum { FILTERS_MAX = 32 }; /* that are shown; a layer may have more */

enum { ZERO = 128, MOST = 127 };

static json_t *picture_of(const float *weights, int pixels, float scale)
{
    uint8_t bytes[IDX_PIXELS];
    for (int i = 0; i < pixels; i++) {
        float share = scale > 0 ? weights[i] / scale : 0;
        bytes[i] = isfinite(share) ? (uint8_t)(ZERO + lroundf(MOST * share)) : ZERO;
    }
    return json_value_hex(bytes, pixels);
}

/* NaN if one is not finite. */
static float greatest(const float *weights, int n)
{
    float most = 0;
    for (int i = 0; i < n; i++) {
        if (!isfinite(weights[i]))
            return NAN;
        most = fmaxf(most, fabsf(weights[i]));
    }
    return most;
}

static json_t *pictures_of(const parameter *first, const float *weights)
{
    int outputs = first->shape[0], pixels = (int)first->count / outputs;
    int side = (int)lround(sqrt(pixels)), shown = outputs < FILTERS_MAX ? outputs : FILTERS_MAX;
    json_t *object = json_object(), *scales = json_array(), *pictures = json_array();
    ASSERT(side * side == pixels && pixels <= IDX_PIXELS);
    for (int i = 0; i < shown; i++) {
        const float *own = weights + (size_t)i * (size_t)pixels;
        float scale = greatest(own, pixels);
        json_array_append_new(scales, json_value_rounded((double)scale, 6));
        json_array_append_new(pictures, picture_of(own, pixels, scale));
    }
    json_object_set_new(object, "parameter", json_string(first->name));
    json_object_set_new(object, "outputs", json_integer(outputs));
    json_object_set_new(object, "side", json_integer(side));
    json_object_set_new(object, "scales", scales);
    json_object_set_new(object, "pixels", pictures);
    return object;
}

/* Adds "filters" to the object, with the first FILTERS_MAX outputs of the first layer:
 *
 *   {"parameter": "conv1.weight", "outputs": 32, "side": 3, "scales": [0.41, ..],
 *    "pixels": ["80ff..", ..]}
 *
 * A picture has side x side pixels, row by row, two hexadecimal digits each. A weight is
 * (pixel - 128) / 127 * scale, and scale is the greatest magnitude in the picture. A weight that is
 * not finite is 128, and its picture's scale is null. */
static status filters_add(json_t *object, const eval_subject *subject)
{
    const parameter *layout;
    network *net = subject->net;
    const checkpoint_access *access = subject->access;
    float *host = NULL;
    network_model_layout(net, &layout);
    TRY(memory_alloc(sizeof *host * network_model_count(net), (void **)&host));
    status st = access != NULL ? access->read(access->ctx, 0, host)
                               : network_export(net, network_parameters(net), host);
    if (st == STATUS_OK)
        json_object_set_new(object, "filters", pictures_of(&layout[0], host + layout[0].offset));
    free(host);
    return st;
}

static json_t *confusion_of(const tally *t)
{
    json_t *rows = json_array();
    for (int label = 0; label < NETWORK_CLASSES; label++) {
        json_t *row = json_array();
        for (int predicted = 0; predicted < NETWORK_CLASSES; predicted++)
            json_array_append_new(row, json_integer(t->confusion[label][predicted]));
        json_array_append_new(rows, row);
    }
    return rows;
}

static void add_classes(json_t *object, const eval_subject *subject, const tally *t)
{
    const dataset_facts *facts = dataset_kind_facts(subject->location->kind);
    json_t *names = json_array(), *recalls = json_array(), *precisions = json_array();
    for (int c = 0; c < NETWORK_CLASSES; c++) {
        json_array_append_new(names, json_string(facts->classes[c]));
        json_array_append_new(recalls, json_value_rounded(tally_recall(t, c), 6));
        json_array_append_new(precisions, json_value_rounded(tally_precision(t, c), 6));
    }
    json_object_set_new(object, "classes", names);
    json_object_set_new(object, "confusion", confusion_of(t));
    json_object_set_new(object, "recall", recalls);
    json_object_set_new(object, "precision", precisions);
}

static json_t *mistake_of(const eval_subject *subject, const mistake *m)
{
    json_t *object = json_object(), *probabilities = json_array();
    prediction p = prediction_of(subject->logits + (size_t)m->index * NETWORK_CLASSES);
    for (int c = 0; c < NETWORK_CLASSES; c++)
        json_array_append_new(probabilities, json_value_rounded(p.probabilities[c], 6));
    json_object_set_new(object, "index", json_integer(m->index));
    json_object_set_new(object, "label", json_integer(subject->set->labels[m->index]));
    json_object_set_new(object, "predicted", json_integer(p.label));
    json_object_set_new(object, "loss", json_value_rounded(m->loss, 6));
    json_object_set_new(object, "probabilities", probabilities);
    json_object_set_new(
        object, "pixels",
        json_value_hex(subject->set->images + (size_t)m->index * DATASET_PIXELS, DATASET_PIXELS));
    return object;
}

static void add_totals(json_t *object, const eval_subject *subject, const tally *t)
{
    const dataset_location *location = subject->location;
    json_object_set_new(object, "model", json_string(model_kind_name(network_kind(subject->net))));
    json_object_set_new(object, "step",
                        subject->step >= 0 ? json_integer(subject->step) : json_null());
    json_object_set_new(object, "dataset", json_string(dataset_kind_facts(location->kind)->name));
    json_object_set_new(
        object, "data_folder",
        json_value_text(location->embedded ? "generated digits" : location->folder));
    json_object_set_new(object, "images", json_integer(t->images));
    json_object_set_new(object, "correct", json_integer(t->correct));
    json_object_set_new(object, "test_acc", json_value_rounded(tally_accuracy(t), 6));
    json_object_set_new(object, "test_loss", json_value_rounded(tally_loss(t), 6));
}

status eval_document_make(const eval_subject *subject, const tally *t, json_t **out)
{
    json_t *object = json_object(), *mistakes = json_array();
    add_totals(object, subject, t);
    add_classes(object, subject, t);
    for (int i = 0; i < t->n_worst; i++)
        json_array_append_new(mistakes, mistake_of(subject, &t->worst[i]));
    json_object_set_new(object, "mistakes", mistakes);
    status st = filters_add(object, subject);
    if (st == STATUS_OK)
        *out = object;
    else
        json_decref(object);
    return st;
}

status eval_document_save(const json_t *document, const char *folder)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(folder, RUN_FILE_EVAL, path));
    return json_text_save(document, JSON_COMPACT | JSON_REAL_PRECISION(10), path);
}
