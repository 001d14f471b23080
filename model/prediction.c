#include "model/prediction.h"

#include <math.h>

static int argmax(const float logits[NETWORK_CLASSES])
{
    int best = 0;
    for (int c = 1; c < NETWORK_CLASSES; c++)
        if (logits[c] > logits[best])
            best = c;
    return best;
}

/* Sets out[c] = exp(logits[c] - largest); returns their sum. */
static double exponentials(const float logits[NETWORK_CLASSES], float largest,
                           double out[NETWORK_CLASSES])
{
    double sum = 0;
    for (int c = 0; c < NETWORK_CLASSES; c++) {
        out[c] = exp((double)(logits[c] - largest));
        sum += out[c];
    }
    return sum;
}

prediction prediction_of(const float logits[NETWORK_CLASSES])
{
    prediction p = {.label = argmax(logits)};
    double sum = exponentials(logits, logits[p.label], p.probabilities);
    for (int c = 0; c < NETWORK_CLASSES; c++)
        p.probabilities[c] /= sum;
    return p;
}

double prediction_loss(const float logits[NETWORK_CLASSES], int label)
{
    double each[NETWORK_CLASSES];
    float largest = logits[argmax(logits)];
    return log(exponentials(logits, largest, each)) - (double)(logits[label] - largest);
}
