/* Digests of known contents, given in pieces of every size. */
#include "base/digest.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void expect_digest(digest_kind kind, const char *content, size_t piece, const char *want)
{
    char text[DIGEST_TEXT_BYTES];
    digest d;
    size_t length = strlen(content);
    digest_begin(kind, &d);
    for (size_t at = 0; at < length; at += piece)
        digest_add(&d, content + at, at + piece < length ? piece : length - at);
    digest_end(&d, text);
    ck_assert_str_eq(text, want);
}

/* The examples of RFC 1321 and of FIPS 180-4. */
START_TEST(published_examples)
{
    static const char two_blocks[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    expect_digest(DIGEST_MD5, "", 1, "d41d8cd98f00b204e9800998ecf8427e");
    expect_digest(DIGEST_MD5, "message digest", 64, "f96b697d7cb7938d525a2f31aaf161d0");
    expect_digest(
        DIGEST_MD5,
        "12345678901234567890123456789012345678901234567890123456789012345678901234567890", 7,
        "57edf4a22be3c955ac49da2e2107b67a");
    expect_digest(DIGEST_SHA256, "abc", 1,
                  "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    expect_digest(DIGEST_SHA256, two_blocks, 64,
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}
END_TEST

/* Where the padding needs a block of its own, and where the content ends with a block. */
START_TEST(pieces_do_not_matter)
{
    char content[200], whole[DIGEST_TEXT_BYTES];
    for (int length = 0; length < (int)sizeof content; length++) {
        memset(content, 'a' + length % 26, (size_t)length);
        content[length] = '\0';
        for (int kind = DIGEST_MD5; kind <= DIGEST_SHA256; kind++) {
            digest d;
            digest_begin((digest_kind)kind, &d);
            digest_add(&d, content, (size_t)length);
            digest_end(&d, whole);
            for (size_t piece = 1; piece < 130; piece += 63)
                expect_digest((digest_kind)kind, content, piece, whole);
        }
    }
}
END_TEST

START_TEST(a_file)
{
    char path[] = "/tmp/mnist_ddp_digest_XXXXXX", text[DIGEST_TEXT_BYTES];
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, "abc", 3), 3);
    close(fd);
    ck_assert_int_eq(digest_file(DIGEST_MD5, path, text), STATUS_OK);
    ck_assert_str_eq(text, "900150983cd24fb0d6963f7d28e17f72");
    unlink(path);
    ck_assert_int_eq(digest_file(DIGEST_MD5, path, text), STATUS_IO);
    ck_assert_int_eq(digest_file(DIGEST_MD5, "/tmp", text), STATUS_INVALID);
    ck_assert_str_eq(digest_name(DIGEST_SHA256), "SHA-256");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("digest");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_test(core, published_examples);
    tcase_add_test(core, pieces_do_not_matter);
    tcase_add_test(core, a_file);
    return suite_run(suite);
}
