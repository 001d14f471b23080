/* The four files of MNIST and their names: train-images-idx3-ubyte and so on, also spelled
 * train-images.idx3-ubyte, each plain or with .gz. */
#ifndef MNIST_DDP_DATA_MNIST_FILES_H
#define MNIST_DDP_DATA_MNIST_FILES_H

#include "base/status.h"
#include "data/idx.h"

#include <stddef.h>

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

#endif
