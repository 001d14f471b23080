/* A file on its way to its path. Until it is committed it has a name of its own beside the path,
 * that nobody can have put there before, so that the path holds the old content or the new one. */
#ifndef MNIST_DDP_BASE_FILE_DRAFT_H
#define MNIST_DDP_BASE_FILE_DRAFT_H

#include "base/file.h"

typedef struct file_draft {
    int fd; /* to be written; -1: none */
    char temporary[FILE_PATH_BYTES], path[FILE_PATH_BYTES];
} file_draft;

typedef enum file_draft_mode {
    FILE_DRAFT_SHARED,  /* as the umask says */
    FILE_DRAFT_PRIVATE, /* only its owner may read it */
} file_draft_mode;

/* Makes the new file that will be `path`. A link of that name is not followed. STATUS_IO also if
 * a device or a folder is there, or a link to one. */
status file_draft_open(const char *path, file_draft_mode mode, file_draft *out);

/* Fails as file_draft_open would, and leaves nothing: before the work of which `path` is to hold
 * the results. */
status file_draft_try(const char *path);

/* Syncs the file, renames it to its path, and makes the name durable. Ends the draft, also on
 * failure. */
status file_draft_commit(file_draft *draft);

/* Removes the file, unless it was committed. Accepts a draft with fd -1. */
void file_draft_drop(file_draft *draft);

/* Removes what writers of `path` that were killed have left. Only for its one writer. */
void file_draft_clean(const char *path);

/* Writes the parts to `path` by way of a draft: it holds old or new, never less. Synced, the name
 * too. */
status file_replace(const char *path, const file_part *parts, size_t n_parts);

/* file_replace by another file's content. What is written to one of them later is not seen in the
 * other. */
status file_copy(const char *from, const char *to);

#endif
