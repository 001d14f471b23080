#include "app/launch/entrypoint.h"

#include "base/host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FRONT_WORDS = 4, NUMBER_BYTES = 16, SHOWN_BYTES = 200, SCRIPT_BYTES = 1 << 20 };

static const char MACRO[] = "${local_rank}";

/* As runpy does it for torchrun's --run-path. */
static const char RUN_PATH[] = "import runpy, sys; sys.argv = sys.argv[1:]; "
                               "runpy.run_path(sys.argv[0], run_name='__main__')";

static status add_word(entrypoint *program, const char *word)
{
    char *copy = strdup(word);
    if (copy == NULL)
        return FAIL(STATUS_NO_MEMORY, "the program's arguments");
    program->words[program->count++] = copy;
    return STATUS_OK;
}

static status make_room(entrypoint *program, size_t words)
{
    program->words = calloc(words + FRONT_WORDS + 1, sizeof *program->words);
    program->local_rank_at = -1;
    return program->words != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "%zu arguments", words);
}

status entrypoint_self(int argc, char **argv, entrypoint *out)
{
    entrypoint program = {.path = "/proc/self/exe"};
    status st = make_room(&program, (size_t)argc);
    for (int i = 0; i < argc && st == STATUS_OK; i++)
        st = add_word(&program, argv[i]);
    if (st == STATUS_OK)
        *out = program;
    else
        entrypoint_free(&program);
    return st;
}

void entrypoint_free(entrypoint *program)
{
    for (int i = 0; i < program->count; i++)
        free(program->words[i]);
    free(program->words);
    *program = (entrypoint){0};
}

static bool is_script(const char *name)
{
    size_t length = strlen(name);
    return length > 3 && strcmp(name + length - 3, ".py") == 0;
}

static status find_python(entrypoint *program)
{
    const char *named = environment_text("PYTHON_EXEC");
    if (named != NULL) {
        if (executable_find(named, program->path))
            return STATUS_OK;
        return FAIL(STATUS_INVALID, "PYTHON_EXEC=%.*s: no such executable", SHOWN_BYTES, named);
    }
    if (executable_find("python3", program->path) || executable_find("python", program->path))
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "no python3 in PATH to run a script; name one with PYTHON_EXEC=/path/to/python3");
}

/* How the script itself spells the flag: torch.distributed.launch passes --local-rank since 2.0,
 * --local_rank before. */
static const char *local_rank_flag(const char *script)
{
    char *text = NULL;
    size_t size_bytes = 0;
    bool old = file_read(script, SCRIPT_BYTES, &text, &size_bytes) == STATUS_OK &&
               strstr(text, "--local_rank") != NULL && strstr(text, "--local-rank") == NULL;
    free(text);
    return old ? "--local_rank" : "--local-rank";
}

static status add_python(const options *opts, entrypoint *program)
{
    const char *name = opts->program[0];
    if (!opts->module && access(name, R_OK) != 0)
        return FAIL(STATUS_INVALID, "%.*s: %s; a script is looked for in this folder", SHOWN_BYTES,
                    name, strerror(errno));
    TRY(find_python(program));
    TRY(add_word(program, program->path));
    TRY(add_word(program, "-u"));
    if (opts->module)
        return add_word(program, "-m");
    if (!opts->run_path)
        return STATUS_OK;
    TRY(add_word(program, "-c"));
    return add_word(program, RUN_PATH);
}

static status check_flags(const options *opts)
{
    if (opts->program == NULL || opts->program[0] == NULL)
        return FAIL(STATUS_INVALID,
                    "run: which program? As in: mnist_ddp run --nproc-per-node=2 train.py");
    if (opts->no_python && opts->module)
        return FAIL(STATUS_INVALID, "--no-python and --module: give one of them");
    if (opts->run_path && opts->module)
        return FAIL(STATUS_INVALID, "--run-path and --module: give one of them");
    return STATUS_OK;
}

/* The interpreter or executable, then PROGRAM ARGS. */
static status find(const options *opts, entrypoint *program)
{
    char *const *words = opts->program;
    bool direct = opts->no_python && !opts->run_path;
    bool python = opts->module || opts->run_path || is_script(words[0]);
    if (!direct && !python) /* whatever can be executed is; the rest is a script without ".py" */
        direct = executable_find(words[0], program->path) || access(words[0], R_OK) != 0;
    if (direct && !executable_find(words[0], program->path))
        return FAIL(STATUS_INVALID, "%.*s: no such executable%s", SHOWN_BYTES, words[0],
                    strchr(words[0], '/') == NULL ? " in PATH; for one in this folder give ./"
                    : access(words[0], F_OK) == 0 ? "; make it one with chmod +x"
                                                  : "");
    if (!direct)
        TRY(add_python(opts, program));
    TRY(add_word(program, words[0]));
    if (!opts->use_env) {
        program->local_rank_at = program->count;
        program->local_rank_flag = opts->module ? "--local-rank" : local_rank_flag(words[0]);
    }
    for (int i = 1; words[i] != NULL; i++)
        TRY(add_word(program, words[i]));
    return STATUS_OK;
}

status entrypoint_find(const options *opts, entrypoint *out)
{
    TRY(check_flags(opts));
    entrypoint program = {.own_session = true};
    size_t words = 0;
    while (opts->program[words] != NULL)
        words++;
    status st = make_room(&program, words);
    if (st == STATUS_OK)
        st = find(opts, &program);
    if (st == STATUS_OK)
        *out = program;
    else
        entrypoint_free(&program);
    return st;
}

/* `word` with every macro replaced, into `out` unless that is NULL. Returns its length and that of
 * the zero byte. */
static size_t substitute(const char *word, const char *number, char *out)
{
    size_t length = 0, macro_length = sizeof MACRO - 1, number_length = strlen(number);
    while (*word != '\0') {
        bool macro = strncmp(word, MACRO, macro_length) == 0;
        const char *from = macro ? number : word;
        size_t n = macro ? number_length : 1;
        if (out != NULL)
            memcpy(out + length, from, n);
        length += n;
        word += macro ? macro_length : 1;
    }
    if (out != NULL)
        out[length] = '\0';
    return length + 1;
}

status entrypoint_argv(const entrypoint *program, int local_rank, char ***out)
{
    char number[NUMBER_BYTES], flag[64];
    snprintf(number, sizeof number, "%d", local_rank);
    bool with_flag = program->local_rank_at >= 0;
    snprintf(flag, sizeof flag, "%s=%s", with_flag ? program->local_rank_flag : "", number);
    size_t pointers = ((size_t)program->count + 2) * sizeof(char *), bytes = strlen(flag) + 1;
    for (int i = 0; i < program->count; i++)
        bytes += substitute(program->words[i], number, NULL);
    char **block = malloc(pointers + bytes);
    if (block == NULL)
        return FAIL(STATUS_NO_MEMORY, "arguments of local rank %d", local_rank);
    char *text = (char *)block + pointers;
    int n = 0;
    for (int i = 0; i <= program->count; i++) {
        if (with_flag && i == program->local_rank_at) {
            block[n++] = text;
            memcpy(text, flag, strlen(flag) + 1);
            text += strlen(flag) + 1;
        }
        if (i == program->count)
            break;
        block[n++] = text;
        text += substitute(program->words[i], number, text);
    }
    block[n] = NULL;
    *out = block;
    return STATUS_OK;
}
