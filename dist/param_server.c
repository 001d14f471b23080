#include "dist/param_server.h"

#include "dist/process_group/process_group.h"

#include <stdlib.h>

struct param_server {
    process_group *group;
    param_server_arrays arrays;
};

status param_server_create(process_group *group, const param_server_arrays *arrays,
                           param_server **out)
{
    param_server *server = calloc(1, sizeof *server);
    if (server == NULL)
        return FAIL(STATUS_NO_MEMORY, "a parameter server");
    *server = (param_server){.group = group, .arrays = *arrays};
    *out = server;
    return STATUS_OK;
}

void param_server_destroy(param_server *server)
{
    free(server);
}

bool param_server_is_here(const param_server *server)
{
    return process_group_rank(server->group) == 0;
}

static status move(param_server *server, collective c)
{
    return process_group_run(server->group, &c, server->arrays.stream);
}

/* In place on all ranks: a backend may scale there on the way in. */
status param_server_collect(param_server *server)
{
    const param_server_arrays *a = &server->arrays;
    collective c = {.kind = COLLECTIVE_REDUCE,
                    .op = REDUCE_SUM,
                    .type = DTYPE_F32,
                    .in = a->gradients,
                    .out = a->gradients,
                    .count = a->n_gradients,
                    .prescale = 1.0f / (float)process_group_world_size(server->group),
                    .label = "gradients to rank 0"};
    return move(server, c);
}

status param_server_publish(param_server *server)
{
    const param_server_arrays *a = &server->arrays;
    collective c = {.kind = COLLECTIVE_BROADCAST,
                    .type = DTYPE_F32,
                    .in = a->parameters,
                    .out = a->parameters,
                    .count = a->n_parameters,
                    .prescale = 1,
                    .label = "parameters from rank 0"};
    return move(server, c);
}
