/* The frames of a demonstration as one HTML page that needs no network: they stand one below the
 * other, and if the browser runs scripts, one at a time, with what moves between the ranks. */
#ifndef MNIST_DDP_APP_DEMO_DEMO_PAGE_H
#define MNIST_DDP_APP_DEMO_DEMO_PAGE_H

#include "base/status.h"

#include <jansson.h>

/* `document`: as --json prints it. STATUS_IO. */
status demo_page_write(const char *path, const json_t *document);

#endif
