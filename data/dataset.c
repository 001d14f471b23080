#include "data/dataset.h"

#include "base/file.h"
#include "base/log.h"
#include "data/cache.h"
#include "data/embedded.h"
#include "data/idx_file.h"
#include "kernels/ops.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAMES_BYTES = 256 };

static const char *const TORCHVISION_FOLDERS[] = {
    "MNIST/raw", /* below a root that torchvision was given */
    "raw",       /* below one data set's folder there: DIR/FashionMNIST */
};
static const char WORKING_FOLDER[] = "data/MNIST/raw"; /* below the working directory */
static const char CACHE_FOLDER[] = "mnist";            /* below the cache folder */
static const char FOUND_IN_WORKING_FOLDER[] = "./data/MNIST/raw";

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
static status locate_named(const char *place, const char *found_by, dataset_location *out)
{
    enum { N_BELOW = sizeof TORCHVISION_FOLDERS / sizeof TORCHVISION_FOLDERS[0] };
    char below[FILE_PATH_BYTES], missing[NAMES_BYTES], names[NAMES_BYTES];
    struct stat info;
    if (stat(place, &info) != 0)
        return FAIL(STATUS_IO, "%s %s: %s", found_by, place, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return FAIL(STATUS_INVALID,
                    "%s %s: not a directory, expected the folder that holds MNIST's files",
                    found_by, place);
    if (euidaccess(place, X_OK) != 0)
        return FAIL(STATUS_IO, "%s %s: %s", found_by, place, strerror(errno));
    int absent = mnist_files_missing(place, missing, sizeof missing);
    if (absent == 0)
        return take(place, found_by, out);
    for (int i = 0; i < N_BELOW; i++) {
        TRY(file_join(place, TORCHVISION_FOLDERS[i], below));
        int absent_below = mnist_files_missing(below, names, sizeof names);
        if (absent_below == 0)
            return take(below, found_by, out);
        if (absent_below < absent) { /* the nearest is told */
            absent = absent_below;
            memcpy(missing, names, sizeof names);
        }
    }
    return FAIL(STATUS_INVALID,
                "%s %s: missing %s (each plain or with .gz; looked in it, in its %s and in its %s)",
                found_by, place, missing, TORCHVISION_FOLDERS[0], TORCHVISION_FOLDERS[1]);
}

/* Sets *found if the working directory or the cache holds the files. */
static status locate_customary(dataset_location *out, bool *found)
{
    char folder[FILE_PATH_BYTES];
    cache_folders folders;
    *found = true;
    if (has_all(WORKING_FOLDER))
        return take(WORKING_FOLDER, FOUND_IN_WORKING_FOLDER, out);
    cache_folders_find(&folders);
    for (int i = 0; i < folders.count; i++) {
        if (file_join(folders.path[i], CACHE_FOLDER, folder) == STATUS_OK && has_all(folder))
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

status dataset_locate(const char *data_dir, dataset_location *out)
{
    if (data_dir != NULL)
        return locate_named(data_dir, "--data-dir", out);
    const char *named = getenv("MNIST_DDP_DATA");
    if (named != NULL && named[0] != '\0')
        return locate_named(named, "$MNIST_DDP_DATA", out);
    bool found = false;
    TRY(locate_customary(out, &found));
    return found ? STATUS_OK : locate_embedded(out);
}

static status open_files(const char *folder, dataset_split split, idx_file *images,
                         idx_file *labels)
{
    char images_path[FILE_PATH_BYTES], labels_path[FILE_PATH_BYTES];
    TRY(mnist_files_find(folder, split, IDX_IMAGES, images_path));
    TRY(mnist_files_find(folder, split, IDX_LABELS, labels_path));
    TRY(idx_file_open(images_path, IDX_IMAGES, images));
    status st = idx_file_open(labels_path, IDX_LABELS, labels);
    if (st == STATUS_OK && images->count != labels->count) {
        st = FAIL(STATUS_INVALID, "%s: byte 4: %u images, but %u labels in %s: expected as many",
                  images_path, images->count, labels->count, labels_path);
        idx_file_close(labels);
    }
    if (st != STATUS_OK)
        idx_file_close(images);
    return st;
}

status dataset_open(const dataset_location *location, dataset_split split, dataset *out)
{
    idx_file images = {0}, labels = {0};
    if (location->embedded && location->folder[0] == '\0')
        TRY(embedded_open_in_memory(split, &images, &labels));
    else
        TRY(open_files(location->folder, split, &images, &labels));
    *out = (dataset){.count = images.count,
                     .images = images.elements,
                     .labels = labels.elements,
                     .mappings = {images.mapping, labels.mapping},
                     .mapping_bytes = {images.mapping_bytes, labels.mapping_bytes}};
    snprintf(out->uncached, sizeof out->uncached, "%s",
             images.uncached[0] != '\0' ? images.uncached : labels.uncached);
    return STATUS_OK;
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
    for (int i = 0; i < 2; i++) {
        idx_file file = {.mapping = set->mappings[i],
                         .mapping_bytes = (size_t)set->mapping_bytes[i]};
        idx_file_close(&file);
    }
    *set = (dataset){0};
}
