/* mnist_ddp doctor. */
#ifndef MNIST_DDP_APP_DOCTOR_DOCTOR_H
#define MNIST_DDP_APP_DOCTOR_DOCTOR_H

#include "app/launch/worker_spec.h"
#include "app/options/options.h"

/* Looks whether a run with these settings can work here. Returns the exit code that such a run
 * would have, and has said why on stdout or stderr if it is not 0. */
int doctor_command(const options *opts);

/* What would end the ranks of `train` one after the other and is known before they start: data,
 * --init, modules, and on rank 0's node the folders; else *exit_code is what to exit with. */
status doctor_check_train(const options *opts, const worker_spec *spec, int *exit_code);

#endif
