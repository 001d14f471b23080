#include "app/launch/outer_launcher.h"

#include "app/launch/mpirun.h"
#include "app/launch/slurm_list.h"
#include "app/launch/worker_spec.h"
#include "base/digest.h"
#include "base/host.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/store/store.h"

#include <limits.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HOST_BYTES = 256 };

status pod_name_first(const char *name, int index, char *out, size_t size_bytes)
{
    char end[24];
    size_t host = strcspn(name, ".");
    size_t length = (size_t)snprintf(end, sizeof end, "-%d", index);
    if (host <= length || strncmp(name + host - length, end, length) != 0)
        return FAIL(STATUS_INVALID,
                    "JOB_COMPLETION_INDEX=%d, but this host is %.80s, not <job>%s: give the host "
                    "of pod 0 by --master-addr=HOST",
                    index, name, end);
    if (name[host] == '\0')
        return FAIL(STATUS_INVALID,
                    "the pod %.80s has no domain, so no other pod finds it by name: give its "
                    "template `subdomain:`, the name of a headless service (configs/cluster/), or "
                    "give --master-addr=HOST",
                    name);
    if (strlen(name) + 1 >= size_bytes)
        return FAIL(STATUS_INVALID, "the host name %.80s... is too long", name);
    snprintf(out, size_bytes, "%.*s-0%s", (int)(host - length), name, name + host);
    return STATUS_OK;
}

/* Kubernetes writes the full name into the pod's /etc/hosts. */
/* The name under which other pods find pod 0, from that of pod `index`, which is this one.
 * STATUS_INVALID if this host's name is not a pod's, or has no domain: no headless service. */
static status pod_name_of_first(int index, char *out, size_t size_bytes)
{
    char host[HOST_BYTES] = "", full[HOST_BYTES];
    struct addrinfo hints = {.ai_flags = AI_CANONNAME, .ai_socktype = SOCK_STREAM}, *found = NULL;
    if (gethostname(host, sizeof host - 1) != 0)
        return FAIL(STATUS_INVALID, "this host has no name: give --master-addr=HOST");
    snprintf(full, sizeof full, "%s", host);
    if (getaddrinfo(host, NULL, &hints, &found) == 0) {
        if (found->ai_canonname != NULL)
            snprintf(full, sizeof full, "%s", found->ai_canonname);
        freeaddrinfo(found);
    }
    return pod_name_first(full, index, out, size_bytes);
}

/* Below the ports that the kernel gives out, above those with a name. */
enum { FIRST_PORT = 15000, PORTS = 10000, MAX_PORT = 65535, SHOWN_BYTES = 80 };

/* Nodes are numbered as they come. */
static bool is_elastic(const options *opts)
{
    return strcmp(opts->rdzv_backend, "static") != 0;
}

/* `run` starts any program as ranks; it is none itself. */
static bool is_run(const options *opts)
{
    return (opts->command == COMMAND_DOCTOR ? opts->examined : opts->command) == COMMAND_RUN;
}

/* --nnodes; -1 if it is not given, may change, or is no number of machines, which the launcher
 * tells. */
static int given_nodes(const options *opts)
{
    int min = -1, max = -1;
    return worker_spec_nnodes(opts->nnodes, &min, &max) == STATUS_OK && min == max ? max : -1;
}

/* --nproc-per-node may say what is so already: mpirun -n 4 mnist_ddp --nproc-per-node=4. */
static bool are_there(const options *opts, const launcher_place *place)
{
    int ranks = 0;
    return opts->nproc_per_node != NULL && place->local_size > 1 &&
           number_parse(opts->nproc_per_node, 1, INT_MAX, &ranks) && ranks == place->local_size &&
           (opts->nnodes == NULL || (int64_t)given_nodes(opts) * ranks == place->size);
}

/* What starts ranks is asked for: each process is the launcher of its node. */
static bool wants_agent(const options *opts, const launcher_place *place)
{
    bool asked = opts->nproc_per_node != NULL || opts->nnodes != NULL || opts->standalone ||
                 opts->rdzv_endpoint != NULL || is_elastic(opts);
    return is_run(opts) || (asked && !are_there(opts, place) && !mpirun_started_this());
}

/* The user has numbered the nodes himself, as one does without a launcher. */
static bool is_numbered(const options *opts)
{
    return opts->nnodes != NULL && (opts->node_rank >= 0 || is_elastic(opts));
}

static status check_agent(const options *opts, const outer_launcher *outer)
{
    const launcher_place *place = &outer->place;
    int nodes = given_nodes(opts);
    if (opts->standalone)
        return FAIL(STATUS_INVALID,
                    "--standalone means one machine, but %s has started %d of this program (%s); "
                    "leave it out, or for independent runs add --launcher=none",
                    outer->row->title, place->size, place->from);
    if (place->local_size > 1)
        return FAIL(STATUS_INVALID,
                    "%s has started %d of this program on this machine (%s), and each would start "
                    "ranks of its own: start one on each machine, or leave --nproc-per-node, "
                    "--nnodes and --rdzv-* out: then each is a rank. For independent runs add "
                    "--launcher=none",
                    outer->row->title, place->local_size, place->from);
    if (nodes > 0 && nodes != place->size)
        return FAIL(STATUS_INVALID,
                    "--nnodes=%d, but %s has started %d of this program (%s): leave --nnodes out",
                    nodes, outer->row->title, place->size, place->from);
    return STATUS_OK;
}

static status check_rank(const options *opts, const outer_launcher *outer)
{
    if (opts->world_size >= 0 && opts->world_size != outer->place.size)
        return FAIL(STATUS_INVALID,
                    "--world-size=%d, but %s has started %d ranks (%s): leave --world-size out",
                    (int)opts->world_size, outer->row->title, outer->place.size, outer->place.from);
    if (opts->rank >= 0 && opts->rank != outer->place.rank)
        return FAIL(STATUS_INVALID,
                    "--rank=%d, but %s has started this as rank %d (%s): leave --rank out",
                    (int)opts->rank, outer->row->title, outer->place.rank, outer->place.from);
    return STATUS_OK;
}

/* The ranks meet where --init-method says. */
static bool meets_elsewhere(const options *opts, const outer_launcher *outer)
{
    return outer->role == OUTER_ROLE_RANK && opts->init_method != NULL &&
           strncmp(opts->init_method, "env:", 4) != 0;
}

/* Where rank 0 is. */
static status find_address(const options *opts, outer_launcher *outer)
{
    const launcher_place *place = &outer->place;
    const char *given =
        opts->master_addr != NULL ? opts->master_addr : environment_text("MASTER_ADDR");
    const char *hosts = launcher_variable(outer->row->hosts);
    char *out = outer->master_addr;
    size_t size_bytes = sizeof outer->master_addr;
    if (given == NULL && place->local_size == place->size)
        given = "127.0.0.1";
    if (given != NULL) {
        if (strlen(given) >= size_bytes)
            return FAIL(STATUS_INVALID, "the master address is longer than %zu letters",
                        size_bytes - 1);
        memcpy(out, given, strlen(given) + 1);
        return STATUS_OK;
    }
    if (outer->row->names_host)
        return pod_name_of_first(place->rank, out, size_bytes);
    if (hosts == NULL)
        return FAIL(STATUS_INVALID,
                    "%s has started %d processes (%s), and no variable says %s: give the host of "
                    "rank 0 by --master-addr=HOST or MASTER_ADDR (127.0.0.1 on one host)",
                    outer->row->title, place->size, place->from,
                    place->local_size < 0 ? "how many are on this machine" : "where the first is");
    if (!slurm_list_first_host(getenv(hosts), out, size_bytes))
        return FAIL(STATUS_INVALID, "%s=%.80s names no host: give --master-addr=HOST", hosts,
                    getenv(hosts));
    return STATUS_OK;
}

/* At which port rank 0 serves the store. All processes of the job know the same one without having
 * spoken to each other. */
static status find_port(const options *opts, outer_launcher *outer)
{
    const char *given = environment_text("MASTER_PORT");
    outer->master_port = STORE_DEFAULT_PORT;
    bool has_job = launcher_job_id(outer->row, outer->job, sizeof outer->job, outer->port_from);
    if (has_job)
        outer->master_port =
            FIRST_PORT + (int)(fnv1a(FNV1A_START, outer->job, strlen(outer->job)) % PORTS);
    if (opts->master_port < 0 && given == NULL)
        return STATUS_OK;
    outer->port_from[0] = '\0';
    if (opts->master_port > 0)
        outer->master_port = (int)opts->master_port;
    else if (opts->master_port == 0 || !number_parse(given, 1, MAX_PORT, &outer->master_port))
        return FAIL(STATUS_INVALID,
                    "%s=%.20s: %s starts the ranks, and all must know the same port: give one of 1 "
                    "to %d",
                    opts->master_port == 0 ? "--master-port" : "MASTER_PORT",
                    opts->master_port == 0 ? "0" : given, outer->row->title, MAX_PORT);
    return STATUS_OK;
}

/* The number of processes, if only a flag has it. */
static status find_size(const options *opts, outer_launcher *outer)
{
    launcher_place *place = &outer->place;
    const char *rank = launcher_variable(outer->row->rank);
    int min = -1;
    if (place->size >= 0)
        return STATUS_OK;
    if (!outer->row->names_host && opts->world_size >= 0)
        place->size = (int)opts->world_size;
    else
        TRY(worker_spec_nnodes(opts->nnodes, &min, &place->size));
    if (min < place->size && min > 0)
        return FAIL(STATUS_INVALID,
                    "--nnodes=%d:%d: machines that come and go (elastic) need --rdzv-backend=c10d "
                    "or etcd, and --rdzv-endpoint=HOST:PORT",
                    min, place->size);
    if (place->size < 0)
        return FAIL(STATUS_INVALID,
                    "%s=%d: one of how many processes? %s does not say it; give %s, or for "
                    "independent runs --launcher=none",
                    rank, place->rank, outer->row->title,
                    outer->row->names_host ? "--nnodes=N, the Job's completions"
                                           : "--world-size=N");
    if (place->rank >= place->size)
        return FAIL(STATUS_INVALID, "%s=%d, but only %d processes are to be there", rank,
                    place->rank, place->size);
    return STATUS_OK;
}

static status find_role(const options *opts, outer_launcher *outer)
{
    TRY(launcher_place_read(outer->row, &outer->place));
    TRY(find_size(opts, outer));
    bool agent = wants_agent(opts, &outer->place);
    if (outer->place.size == 1 || (agent && is_numbered(opts)))
        return STATUS_OK;
    outer->role = agent ? OUTER_ROLE_AGENT : OUTER_ROLE_RANK;
    TRY(agent ? check_agent(opts, outer) : check_rank(opts, outer));
    if (meets_elsewhere(opts, outer))
        return STATUS_OK;
    TRY(find_port(opts, outer));
    return agent && opts->rdzv_endpoint != NULL ? STATUS_OK : find_address(opts, outer);
}

status outer_launcher_find(const options *opts, outer_launcher *out)
{
    outer_launcher outer = {.role = OUTER_ROLE_ALONE};
    char needs[OUTER_LAUNCHER_TEXT_BYTES];
    bool ours = environment_text("MNIST_DDP_LAUNCHED") != NULL;
    const char *asked = ours ? "auto" : opts->launcher;
    if (strcmp(asked, "none") != 0)
        outer.row = launcher_table_find(asked, !is_run(opts));
    if (outer.row == NULL && strcmp(asked, "auto") != 0 && strcmp(asked, "none") != 0) {
        launcher_table_needs(asked, needs, sizeof needs);
        return FAIL(STATUS_INVALID,
                    "--launcher=%s, but not all of its variables are set (%s): start it by %s "
                    "mnist_ddp, or leave --launcher out",
                    asked, needs, launcher_table_start(asked));
    }
    if (outer.row != NULL && outer.row->is_torchrun)
        outer.role = OUTER_ROLE_RANK;
    else if (outer.row != NULL)
        TRY(find_role(opts, &outer));
    *out = outer;
    return STATUS_OK;
}

static status set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    return setenv(name, text, 1) == 0 ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "%s", name);
}

static status set_text(const char *name, const char *value)
{
    return setenv(name, value, 1) == 0 ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "%s", name);
}

/* What torchrun would have set. What is not known is left as it is. */
static status become_rank(const outer_launcher *outer)
{
    const launcher_place *place = &outer->place;
    int node = place->node;
    bool in_order = place->local_size > 0 && place->size % place->local_size == 0 &&
                    place->rank % place->local_size == place->local_rank;
    if (node < 0 && in_order)
        node = place->rank / place->local_size;
    TRY(set_number("RANK", place->rank));
    TRY(set_number("WORLD_SIZE", place->size));
    if (place->local_rank >= 0)
        TRY(set_number("LOCAL_RANK", place->local_rank));
    if (place->local_size >= 0)
        TRY(set_number("LOCAL_WORLD_SIZE", place->local_size));
    if (node >= 0)
        TRY(set_number("GROUP_RANK", node));
    if (outer->master_addr[0] != '\0') {
        TRY(set_text("MASTER_ADDR", outer->master_addr));
        TRY(set_number("MASTER_PORT", outer->master_port));
    }
    return outer->job[0] != '\0' ? set_text("TORCHELASTIC_RUN_ID", outer->job) : STATUS_OK;
}

static status set_flag(char **flag, const char *text)
{
    char *copy = strdup(text);
    if (copy == NULL)
        return FAIL(STATUS_NO_MEMORY, "a flag");
    free(*flag);
    *flag = copy;
    return STATUS_OK;
}

static status become_agent(const outer_launcher *outer, options *opts)
{
    char nodes[16];
    snprintf(nodes, sizeof nodes, "%d", outer->place.size);
    if (opts->nnodes == NULL)
        TRY(set_flag(&opts->nnodes, nodes));
    if (opts->node_rank < 0 && !is_elastic(opts))
        opts->node_rank = outer->place.rank;
    if (opts->rdzv_endpoint != NULL)
        return STATUS_OK;
    opts->master_port = outer->master_port;
    return set_flag(&opts->master_addr, outer->master_addr);
}

/* Flags for the launcher that starts ranks, where another one does. */
static void warn_unused(const outer_launcher *outer, const options *opts)
{
    if (opts->max_restarts > 0 || opts->log_dir != NULL || strcmp(opts->redirects, "0") != 0 ||
        strcmp(opts->tee, "0") != 0)
        LOG_W("%s starts the ranks: --max-restarts, --log-dir, --redirects and --tee are not used",
              outer->row->title);
}

status outer_launcher_adopt(const outer_launcher *outer, options *opts)
{
    if (outer->row != NULL && outer->row->is_torchrun)
        return STATUS_OK;
    if (outer->role == OUTER_ROLE_RANK) {
        if (outer->place.rank == 0)
            warn_unused(outer, opts);
        opts->launch_flags_given = false;
        return become_rank(outer);
    }
    if (outer->row != NULL || strcmp(opts->launcher, "none") == 0) {
        unsetenv("RANK"); /* a pod's number, or what is not to count */
        unsetenv("WORLD_SIZE");
    }
    return outer->role == OUTER_ROLE_AGENT ? become_agent(outer, opts) : STATUS_OK;
}

bool outer_launcher_speaks(const outer_launcher *outer)
{
    if (outer->row == NULL || environment_text("MNIST_DDP_LAUNCHED") != NULL ||
        mpirun_started_this())
        return false;
    if (outer->row->is_torchrun)
        return strcmp(getenv("RANK"), "0") == 0;
    return outer->role != OUTER_ROLE_ALONE && outer->place.rank == 0;
}

/* "A, B": torchrun's variables that are set. */
static void list_torchruns(char *out, size_t size_bytes)
{
    static const char *const names[] = {
        "RANK",       "WORLD_SIZE",  "LOCAL_RANK", "LOCAL_WORLD_SIZE",
        "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"};
    size_t used = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (environment_text(names[i]) != NULL)
            used += (size_t)snprintf(out + used, size_bytes - used, "%s%s", used > 0 ? ", " : "",
                                     names[i]);
}

/* "rank 0 of 4, from A, B". */
static void describe_place(const outer_launcher *outer, char *out, size_t size_bytes)
{
    char names[LAUNCHER_FROM_BYTES] = "";
    const char *size = environment_text("WORLD_SIZE");
    const launcher_place *place = &outer->place;
    if (outer->row->is_torchrun) {
        list_torchruns(names, sizeof names);
        snprintf(out, size_bytes, "rank %.20s of %.20s, from %s", getenv("RANK"),
                 size != NULL ? size : "?", names);
    } else {
        snprintf(out, size_bytes, "%s %d of %d, from %s",
                 outer->role == OUTER_ROLE_AGENT ? "node" : "rank", place->rank, place->size,
                 place->from);
    }
}

void outer_launcher_describe(const outer_launcher *outer, char out[OUTER_LAUNCHER_TEXT_BYTES])
{
    char place[2 * LAUNCHER_FROM_BYTES], where[2 * LAUNCHER_FROM_BYTES + 300] = "", more[200] = "";
    if (outer->row == NULL) {
        snprintf(out, OUTER_LAUNCHER_TEXT_BYTES, "none");
        return;
    }
    describe_place(outer, place, sizeof place);
    if (outer->master_addr[0] != '\0')
        snprintf(where, sizeof where, "; store at %s:%d%s%s%s", outer->master_addr,
                 outer->master_port, outer->port_from[0] != '\0' ? " (port from " : "",
                 outer->port_from, outer->port_from[0] != '\0' ? ")" : "");
    const launcher_row *other = launcher_table_next(outer->row);
    if (other != NULL)
        snprintf(more, sizeof more, "; not used: %s, which --launcher=%s takes", other->title,
                 other->name);
    snprintf(out, OUTER_LAUNCHER_TEXT_BYTES, "%s: %s%s%s", outer->row->title, place, where, more);
}
