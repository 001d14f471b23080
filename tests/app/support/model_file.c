#include "tests/app/support/model_file.h"

#include "base/file.h"
#include "model/safetensors.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef double tensor_measure(const safetensors_tensor *a, const safetensors_tensor *b);

char *model_file_bytes(const char *folder, size_t *size_bytes)
{
    char path[FILE_PATH_BYTES], *data = NULL;
    ck_assert(file_join(folder, "model.safetensors", path) == STATUS_OK);
    ck_assert_msg(file_read(path, 64 << 20, &data, size_bytes) == STATUS_OK, "%s", status_text());
    return data;
}

void model_file_assert_same_bits(const char *a, const char *b)
{
    size_t a_bytes = 0, b_bytes = 0;
    char *a_data = model_file_bytes(a, &a_bytes), *b_data = model_file_bytes(b, &b_bytes);
    ck_assert_msg(a_bytes == b_bytes && memcmp(a_data, b_data, a_bytes) == 0,
                  "%s and %s hold different weights", a, b);
    free(a_data);
    free(b_data);
}

static size_t tensor_count(const safetensors_tensor *a)
{
    size_t count = 1;
    for (int d = 0; d < a->rank; d++)
        count *= (size_t)a->shape[d];
    return count;
}

/* |a - b| / |b| */
static double tensor_norm_difference(const safetensors_tensor *a, const safetensors_tensor *b)
{
    double off = 0, size = 0;
    for (size_t i = 0; i < tensor_count(a); i++) {
        off += pow((double)a->data[i] - (double)b->data[i], 2);
        size += pow((double)b->data[i], 2);
    }
    return sqrt(off / size);
}

/* Largest difference of a tensor as a share of its largest value. */
static double tensor_difference(const safetensors_tensor *a, const safetensors_tensor *b)
{
    double off = 0, largest = 0;
    for (size_t i = 0; i < tensor_count(a); i++) {
        largest = fmax(largest, fabs((double)b->data[i]));
        off = fmax(off, fabs((double)a->data[i] - (double)b->data[i]));
    }
    return off / largest;
}

/* The worst tensor's. */
static double worst_tensor(const char *a, const char *b, tensor_measure *measure)
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

double model_file_difference(const char *a, const char *b)
{
    return worst_tensor(a, b, tensor_difference);
}

double model_file_norm_difference(const char *a, const char *b)
{
    return worst_tensor(a, b, tensor_norm_difference);
}

double model_file_parity(const char *model, const char *a, const char *b)
{
    return strcmp(model, "mlp") == 0 ? model_file_difference(a, b)
                                     : model_file_norm_difference(a, b);
}
