/* In which order an epoch has its images. */
#ifndef MNIST_DDP_APP_TRAIN_EPOCH_ORDER_H
#define MNIST_DDP_APP_TRAIN_EPOCH_ORDER_H

#include "app/train/rank_context.h"

/* After the loader has begun the epoch (from 0): rank 0 warns of one in the order of the epoch
 * before. Such epochs train worse and say nothing: the bug of a sampler whose set_epoch nobody
 * calls. */
void epoch_order_look(const rank_context *rank, int64_t epoch);

#endif
