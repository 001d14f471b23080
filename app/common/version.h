#ifndef MNIST_DDP_APP_COMMON_VERSION_H
#define MNIST_DDP_APP_COMMON_VERSION_H

/* scripts/make_deb.sh reads it here. */
#define MNIST_DDP_VERSION "0.1.0"

#endif
