#include "base/file_draft.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TRIES = 100, /* of names that may be taken */
    DIGITS = 8,
    COPY_BYTES = 65536,
    COPY_AT_ONCE = 1 << 30,
};

static const char MARK[] = ".tmp-"; /* between the path and eight digits */

/* A device is not replaced by a file: who has the rights would lose it. A folder cannot be. */
static status check_target(const char *path)
{
    struct stat facts;
    if (stat(path, &facts) != 0)
        return STATUS_OK;
    if (S_ISCHR(facts.st_mode) || S_ISBLK(facts.st_mode))
        return FAIL(STATUS_IO, "%s is a device: name a file", path);
    return S_ISDIR(facts.st_mode) ? FAIL(STATUS_IO, "%s is a folder: name a file", path)
                                  : STATUS_OK;
}

status file_draft_open(const char *path, file_draft_mode mode, file_draft *out)
{
    file_draft draft = {.fd = -1};
    int length = snprintf(draft.path, sizeof draft.path, "%s", path);
    if (length < 0 || (size_t)length >= sizeof draft.path - sizeof MARK - DIGITS)
        return FAIL(STATUS_INVALID, "path too long: %.64s...", path);
    TRY(check_target(path));
    for (int i = 0; i < TRIES && draft.fd < 0; i++) {
        uint32_t number = 0;
        if (getrandom(&number, sizeof number, 0) != sizeof number)
            return FAIL(STATUS_IO, "a random name beside %s: %s", path, strerror(errno));
        memcpy(draft.temporary, path, (size_t)length);
        snprintf(draft.temporary + length, sizeof draft.temporary - (size_t)length, "%s%0*x", MARK,
                 DIGITS, number);
        draft.fd = open(draft.temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                        mode == FILE_DRAFT_PRIVATE ? 0600 : 0666);
        if (draft.fd < 0 && errno != EEXIST)
            break;
    }
    if (draft.fd < 0)
        return FAIL(STATUS_IO, "create %s: %s", draft.temporary, strerror(errno));
    *out = draft;
    return STATUS_OK;
}

status file_draft_try(const char *path)
{
    file_draft draft;
    TRY(file_draft_open(path, FILE_DRAFT_SHARED, &draft));
    file_draft_drop(&draft);
    return STATUS_OK;
}

void file_draft_drop(file_draft *draft)
{
    if (draft->fd < 0)
        return;
    close(draft->fd);
    unlink(draft->temporary);
    draft->fd = -1;
}

status file_draft_commit(file_draft *draft)
{
    char folder[FILE_PATH_BYTES];
    status st = STATUS_OK;
    if (fsync(draft->fd) != 0)
        st = FAIL(STATUS_IO, "sync %s: %s", draft->temporary, strerror(errno));
    else if (rename(draft->temporary, draft->path) != 0)
        st = FAIL(STATUS_IO, "rename %s to %s: %s", draft->temporary, draft->path, strerror(errno));
    if (st != STATUS_OK) {
        file_draft_drop(draft);
        return st;
    }
    close(draft->fd);
    draft->fd = -1;
    file_folder_of(draft->path, folder);
    return file_sync_folder(folder);
}

/* Is `name` one that file_draft_open gives beside a file `of`? */
static bool is_draft(const char *name, const char *of)
{
    size_t length = strlen(of), mark = strlen(MARK);
    if (strncmp(name, of, length) != 0 || strncmp(name + length, MARK, mark) != 0)
        return false;
    const char *digits = name + length + mark;
    return strlen(digits) == DIGITS && strspn(digits, "0123456789abcdef") == DIGITS;
}

void file_draft_clean(const char *path)
{
    char folder[FILE_PATH_BYTES], leftover[FILE_PATH_BYTES];
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    file_folder_of(path, folder);
    DIR *listing = opendir(folder);
    if (listing == NULL)
        return;
    for (const struct dirent *e = readdir(listing); e != NULL; e = readdir(listing)) {
        if (is_draft(e->d_name, name) && file_join(folder, e->d_name, leftover) == STATUS_OK)
            unlink(leftover);
    }
    closedir(listing);
}

status file_replace(const char *path, const file_part *parts, size_t n_parts)
{
    file_draft draft;
    TRY(file_draft_open(path, FILE_DRAFT_SHARED, &draft));
    status st = file_append_parts(draft.fd, draft.temporary, parts, n_parts);
    if (st == STATUS_OK)
        return file_draft_commit(&draft);
    file_draft_drop(&draft);
    return st;
}

/* If the kernel does not copy between these two files. */
static status copy_by_hand(int from, const char *path, const file_draft *to)
{
    char buffer[COPY_BYTES];
    for (;;) {
        ssize_t n = read(from, buffer, sizeof buffer);
        if (n == 0)
            return STATUS_OK;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return FAIL(STATUS_IO, "read %s: %s", path, strerror(errno));
        TRY(file_append(to->fd, to->temporary, buffer, (size_t)n));
    }
}

/* Some file systems let both files share blocks until one is written to. */
static status copy_content(int from, const char *path, const file_draft *to)
{
    bool begun = false;
    for (;;) {
        ssize_t n = copy_file_range(from, NULL, to->fd, NULL, COPY_AT_ONCE, 0);
        if (n == 0 && begun)
            return STATUS_OK;
        bool cannot = n == 0 || (n < 0 && (errno == EXDEV || errno == EINVAL || errno == ENOSYS ||
                                           errno == EOPNOTSUPP));
        if (!begun && cannot)
            return copy_by_hand(from, path, to);
        if (n < 0 && errno != EINTR)
            return FAIL(STATUS_IO, "copy %s to %s: %s", path, to->temporary, strerror(errno));
        begun = begun || n > 0;
    }
}

status file_copy(const char *from, const char *to)
{
    file_draft draft = {.fd = -1};
    struct stat info;
    int fd = -1;
    TRY(file_open(from, &fd, &info));
    status st = file_draft_open(to, FILE_DRAFT_SHARED, &draft);
    if (st == STATUS_OK)
        st = copy_content(fd, from, &draft);
    if (st == STATUS_OK)
        st = file_draft_commit(&draft);
    file_draft_drop(&draft);
    close(fd);
    return st;
}
