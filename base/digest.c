#include "base/digest.h"

#include "base/file.h"

#include <errno.h>
#include <sha2.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char LETTERS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_write(const void *bytes, size_t n, char *out)
{
    const uint8_t *from = bytes;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t three = (uint32_t)from[i] << 16 | (i + 1 < n ? (uint32_t)from[i + 1] << 8 : 0) |
                         (i + 2 < n ? from[i + 2] : 0);
        *out++ = LETTERS[three >> 18];
        *out++ = LETTERS[three >> 12 & 63];
        *out++ = i + 1 < n ? LETTERS[three >> 6 & 63] : '=';
        *out++ = i + 2 < n ? LETTERS[three & 63] : '=';
    }
    *out = '\0';
}

/* What a letter stands for; -1: it is none. */
static int value_of(char letter)
{
    const char *at = letter != '\0' ? strchr(LETTERS, letter) : NULL;
    return at != NULL ? (int)(at - LETTERS) : -1;
}

bool base64_read(const char *text, void *out, size_t *n)
{
    size_t length = strlen(text), done = 0;
    uint8_t *to = out;
    if (length % 4 != 0)
        return false;
    for (size_t i = 0; i < length; i += 4) {
        bool is_last = i + 4 == length;
        int padding = !is_last || text[i + 3] != '=' ? 0 : text[i + 2] != '=' ? 1 : 2;
        uint32_t four = 0;
        for (int k = 0; k < 4; k++) {
            int value = k < 4 - padding ? value_of(text[i + (size_t)k]) : 0;
            if (value < 0)
                return false;
            four = four << 6 | (uint32_t)value;
        }
        for (int k = 0; k < 3 - padding; k++)
            to[done++] = (uint8_t)(four >> (16 - 8 * k));
    }
    *n = done;
    return true;
}

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
