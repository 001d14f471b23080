/* What eval.json and `mnist_ddp eval --json` say of a model and a test set. docs/run-folder.md has
 * the format. */
#ifndef MNIST_DDP_APP_TRAIN_EVAL_DOCUMENT_H
#define MNIST_DDP_APP_TRAIN_EVAL_DOCUMENT_H

#include "data/dataset.h"
#include "model/checkpoint.h"
#include "model/classifier.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

enum { TALLY_MISTAKES = 24 };

/* An image that is taken for another class. */
typedef struct mistake {
    uint32_t index; /* in the test set */
    double loss;    /* nats; NaN and infinity count as the greatest */
} mistake;

/* What a model says of each image of a test set, counted. All of it comes of the logits in one pass
 * in the images' order, so it is the same however many ranks have computed them. */
typedef struct tally {
    int64_t images, correct;
    double loss_sum;                                     /* nats */
    int64_t confusion[NETWORK_CLASSES][NETWORK_CLASSES]; /* row: true, column: predicted */
    mistake worst[TALLY_MISTAKES]; /* the greatest losses, greatest first; of equals the first */
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

/* The confusion matrix with both as a table of 80 columns; on a narrower terminal both, and what a
 * class is most often taken for. `classes`: their names. */
void tally_print(const tally *t, const char *const classes[NETWORK_CLASSES], FILE *out);

/* A model that has been tested. */
typedef struct eval_subject {
    network *net;
    const checkpoint_access *access; /* to its parameters; NULL: they are all there */
    int64_t step;                    /* optimizer steps that it has had; -1: not known */
    const dataset_location *location;
    const dataset *set;  /* the test set */
    const float *logits; /* (set->count, NETWORK_CLASSES), host memory */
} eval_subject;

/* One object, the caller's to decref. Numbers that are not finite are null. STATUS_NO_MEMORY,
 * STATUS_DEVICE. */
status eval_document_make(const eval_subject *subject, const tally *t, json_t **out);

/* Writes it to eval.json of this folder, whole or not at all. STATUS_NO_MEMORY if making it ran out
 * of memory. */
status eval_document_save(const json_t *document, const char *folder);

#endif
