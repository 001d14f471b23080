#include "app/launch/worker_environment.h"

#include "base/comma_list.h"
#include "base/team.h"
#include "base/text_stream.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "NAME=value" one behind the other, each with its zero byte. */
typedef struct variables {
    text_stream stream;
    char *text;
    size_t size_bytes;
    int count;
} variables;

__attribute__((format(printf, 2, 3))) static void add(variables *list, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vfprintf(list->stream.file, fmt, args);
    va_end(args);
    fputc('\0', list->stream.file);
    list->count++;
}

int worker_environment_threads(const worker_spec *spec)
{
    int share = team_cores() / spec->nproc;
    if (getenv("OMP_NUM_THREADS") != NULL || (spec->nproc == 1 && !spec->policy.own))
        return 0;
    /* Our own workers share the cores out themselves (--threads). */
    return spec->policy.own || share < 1 ? 1 : share;
}

static void list_place(variables *list, const worker_spec *spec, const worker_place *place)
{
    add(list, "RANK=%d", place->rank);
    add(list, "LOCAL_RANK=%d", spec->virtual_local_rank ? 0 : place->local_rank);
    add(list, "WORLD_SIZE=%d", spec->world_size);
    add(list, "LOCAL_WORLD_SIZE=%d", spec->nproc);
    add(list, "NODE_RANK=%d", spec->node_rank);
    add(list, "GROUP_RANK=%d", spec->node_rank);
    add(list, "GROUP_WORLD_SIZE=%d", spec->nnodes);
    add(list, "ROLE_RANK=%d", place->rank);
    add(list, "ROLE_WORLD_SIZE=%d", spec->world_size);
    add(list, "ROLE_NAME=%s", spec->role);
    add(list, "MASTER_ADDR=%s", spec->master_addr);
    add(list, "MASTER_PORT=%d", place->master_port);
}

/* The worker's own entry of the list of GPUs, or the GPU of its number. */
static void list_gpu(variables *list, const worker_place *place)
{
    const char *at = getenv("CUDA_VISIBLE_DEVICES");
    if (at == NULL) {
        add(list, "CUDA_VISIBLE_DEVICES=%d", place->local_rank);
        return;
    }
    size_t length = 0;
    const char *entry = "";
    for (int i = 0; i <= place->local_rank && entry != NULL; i++)
        entry = comma_list_next(&at, &length);
    add(list, "CUDA_VISIBLE_DEVICES=%.*s", (int)length, entry != NULL ? entry : "");
}

static void list_variables(variables *list, const worker_spec *spec, const worker_place *place)
{
    char path[FILE_PATH_BYTES];
    int threads = worker_environment_threads(spec);
    list_place(list, spec, place);
    add(list, "TORCHELASTIC_RESTART_COUNT=%d", place->attempt);
    add(list, "TORCHELASTIC_MAX_RESTARTS=%d", spec->max_restarts);
    add(list, "TORCHELASTIC_RUN_ID=%s", spec->run_id);
    add(list, "TORCHELASTIC_USE_AGENT_STORE=True");
    worker_logs_file(&spec->logs, place->attempt, place->local_rank, "error.json", path);
    add(list, "TORCHELASTIC_ERROR_FILE=%s", path);
    add(list, "TORCHELASTIC_SIGNALS_TO_HANDLE=%s", spec->policy.signal_names);
    if (getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING") == NULL)
        add(list, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
    if (threads > 0)
        add(list, "OMP_NUM_THREADS=%d", threads);
    if (spec->virtual_local_rank)
        list_gpu(list, place);
    add(list, "MNIST_DDP_GENERATION=%d", place->attempt);
    worker_logs_dumps(&spec->logs, place->attempt, path);
    if (path[0] != '\0')
        add(list, "MNIST_DDP_DUMP_DIR=%s", path);
    if (spec->run_dir[0] != '\0')
        add(list, "MNIST_DDP_RUN_DIR=%s", spec->run_dir);
    add(list, "MNIST_DDP_LAUNCHED=%lld", (long long)place->started_ns);
    if (place->log_tty)
        add(list, "MNIST_DDP_LOG_TTY=1");
}

/* On success the text is the caller's to free. */
static status variables_read(variables *list, const worker_spec *spec, const worker_place *place)
{
    *list = (variables){0};
    TRY(text_stream_open(&list->stream));
    list_variables(list, spec, place);
    return status_context(text_stream_close(&list->stream, &list->text, &list->size_bytes),
                          "environment of rank %d", place->rank);
}

/* Does the list have its own value for the variable of this "NAME=value"? */
static bool is_replaced(const variables *list, const char *entry)
{
    size_t name = strcspn(entry, "=");
    for (const char *own = list->text; own < list->text + list->size_bytes; own += strlen(own) + 1)
        if (strncmp(entry, own, name + 1) == 0)
            return true;
    return false;
}

status worker_environment_create(const worker_spec *spec, const worker_place *place, char ***out)
{
    variables list;
    TRY(variables_read(&list, spec, place));
    size_t inherited = 0;
    for (char **entry = environ; *entry != NULL; entry++)
        inherited++;
    size_t pointers = (inherited + (size_t)list.count + 1) * sizeof(char *);
    char **block = malloc(pointers + list.size_bytes);
    if (block == NULL) {
        free(list.text);
        return FAIL(STATUS_NO_MEMORY, "environment of rank %d: %zu variables", place->rank,
                    inherited);
    }
    char *text = (char *)block + pointers;
    memcpy(text, list.text, list.size_bytes);
    size_t n = 0;
    for (char **entry = environ; *entry != NULL; entry++)
        if (!is_replaced(&list, *entry))
            block[n++] = *entry;
    for (int i = 0; i < list.count; i++, text += strlen(text) + 1)
        block[n++] = text;
    block[n] = NULL;
    free(list.text);
    *out = block;
    return STATUS_OK;
}

status worker_environment_describe(const worker_spec *spec, const worker_place *place, char **out)
{
    variables list;
    TRY(variables_read(&list, spec, place));
    for (size_t i = 0; i + 1 < list.size_bytes; i++)
        if (list.text[i] == '\0')
            list.text[i] = ' ';
    *out = list.text;
    return STATUS_OK;
}
