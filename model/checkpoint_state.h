/* state.json of a checkpoint. */
#ifndef MNIST_DDP_MODEL_CHECKPOINT_STATE_H
#define MNIST_DDP_MODEL_CHECKPOINT_STATE_H

#include "model/checkpoint.h"

/* Writes a new file, synced. STATUS_INVALID if a number is out of range or not finite. */
status checkpoint_state_write(const char *path, const checkpoint_state *state);

/* STATUS_INVALID names the file and the key that is missing or out of range. */
status checkpoint_state_read(const char *path, checkpoint_state *out);

#endif
