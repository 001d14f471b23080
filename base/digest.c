#include "base/digest.h"

#include "base/file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_BYTES = 65536 };

void digest_begin(digest_kind kind, digest *out)
{
    out->kind = kind;
    if (kind == DIGEST_MD5)
        MD5Init(&out->md5);
    else
        SHA256Init(&out->sha256);
}

void digest_add(digest *d, const void *data, size_t size_bytes)
{
    if (d->kind == DIGEST_MD5)
        MD5Update(&d->md5, data, size_bytes);
    else
        SHA256Update(&d->sha256, data, size_bytes);
}

void digest_end(digest *d, char out[DIGEST_TEXT_BYTES])
{
    if (d->kind == DIGEST_MD5)
        MD5End(&d->md5, out);
    else
        SHA256End(&d->sha256, out);
}

status digest_file(digest_kind kind, const char *path, char out[DIGEST_TEXT_BYTES])
{
    uint8_t bytes[READ_BYTES];
    struct stat info;
    digest d;
    int fd = -1;
    TRY(file_open(path, &fd, &info));
    digest_begin(kind, &d);
    ssize_t n = 0;
    do {
        n = read(fd, bytes, sizeof bytes);
        if (n > 0)
            digest_add(&d, bytes, (size_t)n);
    } while (n > 0 || (n < 0 && errno == EINTR));
    status st = n < 0 ? FAIL(STATUS_IO, "read %s: %s", path, strerror(errno)) : STATUS_OK;
    close(fd);
    if (st == STATUS_OK)
        digest_end(&d, out);
    return st;
}

const char *digest_name(digest_kind kind)
{
    return kind == DIGEST_MD5 ? "MD5" : "SHA-256";
}
