/* Text written through stdio into memory, and JSON as text. */
#include "base/json_text.h"
#include "base/text.h"
#include "tests/support/facts.h"
#include "tests/support/no_memory.h"
#include "tests/support/suite.h"

#include <string.h>

enum { LONG = 300000 };

START_TEST(text_is_whole)
{
    static const int lengths[] = {0, 1, 511, 512, 513, 8192, LONG};
    text_stream stream;
    char *text = NULL;
    size_t size_bytes = 1, length = (size_t)lengths[_i];
    ck_assert(text_stream_open(&stream) == STATUS_OK);
    for (size_t i = 0; i < length; i++)
        fputc(i % 7 == 3 ? 0 : 'a' + (int)(i % 26), stream.file);
    ck_assert(text_stream_close(&stream, &text, &size_bytes) == STATUS_OK);
    ck_assert_uint_eq(size_bytes, length);
    for (size_t i = 0; i < length; i++)
        if (text[i] != (i % 7 == 3 ? 0 : 'a' + (int)(i % 26)))
            ck_abort_msg("[%zu] is %d", i, text[i]);
    ck_assert_int_eq(text[length], 0);
    free(text);
}
END_TEST

/* As after a write for which there was no memory. */
START_TEST(text_that_is_not_whole_is_none)
{
    text_stream stream;
    char *text = (char *)&stream;
    ck_assert(text_stream_open(&stream) == STATUS_OK);
    fputs("some", stream.file);
    fflush(stream.file);
    stream.failed = true;
    fputs("more", stream.file);
    ck_assert(text_stream_close(&stream, &text, NULL) == STATUS_NO_MEMORY);
    ck_assert_ptr_null(text);
}
END_TEST

START_TEST(a_missing_member_is_noticed)
{
    char *text = NULL;
    json_text_watch_memory();
    json_t *object = json_object();
    ck_assert_int_eq(json_object_set_new(object, "a", json_integer(1)), 0);
    ck_assert(json_text_print(object, JSON_COMPACT, &text) == STATUS_OK);
    ck_assert_str_eq(text, "{\"a\":1}");
    free(text);
    no_memory_begin();
    ck_assert_ptr_null(json_integer(1)); /* a member */
    no_memory_end();
    ck_assert(json_text_print(object, JSON_COMPACT, &text) == STATUS_NO_MEMORY);
    ck_assert(json_text_print(object, JSON_COMPACT, &text) == STATUS_OK); /* it was said */
    free(text);
    json_decref(object);
}
END_TEST

START_TEST(what_is_read_is_whole)
{
    static const char text[] = "{\"number\": 0.29999999999999999}";
    json_error_t error;
    json_text_watch_memory();
    json_t *object = json_text_parse(text, strlen(text), 0, &error);
    ck_assert_double_eq(json_number_value(json_object_get(object, "number")), 0.3);
    json_decref(object);
    ck_assert_ptr_null(json_text_parse("{", 1, 0, &error));
    ck_assert_int_ne(json_error_code(&error), json_error_out_of_memory);
    no_memory_begin();
    ck_assert_ptr_null(json_text_parse(text, strlen(text), 0, &error));
    ck_assert_int_eq(json_error_code(&error), json_error_out_of_memory);
    ck_assert_int_eq(json_text_value(text, strlen(text), "it", &object), STATUS_NO_MEMORY);
    no_memory_end();
    ck_assert_int_eq(json_text_value("[\n1", 3, "it", &object), STATUS_INVALID);
    ASSERT_FACTS(status_text(), "it:2: not JSON");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("text_stream");
    TCase *texts = suite_case(suite, "texts", 10);
    tcase_add_loop_test(texts, text_is_whole, 0, 7);
    tcase_add_test(texts, text_that_is_not_whole_is_none);
    tcase_add_test(texts, a_missing_member_is_noticed);
    tcase_add_test(texts, what_is_read_is_whole);
    return suite_run(suite);
}
