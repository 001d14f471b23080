/* state.json of a checkpoint. Its last line is the hash of all bytes before it, so that every
 * flipped bit is detected; "model_hash" and "optimizer_hash" are safetensors_hash of the other two
 * files. Format 1 has no hashes. */
#ifndef MNIST_DDP_MODEL_CHECKPOINT_STATE_H
#define MNIST_DDP_MODEL_CHECKPOINT_STATE_H

#include "model/checkpoint.h"

/* Writes a new file, synced. STATUS_INVALID names the number that is out of range: a file that
 * could not be read is not written. */
status checkpoint_state_write(const char *path, const checkpoint_state *state);

/* STATUS_INVALID names the file and the key that is missing or out of range, or says that the file
 * is damaged. */
status checkpoint_state_read(const char *path, checkpoint_state *out);

#endif
