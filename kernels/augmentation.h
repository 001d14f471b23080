/* Random shifts, rotations and sizes of training images, as torchvision's RandomAffine draws them:
 *
 *     transforms.RandomAffine(degrees=rotate, translate=(shift / 28, shift / 28),
 *                             scale=(1 - scale, 1 + scale), interpolation=BILINEAR)
 *
 * after ToTensor and before Normalize. An image is turned and resized about its middle, then moved
 * by whole pixels. What comes from outside of it is 0 (black). A pixel is the bilinear mean of the
 * four around the place that it comes from: torch's affine_grid and grid_sample with
 * align_corners=False, mode="bilinear" and padding_mode="zeros".
 *
 * The numbers are those of one Philox block by seed, epoch and sample. Used by C and CUDA. */
#ifndef MNIST_DDP_KERNELS_AUGMENTATION_H
#define MNIST_DDP_KERNELS_AUGMENTATION_H

#include "base/random.h"

#include <math.h>
#include <stdbool.h>

enum { AUGMENTATION_SIDE = 28 }; /* an image's */

/* Bounds of what is drawn evenly on both sides of no change. All 0: images stay as they are. */
typedef struct augmentation {
    float shift;  /* pixels, in x and in y; what is drawn is rounded to a whole number */
    float rotate; /* degrees; clockwise is positive */
    float scale;  /* the size is multiplied by 1 - scale to 1 + scale; below 1 */
    uint64_t seed;
} augmentation;

/* What is done to one image: it is turned and resized about its middle, then moved. */
typedef struct affine {
    double degrees, size, dx, dy;
} affine;

/* The inverse. Pixel (x, y) of the new image comes from (xx x + xy y + x0, yx x + yy y + y0) of the
 * old one, in pixels: whole numbers are middles. */
typedef struct affine_map {
    float xx, xy, x0;
    float yx, yy, y0;
} affine_map;

PHILOX_FN bool augmentation_is_on(const augmentation *a)
{
    return a->shift > 0 || a->rotate > 0 || a->scale > 0;
}

/* Even in [-bound, bound). */
PHILOX_FN double augmentation_even(uint32_t word, float bound)
{
    return (double)bound * ((double)word / 2147483648.0 - 1.0);
}

/* What is done to a sample in an epoch. The counter's third word is no layer's, so the block is
 * none of dropout's (struct dropout in kernels/ops.h). */
PHILOX_FN affine augmentation_draw(const augmentation *a, uint32_t sample, uint32_t epoch)
{
    philox_words words = philox4x32_10(sample, epoch, UINT32_MAX, 0, a->seed);
    affine drawn;
    drawn.degrees = augmentation_even(words.w[0], a->rotate);
    drawn.size = 1.0 + augmentation_even(words.w[1], a->scale);
    drawn.dx = rint(augmentation_even(words.w[2], a->shift));
    drawn.dy = rint(augmentation_even(words.w[3], a->shift));
    return drawn;
}

PHILOX_FN affine_map augmentation_map(const affine *drawn)
{
    double angle = drawn->degrees * (3.14159265358979323846 / 180);
    double middle = (AUGMENTATION_SIDE - 1) / 2.0;
    double x = middle + drawn->dx, y = middle + drawn->dy; /* where the middle goes */
    double c = cos(angle) / drawn->size, s = sin(angle) / drawn->size;
    affine_map map;
    map.xx = (float)c;
    map.xy = (float)s;
    map.x0 = (float)(middle - c * x - s * y);
    map.yx = (float)-s;
    map.yy = (float)c;
    map.y0 = (float)(middle + s * x - c * y);
    return map;
}

PHILOX_FN float augmentation_pixel(const uint8_t *image, int x, int y)
{
    bool inside = x >= 0 && x < AUGMENTATION_SIDE && y >= 0 && y < AUGMENTATION_SIDE;
    return inside ? (float)image[y * AUGMENTATION_SIDE + x] : 0.0f;
}

/* Pixel (x, y) of the new image, 0 to 255. */
PHILOX_FN float augmentation_sample(const uint8_t *image, const affine_map *map, int x, int y)
{
    float from_x = map->xx * (float)x + (map->xy * (float)y + map->x0);
    float from_y = map->yx * (float)x + (map->yy * (float)y + map->y0);
    float left = floorf(from_x), top = floorf(from_y);
    float right_part = from_x - left, lower_part = from_y - top;
    int at_x = (int)left, at_y = (int)top;
    float upper = (1 - right_part) * augmentation_pixel(image, at_x, at_y) +
                  right_part * augmentation_pixel(image, at_x + 1, at_y);
    float lower = (1 - right_part) * augmentation_pixel(image, at_x, at_y + 1) +
                  right_part * augmentation_pixel(image, at_x + 1, at_y + 1);
    return (1 - lower_part) * upper + lower_part * lower;
}

#endif
