/* Whole runs of the program, compared with each other. */
#ifndef MNIST_DDP_TESTS_APP_RUNS_H
#define MNIST_DDP_TESTS_APP_RUNS_H

#include "model/safetensors.h"
#include "tests/app/workbench.h"

#include <jansson.h>
#include <math.h>

/* A learning rate that moves the weights well within the few steps of these runs. */
#define OPTIMIZER "--optimizer", "sgd", "--lr", "0.05", "--momentum", "0.9", "--seed", "3"
#define RUN OPTIMIZER, "--epochs", "1", "--json", "--quiet", "--threads", "1"
#define COMMON RUN, "--limit", "480"
#define SHORT RUN, "--limit", "96"

static inline const char *run_dir(const char *name)
{
    return workbench_path(name);
}

static inline char *bytes_of(const char *folder, size_t *size_bytes)
{
    char path[FILE_PATH_BYTES], *data = NULL;
    ck_assert(file_join(folder, "model.safetensors", path) == STATUS_OK);
    ck_assert_msg(file_read(path, 64 << 20, &data, size_bytes) == STATUS_OK, "%s", status_text());
    return data;
}

static inline void assert_same_bits(const char *a, const char *b)
{
    size_t a_bytes = 0, b_bytes = 0;
    char *a_data = bytes_of(a, &a_bytes), *b_data = bytes_of(b, &b_bytes);
    ck_assert_msg(a_bytes == b_bytes && memcmp(a_data, b_data, a_bytes) == 0,
                  "%s and %s hold different weights", a, b);
    free(a_data);
    free(b_data);
}

typedef double tensor_measure(const safetensors_tensor *a, const safetensors_tensor *b);

static inline size_t tensor_count(const safetensors_tensor *a)
{
    size_t count = 1;
    for (int d = 0; d < a->rank; d++)
        count *= (size_t)a->shape[d];
    return count;
}

/* |a - b| / |b| */
static inline double tensor_norm_difference(const safetensors_tensor *a,
                                            const safetensors_tensor *b)
{
    double off = 0, size = 0;
    for (size_t i = 0; i < tensor_count(a); i++) {
        off += pow((double)a->data[i] - (double)b->data[i], 2);
        size += pow((double)b->data[i], 2);
    }
    return sqrt(off / size);
}

/* Largest difference of a tensor as a share of its largest value. */
static inline double tensor_difference(const safetensors_tensor *a, const safetensors_tensor *b)
{
    double off = 0, largest = 0;
    for (size_t i = 0; i < tensor_count(a); i++) {
        largest = fmax(largest, fabs((double)b->data[i]));
        off = fmax(off, fabs((double)a->data[i] - (double)b->data[i]));
    }
    return off / largest;
}

/* The worst tensor's. */
static inline double model_measure(const char *a, const char *b, tensor_measure *measure)
{
    safetensors *file_a = NULL, *file_b = NULL;
    const safetensors_tensor *list = NULL;
    char path[FILE_PATH_BYTES];
    ck_assert(file_join(a, "model.safetensors", path) == STATUS_OK);
    ck_assert_msg(safetensors_open(path, &file_a) == STATUS_OK, "%s", status_text());
    ck_assert(file_join(b, "model.safetensors", path) == STATUS_OK);
    ck_assert_msg(safetensors_open(path, &file_b) == STATUS_OK, "%s", status_text());
    double worst = 0;
    size_t n = safetensors_list(file_a, &list);
    for (size_t i = 0; i < n; i++) {
        const safetensors_tensor *other = safetensors_lookup(file_b, list[i].name);
        ck_assert_ptr_nonnull(other);
        worst = fmax(worst, measure(&list[i], other));
    }
    safetensors_close(file_a);
    safetensors_close(file_b);
    return worst;
}

static inline double model_difference(const char *a, const char *b)
{
    return model_measure(a, b, tensor_difference);
}

/* Between runs whose sums were taken in another order. A rounding error that turns one ReLU or one
 * pooling window around moves few elements by much: here by their share of the norm, some 1e-4 of
 * it. One wrong image in one step moves the norm by 6e-3 and more. */
static inline double model_norm_difference(const char *a, const char *b)
{
    return model_measure(a, b, tensor_norm_difference);
}

/* The sharper measure that suits `model`: an MLP has few ReLUs to turn around, and no windows. */
static inline double model_parity(const char *model, const char *a, const char *b)
{
    return strcmp(model, "cnn") == 0 ? model_norm_difference(a, b) : model_difference(a, b);
}

static inline double json_number(const char *text, const char *key)
{
    json_error_t error;
    json_t *object = json_loads(text, 0, &error);
    ck_assert_msg(object != NULL, "%s in: %s", error.text, text);
    ck_assert_msg(json_is_number(json_object_get(object, key)), "no %s in: %s", key, text);
    double value = json_number_value(json_object_get(object, key));
    json_decref(object);
    return value;
}

static inline void fresh(const char *a, const char *b)
{
    char shell_line[512];
    snprintf(shell_line, sizeof shell_line, "rm -rf '%s/%s' '%s/%s'", workbench, a, workbench, b);
    ck_assert_int_eq(system(shell_line), 0);
}

#endif
