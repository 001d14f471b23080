/* What a word of the command line names: a picture of a digit, or images of an IDX file. */
#ifndef MNIST_DDP_APP_PREDICT_IMAGE_FILE_H
#define MNIST_DDP_APP_PREDICT_IMAGE_FILE_H

#include "base/file.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct image_file {
    char path[FILE_PATH_BYTES];
    bool is_idx;
    uint32_t first, count; /* of an IDX file's images; a picture is one */
    uint8_t *images;       /* (count, 28, 28): 0 is background, 255 ink */
} image_file;

/* "digit.png" is a picture (data/raster/raster_file.h), which is made into an image as MNIST's.
 * "FILE#3" and "FILE#3-7" are images of an IDX file, plain or gzip, as they are. A file whose name
 * has such an end is a picture. STATUS_INVALID or STATUS_IO names the file and what is wrong. */
status image_file_read(const char *word, image_file *out);

/* Accepts a zeroed one. */
void image_file_free(image_file *file);

#endif
