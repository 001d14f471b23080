/* What a model says of each image of a test set, counted: the confusion matrix, and the worst
 * mistakes. All of it comes of the logits in one pass in the images' order, so it is the same
 * however many ranks have computed them. */
#ifndef MNIST_DDP_APP_TRAIN_TALLY_H
#define MNIST_DDP_APP_TRAIN_TALLY_H

#include "data/dataset.h"
#include "model/prediction.h"

#include <stdint.h>
#include <stdio.h>

enum { TALLY_MISTAKES = 24 };

/* An image that is taken for another class. */
typedef struct mistake {
    uint32_t index; /* in the test set */
    double loss;    /* nats; NaN and infinity count as the greatest */
} mistake;

typedef struct tally {
    int64_t images, correct;
    double loss_sum;                                     /* nats */
    int64_t confusion[NETWORK_CLASSES][NETWORK_CLASSES]; /* row: true, column: predicted */
    mistake worst[TALLY_MISTAKES]; /* of the greatest loss, greatest first; of equals the first */
    int n_worst;
} tally;

/* `logits`: (set->count, NETWORK_CLASSES), host memory. */
tally tally_of(const dataset *set, const float *logits);

/* Over all images; the loss is their mean, NaN without a sign if one's is. */
double tally_accuracy(const tally *t);
double tally_loss(const tally *t);

/* Accuracy of class `c`: of its images, the share that is taken for it (recall); and of those taken
 * for it, the share that is of it (precision). NaN if there are none. */
double tally_recall(const tally *t, int c);
double tally_precision(const tally *t, int c);

/* The confusion matrix with both as a table of at most 80 columns; `classes`: their names. */
void tally_print(const tally *t, const char *const classes[NETWORK_CLASSES], FILE *out);

#endif
