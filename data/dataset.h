/* MNIST in memory, one copy per host: found, decompressed, checked and shared by all ranks. */
#ifndef MNIST_DDP_DATA_DATASET_H
#define MNIST_DDP_DATA_DATASET_H

#include "base/status.h"
#include "data/dataset_kind.h"
#include "data/idx_file.h"
#include "data/mnist_files.h"
#include "kernels/device.h"

#include <stdbool.h>
#include <stdint.h>

enum { DATASET_PIXELS = IDX_PIXELS };

typedef struct dataset {
    uint32_t count;        /* images, >= 1 */
    const uint8_t *images; /* (count, 28, 28), read-only, shared between processes */
    const uint8_t *labels; /* (count), each < 10 */
    void *mappings[2];     /* dataset.c's own */
    uint64_t mapping_bytes[2];
    uint64_t version;                     /* of both files, as in idx_file */
    char uncached[IDX_FILE_REASON_BYTES]; /* as in idx_file */
} dataset;

/* Where the four files are. */
typedef struct dataset_location {
    char folder[4096];
    bool embedded;        /* the generated digits, which are not MNIST */
    const char *found_by; /* "--data-dir", "$MNIST_DDP_DATA", "./data/MNIST/raw", "cache" or
                             "embedded digits" */
    dataset_kind kind;
} dataset_location;

/* Looks in `data_dir` (unless NULL), $MNIST_DDP_DATA, ./data/MNIST/raw and the cache, in this
 * order, for the four official names, plain or with .gz; for other kinds than MNIST in the folders
 * of theirs. If one of the first two is given and does not hold them, that is an error that lists
 * what is missing; the others are skipped. Files that are known to be another set's are an error,
 * too. *found: whether one has them. */
status dataset_find(dataset_kind kind, const char *data_dir, dataset_location *out, bool *found);

/* Where the files of a set belong that is to be fetched: the folder that dataset_find would take,
 * or would look in first. A folder that is named (torchvision's root, one set's folder or its raw)
 * need not exist. The files go beside those that are there, else below it as torchvision lays them
 * out. */
status dataset_place(dataset_kind kind, const char *data_dir, dataset_location *out);

/* As dataset_find. If none has them: of MNIST makes the embedded digits in the cache (or in memory
 * if no cache folder can be written) and returns those; of other kinds STATUS_INVALID. */
status dataset_locate(dataset_kind kind, const char *data_dir, dataset_location *out);

/* Maps one split. gzip files are decompressed once per host into the cache folder
 * ($XDG_CACHE_HOME/mnist_ddp, else ~/.cache/mnist_ddp; one writer at a time), or into this
 * process's memory if that cannot be written. STATUS_INVALID or STATUS_IO names the file, the byte
 * offset and what was expected. */
status dataset_open(const dataset_location *location, dataset_split split, dataset *out);

/* One number for all pixels and labels of both splits, of plain files as of gzip. All bytes are
 * looked at once on a host: it is kept in the cache for these versions of the files. Waits for
 * another process that is at it, a second at most. */
uint64_t dataset_digest(const dataset *train, const dataset *test);

/* Copies images and labels into the device's memory, which the caller frees. */
status dataset_upload(device *dev, const dataset *set, uint8_t **images, uint8_t **labels);

/* Accepts an empty one. */
void dataset_close(dataset *set);

#endif
