/* In which order a stage of a pipeline works on its micro-batches. */
#ifndef MNIST_DDP_APP_TRAIN_PIPELINE_SCHEDULE_H
#define MNIST_DDP_APP_TRAIN_PIPELINE_SCHEDULE_H

#include <stdbool.h>

/* How many of n micro-batches a stage has under way at most. So many forwards come first. Then
 * comes a backward, of the oldest, after which there may be a forward again; in the end come the
 * backwards that are left. With gpipe that is all forwards, then all backwards. */
static inline int pipeline_under_way(bool gpipe, int stage, int stages, int n)
{
    return gpipe || stages - stage > n ? n : stages - stage;
}

#endif
