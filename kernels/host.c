#include "kernels/host.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MEAN 0.1307f
#define STD 0.3081f

status host_alloc(device *dev, size_t size_bytes, void **out)
{
    (void)dev;
    return memory_alloc(size_bytes, out);
}

void host_free(device *dev, void *memory)
{
    (void)dev;
    free(memory);
}

status host_copy(device *dev, void *dst, const void *src, size_t size_bytes)
{
    (void)dev;
    memcpy(dst, src, size_bytes);
    return STATUS_OK;
}

status host_gather(device *dev, const uint8_t *images, const uint8_t *labels,
                   const uint32_t *indices, int n, int pixels, float *x, uint8_t *labels_out)
{
    (void)dev;
    float normalised[256]; /* a byte has few values: 256 divisions instead of n * pixels */
    for (int value = 0; value < 256; value++)
        normalised[value] = ((float)value / 255.0f - MEAN) / STD;
    for (int i = 0; i < n; i++) {
        const uint8_t *image = images + (size_t)indices[i] * (size_t)pixels;
        float *row = x + (size_t)i * (size_t)pixels;
        for (int j = 0; j < pixels; j++)
            row[j] = normalised[image[j]];
        labels_out[i] = labels[indices[i]];
    }
    return STATUS_OK;
}

static int argmax(const float *row, int classes)
{
    int best = 0;
    for (int c = 1; c < classes; c++)
        if (row[c] > row[best])
            best = c;
    return best;
}

status host_cross_entropy(device *dev, const float *logits, const uint8_t *labels, int n,
                          int classes, float grad_scale, double *loss_sum, int64_t *correct,
                          float *dlogits)
{
    (void)dev;
    double loss = 0;
    int64_t hits = 0;
    for (int i = 0; i < n; i++) {
        const float *row = logits + (size_t)i * (size_t)classes;
        int best = argmax(row, classes), label = labels[i];
        float largest = row[best];
        double sum = 0;
        for (int c = 0; c < classes; c++)
            sum += exp((double)(row[c] - largest));
        loss += log(sum) - (double)(row[label] - largest);
        hits += best == label;
        if (dlogits == NULL)
            continue;
        float *gradient = dlogits + (size_t)i * (size_t)classes;
        for (int c = 0; c < classes; c++) {
            double softmax = exp((double)(row[c] - largest)) / sum;
            gradient[c] = (float)(softmax - (c == label)) * grad_scale;
        }
    }
    *loss_sum += loss;
    *correct += hits;
    return STATUS_OK;
}
