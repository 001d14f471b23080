/* Modules: what needs other libraries is a shared object, opened at run time. So the program
 * starts fast, and starts if those libraries are missing.
 *
 * A module finds the program's own functions in the executable, exports one symbol,
 * "mnist_ddp_module", and is never closed.
 */
#ifndef MNIST_DDP_BASE_MODULE_H
#define MNIST_DDP_BASE_MODULE_H

#include "base/status.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct device_kind;       /* kernels/ops.h */
struct http_server_ops;   /* app/common/http_server_ops.h */
struct process_group_ops; /* dist/collective/process_group_ops.h */
struct transfer_ops;      /* base/transfer_ops.h */

enum { MODULE_ABI_VERSION = 15 };

typedef struct module {
    int abi_version;
    const char *emulation; /* NULL; or what stands in for the hardware: printed by every run */
    const struct device_kind *device;              /* NULL: the module has none */
    const struct process_group_ops *process_group; /* likewise */
    const struct transfer_ops *transfer;           /* likewise */
    const struct http_server_ops *http_server;     /* likewise */
} module;

/* Opens mnist_ddp_<name>.so, which has the table of its name, and sets *out. Looked for in
 * $MNIST_DDP_<NAME>_MODULE (a file; nothing else is tried then), beside the executable, and in
 * ../lib/mnist_ddp from there. STATUS_INVALID, with the files looked for, if there is none;
 * STATUS_IO, with the loader's reason, if it does not load. */
status module_open(const char *name, const module **out);

/* Whether there is such a file, without opening it. */
bool module_exists(const char *name);

/* Whether $MNIST_DDP_<NAME>_MODULE names one. */
bool module_is_named(const char *name);

#ifdef __cplusplus
}
#endif
#endif
