#include "data/mnist_files.h"

#include "base/file.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

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
