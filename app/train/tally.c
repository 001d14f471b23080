#include "app/train/tally.h"

#include <math.h>
#include <stdbool.h>
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

enum { NAME = 12, COLUMN = 6 }; /* letters */

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

void tally_print(const tally *t, const char *const classes[NETWORK_CLASSES], FILE *out)
{
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
