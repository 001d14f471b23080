#include "tests/app/support/demo_run.h"

#include "base/clock.h"
#include "tests/app/support/test_folder.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 256 };

json_t *demo_run(const char *line)
{
    char words[LINE_BYTES];
    snprintf(words, sizeof words, "demo %s --json", line);
    program p = program_run_line(words);
    ASSERT_EXIT(p, 0);
    json_t *document = json_loads(p.out, 0, NULL);
    ck_assert_ptr_nonnull(document);
    program_close(&p);
    return document;
}

double demo_run_fact(const json_t *document, const char *name)
{
    const json_t *value = json_object_get(json_object_get(document, "facts"), name);
    ck_assert_msg(json_is_number(value), "no fact %s", name);
    return json_number_value(value);
}

static const json_t *frame_of(const json_t *document, int frame)
{
    const json_t *frames = json_object_get(document, "frames");
    return json_array_get(frames,
                          frame < 0 ? json_array_size(frames) - (size_t)-frame : (size_t)frame);
}

const json_t *demo_run_cell(const json_t *document, int frame, int row, int column)
{
    const json_t *rows = json_object_get(frame_of(document, frame), "rows");
    return json_array_get(json_array_get(rows, (size_t)row), (size_t)column);
}

static void write_words(FILE *out, const char *text)
{
    for (; *text != '\0'; text += strcspn(text, " ")) {
        text += strspn(text, " ");
        fprintf(out, "%.*s ", (int)strcspn(text, " "), text);
    }
}

static void write_texts(FILE *out, const json_t *list)
{
    size_t i;
    json_t *value;
    json_array_foreach(list, i, value)
    {
        if (json_is_array(value))
            write_texts(out, value);
        else if (json_is_string(value))
            write_words(out, json_string_value(value));
    }
}

char *demo_run_text(const json_t *document, int frame)
{
    char *text = NULL;
    size_t size_bytes = 0;
    FILE *out = open_memstream(&text, &size_bytes);
    ck_assert_ptr_nonnull(out);
    write_texts(out, json_object_get(frame_of(document, frame), "text"));
    write_texts(out, json_object_get(frame_of(document, frame), "rows"));
    fclose(out);
    return text;
}

void demo_run_await(const program *p, const char *words)
{
    int64_t deadline_ns = clock_deadline_ns(RUN_S * 1000);
    for (bool said = false; !said; clock_sleep_ms(POLL_MS)) {
        char *out = test_folder_read(p->out_path);
        said = strstr(out, words) != NULL;
        free(out);
        ck_assert_msg(!clock_passed(deadline_ns), "it has not said: %s", words);
    }
}
