/* mnist_ddp doctor. */
#ifndef MNIST_DDP_APP_DOCTOR_DOCTOR_H
#define MNIST_DDP_APP_DOCTOR_DOCTOR_H

#include "app/options/options.h"

/* Looks whether a run with these settings can work here. Returns the exit code that such a run
 * would have, and has said why on stdout or stderr if it is not 0. */
int doctor_command(const options *opts);

#endif
