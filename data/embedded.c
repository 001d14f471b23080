#include "data/embedded.h"

#include "base/file.h"
#include "base/log.h"
#include "data/cache.h"
#include "data/digits/digits.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SEED = 1, BLOCK_IMAGES = 10000, MAX_THREADS = 16 };

static const char SUBFOLDER[] = "digits-v1"; /* of the cache; another generator, another number */

static uint32_t split_count(dataset_split split)
{
    return split == DATASET_TRAIN ? DIGITS_TRAIN_COUNT : DIGITS_TEST_COUNT;
}

static int usable_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int count = CPU_COUNT(&set);
    return count < MAX_THREADS ? count : MAX_THREADS;
}

/* The two files of a split, open for writing. */
typedef struct target {
    int images, labels;
    const char *images_name, *labels_name;
} target;

static status write_headers(const target *to, uint32_t count)
{
    uint8_t header[IDX_MAX_HEADER_BYTES];
    idx_header_write(IDX_IMAGES, count, header);
    TRY(file_append(to->images, to->images_name, header, idx_header_bytes(IDX_IMAGES)));
    idx_header_write(IDX_LABELS, count, header);
    return file_append(to->labels, to->labels_name, header, idx_header_bytes(IDX_LABELS));
}

static status write_split(const target *to, dataset_split split)
{
    uint32_t count = split_count(split);
    uint8_t *block = malloc((size_t)BLOCK_IMAGES * (DIGITS_PIXELS + 1)); /* images, then labels */
    if (block == NULL)
        return FAIL(STATUS_NO_MEMORY, "a block of %d digits", BLOCK_IMAGES);
    uint8_t *labels = block + (size_t)BLOCK_IMAGES * DIGITS_PIXELS;
    status st = write_headers(to, count);
    for (uint32_t first = 0; st == STATUS_OK && first < count; first += BLOCK_IMAGES) {
        uint32_t n = count - first < BLOCK_IMAGES ? count - first : BLOCK_IMAGES;
        digits_range range = {SEED, split == DATASET_TRAIN ? DIGITS_TRAIN : DIGITS_TEST, first, n};
        st = digits_generate(&range, usable_cpus(), block, labels);
        if (st == STATUS_OK)
            st = file_append(to->images, to->images_name, block, (size_t)n * DIGITS_PIXELS);
        if (st == STATUS_OK)
            st = file_append(to->labels, to->labels_name, labels, n);
    }
    free(block);
    return st;
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

static bool folder_is_whole(const char *folder)
{
    return split_is_whole(folder, DATASET_TRAIN) && split_is_whole(folder, DATASET_TEST);
}

static status make_split(const char *folder, dataset_split split)
{
    char path[FILE_PATH_BYTES];
    file_draft images = {.fd = -1}, labels = {.fd = -1};
    status st = file_join(folder, mnist_files_name(split, IDX_IMAGES), path);
    if (st == STATUS_OK)
        st = cache_draft(path, &images);
    if (st == STATUS_OK)
        st = file_join(folder, mnist_files_name(split, IDX_LABELS), path);
    if (st == STATUS_OK)
        st = cache_draft(path, &labels);
    if (st == STATUS_OK) {
        target to = {images.fd, labels.fd, images.temporary, labels.temporary};
        st = write_split(&to, split);
    }
    if (st == STATUS_OK)
        st = file_draft_commit(&images);
    if (st == STATUS_OK)
        st = file_draft_commit(&labels);
    file_draft_drop(&images);
    file_draft_drop(&labels);
    return st;
}

/* The caller holds the folder's lock. Makes the missing files. */
static status make_missing(const char *folder)
{
    for (dataset_split split = DATASET_TRAIN; split <= DATASET_TEST; split++) {
        if (split_is_whole(folder, split))
            continue;
        LOG_I("making %u digits in %s (once)", split_count(split), folder);
        TRY(make_split(folder, split));
    }
    return STATUS_OK;
}

status embedded_find_or_make(char *folder)
{
    cache_folders folders;
    cache_folders_find(&folders);
    for (int i = 0; i < folders.count; i++) {
        if (file_join(folders.path[i], SUBFOLDER, folder) == STATUS_OK && folder_is_whole(folder))
            return STATUS_OK;
    }
    int lock = -1;
    TRY(cache_folder_make(SUBFOLDER, folder));
    TRY(cache_lock(folder, CACHE_LOCK_MS, &lock));
    status st = make_missing(folder);
    cache_unlock(lock);
    return st;
}

static status map_split(int images_fd, int labels_fd, dataset_split split, idx_file *images,
                        idx_file *labels)
{
    target to = {images_fd, labels_fd, "generated images", "generated labels"};
    TRY(write_split(&to, split));
    TRY(idx_file_map(images_fd, to.images_name, IDX_IMAGES, images));
    status st = idx_file_map(labels_fd, to.labels_name, IDX_LABELS, labels);
    if (st != STATUS_OK)
        idx_file_close(images);
    return st;
}

status embedded_open_in_memory(dataset_split split, idx_file *images, idx_file *labels)
{
    status st = STATUS_OK;
    int images_fd = memfd_create("mnist_ddp images", MFD_CLOEXEC);
    int labels_fd = memfd_create("mnist_ddp labels", MFD_CLOEXEC);
    if (images_fd < 0 || labels_fd < 0)
        st = FAIL(STATUS_IO, "memory for the embedded digits: %s", strerror(errno));
    else
        st = map_split(images_fd, labels_fd, split, images, labels);
    if (images_fd >= 0)
        close(images_fd);
    if (labels_fd >= 0)
        close(labels_fd);
    return st;
}
