/* The part of run_folder.h that writes single files of the folder, and looks at them. */
#include "app/common/run_files.h"
#include "app/train/folder_owner.h"
#include "app/train/run_folder.h"
#include "base/file.h"

#include <string.h>

status run_folder_check_own(run_folder *folder, const rank_context *rank)
{
    return folder_owner_check(rank, folder->path, &folder->lock_fd);
}

status run_folder_write_config(const run_folder *folder, const run_start *start)
{
    return folder->is_dry ? STATUS_OK : run_config_write(folder->path, start);
}

status run_folder_write_result(const run_folder *folder, const char *line)
{
    if (folder->is_dry)
        return STATUS_OK;
    char path[FILE_PATH_BYTES];
    const file_part parts[] = {{line, strlen(line)}, {"\n", 1}};
    TRY(file_join(folder->path, RUN_FILE_RESULT, path));
    return file_replace(path, parts, 2);
}

status run_folder_check_saved(const run_folder *folder, const position *at)
{
    return checkpoint_check_published(folder->path, at->step);
}
