#include "app/data/set_report.h"

#include "app/common/json_value.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char *const VERDICTS[] = {[VERDICT_MISSING] = "missing",
                                       [VERDICT_RIGHT] = "right",
                                       [VERDICT_WRONG] = "wrong",
                                       [VERDICT_UNKNOWN] = "unknown"};

static bool is_gzip(const char *path)
{
    size_t length = strlen(path);
    return length > 3 && strcmp(path + length - 3, ".gz") == 0;
}

/* Of a plain file whose digest nobody has noted: torchvision leaves it beside the .gz that it came
 * from. If that one is right, its content is what the plain file must have. */
static status compare_with_gzip(const dataset_file *want, idx_kind kind, file_row *row)
{
    char path[FILE_PATH_BYTES], sum[DIGEST_TEXT_BYTES];
    idx_file plain = {0}, inside = {0};
    row->verdict = VERDICT_UNKNOWN;
    if (snprintf(path, sizeof path, "%s.gz", row->path) >= (int)sizeof path || !file_exists(path))
        return STATUS_OK;
    TRY(digest_file(path, sum));
    if (strcmp(sum, want->sha256) != 0)
        return STATUS_OK;
    TRY(idx_file_open(row->path, kind, &plain));
    status st = idx_file_open(path, kind, &inside);
    if (st == STATUS_OK) {
        size_t size_bytes = (size_t)plain.count * (kind == IDX_IMAGES ? DATASET_PIXELS : 1);
        bool same =
            plain.count == inside.count && memcmp(plain.elements, inside.elements, size_bytes) == 0;
        row->verdict = same ? VERDICT_RIGHT : VERDICT_WRONG;
    }
    idx_file_close(&plain);
    idx_file_close(&inside);
    return st;
}

static status judge(const dataset_file *want, idx_kind kind, file_row *row)
{
    const char *known = is_gzip(row->path) ? want->sha256 : want->plain_sha256;
    TRY(digest_file(row->path, row->sum));
    if (known == NULL)
        return compare_with_gzip(want, kind, row);
    row->verdict = strcmp(row->sum, known) == 0 ? VERDICT_RIGHT : VERDICT_WRONG;
    return STATUS_OK;
}

/* Its path is known. */
static status look_at_file(set_report *set, int index)
{
    file_row *row = &set->rows[index];
    idx_kind kind = mnist_files_kind(index);
    idx_file file = {0};
    struct stat info;
    row->verdict = VERDICT_UNKNOWN;
    status st = judge(&set->facts->files[index], kind, row);
    if (st != STATUS_OK) {
        snprintf(row->why, sizeof row->why, "%s", status_text());
        return st;
    }
    if (stat(row->path, &info) == 0)
        row->size_bytes = (uint64_t)info.st_size;
    TRY(idx_file_open(row->path, kind, &file));
    row->count = file.count;
    idx_file_close(&file);
    return STATUS_OK;
}

void set_report_look_again(set_report *set)
{
    set->found = true;
    set->why[0] = '\0';
    for (int i = 0; i < MNIST_FILES_COUNT; i++) {
        file_row *row = &set->rows[i];
        if (row->verdict == VERDICT_RIGHT)
            continue;
        *row = (file_row){.fetched = row->fetched};
        status st = mnist_files_find(set->location.folder, mnist_files_split(i),
                                     mnist_files_kind(i), row->path);
        if (st != STATUS_OK)
            set->found = false;
        else
            st = look_at_file(set, i);
        if (st != STATUS_OK)
            snprintf(set->why, sizeof set->why, "%s", status_text());
    }
}

void set_report_look(dataset_kind kind, const dataset_location *location, set_report *out)
{
    *out = (set_report){.facts = dataset_kind_facts(kind), .location = *location};
    set_report_look_again(out);
}

void set_report_find(dataset_kind kind, const char *data_dir, set_report *out)
{
    dataset_location location;
    bool found = false;
    *out = (set_report){.facts = dataset_kind_facts(kind)};
    status st = dataset_find(kind, data_dir, &location, &found);
    if (st == STATUS_OK && !found)
        st = FAIL(STATUS_INVALID, "not in %s, nor in the cache%s", out->facts->working_folder,
                  kind == DATASET_MNIST ? "; mnist_ddp takes digits of its own instead" : "");
    if (st == STATUS_OK)
        set_report_look(kind, &location, out);
    else
        snprintf(out->why, sizeof out->why, "%s", status_text());
}

static const char *name_of(const file_row *row)
{
    const char *slash = strrchr(row->path, '/');
    return slash != NULL ? slash + 1 : row->path;
}

void set_report_print(const set_report *set)
{
    if (!set->found) {
        printf("%s: %s\n", set->facts->title, set->why);
        return;
    }
    printf("%s: %s (%s)\n", set->facts->title, set->location.folder, set->location.found_by);
    for (int i = 0; i < MNIST_FILES_COUNT; i++) {
        const file_row *row = &set->rows[i];
        printf("  %-26s %5" PRIu32 " %s, %8" PRIu64 " bytes, SHA-256 %s: %s\n", name_of(row),
               row->count, mnist_files_kind(i) == IDX_IMAGES ? "images" : "labels", row->size_bytes,
               row->sum, VERDICTS[row->verdict]);
    }
    if (set->why[0] != '\0')
        printf("  %s\n", set->why);
}

static json_t *make_json(const set_report *set)
{
    json_t *object = json_object(), *files = json_array();
    json_object_set_new(object, "dataset", json_string(set->facts->name));
    json_object_set_new(object, "folder",
                        set->found ? json_value_text(set->location.folder) : json_null());
    json_object_set_new(object, "why",
                        set->why[0] != '\0' ? json_value_text(set->why) : json_null());
    for (int i = 0; i < MNIST_FILES_COUNT; i++) {
        const file_row *row = &set->rows[i];
        if (row->path[0] == '\0')
            continue;
        json_t *file = json_object();
        json_object_set_new(file, "name", json_value_text(name_of(row)));
        json_object_set_new(file, "count", json_integer(row->count));
        json_object_set_new(file, "size_bytes", json_integer((json_int_t)row->size_bytes));
        json_object_set_new(file, "sha256", json_string(row->sum));
        json_object_set_new(file, "verdict", json_string(VERDICTS[row->verdict]));
        json_object_set_new(file, "fetched", json_boolean(row->fetched));
        json_array_append_new(files, file);
    }
    json_object_set_new(object, "files", files);
    return object;
}

status set_report_print_json(const set_report *sets, int n)
{
    json_t *object = json_object(), *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, make_json(&sets[i]));
    json_object_set_new(object, "datasets", list);
    return json_value_print(object);
}

status set_report_check(const set_report *set)
{
    const char *title = set->facts->title;
    if (!set->found || set->why[0] != '\0')
        return FAIL(STATUS_INVALID, "%s: %s", title, set->why);
    for (int i = 0; i < MNIST_FILES_COUNT; i++) {
        const file_row *row = &set->rows[i];
        if (row->verdict == VERDICT_WRONG)
            return FAIL(STATUS_INVALID, "%s: not the file of %s: its SHA-256 is %s; remove it",
                        row->path, title, row->sum);
        if (row->verdict == VERDICT_UNKNOWN)
            return FAIL(STATUS_INVALID,
                        "%s: cannot be verified: of %s the digests of the .gz files are known; put "
                        "that one beside it",
                        row->path, title);
    }
    return STATUS_OK;
}
