/* Host names of the pods of a Kubernetes Indexed Job: "<job>-<index>.<service>.<namespace>...". */
#ifndef MNIST_DDP_APP_LAUNCH_POD_NAME_H
#define MNIST_DDP_APP_LAUNCH_POD_NAME_H

#include "base/status.h"

#include <stddef.h>

/* The name under which other pods find pod 0, from that of pod `index`, which is this one.
 * STATUS_INVALID if this host's name is not a pod's, or has no domain: no headless service. */
status pod_name_of_first(int index, char *out, size_t size_bytes);

/* The same of a given full name. */
status pod_name_first(const char *name, int index, char *out, size_t size_bytes);

#endif
