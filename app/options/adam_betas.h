/* Adam's two factors: --adam-betas. */
#ifndef MNIST_DDP_APP_OPTIONS_ADAM_BETAS_H
#define MNIST_DDP_APP_OPTIONS_ADAM_BETAS_H

#include "base/status.h"

typedef struct adam_betas {
    double first, second; /* 0 <= first < 1, 0 < second < 1 */
} adam_betas;

/* "0.9,0.999". STATUS_INVALID with what is allowed. */
status adam_betas_parse(const char *text, adam_betas *out);

#endif
