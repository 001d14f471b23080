#include "tests/app/support/command_line.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ARGS = 24, TEXT_BYTES = 65536 };

status command_line_parse(const char *line, options *out)
{
    static char copy[ANY_LINE]; /* options point into it */
    static char *argv[MAX_ARGS];
    int argc = 1;
    memset(argv, 0, sizeof argv);
    argv[0] = "mnist_ddp";
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " ")) {
        ck_assert_int_lt(argc, MAX_ARGS - 1);
        argv[argc++] = word;
    }
    return options_parse(argc, argv, out);
}

options command_line_options(const char *line)
{
    options opts;
    ck_assert_msg(command_line_parse(line, &opts) == STATUS_OK, "%s: %s", line, status_text());
    return opts;
}

void command_line_refused(const char *line, const char *const *facts)
{
    options opts = {.epochs = -77};
    ck_assert_msg(command_line_parse(line, &opts) == STATUS_INVALID, "'%s' was accepted", line);
    ck_assert_msg(opts.epochs == -77, "'%s': written on failure", line);
    ASSERT_FACTS_LISTED(status_text(), facts);
}

char command_line_captured[TEXT_BYTES];

void command_line_capture(int fd, void (*call)(int), int arg)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/test_options_%d.out", (int)getpid());
    fflush(stdout);
    int kept = dup(fd);
    FILE *file = fopen(path, "w+");
    ck_assert(kept >= 0 && file != NULL);
    dup2(fileno(file), fd);
    call(arg);
    fflush(stdout);
    dup2(kept, fd);
    close(kept);
    rewind(file);
    command_line_captured[fread(command_line_captured, 1, sizeof command_line_captured - 1, file)] =
        '\0';
    fclose(file);
    unlink(path);
}
