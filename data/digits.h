/* Generated digits that look handwritten: the data set if no MNIST files are found.
 *
 * Each image is a pen stroke drawn anew: one of several ways to write its digit, with shaken
 * control points, warped, slanted and drawn with a pen of its own width; then size-normalised into
 * 20x20 pixels and centred by its centre of mass in 28x28, as MNIST is.
 *
 * An image depends on (seed, split, index) alone, and its arithmetic on IEEE + - * / and square
 * root alone: the same bytes for any slicing, thread count and CPU type.
 */
#ifndef MNIST_DDP_DATA_DIGITS_H
#define MNIST_DDP_DATA_DIGITS_H

#include "base/status.h"
#include "data/idx.h"

#include <stdint.h>

enum {
    DIGITS_SIDE = IDX_SIDE,
    DIGITS_PIXELS = IDX_PIXELS,
    DIGITS_TRAIN_COUNT = 60000, /* the customary sizes; any index of 32 bits has its image */
    DIGITS_TEST_COUNT = 10000,
};

typedef enum digits_split { DIGITS_TRAIN, DIGITS_TEST } digits_split;

/* The images first ... first + count - 1 of a split. */
typedef struct digits_range {
    uint64_t seed;
    digits_split split;
    uint32_t first, count;
} digits_range;

/* Makes the images of a range.
 *
 *   images  (count, 28, 28)  uint8  set: 0 paper, 255 full ink; the outermost pixels are 0
 *   labels  (count)          uint8  set: 0 to 9, in random order, each about a tenth
 *
 * STATUS_INVALID if threads < 1 or an index exceeds 32 bits; STATUS_NO_MEMORY if the
 * threads cannot be started; then nothing is written.
 */
status digits_generate(const digits_range *range, int threads, uint8_t *images, uint8_t *labels);

#endif
