/* Variables of the environment. */
#ifndef MNIST_DDP_BASE_ENVIRONMENT_H
#define MNIST_DDP_BASE_ENVIRONMENT_H

/* The variable's text; NULL if it is not set or empty, which mean the same, as in PyTorch. */
const char *environment_text(const char *name);

#endif
