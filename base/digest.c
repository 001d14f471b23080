#include "base/digest.h"

#include "base/file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WORDS = 16, ROUNDS = 64, LENGTH_BYTES = 8, READ_BYTES = 65536 };

/* The first bits after the point of |sin(1)|, |sin(2)| ... */
static const uint32_t MD5_CONSTANTS[ROUNDS] = {
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
};
static const uint8_t MD5_SHIFTS[4][4] = {
    {7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};

/* The same of the cube roots of the first 64 primes, and below of the square roots of the first 8. */
static const uint32_t SHA256_CONSTANTS[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static const uint32_t FIRST_STATE[2][8] = {
    [DIGEST_MD5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476},
    [DIGEST_SHA256] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                       0x1f83d9ab, 0x5be0cd19},
};

static uint32_t rotate_left(uint32_t x, int n)
{
    return x << n | x >> (32 - n);
}

static uint32_t rotate_right(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void md5_block(uint32_t state[8], const uint8_t *block)
{
    uint32_t word[WORDS], a = state[0], b = state[1], c = state[2], d = state[3];
    for (int i = 0; i < WORDS; i++) /* the lowest byte first */
        word[i] = (uint32_t)block[4 * i] | (uint32_t)block[4 * i + 1] << 8 |
                  (uint32_t)block[4 * i + 2] << 16 | (uint32_t)block[4 * i + 3] << 24;
    for (int i = 0; i < ROUNDS; i++) {
        int quarter = i / 16, at = 0;
        uint32_t f = 0;
        switch (quarter) {
        case 0:
            f = (b & c) | (~b & d);
            at = i;
            break;
        case 1:
            f = (d & b) | (~d & c);
            at = 5 * i + 1;
            break;
        case 2:
            f = b ^ c ^ d;
            at = 3 * i + 5;
            break;
        default:
            f = c ^ (b | ~d);
            at = 7 * i;
        }
        uint32_t sum = a + f + MD5_CONSTANTS[i] + word[at % WORDS];
        a = d;
        d = c;
        c = b;
        b += rotate_left(sum, MD5_SHIFTS[quarter][i % 4]);
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
}

static void sha256_block(uint32_t state[8], const uint8_t *block)
{
    uint32_t word[ROUNDS], s[8];
    for (int i = 0; i < WORDS; i++) /* the highest byte first */
        word[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
                  (uint32_t)block[4 * i + 2] << 8 | (uint32_t)block[4 * i + 3];
    for (int i = WORDS; i < ROUNDS; i++) {
        uint32_t x = word[i - 15], y = word[i - 2];
        word[i] = word[i - 16] + (rotate_right(x, 7) ^ rotate_right(x, 18) ^ x >> 3) + word[i - 7] +
                  (rotate_right(y, 17) ^ rotate_right(y, 19) ^ y >> 10);
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t a = s[0], e = s[4];
        uint32_t choice = (e & s[5]) ^ (~e & s[6]);
        uint32_t majority = (a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]);
        uint32_t first = s[7] + (rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25)) +
                         choice + SHA256_CONSTANTS[i] + word[i];
        uint32_t second =
            (rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22)) + majority;
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += first;
        s[0] = first + second;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

static void add_block(digest *d, const uint8_t *block)
{
    if (d->kind == DIGEST_MD5)
        md5_block(d->state, block);
    else
        sha256_block(d->state, block);
}

void digest_begin(digest_kind kind, digest *out)
{
    *out = (digest){.kind = kind};
    memcpy(out->state, FIRST_STATE[kind], sizeof out->state);
}

void digest_add(digest *d, const void *data, size_t size_bytes)
{
    const uint8_t *bytes = data;
    size_t held = d->size_bytes % DIGEST_BLOCK_BYTES;
    d->size_bytes += size_bytes;
    while (size_bytes > 0) {
        size_t n = DIGEST_BLOCK_BYTES - held < size_bytes ? DIGEST_BLOCK_BYTES - held : size_bytes;
        memcpy(d->block + held, bytes, n);
        held += n;
        bytes += n;
        size_bytes -= n;
        if (held == DIGEST_BLOCK_BYTES) {
            add_block(d, d->block);
            held = 0;
        }
    }
}

/* After the content a bit 1, zeros, and in the last 8 bytes of a block the content's length in bits. */
void digest_end(digest *d, char out[DIGEST_TEXT_BYTES])
{
    static const uint8_t padding[DIGEST_BLOCK_BYTES] = {0x80};
    bool lowest_first = d->kind == DIGEST_MD5;
    uint64_t bits = d->size_bytes * 8;
    size_t held = d->size_bytes % DIGEST_BLOCK_BYTES, room = DIGEST_BLOCK_BYTES - LENGTH_BYTES;
    uint8_t length[LENGTH_BYTES];
    digest_add(d, padding, held < room ? room - held : DIGEST_BLOCK_BYTES + room - held);
    for (int i = 0; i < LENGTH_BYTES; i++)
        length[i] = (uint8_t)(bits >> 8 * (lowest_first ? i : LENGTH_BYTES - 1 - i));
    digest_add(d, length, sizeof length);
    int words = d->kind == DIGEST_MD5 ? 4 : 8;
    for (int i = 0; i < 4 * words; i++) {
        int byte = lowest_first ? i % 4 : 3 - i % 4;
        snprintf(out + 2 * i, 3, "%02x", (unsigned)(d->state[i / 4] >> 8 * byte & 0xff));
    }
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
