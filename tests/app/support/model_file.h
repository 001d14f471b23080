/* model.safetensors of two run folders, compared. */
#ifndef MNIST_DDP_TESTS_APP_SUPPORT_MODEL_FILE_H
#define MNIST_DDP_TESTS_APP_SUPPORT_MODEL_FILE_H

#include <stddef.h>

/* The bytes of a run folder's file; free with free(). */
char *model_file_bytes(const char *folder, size_t *size_bytes);

/* Fails the test if the two run folders hold different weights. */
void model_file_assert_same_bits(const char *a, const char *b);

/* The largest difference in any tensor, as a share of its largest value. */
double model_file_difference(const char *a, const char *b);

/* Between runs whose sums were taken in another order. A rounding error that turns one ReLU or one
 * pooling window around moves few elements by much: here by their share of the norm, some 1e-4 of
 * it. One wrong image in one step moves the norm by 6e-3 and more. */
double model_file_norm_difference(const char *a, const char *b);

/* The sharper measure that suits `model`: an MLP has few ReLUs to turn around, and no windows. */
double model_file_parity(const char *model, const char *a, const char *b);

#endif
