/* What is written can be read again; what is not exactly a safetensors file is refused with a
 * reason. */
#include "base/file.h"
#include "model/safetensors.h"
#include "tests/model/scratch.h"
#include "tests/support/facts.h"
#include "tests/support/suite.h"

#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <string.h>

static char path[300];

static void setup(void)
{
    scratch_create();
    snprintf(path, sizeof path, "%s/x.safetensors", scratch);
}

/* A file of the length of `header`, `header`, and `data_bytes` zeros. */
static void write_raw(const char *header, size_t header_bytes, size_t data_bytes)
{
    static const char zeros[4096];
    uint64_t length = header_bytes;
    ck_assert_uint_le(data_bytes, sizeof zeros);
    file_part parts[] = {{&length, 8}, {header, header_bytes}, {zeros, data_bytes}};
    ck_assert_int_eq(file_write(path, parts, 3), STATUS_OK);
}

/* With a message that names the file and holds the facts, a list that ends with NULL. */
static void expect_refused(const char *const *facts)
{
    safetensors *file = NULL;
    status st = safetensors_open(path, &file);
    ck_assert_msg(st == STATUS_INVALID, "%s: status %s", facts[0], status_name(st));
    ck_assert_ptr_null(file);
    ASSERT_FACTS(status_text(), path);
    ASSERT_FACTS_LISTED(status_text(), facts);
}

#define FACTS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void expect_accepted(void)
{
    safetensors *file = NULL;
    ck_assert_msg(safetensors_open(path, &file) == STATUS_OK, "%s", status_text());
    safetensors_close(file);
}

static const float WEIGHT[6] = {1.0f, -2.5f, 3e-30f, 0.0f, -0.0f, 7.0f};
static const float BIAS[1] = {0.125f};
static const safetensors_tensor TENSORS[] = {
    {.name = "fc.weight", .rank = 2, .shape = {2, 3}, .data = WEIGHT},
    {.name = "fc.bias", .rank = 1, .shape = {1}, .data = BIAS},
    {.name = "scalar", .rank = 0, .data = BIAS},
    {.name = "empty", .rank = 2, .shape = {0, 3}, .data = BIAS},
};
enum { N_TENSORS = sizeof TENSORS / sizeof TENSORS[0] };
static const safetensors_entry ENTRIES[] = {{"model", "cnn"}, {"note", "gr\303\274n \"\\\n"}};

START_TEST(round_trip)
{
    safetensors *file = NULL;
    const float *data = NULL;
    ck_assert_int_eq(safetensors_write(path, TENSORS, N_TENSORS, ENTRIES, 2, NULL), STATUS_OK);
    ck_assert_msg(safetensors_open(path, &file) == STATUS_OK, "%s", status_text());
    for (int i = 0; i < N_TENSORS; i++) {
        const safetensors_tensor *t = &TENSORS[i];
        ck_assert_int_eq(safetensors_find(file, t->name, t->rank, t->shape, &data), STATUS_OK);
        if (strcmp(t->name, "empty") != 0)
            ck_assert_mem_eq(data, t->data, i == 0 ? sizeof WEIGHT : sizeof BIAS);
    }
    ck_assert_str_eq(safetensors_metadata(file, "format"), "pt");
    ck_assert_str_eq(safetensors_metadata(file, "model"), "cnn");
    ck_assert_str_eq(safetensors_metadata(file, "note"), ENTRIES[1].value);
    ck_assert_ptr_null(safetensors_metadata(file, "absent"));
    ck_assert_ptr_null(safetensors_lookup(file, "absent"));
    ck_assert_ptr_null(safetensors_lookup(file, "__metadata__"));
    safetensors_close(file);
}
END_TEST

START_TEST(finds_only_what_was_asked_for)
{
    safetensors *file = NULL;
    const float *data = NULL;
    ck_assert_int_eq(safetensors_write(path, TENSORS, N_TENSORS, NULL, 0, NULL), STATUS_OK);
    ck_assert_int_eq(safetensors_open(path, &file), STATUS_OK);
    ck_assert_int_eq(safetensors_find(file, "fc.wait", 2, (int[]){2, 3}, &data), STATUS_INVALID);
    ASSERT_FACTS(status_text(), path, "fc.wait");
    ck_assert_int_eq(safetensors_find(file, "fc.weight", 2, (int[]){3, 2}, &data), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "fc.weight", "(2, 3)", "(3, 2)");
    ck_assert_int_eq(safetensors_find(file, "fc.weight", 1, (int[]){6}, &data), STATUS_INVALID);
    ck_assert_ptr_null(data);
    safetensors_close(file);
}
END_TEST

#ifndef SANITIZED
static size_t allocated(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* At its end a run holds its last checkpoint in memory, beside the network. */
START_TEST(floats_are_not_held_twice)
{
    enum { COUNT = 1 << 20 };
    float *values = calloc(COUNT, sizeof *values);
    ck_assert_ptr_nonnull(values);
    safetensors_tensor tensor = {.name = "w", .rank = 1, .shape = {COUNT}, .data = values};
    ck_assert_int_eq(safetensors_write(path, &tensor, 1, NULL, 0, NULL), STATUS_OK);
    free(values);
    safetensors *file = NULL;
    size_t before = allocated();
    ck_assert_int_eq(safetensors_open(path, &file), STATUS_OK);
    ck_assert_uint_lt(allocated() - before, COUNT * sizeof *values * 5 / 4);
    safetensors_close(file);
}
END_TEST
#endif

/* The layout itself: the header padded to 8 bytes whatever its length, tensors in order without
 * gaps. */
START_TEST(layout_of_the_file)
{
    char *bytes = NULL;
    size_t size = 0;
    uint64_t header = 0;
    safetensors_entry filler = {"filler", &"1234567"[_i]};
    ck_assert_int_eq(safetensors_write(path, TENSORS, 2, &filler, 1, NULL), STATUS_OK);
    ck_assert_int_eq(file_read(path, 4096, &bytes, &size), STATUS_OK);
    memcpy(&header, bytes, sizeof header);
    ck_assert_uint_eq(header % 8, 0);
    ck_assert_int_eq(bytes[8], '{');
    ck_assert_uint_eq(size, 8 + header + sizeof WEIGHT + sizeof BIAS);
    ck_assert_mem_eq(bytes + 8 + header, WEIGHT, sizeof WEIGHT);
    ck_assert_mem_eq(bytes + 8 + header + sizeof WEIGHT, BIAS, sizeof BIAS);
    free(bytes);
}
END_TEST

START_TEST(writer_refuses_bad_names)
{
    safetensors_tensor twice[] = {TENSORS[1], TENSORS[1]};
    safetensors_tensor odd = TENSORS[1];
    ck_assert_int_eq(safetensors_write(path, twice, 2, NULL, 0, NULL), STATUS_INVALID);
    odd.name = "a\nb";
    ck_assert_int_eq(safetensors_write(path, &odd, 1, NULL, 0, NULL), STATUS_INVALID);
    odd.name = "";
    ck_assert_int_eq(safetensors_write(path, &odd, 1, NULL, 0, NULL), STATUS_INVALID);
    odd.name = "__metadata__";
    ck_assert_int_eq(safetensors_write(path, &odd, 1, NULL, 0, NULL), STATUS_INVALID);
    ck_assert(!file_exists(path));
}
END_TEST

#define ENTRY(dtype, shape, begin, end) \
    "{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"
#define ONE(dtype, shape, begin, end) "{\"a\":" ENTRY(dtype, shape, begin, end) "}"
#define F32 "\"F32\""

typedef struct bad_file {
    const char *header;
    size_t data_bytes;
    const char *facts[4];
} bad_file;

static const bad_file BAD[] = {
    {"", 0, {"header", "byte"}},
    {"[]", 0, {"header", "JSON"}},
    {"3", 0, {"header", "byte"}},
    {"{", 0, {"header", "byte"}},
    {"{} x", 0, {"header", "byte"}},
    {"{\"a\":1}", 0, {"dtype"}},
    {"{\"a\":{}}", 0, {"dtype"}},
    {ONE("\"I32\"", "[1]", "0", "4"), 4, {"a", "dtype", "F64"}},
    {ONE("\"F64\"", "[2]", "0", "8"), 8, {"a", "shape", "8 bytes"}},
    {ONE("\"F16\"", "[1]", "0", "4"), 4, {"a", "shape", "4 bytes"}},
    {ONE("\"f32\"", "[1]", "0", "4"), 4, {"dtype"}},
    {ONE("4", "[1]", "0", "4"), 4, {"dtype"}},
    {ONE(F32, "1", "0", "4"), 4, {"shape"}},
    {ONE(F32, "{}", "0", "4"), 4, {"shape"}},
    {ONE(F32, "[1,1,1,1,1]", "0", "4"), 4, {"a", "shape", "4"}},
    {ONE(F32, "[-1]", "0", "4"), 4, {"a", "dimension 0"}},
    {ONE(F32, "[1,1.0]", "0", "4"), 4, {"a", "dimension 1"}},
    {ONE(F32, "[true]", "0", "4"), 4, {"a", "dimension 0"}},
    {ONE(F32, "[4294967297]", "0", "4"), 4, {"a", "dimension 0"}},
    {ONE(F32, "[99999999999999999999]", "0", "4"), 4, {"header", "byte"}},
    {ONE(F32, "[2]", "0", "4"), 4, {"a", "shape", "4 bytes"}},
    /* Products that come out right modulo 2^64. */
    {ONE(F32, "[65536,65536,65536,65536]", "0", "0"), 0, {"a", "shape", "0 bytes"}},
    {ONE(F32, "[2147483647,2147483647,4]", "0", "16"), 16, {"a", "shape", "16 bytes"}},
    {ONE(F32, "[1]", "0", "8"), 8, {"a", "shape", "8 bytes"}},
    {ONE(F32, "[1]", "4", "0"), 4, {"a", "data_offsets"}},
    {ONE(F32, "[1]", "-4", "0"), 4, {"a", "data_offsets"}},
    {ONE(F32, "[1]", "0", "8"), 4, {"a", "data_offsets"}},
    {ONE(F32, "[1]", "9223372036854775804", "9223372036854775807"), 4, {"a", "data_offsets"}},
    {ONE(F32, "[1]", "0", "4.0"), 4, {"a", "data_offsets"}},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, {"a", "data_offsets"}},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}",
     4,
     {"a", "data_offsets"}},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":{}}}", 4, {"a", "data_offsets"}},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, {"a", "data_offsets"}},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, {"shape"}},
    {ONE(F32, "[1]", "0", "4"), 8, {"byte 4", "8"}},
    {ONE(F32, "[1]", "4", "8"), 8, {"a", "byte 4", "0"}},
    {"{}", 4, {"byte 0", "4"}},
    {"{\"a\":" ENTRY(F32, "[1]", "0", "4") ",\"b\":" ENTRY(F32, "[1]", "8", "12") "}",
     12,
     {"b", "byte 8", "4"}},
    {"{\"a\":" ENTRY(F32, "[2]", "0", "8") ",\"b\":" ENTRY(F32, "[2]", "4", "12") "}",
     12,
     {"b", "byte 4", "8"}},
    {"{\"a\":" ENTRY(F32, "[1]", "0", "4") ",\"b\":" ENTRY(F32, "[1]", "0", "4") "}",
     4,
     {"byte 0", "4"}},
    {"{\"a\":" ENTRY(F32, "[1]", "0", "4") ",\"a\":" ENTRY(F32, "[1]", "4", "8") "}",
     8,
     {"duplicate"}},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
     4,
     {"duplicate"}},
    {"{\"\":" ENTRY(F32, "[1]", "0", "4") "}", 4, {"name", "printable"}},
    {"{\"a\\u0007\":" ENTRY(F32, "[1]", "0", "4") "}", 4, {"name", "printable"}},
    {"{\"a\\u0000b\":" ENTRY(F32, "[1]", "0", "4") "}", 4, {"header", "byte"}},
    {"{\"\303\274\":" ENTRY(F32, "[1]", "0", "4") "}", 4, {"name", "printable"}},
    {"{\"\377\":" ENTRY(F32, "[1]", "0", "4") "}", 4, {"header", "byte"}},
    {"{\"__metadata__\":[]}", 0, {"__metadata__", "object"}},
    {"{\"__metadata__\":{\"a\":1}}", 0, {"__metadata__", "strings"}},
    {"{\"__metadata__\":{\"fnv1a\":\"0123456789abcdef\"}}", 0, {"hash"}},
};
enum { N_BAD = sizeof BAD / sizeof BAD[0] };

START_TEST(refuses_bad_headers)
{
    const bad_file *bad = &BAD[_i];
    write_raw(bad->header, strlen(bad->header), bad->data_bytes);
    expect_refused(bad->facts);
}
END_TEST

START_TEST(accepts_what_the_format_allows)
{
    static const char *const good[] = {
        ONE(F32, "[1]", "0", "4"),
        "  " ONE(F32, "[1]", "0", "4") "  ",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"extra\":null}}",
        "{\"b\":" ENTRY(F32, "[1]", "0", "4") ",\"a\":" ENTRY(F32, "[7,0]", "0", "0") "}",
        "{\"__metadata__\":{},\"a\":" ENTRY(F32, "[1,1,1,1]", "0", "4") "}",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        write_raw(good[i], strlen(good[i]), 4);
        expect_accepted();
    }
    write_raw("{}", 2, 0);
    expect_accepted();
}
END_TEST

/* Writes one tensor "a" of two-byte elements. */
static void write_halves(const char *dtype, const uint16_t *bits, size_t n)
{
    char header[256];
    int length =
        snprintf(header, sizeof header,
                 "{\"module.a\":{\"dtype\":\"%s\",\"shape\":[%zu],"
                 "\"data_offsets\":[0,%zu]},\"module.b\":" ENTRY(F32, "[1]", "%zu", "%zu") "}",
                 dtype, n, 2 * n, 2 * n, 2 * n + 4);
    uint64_t length_bytes = (uint64_t)length;
    const float b = 0.1f;
    file_part parts[] = {{&length_bytes, 8}, {header, (size_t)length}, {bits, 2 * n}, {&b, 4}};
    ck_assert_int_eq(file_write(path, parts, 4), STATUS_OK);
}

typedef struct half {
    uint16_t bits;
    float value;
} half;

static const half HALVES[] = {
    {0x0000, 0.0f},          {0x3c00, 1.0f},      {0xc000, -2.0f},      {0x3555, 0x1.554p-2f},
    {0x7bff, 65504.0f},      {0x0400, 0x1p-14f},  {0x0001, 0x1p-24f},   {0x03ff, 0x1.ff8p-15f},
    {0x83ff, -0x1.ff8p-15f}, {0x7c00, HUGE_VALF}, {0xfc00, -HUGE_VALF},
};
static const half BFLOATS[] = {
    {0x0000, 0.0f},       {0x3f80, 1.0f},        {0xc000, -2.0f},
    {0x3eab, 0x1.56p-2f}, {0x7f7f, 0x1.fep127f}, {0x0080, 0x1p-126f},
    {0x0001, 0x1p-133f},  {0x7f80, HUGE_VALF},   {0xff80, -HUGE_VALF},
};

/* Half precision is widened exactly, and what lies after it at an odd place is read as it is. */
static void expect_widened(const char *dtype, const half *want, size_t n)
{
    uint16_t bits[16];
    safetensors *file = NULL;
    const float *data = NULL, *b = NULL;
    for (size_t i = 0; i < n; i++)
        bits[i] = want[i].bits;
    write_halves(dtype, bits, n);
    ck_assert_msg(safetensors_open(path, &file) == STATUS_OK, "%s", status_text());
    safetensors_strip(file, "module.a"); /* not all tensors have it */
    safetensors_strip(file, "module.");
    ck_assert_int_eq(safetensors_find(file, "a", 1, (int[]){(int)n}, &data), STATUS_OK);
    ck_assert_int_eq(safetensors_find(file, "b", 1, (int[]){1}, &b), STATUS_OK);
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(memcmp(&data[i], &want[i].value, 4) == 0, "%s %04x is %a, not %a", dtype,
                      want[i].bits, (double)data[i], (double)want[i].value);
    const float tenth = 0.1f;
    ck_assert_mem_eq(b, &tenth, 4);
    safetensors_close(file);
}

/* As torch's load_state_dict does; beyond float32 it becomes infinite. */
START_TEST(casts_double_precision)
{
    const double given[] = {0.1, -3, 1e300, 1e-320};
    const float want[] = {0.1f, -3, HUGE_VALF, 0};
    const float *data = NULL;
    safetensors *file = NULL;
    const char header[] = ONE("\"F64\"", "[4]", "0", "32");
    uint64_t length = sizeof header - 1;
    const file_part parts[] = {{&length, 8}, {header, sizeof header - 1}, {given, sizeof given}};
    ck_assert_int_eq(file_write(path, parts, 3), STATUS_OK);
    ck_assert_msg(safetensors_open(path, &file) == STATUS_OK, "%s", status_text());
    ck_assert_int_eq(safetensors_find(file, "a", 1, (int[]){4}, &data), STATUS_OK);
    ck_assert_mem_eq(data, want, sizeof want);
    safetensors_close(file);
}
END_TEST

/* What a file is instead, as far as its first bytes tell. */
START_TEST(says_what_another_file_starts_with)
{
    static const struct {
        const char bytes[17];
        const char *facts[4];
    } cases[] = {
        {"root:x:0:0:root\n", {"not a safetensors file", "'root:x:0'"}},
        {"#!/bin\n/sh -e\n\n", {"not a safetensors file", "'#!/bin'"}},
        {"\x1f\x8b\x08\x08\0\0\0\0\0\3abcdef", {"not a safetensors file", "gzip"}},
        {"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", {"not a safetensors file", "PNG", "picture"}},
    };
    safetensors *file = NULL;
    ck_assert_int_eq(file_write(path, &(file_part){cases[_i].bytes, 16}, 1), STATUS_OK);
    ck_assert_int_eq(safetensors_open(path, &file), STATUS_INVALID);
    ASSERT_FACTS_LISTED(status_text(), cases[_i].facts);
}
END_TEST

START_TEST(widens_half_precision)
{
    expect_widened("F16", HALVES, sizeof HALVES / sizeof HALVES[0]);
    expect_widened("BF16", BFLOATS, sizeof BFLOATS / sizeof BFLOATS[0]);
}
END_TEST

START_TEST(tells_how_to_convert_what_torch_saved)
{
    static const char *const begins[] = {"PK\3\4 zip ", "\x80\2\x8a\nl\xfc\x9c F"};
    for (size_t i = 0; i < 2; i++) {
        ck_assert_int_eq(file_write(path, (file_part[]){{begins[i], strlen(begins[i])}}, 1),
                         STATUS_OK);
        expect_refused(FACTS("torch.save", "python3", "torch.load", "save_file"));
    }
}
END_TEST

START_TEST(refuses_impossible_lengths)
{
    static const uint64_t lengths[] = {1, 9, 1 << 20, (1 << 20) + 1, UINT32_MAX};
    char bytes[32];
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        ck_assert_int_eq(file_write(path, (file_part[]){{&lengths[i], 8}, {"{", 1}}, 2), STATUS_OK);
        snprintf(bytes, sizeof bytes, "%" PRIu64 " bytes", lengths[i]);
        expect_refused(i == 0 ? FACTS("header", "byte") : FACTS("header", bytes, "1 MiB"));
    }
    for (size_t size = 0; size < 8; size++) {
        ck_assert_int_eq(file_write(path, &(file_part){&lengths[0], size}, 1), STATUS_OK);
        snprintf(bytes, sizeof bytes, "%zu bytes", size);
        expect_refused(FACTS(bytes));
    }
}
END_TEST

/* A header of exactly 1 MiB is read, one of a byte more is not. */
START_TEST(header_size_limit)
{
    static char header[(1 << 20) + 1];
    memset(header, ' ', sizeof header);
    memcpy(header, "{}", 2);
    write_raw(header, sizeof header - 1, 0);
    expect_accepted();
    write_raw(header, sizeof header, 0);
    expect_refused(FACTS("header", "1048577 bytes", "1 MiB"));
}
END_TEST

/* Every proper beginning of a file is refused, and so is every file with a byte more. */
START_TEST(refuses_every_other_length)
{
    char *bytes = NULL;
    size_t size = 0;
    ck_assert_int_eq(safetensors_write(path, TENSORS, 2, NULL, 0, NULL), STATUS_OK);
    ck_assert_int_eq(file_read(path, 4096, &bytes, &size), STATUS_OK);
    for (size_t cut = 0; cut < size; cut++) {
        ck_assert_int_eq(file_write(path, &(file_part){bytes, cut}, 1), STATUS_OK);
        expect_refused(FACTS(path));
    }
    ck_assert_int_eq(file_write(path, (file_part[]){{bytes, size}, {"", 1}}, 2), STATUS_OK);
    expect_refused(FACTS(path));
    free(bytes);
}
END_TEST

/* No single damaged byte goes unnoticed that would change a tensor: either the file is refused, or
 * (in padding, or in a name or key) all tensors that can still be found hold what was written. */
START_TEST(notices_any_flipped_byte)
{
    char *bytes = NULL;
    size_t size = 0, refused = 0;
    ck_assert_int_eq(safetensors_write(path, TENSORS, 2, NULL, 0, NULL), STATUS_OK);
    ck_assert_int_eq(file_read(path, 4096, &bytes, &size), STATUS_OK);
    for (size_t at = 0; at < size; at++) {
        safetensors *file = NULL;
        const float *data = NULL;
        bytes[at] ^= 0x10;
        ck_assert_int_eq(file_write(path, &(file_part){bytes, size}, 1), STATUS_OK);
        if (safetensors_open(path, &file) != STATUS_OK)
            refused++;
        else if (safetensors_find(file, "fc.weight", 2, TENSORS[0].shape, &data) == STATUS_OK)
            ck_assert_mem_eq(data, WEIGHT, sizeof WEIGHT);
        if (at >= size - sizeof WEIGHT - sizeof BIAS)
            ck_assert_ptr_null(file);
        safetensors_close(file);
        bytes[at] ^= 0x10;
    }
    ck_assert_uint_gt(refused, size / 2);
    free(bytes);
}
END_TEST

START_TEST(absent_and_unusual_paths)
{
    safetensors *file = NULL;
    ck_assert_int_eq(safetensors_open(path, &file), STATUS_IO);
    ASSERT_FACTS(status_text(), path);
    ck_assert_int_ne(safetensors_open(scratch, &file), STATUS_OK);
    safetensors_close(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("safetensors");
    TCase *core = suite_case(suite, "core", 20);
    tcase_add_checked_fixture(core, setup, scratch_remove);
    tcase_add_test(core, round_trip);
    tcase_add_test(core, finds_only_what_was_asked_for);
#ifndef SANITIZED
    tcase_add_test(core, floats_are_not_held_twice);
#endif
    tcase_add_loop_test(core, layout_of_the_file, 0, 8);
    tcase_add_test(core, writer_refuses_bad_names);
    tcase_add_loop_test(core, refuses_bad_headers, 0, N_BAD);
    tcase_add_test(core, accepts_what_the_format_allows);
    tcase_add_test(core, widens_half_precision);
    tcase_add_test(core, casts_double_precision);
    tcase_add_loop_test(core, says_what_another_file_starts_with, 0, 4);
    tcase_add_test(core, tells_how_to_convert_what_torch_saved);
    tcase_add_test(core, refuses_impossible_lengths);
    tcase_add_test(core, header_size_limit);
    tcase_add_test(core, refuses_every_other_length);
    tcase_add_test(core, notices_any_flipped_byte);
    tcase_add_test(core, absent_and_unusual_paths);
    return suite_run(suite);
}
