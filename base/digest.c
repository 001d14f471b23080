#include "base/digest.h"

#include "base/file.h"

#include <errno.h>
#include <sha2.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_BYTES = 65536 };

_Static_assert(DIGEST_TEXT_BYTES == SHA256_DIGEST_STRING_LENGTH, "64 digits and a zero byte");

status digest_file(const char *path, char out[DIGEST_TEXT_BYTES])
{
    uint8_t bytes[READ_BYTES];
    struct stat info;
    SHA2_CTX sum;
    int fd = -1;
    TRY(file_open(path, &fd, &info));
    SHA256Init(&sum);
    ssize_t n = 0;
    do {
        n = read(fd, bytes, sizeof bytes);
        if (n > 0)
            SHA256Update(&sum, bytes, (size_t)n);
    } while (n > 0 || (n < 0 && errno == EINTR));
    status st = n < 0 ? FAIL(STATUS_IO, "read %s: %s", path, strerror(errno)) : STATUS_OK;
    close(fd);
    if (st == STATUS_OK)
        SHA256End(&sum, out);
    return st;
}
