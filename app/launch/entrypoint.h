/* What a worker executes: this program again, a Python script, or any executable. */
#ifndef MNIST_DDP_APP_LAUNCH_ENTRYPOINT_H
#define MNIST_DDP_APP_LAUNCH_ENTRYPOINT_H

#include "app/options/options.h"
#include "base/file.h"
#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>

typedef struct entrypoint {
    char path[FILE_PATH_BYTES]; /* for execve */
    char **words;               /* argv for every worker; NULL-ended, memory of our own */
    int count;
    int local_rank_at; /* where the word "--local-rank=N" goes; -1: nowhere */
    const char *local_rank_flag;
    bool own_session; /* it leaves the agent's process group: no signal of the terminal */
} entrypoint;

/* This program with the same arguments. */
status entrypoint_self(int argc, char **argv, entrypoint *out);

/* What `run` was given: a script (".py", or what is no executable) is run by $PYTHON_EXEC or
 * python3, unbuffered. STATUS_INVALID if it is not there, with what was looked for. */
status entrypoint_find(const options *opts, entrypoint *out);
void entrypoint_free(entrypoint *program);

/* What was written, words with a zero byte each, as a list that ends with NULL, in one block of
 * memory: free with free(). Closes the stream. */
status entrypoint_list(text_stream *words, char ***out);

/* argv for one worker, "${local_rank}" replaced; likewise. */
status entrypoint_argv(const entrypoint *program, int local_rank, char ***out);

#endif
