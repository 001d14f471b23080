#include "app/common/runs_folder.h"

#include <stdio.h>
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
