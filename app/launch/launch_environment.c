#include "app/launch/launch_environment.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VARIABLES = 24, VARIABLE_BYTES = 320 };

typedef struct variables {
    char text[VARIABLES][VARIABLE_BYTES];
    int count;
} variables;

__attribute__((format(printf, 2, 3))) static void add(variables *list, const char *fmt, ...)
{
    ASSERT(list->count < VARIABLES);
    va_list args;
    va_start(args, fmt);
    vsnprintf(list->text[list->count++], VARIABLE_BYTES, fmt, args);
    va_end(args);
}

static void list_variables(variables *list, const launch_start *start, int rank, int local_rank)
{
    const launch_plan *plan = start->plan;
    add(list, "RANK=%d", rank);
    add(list, "LOCAL_RANK=%d", local_rank);
    add(list, "WORLD_SIZE=%d", plan->world_size);
    add(list, "LOCAL_WORLD_SIZE=%d", plan->nproc);
    add(list, "NODE_RANK=%d", plan->node_rank);
    add(list, "GROUP_RANK=%d", plan->node_rank);
    add(list, "GROUP_WORLD_SIZE=%d", plan->nnodes);
    add(list, "ROLE_RANK=%d", rank);
    add(list, "ROLE_WORLD_SIZE=%d", plan->world_size);
    add(list, "ROLE_NAME=default");
    add(list, "MASTER_ADDR=%s", plan->master_addr);
    add(list, "MASTER_PORT=%d", start->master_port);
    add(list, "TORCHELASTIC_RESTART_COUNT=0");
    add(list, "TORCHELASTIC_MAX_RESTARTS=0");
    add(list, "TORCHELASTIC_RUN_ID=%s", plan->run_id);
    add(list, "TORCHELASTIC_USE_AGENT_STORE=True");
    add(list, "MNIST_DDP_LAUNCHED=%lld", (long long)start->started_ns);
    if (start->log_tty)
        add(list, "MNIST_DDP_LOG_TTY=1");
    if (getenv("OMP_NUM_THREADS") == NULL)
        add(list, "OMP_NUM_THREADS=1");
}

/* Does the list have its own value for the variable of this "NAME=value"? */
static bool is_replaced(const variables *list, const char *entry)
{
    size_t name = strcspn(entry, "=");
    for (int i = 0; i < list->count; i++)
        if (strncmp(entry, list->text[i], name + 1) == 0)
            return true;
    return false;
}

status launch_environment_create(const launch_start *start, int rank, int local_rank, char ***out)
{
    variables list = {.count = 0};
    list_variables(&list, start, rank, local_rank);
    size_t inherited = 0;
    for (char **entry = environ; *entry != NULL; entry++)
        inherited++;
    size_t pointers = (inherited + VARIABLES + 1) * sizeof(char *);
    char **block = malloc(pointers + sizeof list.text);
    if (block == NULL)
        return FAIL(STATUS_NO_MEMORY, "environment of rank %d: %zu variables", rank, inherited);
    char(*text)[VARIABLE_BYTES] = (void *)((char *)block + pointers);
    memcpy(text, list.text, sizeof list.text);
    size_t n = 0;
    for (char **entry = environ; *entry != NULL; entry++)
        if (!is_replaced(&list, *entry))
            block[n++] = *entry;
    for (int i = 0; i < list.count; i++)
        block[n++] = text[i];
    block[n] = NULL;
    *out = block;
    return STATUS_OK;
}
