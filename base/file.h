/* Files and folders that are either whole or absent. */
#ifndef MNIST_DDP_BASE_FILE_H
#define MNIST_DDP_BASE_FILE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { FILE_PATH_BYTES = 4096 };

struct stat;

/* Makes a folder and its parents, durably; existing ones are fine. STATUS_IO names the one that
 * failed. */
status file_make_folders(const char *path);

/* Makes the last folder of `path`, and those above it if missing. *made: false if it was there
 * already. */
status file_make_new_folder(const char *path, bool *made);

/* Makes the new folder "<folder>/<name>_XXXXXX", with letters at its end that no other has; its
 * path into `path` (FILE_PATH_BYTES). NULL: in $TMPDIR if that is an absolute path, not over half
 * that long, else in /tmp. STATUS_IO; STATUS_INVALID if the path is too long. */
status file_make_temporary_folder(const char *folder, const char *name, char *path);

/* Takes the folder for this process until *fd is closed or the process ends. STATUS_INVALID if
 * another process has it; the text names it. If the file system has no locks, nothing is taken; *fd
 * is to be closed all the same. */
status file_lock_folder(const char *path, int *fd);

/* One stretch of memory to be written. */
typedef struct file_part {
    const void *data;
    size_t size_bytes;
} file_part;

/* Writes the parts one after the other to a new file `path`, synced to disk before it returns.
 * On failure (a full disk, say) the file is removed again. */
status file_write(const char *path, const file_part *parts, size_t n_parts);

/* Whether a file, open for reading, ends amid a line, which a full disk or a killed process has
 * cut. */
bool file_ends_amid_a_line(int fd);

/* Appends to an open file. Returns 0, or why not all of it could be written (errno). */
int file_try_append(int fd, const void *data, size_t size_bytes);

/* The same; `name` is for the message. STATUS_IO. */
status file_append(int fd, const char *name, const void *data, size_t size_bytes);

/* Makes the names in a folder durable. One that this user may not read is left to the kernel. */
status file_sync_folder(const char *path);

/* Opens a regular file to be read; `info` is what it is. STATUS_INVALID if it is anything else: a
 * FIFO without a writer is not waited for. */
status file_open(const char *path, int *fd, struct stat *info);

/* Reads a whole file of at most `limit_bytes` into memory that the caller frees with free(); a zero
 * byte follows its end. STATUS_INVALID if it is longer, or no regular file. Of a file in /proc,
 * whose size nobody knows, the first 64 KiB at most. */
status file_read(const char *path, size_t limit_bytes, char **out, size_t *size_bytes);

/* "a/b" from folder and name into `out` (FILE_PATH_BYTES). STATUS_INVALID if too long. */
status file_join(const char *folder, const char *name, char *out);

/* The folder that holds `path`, into `out` (FILE_PATH_BYTES). */
void file_folder_of(const char *path, char *out);

/* Whether `path` lies in `folder`, by whatever names: neither has to be there. Links are not
 * followed. */
bool file_is_in(const char *path, const char *folder);

bool file_exists(const char *path);

/* A file on its way to its path. Until it is committed it has a name of its own beside the path,
 * that nobody can have put there before, so that the path holds the old content or the new one. */

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
