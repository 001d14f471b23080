#include "app/predict/predict.h"

#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/common/picture.h"
#include "app/common/run_files.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "data/idx.h"
#include "data/raster.h"
#include "model/checkpoint.h"
#include "model/classifier.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_BATCH = 64 };

/* --dataset, else that of the run which the model is of, else MNIST. */
static status find_dataset(const options *opts, trained_model *model)
{
    data_source data;
    const bool given = options_given(opts, "dataset");
    dataset_kind trained_on = DATASET_MNIST, kind = DATASET_MNIST;
    status st = data_source_find(model->path, &data), named = STATUS_OK;
    if (data.dataset != NULL)
        named = dataset_kind_parse(data.dataset, &trained_on);
    st = st == STATUS_OK ? named : st;
    bool is_there = st == STATUS_OK && data.folder != NULL &&
                    strlen(data.folder) < FILE_PATH_BYTES && file_exists(data.folder);
    if (st != STATUS_OK && st != STATUS_NO_MEMORY && !given)
        LOG_W("the names of the classes are not taken from the run: %s", status_text());
    if (st != STATUS_NO_MEMORY)
        st = given ? dataset_kind_parse(opts->dataset, &kind) : STATUS_OK;
    kind = given ? kind : trained_on;
    strcpy(model->data_folder, is_there && kind == trained_on ? data.folder : "");
    model->dataset = dataset_kind_facts(kind);
    data_source_free(&data);
    return st;
}

status trained_model_open(const options *opts, const char *path, trained_model *out, int *exit_code)
{
    *out = (trained_model){.dataset = dataset_kind_facts(DATASET_MNIST)};
    *exit_code = EXIT_CODE_CHECKPOINT;
    TRY(runs_folder_model(path, out->path));
    *exit_code = EXIT_CODE_USAGE;
    TRY(device_list_open(opts, 0, 0, &out->dev));
    *exit_code = EXIT_CODE_CHECKPOINT;
    return STATUS_OK;
}

status trained_model_load(const options *opts, trained_model *model)
{
    trained_model loaded = *model;
    TRY(classifier_create(model->dev, model->path, MAX_BATCH, &loaded.classifier));
    status st = find_dataset(opts, &loaded);
    if (st != STATUS_OK) {
        classifier_destroy(loaded.classifier);
        return st;
    }
    classifier_destroy(model->classifier);
    *model = loaded;
    return STATUS_OK;
}

void trained_model_close(trained_model *model)
{
    classifier_destroy(model->classifier);
    device_destroy(model->dev);
    *model = (trained_model){0};
}

/* What a word of the command line names: a picture of a digit, or images of an IDX file. */
typedef struct image_file {
    char path[FILE_PATH_BYTES];
    bool is_idx;
    uint32_t first, count; /* an IDX file's images; a picture is one */
    uint8_t *images;       /* (count, 28, 28): 0 is background, 255 ink */
} image_file;

/* Accepts a zeroed one. */
static void image_file_free(image_file *file)
{
    free(file->images);
    file->images = NULL;
}

enum { MAGIC_BYTES = 4 };

static bool is_idx(const char *path)
{
    static const uint8_t images[MAGIC_BYTES] = {0, 0, 8, 3}, labels[MAGIC_BYTES] = {0, 0, 8, 1};
    uint8_t magic[MAGIC_BYTES] = {0};
    struct stat info;
    int fd = -1;
    if (file_open(path, &fd, &info) != STATUS_OK)
        return false;
    ssize_t n = read(fd, magic, sizeof magic);
    close(fd);
    bool gzip = magic[0] == 0x1f && magic[1] == 0x8b;
    return n == MAGIC_BYTES && (gzip || memcmp(magic, images, sizeof magic) == 0 ||
                                memcmp(magic, labels, sizeof magic) == 0);
}

static status make_room(image_file *file)
{
    file->images = malloc((size_t)file->count * MNIST_IMAGE_PIXELS);
    if (file->images == NULL)
        return FAIL(STATUS_NO_MEMORY, "%s: %u images", file->path, file->count);
    return STATUS_OK;
}

static status read_picture(image_file *file)
{
    raster drawn = {0};
    if (is_idx(file->path))
        return FAIL(STATUS_INVALID,
                    "%s: an IDX file: say which of its images after its name: #0, or #0-9 for "
                    "the first ten",
                    file->path);
    file->count = 1;
    TRY(raster_file_read(file->path, &drawn));
    status st = make_room(file);
    if (st == STATUS_OK)
        st = mnist_image_make(file->path, &drawn, file->images);
    raster_free(&drawn);
    return st;
}

/* "3" or "3-7"; false if it is neither. */
static bool read_range(const char *text, uint32_t *first, uint32_t *last)
{
    char *end;
    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    unsigned long from = strtoul(text, &end, 10), to = from;
    if (*end == '-' && isdigit((unsigned char)end[1]))
        to = strtoul(end + 1, &end, 10);
    if (*end != '\0' || errno != 0 || from > to || to > UINT32_MAX - 1)
        return false;
    *first = (uint32_t)from;
    *last = (uint32_t)to;
    return true;
}

/* What follows the # of `word` is no range. */
static status no_range(const char *word, const char *mark)
{
    int length = (int)(mark - word);
    return FAIL(STATUS_INVALID,
                "%.*s: '%.40s' is no range of its images: #3 is one, #3-7 are five, and the first "
                "is #0",
                length, word, mark);
}

static status read_idx(image_file *file, uint32_t last)
{
    idx_file idx = {0};
    file->is_idx = true;
    TRY(idx_file_open(file->path, IDX_IMAGES, &idx));
    file->count = last - file->first + 1;
    status st = last < idx.count ? make_room(file)
                                 : FAIL(STATUS_INVALID, "%s#%u: the file has images 0 to %u",
                                        file->path, last, idx.count - 1);
    if (st == STATUS_OK)
        memcpy(file->images, idx.elements + (size_t)file->first * MNIST_IMAGE_PIXELS,
               (size_t)file->count * MNIST_IMAGE_PIXELS);
    idx_file_close(&idx);
    return st;
}

/* "digit.png" is a picture (data/raster.h), which is made into an image as MNIST's.
 * "FILE#3" and "FILE#3-7" are images of an IDX file, plain or gzip, as they are. A file whose name
 * has such an end is a picture. STATUS_INVALID or STATUS_IO names the file and what is wrong. */
static status image_file_read(const char *word, image_file *out)
{
    image_file file = {0};
    const char *mark = strrchr(word, '#');
    uint32_t last = 0;
    bool marked = mark != NULL && !file_exists(word);
    bool ranged = marked && read_range(mark + 1, &file.first, &last);
    size_t length = marked ? (size_t)(mark - word) : strlen(word);
    if (length >= sizeof file.path)
        return FAIL(STATUS_INVALID, "%.80s...: a path of %zu bytes is too long", word, length);
    memcpy(file.path, word, length);
    if (marked && !ranged) {
        if (file_exists(file.path))
            return no_range(word, mark);
        return FAIL(STATUS_IO, "%s: there is no such file", word);
    }
    status st = ranged ? read_idx(&file, last) : read_picture(&file);
    if (st == STATUS_OK)
        *out = file;
    else
        image_file_free(&file);
    return st;
}

enum {
    BAR_COLUMNS = 24,
    BAR_BESIDE = 11,
    EIGHTHS = 8,
    NAME_BYTES = FILE_PATH_BYTES + 16,
    ABOVE_BARS = 2
};
enum { SURE_PERCENT = 60 }; /* below, an answer is doubted */

/* One of --json, --quiet and text. */
typedef struct predictor {
    const options *opts;
    trained_model model;
    picture_style style;
    json_t *results; /* NULL: not asked for */
    bool printed;    /* a picture: a blank line parts it from the next */
} predictor;

static void name_image(const image_file *file, uint32_t i, char out[NAME_BYTES])
{
    if (file->is_idx)
        snprintf(out, NAME_BYTES, "%s#%" PRIu32, file->path, file->first + i);
    else
        snprintf(out, NAME_BYTES, "%s", file->path);
}

static json_t *make_json(const char *name, const dataset_facts *set, const prediction *p)
{
    json_t *probabilities = json_array();
    for (int i = 0; i < NETWORK_CLASSES; i++)
        json_array_append_new(probabilities, json_value_rounded(p->probabilities[i], 6));
    return json_pack("{s:o, s:i, s:s, s:o}", "file", json_value_text(name), "label", p->label,
                     "class", set->classes[p->label], "probabilities", probabilities);
}

/* Eighths of a column if the characters are there. */
static void print_bar(picture_style style, int columns, double share)
{
    static const char *const parts[EIGHTHS] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    int eighths = isfinite(share) ? (int)lround(share * columns * EIGHTHS) : 0;
    bool letters = style == PICTURE_ASCII;
    int whole = letters ? (eighths + EIGHTHS / 2) / EIGHTHS : eighths / EIGHTHS;
    bool part = !letters && eighths % EIGHTHS > 0;
    for (int i = 0; i < whole; i++)
        fputs(letters ? "#" : "█", stdout);
    printf("%s%*s", part ? parts[eighths % EIGHTHS] : "", columns - whole - part, "");
}

/* The picture, and beside it a bar for each class; on a narrow terminal below it. */
static void print_picture(predictor *p, const char *name, const uint8_t *pixels,
                          const prediction *found)
{
    char line[MNIST_IMAGE_SIDE * PICTURE_CELL_BYTES + PICTURE_END_BYTES], shown[NAME_BYTES];
    const char *const *classes = p->model.dataset->classes;
    const picture seen = {pixels, MNIST_IMAGE_SIDE, MNIST_IMAGE_SIDE};
    char head[NAME_BYTES + 64];
    int widest = 0, lines = picture_lines(&seen), columns = paragraph_columns(stdout);
    for (int i = 0; i < NETWORK_CLASSES; i++)
        widest = (int)strlen(classes[i]) > widest ? (int)strlen(classes[i]) : widest;
    int left = columns - widest - BAR_BESIDE, bar = left < BAR_COLUMNS ? left : BAR_COLUMNS;
    bool below = left - MNIST_IMAGE_SIDE < BAR_COLUMNS;
    printable_copy(PRINTABLE_LINE, name, shown, sizeof shown);
    snprintf(head, sizeof head, "%s: %s (%.1f %%)", shown, classes[found->label],
             100 * found->probabilities[found->label]);
    fputs(p->printed ? "\n" : "", stdout);
    paragraph_print_line(stdout, 0, 0, head);
    for (int i = 0; i < lines + (below ? NETWORK_CLASSES : 0); i++) {
        picture_line(&seen, p->style, i < lines ? i : 0, line);
        fputs(i < lines ? line : "", stdout);
        int label = i - (below ? lines : ABOVE_BARS);
        if (label >= 0 && label < NETWORK_CLASSES) {
            printf("  %*s ", widest, classes[label]);
            print_bar(p->style, bar, found->probabilities[label]);
            printf(" %5.1f %%", 100 * found->probabilities[label]);
        }
        putchar('\n');
    }
    p->printed = true;
}

/* A picture of no digit, or of several, gets an answer as well. */
static void doubt(const predictor *p, const char *name, const uint8_t *pixels,
                  const prediction *found)
{
    double percent = 100 * found->probabilities[found->label];
    if (percent < SURE_PERCENT)
        LOG_W("%s: not sure: %s is the likeliest with %.0f %%", name,
              p->model.dataset->classes[found->label], percent);
    if (p->model.dataset == dataset_kind_facts(DATASET_MNIST) && mnist_image_has_several(pixels))
        LOG_W("%s: more than one shape is drawn, it seems: give each digit a picture of its own",
              name);
}

static void print_image(predictor *p, const char *name, const uint8_t *pixels,
                        const prediction *found)
{
    if (p->results != NULL)
        json_array_append_new(p->results, make_json(name, p->model.dataset, found));
    else if (p->opts->quiet)
        puts(p->model.dataset->classes[found->label]);
    else
        print_picture(p, name, pixels, found);
}

static status predict_images(predictor *p, const image_file *file)
{
    char name[NAME_BYTES];
    float *logits = malloc(sizeof *logits * NETWORK_CLASSES * file->count);
    if (logits == NULL)
        return FAIL(STATUS_NO_MEMORY, "%s: the logits of %u images", file->path, file->count);
    status st = classifier_run(p->model.classifier, file->images, file->count, logits);
    for (uint32_t i = 0; i < file->count && st == STATUS_OK; i++) {
        prediction found = prediction_of(logits + (size_t)i * NETWORK_CLASSES);
        name_image(file, i, name);
        print_image(p, name, file->images + (size_t)i * MNIST_IMAGE_PIXELS, &found);
        if (!file->is_idx)
            doubt(p, name, file->images + (size_t)i * MNIST_IMAGE_PIXELS, &found);
    }
    free(logits);
    return st;
}

/* A file that cannot be read or classified is reported, and the others are read all the same. */
static int predict_file(predictor *p, const char *word)
{
    image_file file = {0};
    status st = image_file_read(word, &file);
    int code = EXIT_CODE_DATA;
    if (st == STATUS_OK) {
        st = predict_images(p, &file);
        code = EXIT_CODE_INTERNAL;
    }
    if (st != STATUS_OK && p->results != NULL)
        json_array_append_new(p->results, json_pack("{s:o, s:o}", "file", json_value_text(word),
                                                    "error", json_value_text(status_text())));
    image_file_free(&file);
    if (st != STATUS_OK && p->results == NULL && p->opts->quiet)
        puts("?"); /* so that the lines after it stand beside their files */
    if (p->results == NULL && fflush(stdout) != 0)
        LOG_D("stdout: some of %s is not written", word);
    return st == STATUS_OK ? EXIT_SUCCESS : exit_code_failed(st, code);
}

/* A safetensors file, or a folder that has one. */
static bool is_model(const char *word)
{
    char model[FILE_PATH_BYTES];
    const char *end = strrchr(word, '.');
    return (end != NULL && strcmp(end, ".safetensors") == 0) ||
           (file_join(word, CHECKPOINT_MODEL, model) == STATUS_OK && file_exists(model));
}

/* The first word may name the model; every other one is a picture. */
static status take_words(const options *opts, const char **model, int *first)
{
    *model = opts->checkpoint;
    *first = opts->n_files > 0 && opts->checkpoint == NULL && is_model(opts->files[0]);
    if (*first > 0)
        *model = opts->files[0];
    if (opts->n_files == *first)
        return FAIL(STATUS_INVALID,
                    "predict: name a picture, as in mnist_ddp predict digit.png; or images of an "
                    "IDX file: t10k-images-idx3-ubyte.gz#0-9");
    for (int i = *first; i < opts->n_files; i++)
        if (is_model(opts->files[i]))
            return FAIL(STATUS_INVALID,
                        "predict: %s is no picture but a model: name one, before the pictures",
                        opts->files[i]);
    return STATUS_OK;
}

int predict_command(const options *opts)
{
    predictor p = {.opts = opts, .style = picture_style_of(STDOUT_FILENO)};
    int code = EXIT_CODE_USAGE, first = 0;
    const char *model = NULL;
    status st = take_words(opts, &model, &first);
    if (st == STATUS_OK)
        st = trained_model_open(opts, model, &p.model, &code);
    if (st == STATUS_OK)
        st = trained_model_load(opts, &p.model);
    if (st != STATUS_OK) {
        trained_model_close(&p.model);
        return exit_code_failed(st, code);
    }
    code = EXIT_SUCCESS;
    p.results = opts->json ? json_array() : NULL;
    for (int i = first; i < opts->n_files; i++) {
        int file_code = predict_file(&p, opts->files[i]);
        code = file_code != EXIT_SUCCESS ? file_code : code;
    }
    trained_model_close(&p.model);
    if (!opts->json)
        return code;
    st = json_value_print(p.results);
    return st == STATUS_OK ? code : exit_code_failed(st, EXIT_CODE_INTERNAL);
}
