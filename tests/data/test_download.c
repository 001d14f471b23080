/* A file from mirrors that a table stands for: what is asked for, what is kept, who is named. */
#include "data/download.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Begins as a gzip file does. */
static const char CONTENT[] = "\x1f\x8b and the rest of it";
enum { SIZE = sizeof CONTENT - 1, MOST_REPLIES = 8, PATH_BYTES = 64 };
static const dataset_file WANT = {
    .sha256 = "b34e25e8863d0a8c7742cdd1833db01773809dbf8ef9186e02d11bcd480b30da",
    .size_bytes = SIZE};

/* What a mirror does with one request. */
typedef struct reply {
    int code;
    const char *body;
    int size_bytes;
    int first_byte; /* of a 206 */
    status end;     /* after the body */
    bool interrupts;
    uint64_t asked_from; /* what must be asked for */
} reply;

static reply replies[MOST_REPLIES];
static int n_asked;
static char folder[PATH_BYTES], path[PATH_BYTES], part_path[PATH_BYTES],
    asked[MOST_REPLIES][PATH_BYTES];

static status fake_perform(void *self, const transfer_request *request, transfer_answer *answer)
{
    (void)self;
    const reply *r = &replies[n_asked];
    ck_assert_int_lt(n_asked, MOST_REPLIES);
    ck_assert_msg(r->code != 0, "asked once more: %s", request->url);
    ck_assert_uint_eq(request->from_byte, r->asked_from);
    snprintf(asked[n_asked++], PATH_BYTES, "%s", request->url);
    *answer = (transfer_answer){.code = r->code, .first_byte = r->first_byte, .whole = SIZE};
    TRY(request->begin(request->ctx, answer));
    for (int i = 0; i < r->size_bytes; i++) /* the smallest pieces */
        TRY(request->take(request->ctx, r->body + i, 1));
    answer->interrupted = r->interrupts;
    return r->end == STATUS_OK ? STATUS_OK : FAIL(r->end, "broke off");
}

static const transfer_ops FAKE = {.perform = fake_perform};

static void ignore(void *ctx, uint64_t done_bytes)
{
    (void)ctx;
    ck_assert_uint_le(done_bytes, SIZE);
}

static download two_mirrors(void)
{
    return (download){.http = &FAKE,
                      .connect_timeout_ms = 1000,
                      .wake_fd = -1,
                      .tell = ignore,
                      .mirrors = {"https://a/", "https://b/"},
                      .n_mirrors = 2};
}

static void put_part(const char *content, size_t size_bytes)
{
    FILE *file = fopen(part_path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(content, 1, size_bytes, file), size_bytes);
    fclose(file);
}

static void expect_file(const char *name, size_t size_bytes)
{
    char *text = NULL;
    size_t size = 0;
    ck_assert_msg(file_read(name, 1000, &text, &size) == STATUS_OK, "%s", status_text());
    ck_assert_uint_eq(size, size_bytes);
    ck_assert_int_eq(memcmp(text, CONTENT, size), 0);
    free(text);
}

static void expect_whole(status st)
{
    ck_assert_msg(st == STATUS_OK, "%s", status_text());
    expect_file(path, SIZE);
    ck_assert(!file_exists(part_path));
}

static void setup(void)
{
    snprintf(folder, sizeof folder, "/tmp/mnist_ddp_test_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%.40s/f.gz", folder);
    snprintf(part_path, sizeof part_path, "%.40s/f.gz.part", folder);
}

static void teardown(void)
{
    unlink(path);
    unlink(part_path);
    rmdir(folder);
}

START_TEST(the_rest_is_asked_for)
{
    download d = two_mirrors();
    replies[0] = (reply){206, CONTENT + 9, 5, .first_byte = 9, .end = STATUS_PEER, .asked_from = 9};
    replies[1] = (reply){206, CONTENT + 14, SIZE - 14, .first_byte = 14, .asked_from = 14};
    put_part(CONTENT, 9);
    expect_whole(download_file(&d, "f.gz", &WANT, path));
    ck_assert_str_eq(asked[1], "https://a/f.gz"); /* the same: it had come further */
    ck_assert_str_eq(d.from, "https://a/f.gz");
}
END_TEST

/* Another place than the one that was asked for, and no place at all. */
START_TEST(a_wrong_range_begins_anew)
{
    download d = two_mirrors();
    replies[0] = _i == 0 ? (reply){206, CONTENT, SIZE, .asked_from = 9}
                         : (reply){416, "", 0, .asked_from = 9};
    replies[1] = (reply){200, CONTENT, SIZE, .first_byte = -1};
    put_part(CONTENT, 9);
    expect_whole(download_file(&d, "f.gz", &WANT, path));
}
END_TEST

START_TEST(parts_of_other_files_begin_anew)
{
    download d = two_mirrors();
    put_part("no gzip file", 12);
    replies[0] = (reply){200, CONTENT, SIZE, .first_byte = -1};
    expect_whole(download_file(&d, "f.gz", &WANT, path));
    put_part("\x1f\x8b another file     more than it", SIZE + 5);
    n_asked = 0;
    expect_whole(download_file(&d, "f.gz", &WANT, path));
    put_part("\x1f\x8b another file     more than it", SIZE); /* only the digest tells */
    n_asked = 0;
    expect_whole(download_file(&d, "f.gz", &WANT, path));
    ck_assert_int_eq(n_asked, 1);
}
END_TEST

START_TEST(all_mirrors_are_named)
{
    download d = two_mirrors();
    replies[0] = (reply){403, "", 0, .first_byte = -1};
    replies[1] = (reply){200, "<html>log\033 in</html>", 20, .first_byte = -1};
    ck_assert_int_eq(download_file(&d, "f.gz", &WANT, path), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "f.gz", "https://a/f.gz", "HTTP 403", "https://b/f.gz",
                 "not a gzip file", "<html>log\\x1b in</html>");
    ck_assert(!file_exists(path) && !file_exists(part_path));
}
END_TEST

/* The first mirror's bytes are wrong, and the digest tells so after the second one's. */
START_TEST(a_mirror_pays_for_no_other)
{
    download d = two_mirrors();
    replies[0] = (reply){200, "\x1f\x8b wrong", 8, .first_byte = -1, .end = STATUS_PEER};
    replies[1] = (reply){404, "", 0, .first_byte = -1, .asked_from = 8};
    replies[2] = (reply){206, CONTENT + 8, SIZE - 8, .first_byte = 8, .asked_from = 8};
    replies[3] = (reply){200, CONTENT, SIZE, .first_byte = -1};
    expect_whole(download_file(&d, "f.gz", &WANT, path));
    ck_assert_str_eq(asked[1], "https://a/f.gz");
    ck_assert_str_eq(asked[3], "https://b/f.gz");
    ck_assert_int_eq(n_asked, 4);
}
END_TEST

/* The next file is asked for where the last one was. */
START_TEST(the_mirror_that_had_it_is_the_first)
{
    download d = two_mirrors();
    replies[0] = (reply){200, CONTENT, SIZE + 1, .first_byte = -1}; /* with a zero after its end */
    replies[1] = (reply){200, CONTENT, SIZE, .first_byte = -1};
    replies[2] = (reply){200, CONTENT, SIZE, .first_byte = -1};
    expect_whole(download_file(&d, "f.gz", &WANT, path));
    expect_whole(download_file(&d, "f.gz", &WANT, path));
    ck_assert_str_eq(asked[1], "https://b/f.gz");
    ck_assert_str_eq(asked[2], "https://b/f.gz");
}
END_TEST

/* Of no use to another mirror: that one is not asked. */
START_TEST(a_disk_without_room)
{
    download d = two_mirrors();
    replies[0] = (reply){200, CONTENT, SIZE, .first_byte = -1};
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){7, 7}), 0);
    ck_assert_int_eq(download_file(&d, "f.gz", &WANT, path), STATUS_IO);
    ASSERT_FACTS(status_text(), part_path, "File too large");
    expect_file(part_path, 7);
}
END_TEST

START_TEST(what_came_before_an_interrupt_is_kept)
{
    download d = two_mirrors();
    replies[0] = (reply){200, CONTENT, 8, .interrupts = true};
    ck_assert_int_eq(download_file(&d, "f.gz", &WANT, path), STATUS_INVALID);
    ck_assert(d.interrupted);
    ASSERT_FACTS(status_text(), "interrupted", "8 of 21 bytes");
    expect_file(part_path, 8);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("download");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_checked_fixture(core, setup, teardown);
    tcase_add_test(core, the_rest_is_asked_for);
    tcase_add_loop_test(core, a_wrong_range_begins_anew, 0, 2);
    tcase_add_test(core, parts_of_other_files_begin_anew);
    tcase_add_test(core, all_mirrors_are_named);
    tcase_add_test(core, a_mirror_pays_for_no_other);
    tcase_add_test(core, the_mirror_that_had_it_is_the_first);
    tcase_add_test(core, a_disk_without_room);
    tcase_add_test(core, what_came_before_an_interrupt_is_kept);
    return suite_run(suite);
}
