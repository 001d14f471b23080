/* Which device a rank computes on. */
#ifndef MNIST_DDP_APP_COMMON_DEVICE_LIST_H
#define MNIST_DDP_APP_COMMON_DEVICE_LIST_H

#include "app/options/options.h"
#include "kernels/device.h"

/* From --device, --devices, --amp, --tf32 and --no-accel: name, index and precision. Rank
 * `local_rank` takes the list's GPUs, or all there are, in turn. STATUS_INVALID for what does not
 * go together. */
status device_list_choose(const options *opts, int local_rank, device_options *out);

/* Makes that device, with so many host threads; 0: --threads, or else one for each core that this
 * process may use. Says so if it is an emulation. */
status device_list_open(const options *opts, int local_rank, int threads, device **out);

/* GPUs that a launcher can count on here: those listed, or all there are; 0 if the ranks compute
 * on the CPU. Opens the driver, so only asked if the answer matters. */
status device_list_count(const options *opts, int *out);

/* For a launcher, before any rank: whether there are the GPUs that the command line names. They may
 * be those of CUDA_VISIBLE_DEVICES by the machine's numbers: a line says so. Opens the driver if
 * any are named. */
status device_list_check(const options *opts);

/* GPUs that the command line names; 0: none. */
int device_list_named(const options *opts);

#endif
