/* What the tests of `mnist_ddp run` share: a line of flags, and a shell script as the program. */
#ifndef MNIST_DDP_TESTS_APP_RUN_LINES_H
#define MNIST_DDP_TESTS_APP_RUN_LINES_H

#include "tests/app/underway.h"

#include <dirent.h>

enum { RUN_LINE_BYTES = 2048 };

/* Starts "mnist_ddp run FLAGS -- sh -c SCRIPT"; FLAGS are words separated by blanks. */
static inline program run_start(const char *flags, const char *script)
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

static inline program run_script(const char *flags, const char *script)
{
    program p = run_start(flags, script);
    program_wait(&p, RUN_S);
    return p;
}

/* Runs "mnist_ddp" with a whole line of words. */
static inline program run_line(const char *line)
{
    static char copy[RUN_LINE_BYTES];
    const char *argv[MAX_WORDS] = {program_mnist_ddp()};
    int n = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        argv[n++] = word;
    ck_assert_int_lt(n, MAX_WORDS);
    program p = program_start(argv);
    program_wait(&p, RUN_S);
    return p;
}

static inline char *run_file(const char *path)
{
    char *text = NULL;
    size_t size_bytes;
    ck_assert_msg(file_read(path, 1 << 20, &text, &size_bytes) == STATUS_OK, "%s", status_text());
    return text;
}

static inline void run_write(const char *path, const char *text)
{
    const file_part part = {text, strlen(text)};
    unlink(path);
    ck_assert_msg(file_write(path, &part, 1) == STATUS_OK, "%s", status_text());
}

static inline void run_await_file(const char *path)
{
    for (int64_t end_ns = clock_deadline_ns(RUN_S * 1000); !file_exists(path);) {
        ck_assert_msg(!clock_passed(end_ns), "%s did not come", path);
        clock_sleep_ms(POLL_MS);
    }
}

/* The process whose number a script writes into a file. */
static inline pid_t run_pid_in(const char *path)
{
    pid_t pid = 0;
    run_await_file(path);
    for (int64_t end_ns = clock_deadline_ns(5000); pid == 0 && !clock_passed(end_ns);) {
        char *text = run_file(path);
        pid = (pid_t)atoi(text);
        free(text);
    }
    ck_assert_int_gt(pid, 1);
    return pid;
}

/* How often `words` stand in `text`. */
static inline int run_count(const char *text, const char *words)
{
    int n = 0;
    for (const char *at = strstr(text, words); at != NULL; at = strstr(at + 1, words))
        n++;
    return n;
}

/* The only folder below `base`. */
static inline const char *run_job_folder(const char *base)
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

/* Removes what earlier tests left on the workbench: names and patterns, as the shell takes them. */
static inline void run_clean(const char *names)
{
    char command[256];
    snprintf(command, sizeof command, "cd '%s' && rm -rf %s", workbench, names);
    ck_assert_int_eq(system(command), 0);
}

#define ASSERT_SILENT(text, words) \
    ck_assert_msg(strstr((text), (words)) == NULL, "'%s' is in: %s", (words), (text))

#endif
