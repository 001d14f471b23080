/* What eval.json and `mnist_ddp eval --json` say of a model and a test set. docs/run-folder.md has
 * the format. */
#ifndef MNIST_DDP_APP_TRAIN_EVAL_DOCUMENT_H
#define MNIST_DDP_APP_TRAIN_EVAL_DOCUMENT_H

#include "app/train/tally.h"

#include <jansson.h>

/* A model that has been tested. */
typedef struct eval_subject {
    network *net;
    int64_t step; /* optimizer steps that it has had; -1: not known */
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
