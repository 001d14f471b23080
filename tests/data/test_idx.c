/* IDX files, plain and gzip: good ones are read whole, bad ones are refused with file, byte and
 * what was expected. */
#include "data/idx.h"

#include "tests/data/sandbox.h"
#include "tests/support/suite.h"

enum { COUNT = 50 };

static void expect_images(const idx_file *file, uint32_t count)
{
    ck_assert_uint_eq(file->count, count);
    ck_assert(has_pixels(file->elements, count));
}

START_TEST(header_round_trip)
{
    for (idx_kind kind = IDX_IMAGES; kind <= IDX_LABELS; kind++) {
        uint8_t header[IDX_MAX_HEADER_BYTES];
        idx_shape shape;
        idx_header_write(kind, 1000, header);
        expect_ok(idx_header_read("f", kind, header, idx_header_bytes(kind), &shape));
        ck_assert_uint_eq(shape.count, 1000);
        ck_assert_uint_eq(shape.header_bytes, kind == IDX_IMAGES ? 16 : 8);
        ck_assert_uint_eq(shape.total_bytes, kind == IDX_IMAGES ? 16 + 784000 : 8 + 1000);
    }
}
END_TEST

/* Each prefix lies in memory of exactly its size: a sanitizer sees any read past its end. */
START_TEST(short_header_is_refused)
{
    for (idx_kind kind = IDX_IMAGES; kind <= IDX_LABELS; kind++) {
        uint8_t header[IDX_MAX_HEADER_BYTES];
        idx_header_write(kind, 3, header);
        for (size_t size = 0; size < idx_header_bytes(kind); size++) {
            bytes part = bytes_alloc(size);
            memcpy(part.data, header, size);
            idx_shape shape;
            status st = idx_header_read("the_file", kind, part.data, size, &shape);
            char offset[32];
            snprintf(offset, sizeof offset, "byte %zu", size);
            expect_failure(st, "the_file", offset, size == 0 ? "empty" : "truncated", NULL);
            free(part.data);
        }
    }
}
END_TEST

typedef struct bad_header {
    const char *why;
    uint32_t words[4]; /* the header, big-endian on disk */
    idx_kind kind;
    const char *expected[3]; /* in the message */
} bad_header;

static const bad_header BAD_HEADERS[] = {
    {"wrong magic", {0x7f454c46, 1, 28, 28}, IDX_IMAGES, {"byte 0", "7f 45 4c 46", "08 03"}},
    {"little-endian",
     {0x03080000, 1, 28, 28},
     IDX_IMAGES,
     {"byte 0", "03 08 00 00", "00 00 08 03"}},
    {"float32", {0xD03, 1, 28, 28}, IDX_IMAGES, {"byte 2", "float32", "0x08"}},
    {"int32 labels", {0xC01, 1, 0, 0}, IDX_LABELS, {"byte 2", "int32", "0x08"}},
    {"no type", {0x003, 1, 28, 28}, IDX_IMAGES, {"byte 2", "unknown", "0x08"}},
    {"labels for images", {0x801, 1, 0, 0}, IDX_IMAGES, {"byte 3", "1", "images"}},
    {"images for labels", {0x803, 1, 28, 28}, IDX_LABELS, {"byte 3", "3", "labels"}},
    {"two dimensions", {0x802, 1, 28, 28}, IDX_IMAGES, {"byte 3", "2", "images"}},
    {"zero images", {0x803, 0, 28, 28}, IDX_IMAGES, {"byte 4", "zero", "images"}},
    {"zero labels", {0x801, 0, 0, 0}, IDX_LABELS, {"byte 4", "zero", "labels"}},
    {"32x32", {0x803, 1, 32, 32}, IDX_IMAGES, {"byte 8", "32x32", "28x28"}},
    {"28x27", {0x803, 1, 28, 27}, IDX_IMAGES, {"byte 8", "28x27", "28x28"}},
    {"no rows", {0x803, 1, 0, 28}, IDX_IMAGES, {"byte 8", "0x28", "28x28"}},
    {"2^96 pixels",
     {0x803, UINT32_MAX, UINT32_MAX, UINT32_MAX},
     IDX_IMAGES,
     {"byte 8", "4294967295x4294967295", "28x28"}},
    {"2^32 images", {0x803, UINT32_MAX, 28, 28}, IDX_IMAGES, {"byte 4", "4294967295", "images"}},
    /* 5478276 * 784 is 2^32 + 1088: 32-bit arithmetic would see a small file */
    {"wraps to small", {0x803, 5478276, 28, 28}, IDX_IMAGES, {"byte 4", "5478276", "4294968400"}},
    {"2^32 labels", {0x801, UINT32_MAX, 0, 0}, IDX_LABELS, {"byte 4", "4294967295", "labels"}},
};
enum { N_BAD_HEADERS = sizeof BAD_HEADERS / sizeof BAD_HEADERS[0] };

static bytes bad_file(const bad_header *bad)
{
    bytes b = bytes_alloc(16 + PIXELS);
    memset(b.data, 1, b.size);
    for (int i = 0; i < (bad->kind == IDX_IMAGES || bad->words[2] != 0 ? 4 : 2); i++)
        put_be32(b.data + 4 * i, bad->words[i]);
    return b;
}

/* Plain, gzip, and gzip without its name. */
START_TEST(bad_header_is_refused)
{
    const bad_header *bad = &BAD_HEADERS[_i / 3];
    const char *path = _i % 3 == 1 ? "data.gz" : "data";
    bytes b = bad_file(bad);
    put_file(path, _i % 3 == 0 ? b : gzipped(b));
    idx_file file = {0};
    status st = idx_file_open(path, bad->kind, &file);
    ck_assert_msg(st == STATUS_INVALID, "%s: %d, %s", bad->why, (int)st, status_text());
    expect_failure(st, path, bad->expected[0], bad->expected[1], bad->expected[2], NULL);
    ck_assert_ptr_null(file.mapping);
    ck_assert_int_eq(sandbox_count("cache/mnist_ddp/idx", ".idx"), 0);
}
END_TEST

START_TEST(plain_file_is_mapped)
{
    put_file("images", images_idx(COUNT));
    put_file("labels", labels_idx(COUNT));
    idx_file images, labels;
    expect_ok(idx_file_open("images", IDX_IMAGES, &images));
    expect_ok(idx_file_open("labels", IDX_LABELS, &labels));
    expect_images(&images, COUNT);
    ck_assert_uint_eq(labels.count, COUNT);
    ck_assert_uint_eq(labels.elements[23], 3);
    idx_file_close(&labels);
    idx_file_close(&images);
    ck_assert_ptr_null(images.mapping);
    idx_file_close(&images); /* accepts an empty one */
    idx_file_close(NULL);
    ck_assert(!file_exists("cache"));
}
END_TEST

START_TEST(wrong_size_is_refused)
{
    idx_file file;
    bytes b = images_idx(COUNT);
    write_bytes("short", b.data, b.size - 1);
    expect_failure(idx_file_open("short", IDX_IMAGES, &file), "short", "byte 39215", "truncated",
                   "39216", NULL);
    write_bytes("header_only", b.data, 16);
    expect_failure(idx_file_open("header_only", IDX_IMAGES, &file), "byte 16", "truncated", NULL);
    write_bytes("cut", b.data, 11);
    expect_failure(idx_file_open("cut", IDX_IMAGES, &file), "byte 11", "header", NULL);
    write_bytes("empty", b.data, 0);
    expect_failure(idx_file_open("empty", IDX_IMAGES, &file), "empty", "IDX", NULL);
    put_be32(b.data + 4, COUNT - 1);
    write_bytes("long", b.data, b.size);
    expect_failure(idx_file_open("long", IDX_IMAGES, &file), "byte 38432", "trailing", NULL);
    free(b.data);
}
END_TEST

START_TEST(bad_label_is_refused)
{
    bytes b = labels_idx(COUNT);
    idx_file file;
    b.data[8 + 31] = 10;
    write_bytes("ten", b.data, b.size);
    expect_failure(idx_file_open("ten", IDX_LABELS, &file), "ten", "byte 39", "label 10", NULL);
    b.data[8 + 40] = 255; /* the first one is named, not the largest */
    write_bytes("labels", b.data, b.size);
    expect_failure(idx_file_open("labels", IDX_LABELS, &file), "labels", "byte 39", "label 10",
                   "0 to 9", NULL);
    put_file("labels.gz", gzipped(b));
    expect_failure(idx_file_open("labels.gz", IDX_LABELS, &file), "labels.gz", "decompressed",
                   "byte 39", "label 10", NULL);
}
END_TEST

START_TEST(web_page_is_named)
{
    static const char *const PAGES[] = {
        "<!DOCTYPE html><html><body>404</body></html>",
        "\n  <html lang=\"en\">\n",
        "\xEF\xBB\xBF<?xml version=\"1.0\"?><Error/>",
        "<h",
    };
    for (size_t i = 0; i < sizeof PAGES / sizeof PAGES[0]; i++) {
        idx_file file;
        write_bytes("train.gz", PAGES[i], strlen(PAGES[i]));
        expect_failure(idx_file_open("train.gz", IDX_IMAGES, &file), "train.gz", "web page", "IDX",
                       NULL);
        bytes page = bytes_alloc(strlen(PAGES[i]));
        memcpy(page.data, PAGES[i], page.size);
        put_file("zipped.gz", gzipped(page));
        expect_failure(idx_file_open("zipped.gz", IDX_IMAGES, &file), "zipped.gz", "web page",
                       NULL);
    }
}
END_TEST

START_TEST(not_a_file_is_refused)
{
    idx_file file;
    ck_assert_int_eq(mkdir("folder", 0777), 0);
    expect_failure(idx_file_open("folder", IDX_IMAGES, &file), "folder", "directory", NULL);
    ck_assert_int_eq(mkfifo("fifo", 0666), 0);
    expect_failure(idx_file_open("fifo", IDX_IMAGES, &file), "fifo", "regular", NULL);
    expect_failure(idx_file_open("absent", IDX_IMAGES, &file), "absent", "No such file", NULL);
    put_file("secret", labels_idx(1));
    ck_assert_int_eq(chmod("secret", 0), 0);
    if (geteuid() ==
        0) /* root may read anything: go on as nobody; the test runs in its own process */
        ck_assert_int_eq(seteuid(65534), 0);
    expect_failure(idx_file_open("secret", IDX_LABELS, &file), "secret", "Permission denied", NULL);
    if (getuid() == 0)
        ck_assert_int_eq(seteuid(0), 0);
}
END_TEST

START_TEST(gzip_file_is_cached)
{
    put_file("images.gz", gzipped(images_idx(COUNT)));
    for (int round = 0; round < 2; round++) {
        idx_file file;
        expect_ok(idx_file_open("images.gz", IDX_IMAGES, &file));
        expect_images(&file, COUNT);
        idx_file_close(&file);
        ck_assert_int_eq(sandbox_count("cache/mnist_ddp/idx", ".idx"), 1);
        ck_assert_int_eq(sandbox_count("cache/mnist_ddp/idx", ".tmp"), 0);
    }
}
END_TEST

/* A stream of several buffers, and its last byte on a buffer's edge. */
START_TEST(gzip_of_any_length)
{
    static const uint32_t COUNTS[] = {1, 262144 - 8, 262144, 262144 * 2 - 8, 600000};
    for (size_t i = 0; i < sizeof COUNTS / sizeof COUNTS[0]; i++) {
        idx_file file;
        put_file("labels.gz", gzipped(labels_idx(COUNTS[i])));
        expect_ok(idx_file_open("labels.gz", IDX_LABELS, &file));
        ck_assert_uint_eq(file.count, COUNTS[i]);
        uint32_t right = 0;
        while (right < file.count && file.elements[right] == right % 10)
            right++;
        ck_assert_uint_eq(right, COUNTS[i]);
        idx_file_close(&file);
    }
}
END_TEST

START_TEST(gzip_crc_and_length_are_checked)
{
    idx_file file;
    bytes b = gzipped(labels_idx(COUNT));
    char offset[32];
    snprintf(offset, sizeof offset, "byte %zu", b.size - 4);
    b.data[b.size - 8] ^= 1;
    write_bytes("crc.gz", b.data, b.size);
    expect_failure(idx_file_open("crc.gz", IDX_LABELS, &file), "crc.gz", offset, "CRC", NULL);
    b.data[b.size - 8] ^= 1;
    b.data[b.size - 1] ^= 1;
    snprintf(offset, sizeof offset, "byte %zu", b.size);
    write_bytes("length.gz", b.data, b.size);
    expect_failure(idx_file_open("length.gz", IDX_LABELS, &file), "length.gz", offset, "length",
                   NULL);
    b.data[b.size - 1] ^= 1;
    b.data[10] = 7; /* a deflate block of a type that does not exist */
    write_bytes("block.gz", b.data, b.size);
    expect_failure(idx_file_open("block.gz", IDX_LABELS, &file), "block.gz", "byte ", "gzip", NULL);
    free(b.data);
    ck_assert_int_eq(sandbox_count("cache/mnist_ddp/idx", ".idx"), 0);
    ck_assert_int_eq(sandbox_count("cache/mnist_ddp/idx", ".tmp"), 0);
}
END_TEST

/* Every way to cut the file is noticed, and nothing is left in the cache. */
START_TEST(truncated_gzip_is_refused)
{
    bytes b = gzipped(labels_idx(COUNT));
    for (size_t size = 0; size < b.size; size++) {
        idx_file file;
        char offset[32];
        snprintf(offset, sizeof offset, "byte %zu", size);
        write_bytes("labels.gz", b.data, size);
        status st = idx_file_open("labels.gz", IDX_LABELS, &file);
        if (size >= 2)
            expect_failure(st, "labels.gz", offset, "truncated", NULL);
        else
            expect_failure(st, "labels.gz", offset, NULL);
    }
    free(b.data);
    ck_assert_int_eq(sandbox_count("cache/mnist_ddp/idx", "labels"), 0);
}
END_TEST

START_TEST(gzip_content_of_wrong_size_is_refused)
{
    idx_file file;
    bytes b = labels_idx(COUNT);
    put_be32(b.data + 4, COUNT + 1);
    put_file("short.gz", gzipped(b));
    expect_failure(idx_file_open("short.gz", IDX_LABELS, &file), "short.gz", "decompressed",
                   "byte 58", "truncated", "59", NULL);
    b = labels_idx(COUNT);
    put_be32(b.data + 4, COUNT - 1);
    put_file("long.gz", gzipped(b));
    expect_failure(idx_file_open("long.gz", IDX_LABELS, &file), "long.gz", "decompressed",
                   "byte 57", "trailing", NULL);
    b = labels_idx(COUNT);
    put_be32(b.data + 4, 1 << 29);
    put_file("thin.gz", gzipped(b));
    expect_failure(idx_file_open("thin.gz", IDX_LABELS, &file), "thin.gz", "truncated", "gzip",
                   NULL);
}
END_TEST

START_TEST(gzip_bomb_is_refused_early)
{
    bytes bomb = bytes_alloc((size_t)64 << 20);
    memset(bomb.data, 0, bomb.size);
    put_be32(bomb.data, 0x801);
    put_be32(bomb.data + 4, COUNT);
    bomb = gzipped(bomb);
    put_file("bomb.gz", bomb);
    FILE *sink = tmpfile();
    ck_assert(sink != NULL);
    bool sink_failed = true;
    status st = gunzip_idx("bomb.gz", IDX_LABELS, fileno(sink), "sink", &sink_failed);
    expect_failure(st, "bomb.gz", "decompressed", "byte 58", "trailing", NULL);
    ck_assert(!sink_failed);
    struct stat info;
    ck_assert_int_eq(fstat(fileno(sink), &info), 0);
    ck_assert_int_eq(info.st_size, COUNT + 8);
    fclose(sink);
}
END_TEST

START_TEST(bytes_after_the_gzip_member_are_refused)
{
    idx_file file;
    bytes one = gzipped(labels_idx(COUNT)), b = bytes_alloc(2 * one.size);
    memcpy(b.data, one.data, one.size);
    memcpy(b.data + one.size, one.data, one.size);
    char offset[32];
    snprintf(offset, sizeof offset, "byte %zu", one.size);
    write_bytes("garbage.gz", b.data, one.size + 1);
    expect_failure(idx_file_open("garbage.gz", IDX_LABELS, &file), "garbage.gz", offset, "trailing",
                   NULL);
    write_bytes("two.gz", b.data, b.size);
    expect_failure(idx_file_open("two.gz", IDX_LABELS, &file), "two.gz", offset, "trailing", NULL);
    free(one.data);
    free(b.data);
}
END_TEST

/* A changed byte is noticed or does not matter: never are other labels taken for good. */
START_TEST(no_changed_byte_slips_through)
{
    sandbox_use_cache("/dev/null");
    bytes b = gzipped(labels_idx(COUNT));
    for (size_t i = 0; i < b.size; i++) {
        for (int bit = 0; bit < 8; bit++) {
            idx_file file;
            b.data[i] ^= (uint8_t)(1 << bit);
            write_bytes("labels.gz", b.data, b.size);
            if (idx_file_open("labels.gz", IDX_LABELS, &file) == STATUS_OK) {
                ck_assert_uint_eq(file.count, COUNT);
                for (uint32_t j = 0; j < COUNT; j++)
                    ck_assert_uint_eq(file.elements[j], j % 10);
                idx_file_close(&file);
            }
            b.data[i] ^= (uint8_t)(1 << bit);
        }
    }
    free(b.data);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("idx");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_checked_fixture(core, sandbox_create, sandbox_remove);
    tcase_add_test(core, header_round_trip);
    tcase_add_test(core, short_header_is_refused);
    tcase_add_loop_test(core, bad_header_is_refused, 0, 3 * N_BAD_HEADERS);
    tcase_add_test(core, plain_file_is_mapped);
    tcase_add_test(core, wrong_size_is_refused);
    tcase_add_test(core, bad_label_is_refused);
    tcase_add_test(core, web_page_is_named);
    tcase_add_test(core, not_a_file_is_refused);
    tcase_add_test(core, gzip_file_is_cached);
    tcase_add_test(core, gzip_of_any_length);
    tcase_add_test(core, gzip_crc_and_length_are_checked);
    tcase_add_test(core, truncated_gzip_is_refused);
    tcase_add_test(core, gzip_content_of_wrong_size_is_refused);
    tcase_add_test(core, gzip_bomb_is_refused_early);
    tcase_add_test(core, bytes_after_the_gzip_member_are_refused);
    tcase_add_test(core, no_changed_byte_slips_through);
    return suite_run(suite);
}
