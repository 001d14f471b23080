/* --debug and $TORCH_DISTRIBUTED_DEBUG. */
#ifndef MNIST_DDP_APP_COMMON_DEBUG_LEVEL_H
#define MNIST_DDP_APP_COMMON_DEBUG_LEVEL_H

#include "app/options/options.h"
#include "dist/collective/process_group_options.h"

/* --debug, if it is given, becomes the variable, for this process and for those that it starts; and
 * the log follows. Once, before threads start. */
void debug_level_apply(const options *opts);

/* What process groups are created with. */
process_group_debug debug_level(void);

#endif
