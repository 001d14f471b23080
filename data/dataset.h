/* The data sets that come as MNIST's four files: the files, the sets that there are, and one set in
 * memory. */
#ifndef MNIST_DDP_DATA_DATASET_H
#define MNIST_DDP_DATA_DATASET_H

#include "base/status.h"
#include "data/idx.h"
#include "kernels/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The four files of MNIST and their names: train-images-idx3-ubyte and so on, also spelled
 * train-images.idx3-ubyte, each plain or with .gz. */

enum { MNIST_FILES_COUNT = 4 };

typedef enum dataset_split { DATASET_TRAIN, DATASET_TEST } dataset_split;

/* 0 to 3, in the order in which torchvision lists them; and back. */
int mnist_files_index(dataset_split split, idx_kind kind);
dataset_split mnist_files_split(int index);
idx_kind mnist_files_kind(int index);

/* The official name, without .gz. */
const char *mnist_files_name(dataset_split split, idx_kind kind);

/* Sets `path` (FILE_PATH_BYTES) to the file in `folder`; plain ones before .gz, files before
 * folders of that name. STATUS_INVALID if it is not there. */
status mnist_files_find(const char *folder, dataset_split split, idx_kind kind, char *path);

/* How many of the four are not in `folder`; their names, comma-separated, in `names`. */
int mnist_files_missing(const char *folder, char *names, size_t names_bytes);

/* The data sets that come as MNIST's four files: their names, classes, mirrors and digests. */

typedef enum dataset_kind {
    DATASET_MNIST,
    DATASET_FASHION,
    DATASET_KMNIST,
    DATASET_KINDS,
} dataset_kind;

enum { DATASET_MIRRORS_MAX = 2 };

/* What is known of one of the four files. */
typedef struct dataset_file {
    const char *sha256; /* the .gz file's */
    uint64_t size_bytes;
    const char *plain_sha256; /* its content's; NULL: not known */
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

/* MNIST in memory, one copy per host: found, decompressed, checked and shared by all ranks. */

enum { DATASET_PIXELS = IDX_PIXELS };

typedef struct dataset {
    uint32_t count;        /* images, >= 1 */
    const uint8_t *images; /* (count, 28, 28), read-only, shared between processes */
    const uint8_t *labels; /* (count), each < 10 */
    idx_file files[2];     /* by idx_kind */
    uint64_t version;      /* both files', as in idx_file */
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

/* Why a gzip file of theirs is not shared between processes; "": all are. */
const char *dataset_uncached(const dataset *train, const dataset *test);

/* Copies images and labels into the device's memory, which the caller frees. */
status dataset_upload(device *dev, const dataset *set, uint8_t **images, uint8_t **labels);

/* Accepts an empty one. */
void dataset_close(dataset *set);

#endif
