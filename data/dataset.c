#include "data/dataset.h"

#include "base/digest.h"
#include "base/file.h"
#include "base/host.h"
#include "base/log.h"
#include "base/status.h"
#include "base/thread.h"
#include "data/cache.h"
#include "data/digits.h"
#include "data/idx.h"
#include "kernels/ops.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The four files. */

enum { NAME_BYTES = 64 };

static const char *const NAMES[2][2] = {
    [DATASET_TRAIN] =
        {[IDX_IMAGES] = "train-images-idx3-ubyte", [IDX_LABELS] = "train-labels-idx1-ubyte"},
    [DATASET_TEST] =
        {[IDX_IMAGES] = "t10k-images-idx3-ubyte", [IDX_LABELS] = "t10k-labels-idx1-ubyte"},
};

int mnist_files_index(dataset_split split, idx_kind kind)
{
    return (split == DATASET_TRAIN ? 0 : 2) + (kind == IDX_IMAGES ? 0 : 1);
}

dataset_split mnist_files_split(int index)
{
    return index < 2 ? DATASET_TRAIN : DATASET_TEST;
}

idx_kind mnist_files_kind(int index)
{
    return index % 2 == 0 ? IDX_IMAGES : IDX_LABELS;
}

const char *mnist_files_name(dataset_split split, idx_kind kind)
{
    return NAMES[split][kind];
}

status mnist_files_find(const char *folder, dataset_split split, idx_kind kind, char *path)
{
    const char *official = NAMES[split][kind];
    char dotted[NAME_BYTES], candidate[FILE_PATH_BYTES], name[NAME_BYTES];
    snprintf(dotted, sizeof dotted, "%s", official);
    *strstr(dotted, "-idx") = '.';
    const struct {
        const char *stem, *suffix;
    } spellings[] = {{official, ""}, {dotted, ""}, {official, ".gz"}, {dotted, ".gz"}};
    bool found = false;
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
        struct stat info;
        snprintf(name, sizeof name, "%s%s", spellings[i].stem, spellings[i].suffix);
        TRY(file_join(folder, name, candidate));
        if (stat(candidate, &info) != 0 || (found && S_ISDIR(info.st_mode)))
            continue;
        memcpy(path, candidate, sizeof candidate);
        found = true;
        if (!S_ISDIR(info.st_mode))
            return STATUS_OK;
    }
    if (!found)
        return FAIL(STATUS_INVALID, "%s: no %s or %s.gz in it", folder, official, official);
    return STATUS_OK;
}

int mnist_files_missing(const char *folder, char *names, size_t names_bytes)
{
    char path[FILE_PATH_BYTES];
    int missing = 0;
    size_t length = 0;
    names[0] = '\0';
    for (int i = 0; i < MNIST_FILES_COUNT; i++) {
        dataset_split split = mnist_files_split(i);
        idx_kind kind = mnist_files_kind(i);
        if (mnist_files_find(folder, split, kind, path) == STATUS_OK)
            continue;
        if (length < names_bytes)
            length += (size_t)snprintf(names + length, names_bytes - length, "%s%s",
                                       missing > 0 ? ", " : "", NAMES[split][kind]);
        missing++;
    }
    return missing;
}

/* clang-format off */
/* Folders and classes are torchvision's (torchvision/datasets/mnist.py), and so is MNIST's first
 * mirror; the other mirrors are TensorFlow's, Keras's and the authors' own. torchvision's mirrors of
 * Fashion-MNIST and KMNIST speak no https, or are the same host. Sizes and digests of the .gz files
 * are those that TensorFlow's data sets pin (tensorflow_datasets/url_checksums); those of MNIST's
 * plain files were taken from the files themselves. */
static const dataset_facts FACTS[DATASET_KINDS] = {
    [DATASET_MNIST] = {
        "mnist", "MNIST", "MNIST/raw", "./data/MNIST/raw",
        {"https://ossci-datasets.s3.amazonaws.com/mnist/",
         "https://storage.googleapis.com/cvdf-datasets/mnist/"},
        {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
        {{"440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9912422,
          "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"},
         {"3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28881,
          "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"},
         {"8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1648877,
          "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"},
         {"f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4542,
          "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"}}},
    [DATASET_FASHION] = {
        "fashion", "Fashion-MNIST", "FashionMNIST/raw", "./data/FashionMNIST/raw",
        {"https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
         "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"},
        {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
         "Ankle boot"},
        {{"3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26421880, NULL},
         {"a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29515, NULL},
         {"346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4422102, NULL},
         {"67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5148, NULL}}},
    [DATASET_KMNIST] = {
        "kmnist", "KMNIST", "KMNIST/raw", "./data/KMNIST/raw",
        {"https://codh.rois.ac.jp/kmnist/dataset/kmnist/"},
        {"o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"},
        {{"51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4", 18165135, NULL},
         {"e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17", 29497, NULL},
         {"edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5", 3041136, NULL},
         {"20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c", 5120, NULL}}},
};
/* clang-format on */

const dataset_facts *dataset_kind_facts(dataset_kind kind)
{
    return &FACTS[kind];
}

bool dataset_kind_by_labels(const char *sha256, dataset_kind *out)
{
    int labels = mnist_files_index(DATASET_TEST, IDX_LABELS);
    for (int kind = 0; kind < DATASET_KINDS; kind++) {
        const dataset_file *file = &FACTS[kind].files[labels];
        if (strcmp(sha256, file->sha256) == 0 ||
            (file->plain_sha256 != NULL && strcmp(sha256, file->plain_sha256) == 0)) {
            *out = (dataset_kind)kind;
            return true;
        }
    }
    return false;
}

status dataset_kind_parse(const char *name, dataset_kind *out)
{
    for (int kind = 0; kind < DATASET_KINDS; kind++)
        if (strcmp(name, FACTS[kind].name) == 0) {
            *out = (dataset_kind)kind;
            return STATUS_OK;
        }
    return FAIL(STATUS_INVALID, "--dataset=%.40s: there are mnist, fashion and kmnist", name);
}

/* The embedded default data set: generated digits (data/digits.h), kept as IDX files under
 * MNIST's names. They are not MNIST. */
enum { SEED = 1, MAX_THREADS = 16 };

static const char SUBFOLDER[] = "digits-v2"; /* in the cache; another generator, another number */

static uint32_t split_count(dataset_split split)
{
    return split == DATASET_TRAIN ? DIGITS_TRAIN_COUNT : DIGITS_TEST_COUNT;
}

static void close_files(idx_file files[2])
{
    idx_file_close(&files[IDX_IMAGES]);
    idx_file_close(&files[IDX_LABELS]);
}

/* Makes the two files of a split in memory, by idx_kind. */
static status draw_split(dataset_split split, idx_file files[2])
{
    uint32_t count = split_count(split);
    const size_t element_bytes[2] = {[IDX_IMAGES] = DIGITS_PIXELS, [IDX_LABELS] = 1};
    uint8_t *elements[2];
    for (idx_kind kind = IDX_IMAGES; kind <= IDX_LABELS; kind++) {
        size_t header_bytes = idx_header_bytes(kind),
               n = header_bytes + count * element_bytes[kind];
        uint8_t *bytes = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (bytes == MAP_FAILED)
            return FAIL(STATUS_NO_MEMORY, "%zu bytes for digits", n);
        idx_header_write(kind, count, bytes);
        elements[kind] = bytes + header_bytes;
        files[kind] = (idx_file){
            .count = count, .elements = elements[kind], .mapping = bytes, .mapping_bytes = n};
    }
    int threads = cores_count() < MAX_THREADS ? cores_count() : MAX_THREADS;
    digits_range range = {SEED, split == DATASET_TRAIN ? DIGITS_TRAIN : DIGITS_TEST, 0, count};
    return digits_generate(&range, threads, elements[IDX_IMAGES], elements[IDX_LABELS]);
}

static bool file_is_whole(const char *folder, dataset_split split, idx_kind kind)
{
    char path[FILE_PATH_BYTES];
    idx_file file;
    if (file_join(folder, mnist_files_name(split, kind), path) != STATUS_OK || !file_exists(path) ||
        idx_file_open(path, kind, &file) != STATUS_OK)
        return false;
    bool whole = file.count == split_count(split);
    idx_file_close(&file);
    return whole;
}

static bool split_is_whole(const char *folder, dataset_split split)
{
    return file_is_whole(folder, split, IDX_IMAGES) && file_is_whole(folder, split, IDX_LABELS);
}

static status keep_file(const char *folder, const char *name, const idx_file *file)
{
    char path[FILE_PATH_BYTES];
    file_draft draft = {.fd = -1};
    TRY(file_join(folder, name, path));
    TRY(cache_draft(path, &draft));
    status st = file_append(draft.fd, draft.temporary, file->mapping, file->mapping_bytes);
    if (st == STATUS_OK)
        return file_draft_commit(&draft);
    file_draft_drop(&draft);
    return st;
}

/* The caller holds the folder's lock. Makes the missing files. */
static status make_missing(const char *folder)
{
    status st = STATUS_OK;
    for (dataset_split split = DATASET_TRAIN; split <= DATASET_TEST && st == STATUS_OK; split++) {
        idx_file files[2] = {0};
        if (split_is_whole(folder, split))
            continue;
        LOG_I("making %u digits in %s (once)", split_count(split), folder);
        st = draw_split(split, files);
        for (idx_kind kind = IDX_IMAGES; kind <= IDX_LABELS && st == STATUS_OK; kind++)
            st = keep_file(folder, mnist_files_name(split, kind), &files[kind]);
        close_files(files);
    }
    return st;
}

/* Finds the four files in the cache, or makes them there (once per host; takes seconds), and sets
 * `folder` (FILE_PATH_BYTES). If another process is making them, waits at most CACHE_LOCK_MS.
 * STATUS_IO or STATUS_TIMEOUT if the cache cannot be used. */
static status embedded_find_or_make(char *folder)
{
    cache_folders folders;
    cache_folders_find(&folders);
    for (int i = 0; i < folders.count; i++) {
        if (file_join(folders.path[i], SUBFOLDER, folder) == STATUS_OK &&
            split_is_whole(folder, DATASET_TRAIN) && split_is_whole(folder, DATASET_TEST))
            return STATUS_OK;
    }
    int lock = -1;
    TRY(cache_folder_make(SUBFOLDER, folder));
    TRY(cache_lock(folder, CACHE_LOCK_MS, &lock));
    status st = make_missing(folder);
    cache_unlock(lock);
    return st;
}

/* One set: where its files are, and in memory. */

enum { NAMES_BYTES = 256, DIGITS = 16 /* a digest's */, LOCK_MS = 1000 };

static const char ONE_SET_FOLDER[] = "raw"; /* below one data set's: DIR/FashionMNIST */

static bool has_all(const char *folder)
{
    char names[NAMES_BYTES];
    return mnist_files_missing(folder, names, sizeof names) == 0;
}

static status take(const char *folder, const char *found_by, dataset_location *out)
{
    dataset_location location = {.found_by = found_by};
    int length = snprintf(location.folder, sizeof location.folder, "%s", folder);
    if (length < 0 || (size_t)length >= sizeof location.folder)
        return FAIL(STATUS_INVALID, "path too long: %.64s...", folder);
    *out = location;
    return STATUS_OK;
}

/* A folder given by the user must hold the files, itself or as torchvision lays them out. */
static status locate_named(const dataset_facts *facts, const char *place, const char *found_by,
                           dataset_location *out)
{
    const char *const torchvision_folders[] = {facts->below, ONE_SET_FOLDER};
    enum { N_BELOW = sizeof torchvision_folders / sizeof torchvision_folders[0] };
    char below[FILE_PATH_BYTES], missing[NAMES_BYTES], names[NAMES_BYTES];
    struct stat info;
    if (stat(place, &info) != 0)
        return FAIL(STATUS_IO, "%s %s: %s", found_by, place, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return FAIL(STATUS_INVALID,
                    "%s %s: not a directory, expected the folder that holds %s's files", found_by,
                    place, facts->title);
    if (euidaccess(place, X_OK) != 0)
        return FAIL(STATUS_IO, "%s %s: %s", found_by, place, strerror(errno));
    int absent = mnist_files_missing(place, missing, sizeof missing);
    if (absent == 0)
        return take(place, found_by, out);
    for (int i = 0; i < N_BELOW; i++) {
        TRY(file_join(place, torchvision_folders[i], below));
        int absent_below = mnist_files_missing(below, names, sizeof names);
        if (absent_below == 0)
            return take(below, found_by, out);
        if (absent_below < absent) { /* the nearest is named */
            absent = absent_below;
            memcpy(missing, names, sizeof names);
        }
    }
    return FAIL(STATUS_INVALID,
                "%s %s: missing %s (each plain or with .gz; looked in it, in its %s and in its %s)",
                found_by, place, missing, torchvision_folders[0], torchvision_folders[1]);
}

/* Sets *found if the working directory or the cache holds the files. */
static status locate_customary(const dataset_facts *facts, dataset_location *out, bool *found)
{
    const char *working = facts->working_folder + strlen("./");
    char folder[FILE_PATH_BYTES];
    cache_folders folders;
    *found = true;
    if (has_all(working))
        return take(working, facts->working_folder, out);
    cache_folders_find(&folders);
    for (int i = 0; i < folders.count; i++) {
        if (file_join(folders.path[i], facts->name, folder) == STATUS_OK && has_all(folder))
            return take(folder, "cache", out);
    }
    *found = false;
    return STATUS_OK;
}

static status locate_embedded(dataset_location *out)
{
    dataset_location location = {.embedded = true, .found_by = "embedded digits"};
    if (embedded_find_or_make(location.folder) != STATUS_OK) {
        LOG_W("the embedded digits are made in memory each time: %s", status_text());
        location.folder[0] = '\0';
    }
    *out = location;
    return STATUS_OK;
}

/* The labels of another set are refused: all sets have files of the same names. */
static status check_labels(const char *path, dataset_kind kind, bool *known)
{
    char sum[DIGEST_TEXT_BYTES];
    dataset_kind found;
    *known = file_exists(path) && digest_file(path, sum) == STATUS_OK &&
             dataset_kind_by_labels(sum, &found);
    if (!*known || found == kind) /* if it cannot be read, opening it says why */
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: these files are %s, not %s: give --dataset=%s, or another "
                "--data-dir",
                path, dataset_kind_facts(found)->title, dataset_kind_facts(kind)->title,
                dataset_kind_facts(found)->name);
}

/* Files that nobody knows may be anything. Of a plain one whose digest nobody has noted, the .gz
 * that torchvision leaves beside it shows it. */
static status refuse_other(dataset_kind kind, const char *folder)
{
    char path[FILE_PATH_BYTES], gzip[FILE_PATH_BYTES];
    bool known = false;
    if (mnist_files_find(folder, DATASET_TEST, IDX_LABELS, path) != STATUS_OK)
        return STATUS_OK; /* opening it says why */
    TRY(check_labels(path, kind, &known));
    if (known || snprintf(gzip, sizeof gzip, "%s.gz", path) >= (int)sizeof gzip)
        return STATUS_OK;
    return check_labels(gzip, kind, &known);
}

/* The folder that the user has named; NULL: none. */
static const char *named_place(const char *data_dir, const char **found_by)
{
    *found_by = data_dir != NULL ? "--data-dir" : "$MNIST_DDP_DATA";
    return data_dir != NULL ? data_dir : environment_text("MNIST_DDP_DATA");
}

status dataset_find(dataset_kind kind, const char *data_dir, dataset_location *out, bool *found)
{
    const dataset_facts *facts = dataset_kind_facts(kind);
    const char *found_by, *named = named_place(data_dir, &found_by);
    dataset_location location = {0};
    bool is_there = true;
    if (named != NULL)
        TRY(locate_named(facts, named, found_by, &location));
    else
        TRY(locate_customary(facts, &location, &is_there));
    if (is_there)
        TRY(refuse_other(kind, location.folder));
    location.kind = kind;
    *out = location;
    *found = is_there;
    return STATUS_OK;
}

/* Is the end of `path` the folders of `end`? */
static bool ends_with(const char *path, const char *end)
{
    size_t length = strlen(path), n = strlen(end);
    while (length > 1 && path[length - 1] == '/')
        length--;
    return length >= n && strncmp(path + length - n, end, n) == 0 &&
           (length == n || path[length - n - 1] == '/');
}

/* The place below a named folder that has some of the files, else where torchvision puts them. */
static status place_named(const dataset_facts *facts, const char *named, const char *found_by,
                          dataset_location *out)
{
    char below[FILE_PATH_BYTES], raw[FILE_PATH_BYTES], set[FILE_PATH_BYTES], names[NAMES_BYTES];
    TRY(file_join(named, facts->below, below));
    TRY(file_join(named, ONE_SET_FOLDER, raw));
    const char *const places[] = {named, below, raw};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (mnist_files_missing(places[i], names, sizeof names) < MNIST_FILES_COUNT)
            return take(places[i], found_by, out);
    if (ends_with(named, facts->below))
        return take(named, found_by, out);
    file_folder_of(facts->below, set);
    return take(ends_with(named, set) ? raw : below, found_by, out);
}

status dataset_place(dataset_kind kind, const char *data_dir, dataset_location *out)
{
    const dataset_facts *facts = dataset_kind_facts(kind);
    const char *found_by, *named = named_place(data_dir, &found_by);
    bool found = false;
    if (named != NULL)
        return place_named(facts, named, found_by, out);
    TRY(locate_customary(facts, out, &found));
    return found ? STATUS_OK
                 : take(facts->working_folder + strlen("./"), facts->working_folder, out);
}

status dataset_locate(dataset_kind kind, const char *data_dir, dataset_location *out)
{
    const dataset_facts *facts = dataset_kind_facts(kind);
    bool found = false;
    TRY(dataset_find(kind, data_dir, out, &found));
    if (found)
        return STATUS_OK;
    if (kind == DATASET_MNIST)
        return locate_embedded(out);
    return FAIL(
        STATUS_INVALID,
        "%s is not here: its four files are neither in %s nor in the cache; get them with "
        "mnist_ddp data fetch --dataset=%s, or name a folder with --data-dir (torchvision's "
        "root is one)",
        facts->title, facts->working_folder, facts->name);
}

static status open_files(const char *folder, dataset_split split, idx_file files[2])
{
    char paths[2][FILE_PATH_BYTES];
    for (idx_kind kind = IDX_IMAGES; kind <= IDX_LABELS; kind++) {
        TRY(mnist_files_find(folder, split, kind, paths[kind]));
        TRY(idx_file_open(paths[kind], kind, &files[kind]));
    }
    if (files[IDX_IMAGES].count != files[IDX_LABELS].count)
        return FAIL(STATUS_INVALID, "%s: byte 4: %u images, but %u labels in %s: expected as many",
                    paths[IDX_IMAGES], files[IDX_IMAGES].count, files[IDX_LABELS].count,
                    paths[IDX_LABELS]);
    return STATUS_OK;
}

status dataset_open(const dataset_location *location, dataset_split split, dataset *out)
{
    dataset set = {0};
    status st = location->embedded && location->folder[0] == '\0'
                    ? draw_split(split, set.files)
                    : open_files(location->folder, split, set.files);
    if (st != STATUS_OK) {
        dataset_close(&set);
        return st;
    }
    set.count = set.files[IDX_IMAGES].count;
    set.images = set.files[IDX_IMAGES].elements;
    set.labels = set.files[IDX_LABELS].elements;
    set.version = set.files[IDX_IMAGES].version * set.files[IDX_LABELS].version;
    *out = set;
    return STATUS_OK;
}

const char *dataset_uncached(const dataset *train, const dataset *test)
{
    for (int i = 0; i < 4; i++) {
        const char *why = (i < 2 ? train : test)->files[i % 2].uncached;
        if (why[0] != '\0')
            return why;
    }
    return "";
}

static uint64_t compute_digest(const dataset *train, const dataset *test)
{
    uint64_t digest = lane_hash(0, train->images, (size_t)train->count * DATASET_PIXELS);
    digest = lane_hash(digest, train->labels, train->count);
    digest = lane_hash(digest, test->images, (size_t)test->count * DATASET_PIXELS);
    return lane_hash(digest, test->labels, test->count);
}

static bool read_digest(const char *path, uint64_t *out)
{
    char *text = NULL;
    size_t n = 0;
    if (!file_exists(path) || file_read(path, DIGITS, &text, &n) != STATUS_OK)
        return false;
    bool whole = n == DIGITS && sscanf(text, "%" SCNx64, out) == 1;
    free(text);
    return whole;
}

uint64_t dataset_digest(const dataset *train, const dataset *test)
{
    char folder[FILE_PATH_BYTES], path[FILE_PATH_BYTES], text[DIGITS + 1];
    const uint64_t versions[] = {train->version, test->version};
    uint64_t digest = 0;
    int lock = -1;
    snprintf(text, sizeof text, "%016" PRIx64, lane_hash(0, versions, sizeof versions));
    bool keeps = versions[0] != 0 && versions[1] != 0 &&
                 cache_folder_make("digests", folder) == STATUS_OK &&
                 file_join(folder, text, path) == STATUS_OK;
    if (keeps && read_digest(path, &digest))
        return digest;
    keeps = keeps && cache_lock(folder, LOCK_MS, &lock) == STATUS_OK;
    if (!keeps || !read_digest(path, &digest)) {
        digest = compute_digest(train, test);
        snprintf(text, sizeof text, "%016" PRIx64, digest);
        if (keeps) /* if that fails, it is computed again */
            (void)file_replace(path, (file_part[]){{text, DIGITS}}, 1);
    }
    cache_unlock(lock);
    return digest;
}

static status upload(device *dev, const uint8_t *host, size_t size_bytes, uint8_t **out)
{
    uint8_t *memory = NULL;
    TRY(dev->ops->alloc(dev, size_bytes, (void **)&memory));
    status st = dev->ops->upload(dev, memory, host, size_bytes);
    if (st != STATUS_OK) {
        dev->ops->free(dev, memory);
        return st;
    }
    *out = memory;
    return STATUS_OK;
}

status dataset_upload(device *dev, const dataset *set, uint8_t **images, uint8_t **labels)
{
    TRY(upload(dev, set->images, (size_t)set->count * DATASET_PIXELS, images));
    status st = upload(dev, set->labels, set->count, labels);
    if (st != STATUS_OK) {
        dev->ops->free(dev, *images);
        *images = NULL;
    }
    return st;
}

void dataset_close(dataset *set)
{
    if (set == NULL)
        return;
    close_files(set->files);
    *set = (dataset){0};
}
