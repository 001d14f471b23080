/* Digests of files of known contents. */
#include "base/digest.h"
#include "tests/support/suite.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* `times` letters, again and again the same ones. */
static void expect_digest(const char *letters, int times, const char *want)
{
    char path[] = "/tmp/mnist_ddp_digest_XXXXXX", text[DIGEST_TEXT_BYTES];
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    for (int i = 0; i < times; i++)
        ck_assert_int_eq(write(fd, letters, strlen(letters)), (ssize_t)strlen(letters));
    close(fd);
    ck_assert_int_eq(digest_file(path, text), STATUS_OK);
    ck_assert_str_eq(text, want);
    unlink(path);
    ck_assert_int_eq(digest_file(path, text), STATUS_IO);
}

/* The examples of FIPS 180-4; the last one is longer than one read. */
START_TEST(published_examples)
{
    expect_digest("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect_digest("abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    expect_digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    expect_digest("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 20000,
                  "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}
END_TEST

START_TEST(a_folder_has_none)
{
    char text[DIGEST_TEXT_BYTES];
    ck_assert_int_eq(digest_file("/tmp", text), STATUS_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("digest");
    TCase *core = suite_case(suite, "core", 10);
    tcase_add_test(core, published_examples);
    tcase_add_test(core, a_folder_has_none);
    return suite_run(suite);
}
