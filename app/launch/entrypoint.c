#include "app/launch/entrypoint.h"

#include "base/host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FRONT_WORDS = 4, SHOWN_BYTES = 200, SCRIPT_BYTES = 1 << 20 };

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
    if (!opts->run.module && access(name, R_OK) != 0)
        return FAIL(STATUS_INVALID, "%.*s: %s; a script is looked for in this folder", SHOWN_BYTES,
                    name, strerror(errno));
    TRY(find_python(program));
    TRY(add_word(program, program->path));
    TRY(add_word(program, "-u"));
    if (opts->run.module)
        return add_word(program, "-m");
    if (!opts->run.run_path)
        return STATUS_OK;
    TRY(add_word(program, "-c"));
    return add_word(program, RUN_PATH);
}

static status check_flags(const options *opts)
{
    if (opts->program == NULL || opts->program[0] == NULL)
        return FAIL(STATUS_INVALID,
                    "run: which program? As in: mnist_ddp run --nproc-per-node=2 train.py");
    if (opts->run.no_python && opts->run.module)
        return FAIL(STATUS_INVALID, "--no-python and --module: give one of them");
    if (opts->run.run_path && opts->run.module)
        return FAIL(STATUS_INVALID, "--run-path and --module: give one of them");
    return STATUS_OK;
}

/* The interpreter or executable, then PROGRAM ARGS. */
static status find(const options *opts, entrypoint *program)
{
    char *const *words = opts->program;
    bool direct = opts->run.no_python && !opts->run.run_path;
    bool python = opts->run.module || opts->run.run_path || is_script(words[0]);
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
    if (!opts->run.use_env) {
        program->local_rank_at = program->count;
        program->local_rank_flag = opts->run.module ? "--local-rank" : local_rank_flag(words[0]);
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

status entrypoint_list(text_stream *words, char ***out)
{
    char *text = NULL;
    size_t size_bytes = 0, n = 0;
    TRY(text_stream_close(words, &text, &size_bytes));
    for (size_t i = 0; i < size_bytes; i++)
        n += text[i] == '\0';
    char **block = malloc((n + 1) * sizeof *block + size_bytes);
    if (block == NULL) {
        free(text);
        return FAIL(STATUS_NO_MEMORY, "%zu words", n);
    }
    char *at = memcpy(block + n + 1, text, size_bytes);
    free(text);
    for (size_t i = 0; i < n; i++, at += strlen(at) + 1)
        block[i] = at;
    block[n] = NULL;
    *out = block;
    return STATUS_OK;
}

status entrypoint_argv(const entrypoint *program, int local_rank, char ***out)
{
    text_stream words;
    TRY(text_stream_open(&words));
    for (int i = 0; i <= program->count; i++) {
        if (i == program->local_rank_at)
            fprintf(words.file, "%s=%d%c", program->local_rank_flag, local_rank, '\0');
        const char *word = i < program->count ? program->words[i] : NULL;
        for (const char *at; word != NULL && (at = strstr(word, MACRO)) != NULL;
             word = at + sizeof MACRO - 1)
            fprintf(words.file, "%.*s%d", (int)(at - word), word, local_rank);
        if (word != NULL)
            fprintf(words.file, "%s%c", word, '\0');
    }
    return status_context(entrypoint_list(&words, out), "arguments of local rank %d", local_rank);
}
