/* The cache folder of this user on this host: $XDG_CACHE_HOME/mnist_ddp, or ~/.cache/mnist_ddp.
 *
 * A file in it is whole or absent: it is written under a temporary name and renamed. Writers take a
 * lock, which the kernel releases if a writer dies.
 */
#ifndef MNIST_DDP_DATA_CACHE_H
#define MNIST_DDP_DATA_CACHE_H

#include "base/file.h"
#include "base/status.h"

#include <stddef.h>

enum { CACHE_MAX_FOLDERS = 2, CACHE_LOCK_MS = 60 * 1000 };

/* The folders that the environment names, best first; they need not exist. */
typedef struct cache_folders {
    int count;
    char path[CACHE_MAX_FOLDERS][FILE_PATH_BYTES];
} cache_folders;

void cache_folders_find(cache_folders *out);

/* Makes `name` in the first cache folder that can be written; `out` (FILE_PATH_BYTES) is its path.
 * STATUS_IO if there is none. */
status cache_folder_make(const char *name, char *out);

/* Takes the writer's lock of `folder`. Waits for another holder at most `timeout_ms`, then
 * STATUS_TIMEOUT. The lock file is never deleted. */
status cache_lock(const char *folder, int timeout_ms, int *lock);
void cache_unlock(int lock); /* -1: nothing to do */

/* For the holder of the folder's lock: opens a new file that will become `path`, and removes the
 * drafts of writers that were killed. */
status cache_draft(const char *path, file_draft *out);

#endif
