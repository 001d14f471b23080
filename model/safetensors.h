/* Named float32 tensors in one file, as safetensors lays them out: an unsigned 64-bit little-endian
 * header length, a JSON header padded with spaces, then the tensors' bytes without gaps.
 *
 * Files of others may hold F16, BF16 and F64; the reader casts them, as torch's load_state_dict.
 *
 * Files that we write have "fnv1a" in their metadata, the hash of the tensors' bytes. The reader
 * checks it if it is there.
 */
#ifndef MNIST_DDP_MODEL_SAFETENSORS_H
#define MNIST_DDP_MODEL_SAFETENSORS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { SAFETENSORS_MAX_RANK = 4 };

typedef struct safetensors_tensor {
    const char *name; /* printable ASCII */
    int rank;         /* 0: a scalar */
    int shape[SAFETENSORS_MAX_RANK];
    const float *data; /* host memory, row-major */
} safetensors_tensor;

typedef struct safetensors_entry {
    const char *key, *value;
} safetensors_entry;

/* Writes a new file, synced to disk, with the tensors in this order and the metadata {"format":
 * "pt", entries ..., "fnv1a": hash}. On failure the file is removed. `hash` may be NULL; set to the
 * file's safetensors_hash. STATUS_IO from the file system; STATUS_INVALID if a name is not
 * printable or not unique. */
status safetensors_write(const char *path, const safetensors_tensor *tensors, size_t n_tensors,
                         const safetensors_entry *entries, size_t n_entries, uint64_t *hash);

/* A file that was read and found valid. */
typedef struct safetensors safetensors;

/* Reads the whole file. STATUS_INVALID, naming the file and what is wrong with it, unless the
 * header has at most 1 MiB and is a JSON object without duplicate keys, names are printable ASCII,
 * all tensors are F32, F64, F16 or BF16 of at most four dimensions, fit their byte ranges and fill
 * the file without holes, overlaps or trailing bytes. For a file of torch.save the message says how
 * to convert it. */
status safetensors_open(const char *path, safetensors **out);
void safetensors_close(safetensors *file); /* accepts NULL */

/* If the names of all tensors begin with `prefix`, they are known without it from now on. */
void safetensors_strip(safetensors *file, const char *prefix);

/* The tensors in the order of their bytes. What they point to lives until safetensors_close. */
size_t safetensors_list(const safetensors *file, const safetensors_tensor **out);

/* The tensor of that name, NULL if there is none. */
const safetensors_tensor *safetensors_lookup(const safetensors *file, const char *name);

/* Sets *data to the tensor of that name, which must have this shape; STATUS_INVALID otherwise. */
status safetensors_find(const safetensors *file, const char *name, int rank, const int *shape,
                        const float **data);

/* The name it was opened by. */
const char *safetensors_path(const safetensors *file);

/* FNV-1a of the file's bytes before the tensors. In a file with "fnv1a" they include the tensors'
 * hash, so it covers the whole file. */
uint64_t safetensors_hash(const safetensors *file);

/* A string of the metadata, NULL if it is not there. */
const char *safetensors_metadata(const safetensors *file, const char *key);

#endif
