/* This thread's latest message without the source location, for lines that users read. */
#ifndef MNIST_DDP_DIST_PLAIN_MESSAGE_H
#define MNIST_DDP_DIST_PLAIN_MESSAGE_H

#include "base/status.h"

#include <stdio.h>
#include <string.h>

static inline void plain_message(char *out, size_t size_bytes)
{
    snprintf(out, size_bytes, "%s", status_message());
    char *location = strrchr(out, '(');
    if (location != NULL && location > out &&
        (strstr(location, ".c:") != NULL || strstr(location, ".cc:") != NULL))
        location[-1] = '\0';
}

#endif
