#include "tests/app/support/run_command.h"

#include "base/file.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

program run_command_start(const char *flags, const char *script)
{
    static char copy[RUN_LINE_BYTES];
    const char *argv[MAX_WORDS] = {program_mnist_ddp(), "run"};
    int n = 2;
    snprintf(copy, sizeof copy, "%s", flags);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        argv[n++] = word;
    argv[n++] = "--";
    argv[n++] = "sh";
    argv[n++] = "-c";
    argv[n++] = script;
    ck_assert_int_lt(n, MAX_WORDS);
    return program_start(argv);
}

program run_command(const char *flags, const char *script)
{
    program p = run_command_start(flags, script);
    program_wait(&p, RUN_S);
    return p;
}

const char *run_command_job_folder(const char *base)
{
    static char path[FILE_PATH_BYTES];
    DIR *list = opendir(base);
    int n = 0;
    ck_assert_ptr_nonnull(list);
    for (struct dirent *e = readdir(list); e != NULL; e = readdir(list)) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", base, e->d_name);
        n++;
    }
    closedir(list);
    ck_assert_int_eq(n, 1);
    return path;
}
