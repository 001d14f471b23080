/* The data sets that come as MNIST's four files: their names, classes, mirrors and digests. */
#ifndef MNIST_DDP_DATA_DATASET_KIND_H
#define MNIST_DDP_DATA_DATASET_KIND_H

#include "base/status.h"
#include "data/mnist_files.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum dataset_kind {
    DATASET_MNIST,
    DATASET_FASHION,
    DATASET_KMNIST,
    DATASET_KINDS,
} dataset_kind;

enum { DATASET_MIRRORS_MAX = 2 };

/* What is known of one of the four files. */
typedef struct dataset_file {
    const char *sha256; /* of the .gz file */
    uint64_t size_bytes;
    const char *plain_sha256; /* of what is in it; NULL: not known */
} dataset_file;

typedef struct dataset_facts {
    const char *name;           /* as --dataset spells it */
    const char *title;          /* "Fashion-MNIST" */
    const char *below;          /* "FashionMNIST/raw": torchvision's folder below a root */
    const char *working_folder; /* "./data/" and that */
    const char
        *mirrors[DATASET_MIRRORS_MAX];     /* https://...; each ends with a slash; NULL: no more */
    const char *classes[10];               /* by label */
    dataset_file files[MNIST_FILES_COUNT]; /* by mnist_files_index */
} dataset_facts;

const dataset_facts *dataset_kind_facts(dataset_kind kind);

/* Whether a file with this SHA-256 is a set's test labels, as they come or unpacked; then whose.
 * They tell sets with files of the same names apart, and are small. */
bool dataset_kind_by_labels(const char *sha256, dataset_kind *out);

/* STATUS_INVALID if none has this name. */
status dataset_kind_parse(const char *name, dataset_kind *out);

#endif
