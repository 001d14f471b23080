#include "app/launch/join_command.h"

#include "app/common/local_network.h"
#include "app/options/options_table.h"
#include "base/text.h"
#include "dist/net/socket_address.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ADDED = 5, ADDED_BYTES = SPEC_ADDRESS_BYTES + 32 };

/* Node 0's address as it was given, else one of this machine's. */
static const char *address_of(const worker_spec *spec, local_address list[LOCAL_NETWORK_MAX])
{
    int n = local_network_list(list), i = 0;
    while (i < n && (list[i].loopback || list[i].link_local))
        i++;
    bool replaced =
        !spec->store_on_loopback && socket_address_says_loopback(spec->master_addr) && i < n;
    return replaced ? list[i].number : spec->master_addr;
}

static bool was_typed(const worker_spec *spec, const char *name)
{
    return options_value_source(spec->opts, name) == SOURCE_COMMAND_LINE;
}

/* The flags that end the line's own. The last one of a name counts. Returns how many. */
static int list_added(const worker_spec *spec, int node, char out[ADDED][ADDED_BYTES])
{
    local_address list[LOCAL_NETWORK_MAX];
    const char *address = address_of(spec, list);
    bool typed = was_typed(spec, "rdzv-endpoint") ||
                 (was_typed(spec, "master-addr") && strcmp(address, spec->opts->master_addr) == 0);
    int n = 0;
    if (node >= 0)
        snprintf(out[n++], ADDED_BYTES, "--node-rank=%d", node);
    else
        snprintf(out[n++], ADDED_BYTES, "--node-rank=N");
    if (!typed)
        snprintf(out[n++], ADDED_BYTES, "--master-addr=%s", address);
    if (!was_typed(spec, "master-port") && !was_typed(spec, "rdzv-endpoint"))
        snprintf(out[n++], ADDED_BYTES, "--master-port=%d", spec->master_port);
    if (!was_typed(spec, "nnodes") && !spec->counts_nodes)
        snprintf(out[n++], ADDED_BYTES, "--nnodes=%d", spec->nnodes);
    if (options_given(spec->opts, "nproc-per-node") && !was_typed(spec, "nproc-per-node"))
        snprintf(out[n++], ADDED_BYTES, "--nproc-per-node=%d", spec->nproc);
    return n;
}

char *join_command(const worker_spec *spec, int node)
{
    char added[ADDED][ADDED_BYTES];
    int argc = 0, n = 0;
    char **argv = spec->opts != NULL ? spec->opts->command_line : NULL;
    while (argv != NULL && argv[argc] != NULL)
        argc++;
    char **words = argc > 0 ? calloc((size_t)argc + ADDED + 1, sizeof *words) : NULL;
    if (words == NULL)
        return NULL;
    int n_added = list_added(spec, node, added), end = 0;
    while (end < argc && argv + end != spec->opts->program &&
           (strcmp(argv[end], "--") != 0 || argv + end + 1 != spec->opts->program))
        end++;
    for (int i = 0; i < end; i++) {
        int skipped = options_words_of(spec->opts, i, "node-rank");
        if (skipped == 0)
            words[n++] = argv[i];
        else
            i += skipped - 1;
    }
    for (int i = 0; i < n_added; i++)
        words[n++] = added[i];
    for (int i = end; i < argc; i++)
        words[n++] = argv[i];
    char *line = shell_words_line(words);
    free(words);
    return line;
}
