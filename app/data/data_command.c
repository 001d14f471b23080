#include "app/common/commands.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/common/picture.h"
#include "app/common/terminal.h"
#include "app/data/fetch.h"
#include "app/data/set_report.h"
#include "app/options/options.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "data/dataset.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GAP = 2, SHOWN_AT_FIRST = 10, CAPTION_BYTES = IDX_SIDE + 1, SHOWN_BYTES = 40 };

typedef struct showing {
    const options *opts;
    const dataset_facts *facts;
    dataset set;
    picture_style style;
    int columns;       /* pictures side by side */
    uint32_t *indices; /* of the row of pictures that is not printed yet */
    int n;
    json_t *list; /* NULL: pictures are printed */
    int shown;
} showing;

/* "#7: 5", "#7: 9 Ankle boot". */
static void caption(const showing *s, uint32_t index, char out[CAPTION_BYTES])
{
    int label = s->set.labels[index];
    const char *name = s->facts->classes[label];
    bool is_digit = name[0] == '0' + label && name[1] == '\0';
    snprintf(out, CAPTION_BYTES, "#%u: %d%s%s", index, label, is_digit ? "" : " ",
             is_digit ? "" : name);
}

/* The pictures that have gathered, side by side below their captions. */
static void print_row(showing *s)
{
    char text[IDX_SIDE * PICTURE_CELL_BYTES + PICTURE_END_BYTES];
    const picture one = {NULL, IDX_SIDE, IDX_SIDE};
    for (int i = 0; i < s->n; i++) {
        caption(s, s->indices[i], text);
        printf("%-*s", i + 1 < s->n ? IDX_SIDE + GAP : 0, text);
    }
    putchar('\n');
    for (int line = 0; line < picture_lines(&one); line++) {
        for (int i = 0; i < s->n; i++) {
            picture p = one;
            p.pixels = s->set.images + (size_t)s->indices[i] * IDX_PIXELS;
            picture_line(&p, s->style, line, text);
            printf("%s%*s", text, i + 1 < s->n ? GAP : 0, "");
        }
        putchar('\n');
    }
    s->n = 0;
}

static json_t *make_json(const showing *s, uint32_t index)
{
    json_t *object = json_object(), *pixels = json_array();
    const uint8_t *image = s->set.images + (size_t)index * IDX_PIXELS;
    json_object_set_new(object, "index", json_integer(index));
    json_object_set_new(object, "label", json_integer(s->set.labels[index]));
    json_object_set_new(object, "class", json_string(s->facts->classes[s->set.labels[index]]));
    for (int i = 0; i < IDX_PIXELS; i++)
        json_array_append_new(pixels, json_integer(image[i]));
    json_object_set_new(object, "pixels", pixels);
    return object;
}

static void show_images(showing *s, uint32_t first, uint32_t last, int most)
{
    for (uint32_t i = first; i <= last && s->shown < most; i++) {
        if (s->opts->data.label >= 0 && s->set.labels[i] != s->opts->data.label)
            continue;
        s->shown++;
        if (s->list != NULL) {
            json_array_append_new(s->list, make_json(s, i));
            continue;
        }
        s->indices[s->n++] = i;
        if (s->n == s->columns)
            print_row(s);
    }
}

/* "7" or "7-9". */
static status read_range(const showing *s, const char *word, int *first, int *last)
{
    const char *at = word;
    int most = (int)s->set.count - 1;
    bool good = number_next(&at, 0, most, first);
    *last = *first;
    if (good && *at == '-') {
        at++;
        good = number_next(&at, *first, most, last);
    }
    if (!good || *at != '\0')
        return FAIL(STATUS_INVALID,
                    "data show '%.*s': expected an index or a range as 0-9; the %s set has 0-%d",
                    SHOWN_BYTES, word, s->opts->data.test ? "test" : "training", most);
    return STATUS_OK;
}

static status show_all(showing *s)
{
    int first = 0, last = 0;
    for (int i = 0; i < s->opts->n_files; i++) /* before anything is shown */
        TRY(read_range(s, s->opts->files[i], &first, &last));
    for (int i = 0; i < s->opts->n_files; i++) {
        TRY(read_range(s, s->opts->files[i], &first, &last));
        show_images(s, (uint32_t)first, (uint32_t)last, INT_MAX);
    }
    if (s->opts->n_files == 0)
        show_images(s, 0, s->set.count - 1, SHOWN_AT_FIRST);
    if (s->n > 0)
        print_row(s);
    if (s->shown == 0)
        return FAIL(STATUS_INVALID, "data show: none of these images has the label %d",
                    (int)s->opts->data.label);
    return STATUS_OK;
}

static status print_json(const showing *s, const dataset_location *location)
{
    json_t *object = json_object();
    json_object_set_new(object, "dataset", json_string(s->facts->name));
    json_object_set_new(object, "folder",
                        location->embedded ? json_null() : json_value_text(location->folder));
    json_object_set_new(object, "split", json_string(s->opts->data.test ? "test" : "train"));
    json_object_set(object, "images", s->list);
    return json_value_print(object);
}

static void warn_embedded(const dataset_location *location)
{
    if (location->embedded)
        LOG_W("these are generated digits, NOT MNIST: mnist_ddp data fetch gets the real files");
}

/* Returns the exit code. */
static int show(const options *opts, dataset_kind kind)
{
    showing s = {
        .opts = opts, .facts = dataset_kind_facts(kind), .columns = (int)opts->data.columns};
    dataset_location location;
    status st = dataset_locate(kind, opts->data_dir, &location);
    if (st == STATUS_OK)
        st = dataset_open(&location, opts->data.test ? DATASET_TEST : DATASET_TRAIN, &s.set);
    if (st != STATUS_OK)
        return exit_code_failed(st, EXIT_CODE_DATA);
    warn_embedded(&location);
    s.style = picture_style_of(STDOUT_FILENO);
    if (s.columns < 0)
        s.columns = (paragraph_terminal_columns(STDOUT_FILENO) + GAP) / (IDX_SIDE + GAP);
    s.columns = s.columns > 0 ? s.columns : 1;
    s.indices = malloc(sizeof *s.indices * (size_t)s.columns);
    s.list = opts->json ? json_array() : NULL;
    st = s.indices != NULL ? show_all(&s) : FAIL(STATUS_NO_MEMORY, "%d pictures", s.columns);
    if (st == STATUS_OK && opts->json)
        st = print_json(&s, &location);
    free(s.indices);
    json_decref(s.list);
    dataset_close(&s.set);
    return st == STATUS_OK ? EXIT_SUCCESS : exit_code_failed(st, EXIT_CODE_USAGE);
}

/* Of n sets; free with free(). */
static status alloc_reports(int n, set_report **out)
{
    void *memory = NULL;
    TRY(memory_alloc(sizeof **out * (size_t)n, &memory));
    *out = memory;
    return STATUS_OK;
}

/* All data sets, or the one that is asked for. */
static int info(const options *opts, dataset_kind asked)
{
    set_report *sets = NULL;
    bool one = options_given(opts, "dataset");
    int n = 0;
    status st = alloc_reports(DATASET_KINDS, &sets);
    if (st != STATUS_OK)
        return exit_code_failed(st, EXIT_CODE_INTERNAL);
    for (int kind = 0; kind < DATASET_KINDS; kind++)
        if (!one || kind == (int)asked)
            set_report_find((dataset_kind)kind, opts->data_dir, &sets[n++]);
    st = opts->json ? set_report_print_json(sets, n) : STATUS_OK;
    for (int i = 0; i < n && !opts->json; i++)
        set_report_print(&sets[i]);
    free(sets);
    return st == STATUS_OK ? EXIT_SUCCESS : exit_code_failed(st, EXIT_CODE_INTERNAL);
}

static int verify(const options *opts, dataset_kind asked)
{
    set_report *set = NULL;
    int code = EXIT_CODE_INTERNAL;
    status st = alloc_reports(1, &set);
    if (st != STATUS_OK)
        return exit_code_failed(st, code);
    set_report_find(asked, opts->data_dir, set);
    if (opts->json)
        st = set_report_print_json(set, 1);
    else
        set_report_print(set);
    if (st == STATUS_OK) {
        code = EXIT_CODE_DATA;
        st = set_report_check(set);
    }
    free(set);
    return st == STATUS_OK ? EXIT_SUCCESS : exit_code_failed(st, code);
}

typedef int data_action(const options *opts, dataset_kind asked);

int data_command(const options *opts)
{
    static const struct {
        const char *name;
        data_action *act;
    } actions[] = {{"fetch", fetch}, {"info", info}, {"verify", verify}, {"show", show}};
    dataset_kind asked;
    status st = dataset_kind_parse(opts->dataset, &asked);
    if (st != STATUS_OK)
        return exit_code_failed(st, EXIT_CODE_USAGE);
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++)
        if (opts->action != NULL && strcmp(opts->action, actions[i].name) == 0)
            return actions[i].act(opts, asked);
    FAIL(STATUS_INVALID,
         "data: what about it? fetch, info, verify or show, as in mnist_ddp data fetch");
    return exit_code_failed(STATUS_INVALID, EXIT_CODE_USAGE);
}
