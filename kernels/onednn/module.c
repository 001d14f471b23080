/* The one symbol of the onednn module. */
#include "base/module.h"
#include "kernels/ops.h"

extern const device_kind onednn_kind; /* kernels/onednn/device.c */
extern const module mnist_ddp_module;

__attribute__((visibility("default")))
const module mnist_ddp_module = {MODULE_ABI_VERSION, NULL, &onednn_kind, NULL, NULL, NULL};
