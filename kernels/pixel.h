/* What a pixel becomes before a network sees it. Host devices share it; CUDA's gather repeats
 * it. */
#ifndef MNIST_DDP_KERNELS_PIXEL_H
#define MNIST_DDP_KERNELS_PIXEL_H

/* Mean and standard deviation of MNIST's pixels between 0 and 1, as pytorch/examples writes
 * them. */
#define PIXEL_MEAN 0.1307f
#define PIXEL_STD 0.3081f

/* Both divisions are exact ones, so all devices have the same bits. */
static inline float pixel_normalised(float pixel)
{
    return (pixel / 255.0f - PIXEL_MEAN) / PIXEL_STD;
}

#endif
