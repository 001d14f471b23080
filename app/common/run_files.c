#include "app/common/run_files.h"

#include "base/log.h"
#include "model/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { MAX_NAMESAKES = 1000 }; /* made in the same second */

status runs_folder_make(const char *what, char *path)
{
    time_t now = time(NULL);
    struct tm local;
    char stamp[32];
    bool made = false;
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", localtime_r(&now, &local));
    for (int i = 1; i <= MAX_NAMESAKES && !made; i++) {
        int length = snprintf(path, FILE_PATH_BYTES, "runs/%s-%.64s", stamp, what);
        if (i > 1)
            snprintf(path + length, FILE_PATH_BYTES - (size_t)length, "-%d", i);
        TRY(file_make_new_folder(path, &made));
    }
    return made ? STATUS_OK
                : FAIL(STATUS_IO, "%s is there already, and %d like it", path, MAX_NAMESAKES);
}

/* Of two files of the same instant, the one in the folder whose name is the later one. */
static bool is_newer(const struct stat *file, const char *folder, const struct stat *newest,
                     const char *newest_folder)
{
    const struct timespec a = file->st_mtim, b = newest->st_mtim;
    if (a.tv_sec != b.tv_sec)
        return a.tv_sec > b.tv_sec;
    return a.tv_nsec != b.tv_nsec ? a.tv_nsec > b.tv_nsec : strcmp(folder, newest_folder) > 0;
}

status runs_folder_newest(const char *file, char *path, bool *found)
{
    struct stat newest = {0};
    *found = false;
    DIR *folder = opendir("runs");
    if (folder == NULL)
        return errno == ENOENT ? STATUS_OK : FAIL(STATUS_IO, "runs: %s", strerror(errno));
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        char run[FILE_PATH_BYTES], inside[FILE_PATH_BYTES];
        struct stat info;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(run, sizeof run, "runs/%s", entry->d_name);
        if (file_join(run, file, inside) != STATUS_OK || stat(inside, &info) != 0 ||
            !S_ISREG(info.st_mode) || (*found && !is_newer(&info, run, &newest, path)))
            continue;
        newest = info;
        strcpy(path, run);
        *found = true;
    }
    closedir(folder);
    return STATUS_OK;
}

status runs_folder_model(const char *named, char *path)
{
    bool found = false;
    if (named != NULL && strlen(named) >= FILE_PATH_BYTES)
        return FAIL(STATUS_INVALID, "%.80s...: the path is too long", named);
    if (named != NULL) {
        strcpy(path, named);
        return STATUS_OK;
    }
    TRY(runs_folder_newest(CHECKPOINT_MODEL, path, &found));
    if (!found)
        return FAIL(STATUS_INVALID,
                    "no folder in ./runs has a model yet: train one (mnist_ddp --epochs=1), or "
                    "name one by its folder or safetensors file: predict RUN, eval RUN, "
                    "serve RUN");
    LOG_V("the newest model: %s", path);
    return STATUS_OK;
}
