#include "base/file.h"

#include "base/host.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { UNSIZED_BYTES = 65536, LINE_BYTES = 256, NAME_BYTES = 256 };

void file_folder_of(const char *path, char *out)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    const char *slash = memrchr(path, '/', length);
    if (slash == NULL)
        strcpy(out, ".");
    else if (slash == path)
        strcpy(out, "/");
    else
        snprintf(out, FILE_PATH_BYTES, "%.*s", (int)(slash - path), path);
}

/* The absolute path without ".", ".." and doubled slashes, and a slash after it; "" if too long. */
static void resolve(const char *path, char out[2 * FILE_PATH_BYTES])
{
    char whole[2 * FILE_PATH_BYTES] = "", *rest = whole;
    size_t length = 0;
    out[0] = '\0';
    if (path[0] != '/' && getcwd(whole, FILE_PATH_BYTES) == NULL)
        return;
    size_t used = strlen(whole);
    if (used + strlen(path) + 2 > sizeof whole)
        return;
    snprintf(whole + used, sizeof whole - used, "/%s", path);
    for (char *part; (part = strtok_r(rest, "/", &rest)) != NULL;) {
        if (strcmp(part, "..") == 0)
            while (length > 0 && out[--length] != '/')
                continue;
        else if (strcmp(part, ".") != 0)
            length += (size_t)sprintf(out + length, "/%s", part);
    }
    strcpy(out + length, "/");
}

bool file_is_in(const char *path, const char *folder)
{
    char inner[2 * FILE_PATH_BYTES], outer[2 * FILE_PATH_BYTES];
    resolve(path, inner);
    resolve(folder, outer);
    return outer[0] != '\0' && strncmp(inner, outer, strlen(outer)) == 0;
}

/* Makes the name of a new folder durable. */
static status sync_name(const char *path)
{
    char folder[FILE_PATH_BYTES];
    file_folder_of(path, folder);
    return file_sync_folder(folder);
}

status file_make_folders(const char *path)
{
    char part[FILE_PATH_BYTES];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof part)
        return FAIL(STATUS_INVALID, "not a usable folder name: '%.64s'", path);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) == 0)
            TRY(sync_name(part));
        else if (errno != EEXIST)
            return FAIL(STATUS_IO, "make folder %s: %s", part, strerror(errno));
    }
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return FAIL(STATUS_IO, "%s is there and is not a folder", path);
    return STATUS_OK;
}

status file_make_new_folder(const char *path, bool *made)
{
    char above[FILE_PATH_BYTES];
    file_folder_of(path, above);
    TRY(file_make_folders(above));
    if (mkdir(path, 0777) != 0) {
        *made = false;
        return errno == EEXIST ? STATUS_OK
                               : FAIL(STATUS_IO, "make folder %s: %s", path, strerror(errno));
    }
    *made = true;
    return file_sync_folder(above);
}

status file_make_temporary_folder(const char *folder, const char *name, char *path)
{
    const char *temporary = getenv("TMPDIR");
    if (temporary == NULL || temporary[0] != '/' || strlen(temporary) > FILE_PATH_BYTES / 2)
        temporary = "/tmp";
    int length =
        snprintf(path, FILE_PATH_BYTES, "%s/%s_XXXXXX", folder != NULL ? folder : temporary, name);
    if (length >= FILE_PATH_BYTES)
        return FAIL(STATUS_INVALID, "path too long: %.80s...", path);
    return mkdtemp(path) != NULL ? STATUS_OK
                                 : FAIL(STATUS_IO, "make folder %s: %s", path, strerror(errno));
}

/* ", pid 71 (mnist_ddp train)": who holds the lock of an open folder, as /proc/locks has it; "" if
 * that does not say. */
static void name_holder(int folder, char out[NAME_BYTES])
{
    char line[LINE_BYTES];
    struct stat info;
    int pid = 0, found = 0;
    FILE *locks = fstat(folder, &info) == 0 ? fopen("/proc/locks", "re") : NULL;
    while (locks != NULL && found == 0 && fgets(line, sizeof line, locks) != NULL) {
        unsigned above, below;
        unsigned long inode;
        if (sscanf(line, "%*d: FLOCK %*s %*s %d %x:%x:%lu", &pid, &above, &below, &inode) == 4 &&
            above == major(info.st_dev) && below == minor(info.st_dev) && inode == info.st_ino)
            found = pid;
    }
    if (locks != NULL)
        fclose(locks);
    strcpy(out, found > 0 ? ", " : "");
    if (found > 0)
        process_name(found, out + strlen(out), NAME_BYTES - strlen(out));
}

status file_lock_folder(const char *path, int *fd)
{
    char holder[NAME_BYTES];
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return FAIL(STATUS_IO, "open %s: %s", path, strerror(errno));
    if (flock(folder, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        name_holder(folder, holder);
        close(folder);
        return FAIL(STATUS_INVALID, "%s is in use by another process%s", path, holder);
    }
    *fd = folder;
    return STATUS_OK;
}

bool file_ends_amid_a_line(int fd)
{
    struct stat about;
    char last = '\n';
    return fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0 &&
           pread(fd, &last, 1, about.st_size - 1) == 1 && last != '\n';
}

int file_try_append(int fd, const void *data, size_t size_bytes)
{
    const char *bytes = data;
    for (size_t done = 0; done < size_bytes;) {
        ssize_t n = write(fd, bytes + done, size_bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : EIO;
        done += (size_t)n;
    }
    return 0;
}

status file_append(int fd, const char *name, const void *data, size_t size_bytes)
{
    int error = file_try_append(fd, data, size_bytes);
    return error == 0 ? STATUS_OK : FAIL(STATUS_IO, "write %s: %s", name, strerror(error));
}

static status file_append_parts(int fd, const char *name, const file_part *parts, size_t n_parts)
{
    for (size_t i = 0; i < n_parts; i++)
        TRY(file_append(fd, name, parts[i].data, parts[i].size_bytes));
    return STATUS_OK;
}

status file_write(const char *path, const file_part *parts, size_t n_parts)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return FAIL(STATUS_IO, "create %s: %s", path, strerror(errno));
    status st = file_append_parts(fd, path, parts, n_parts);
    if (st == STATUS_OK && fsync(fd) != 0)
        st = FAIL(STATUS_IO, "sync %s: %s", path, strerror(errno));
    if (close(fd) != 0 && st == STATUS_OK)
        st = FAIL(STATUS_IO, "close %s: %s", path, strerror(errno));
    if (st != STATUS_OK)
        unlink(path);
    return st;
}

status file_open(const char *path, int *fd, struct stat *info)
{
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not keep us */
    if (opened < 0)
        return FAIL(STATUS_IO, "open %s: %s", path, strerror(errno));
    status st = STATUS_OK;
    if (fstat(opened, info) != 0)
        st = FAIL(STATUS_IO, "stat %s: %s", path, strerror(errno));
    else if (!S_ISREG(info->st_mode))
        st = FAIL(STATUS_INVALID, "%s is %snot a regular file", path,
                  S_ISDIR(info->st_mode) ? "a directory, " : "");
    if (st != STATUS_OK) {
        close(opened);
        return st;
    }
    *fd = opened;
    return STATUS_OK;
}

status file_sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == EACCES)
        return STATUS_OK; /* a folder that we may write in and not read */
    if (fd < 0)
        return FAIL(STATUS_IO, "open folder %s: %s", path, strerror(errno));
    status st = STATUS_OK;
    if (fsync(fd) != 0 && errno != EINVAL)
        st = FAIL(STATUS_IO, "sync folder %s: %s", path, strerror(errno));
    close(fd);
    return st;
}

status file_read(const char *path, size_t limit_bytes, char **out, size_t *size_bytes)
{
    status st = STATUS_OK;
    char *data = NULL;
    struct stat info;
    int fd = -1;
    TRY(file_open(path, &fd, &info));
    if ((size_t)info.st_size > limit_bytes) {
        st = FAIL(STATUS_INVALID, "%s: longer than %zu bytes", path, limit_bytes);
        goto out;
    }
    /* Files in /proc have a content, and no size. */
    bool sized = info.st_size > 0;
    size_t size = sized ? (size_t)info.st_size : limit_bytes, done = 0;
    if (!sized && size > UNSIZED_BYTES)
        size = UNSIZED_BYTES;
    data = malloc(size + 1);
    if (data == NULL) {
        st = FAIL(STATUS_NO_MEMORY, "%s: %zu bytes", path, size);
        goto out;
    }
    while (done < size) {
        ssize_t n = read(fd, data + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0 && !sized)
            break;
        if (n <= 0) {
            st = FAIL(STATUS_IO, "read %s at byte %zu of %zu: %s", path, done, size,
                      n < 0 ? strerror(errno) : "it became shorter");
            goto out;
        }
        done += (size_t)n;
    }
    data[done] = '\0';
    *out = data;
    *size_bytes = done;
    data = NULL;

out:
    free(data);
    close(fd);
    return st;
}

status file_join(const char *folder, const char *name, char *out)
{
    int length = snprintf(out, FILE_PATH_BYTES, "%s/%s", folder, name);
    if (length < 0 || length >= FILE_PATH_BYTES)
        return FAIL(STATUS_INVALID, "path too long: %.64s.../%s", folder, name);
    return STATUS_OK;
}

bool file_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

/* A file on its way to its path. */

enum {
    TRIES = 100, /* so many names may be taken */
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
