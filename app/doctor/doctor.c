/* mnist_ddp doctor: looks at what a run with these settings needs, before it is tried. One line per
 * thing looked at, for people or as JSON. */
#include "app/common/commands.h"
#include "app/common/core_binding.h"
#include "app/common/device_list.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/common/machine.h"
#include "app/common/run_files.h"
#include "app/launch/agent_store.h"
#include "app/launch/outer_launcher.h"
#include "app/launch/worker_spec.h"
#include "app/options/options.h"
#include "app/train/rank_settings.h"
#include "app/train/run_folder.h"
#include "app/train/train_command.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/host.h"
#include "base/module.h"
#include "base/text.h"
#include "base/thread.h"
#include "data/dataset.h"
#include "dist/elastic/rdzv_ops.h"
#include "dist/net/socket.h"
#include "dist/process_group/backend_choice.h"
#include "dist/store/store.h"
#include "kernels/device_kind.h"
#include "model/model_kind.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What is found: one of these, or the code that a run would end with. */
enum { OK = -3, NOTE, WARNING };

typedef struct checkup {
    const options *opts;
    worker_spec spec; /* what a launch with these settings would use */
    json_t *list;     /* with --json; else lines go to stdout as they come */
    int warnings, failures;
    int exit_code;  /* what the first failure would have ended a run with */
    bool silent;    /* nothing is printed */
    char why[1024]; /* the first failure */
} checkup;

enum { TEXT_BYTES = 1024 };

/* Notes what was found of `name`. */
__attribute__((format(printf, 4, 5))) static void found(checkup *c, int level, const char *name,
                                                        const char *fmt, ...)
{
    const char *word = level == OK ? "ok" : level == NOTE ? "note" : "warning";
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    c->warnings += level == WARNING;
    if (level > 0) {
        word = "failed";
        if (c->failures++ == 0) {
            c->exit_code = level;
            snprintf(c->why, sizeof c->why, "%s", text);
        }
    }
    if (!c->silent && c->opts->json) {
        json_array_append_new(c->list, json_pack("{s:s, s:s, s:o}", "name", name, "level", word,
                                                 "text", json_value_text(text)));
    } else if (!c->silent) {
        int column = printf("%-8s %-10s ", word, name);
        paragraph_print_line(stdout, column, column, text);
    }
}

/* Notes what this thread has failed with, if it has. */
static bool passes(checkup *c, status st, int level, const char *name)
{
    if (st != STATUS_OK)
        found(c, level, name, "%s", status_text());
    return st == STATUS_OK;
}

enum {
    RANK_BYTES = 256 << 20, /* memory for a rank on the CPU; a guess on the safe side */
    RANK_FILES = 8,         /* descriptors that a launcher needs for a worker */
    OTHER_FILES = 64,
    SHM_BYTES = 16 << 20, /* /dev/shm for a rank, where other programs' libraries use it */
};

static bool uses(const checkup *c, const char *device_name)
{
    device_options chosen;
    return device_list_choose(c->opts, 0, &chosen) == STATUS_OK &&
           strcmp(chosen.name, device_name) == 0;
}

static void check_cores(checkup *c, const machine *m)
{
    char text[CORE_BINDING_TEXT_BYTES];
    int threads = c->opts->threads > 0 ? (int)c->opts->threads : 1;
    if (core_binding_is_crowded(c->spec.nproc, threads, text) && !uses(c, "cuda"))
        found(c, WARNING, "cores", "%s", text);
    else
        found(c, OK, "cores", "%d, %s", m->cores, m->processor);
}

static void check_memory(checkup *c, const machine *m)
{
    bool tight = m->memory_free_bytes >= 0 &&
                 m->memory_free_bytes / (c->spec.nproc > 0 ? c->spec.nproc : 1) < RANK_BYTES;
    found(c, tight ? WARNING : OK, "memory", "%s of %s are free%s",
          machine_size(m->memory_free_bytes).text, machine_size(m->memory_bytes).text,
          tight ? ": that may be too little for so many ranks" : "");
    tight = m->shm_free_bytes >= 0 && m->shm_free_bytes < (int64_t)SHM_BYTES * c->spec.nproc;
    found(c, tight ? WARNING : OK, "shm", "%s are free in /dev/shm%s",
          machine_size(m->shm_free_bytes).text,
          tight ? ": a container takes --shm-size; Python's loaders and NCCL need more" : "");
}

static void check_limits(checkup *c, const machine *m)
{
    int64_t needed = (int64_t)c->spec.nproc * RANK_FILES + OTHER_FILES;
    if (m->max_files >= 0 && m->max_files < needed)
        found(c, EXIT_CODE_INTERNAL, "limits",
              "%lld open files are allowed, %d ranks need %lld: ulimit -n %lld",
              (long long)m->max_files, c->spec.nproc, (long long)needed, (long long)needed);
    else
        found(c, OK, "limits", "%lld open files", (long long)m->max_files);
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (fd < 0)
        found(c, WARNING, "limits",
              "no pidfds (%s): backend shm does not see dead ranks, or does not work",
              strerror(errno));
    else
        close(fd);
}

static void check_device(checkup *c)
{
    device_options chosen;
    device *dev = NULL;
    int gpus = 0;
    if (!passes(c, device_list_choose(c->opts, 0, &chosen), EXIT_CODE_USAGE, "device"))
        return;
    bool cuda = strcmp(chosen.name, "cuda") == 0;
    if (device_count(&gpus, NULL) == STATUS_OK && gpus > 0) {
        const char *plural = gpus == 1 ? "" : "s";
        found(c, OK, "device", "%d GPU%s; a run uses %s", gpus, plural, chosen.name);
        if (cuda && c->spec.nproc > gpus)
            found(c, WARNING, "device",
                  "%d ranks share %d GPU%s: nccl refuses that, shm and gloo do not", c->spec.nproc,
                  gpus, plural);
        return;
    }
    char reason[256]; /* opening the device may fail for another one */
    snprintf(reason, sizeof reason, "%.*s", (int)strcspn(status_text(), ";"), status_text());
    chosen.threads = 1;
    if (!passes(c, cuda ? STATUS_DEVICE : device_create(&chosen, &dev), EXIT_CODE_USAGE, "device"))
        return;
    found(c, OK, "device", "%s (%s); no GPU: %s", chosen.name, dev->description, reason);
    device_destroy(dev);
}

static void check_module(checkup *c, const char *name, bool needed)
{
    const module *opened = NULL;
    if (!needed && !module_exists(name))
        found(c, NOTE, "modules", "%s: not in this installation", name);
    else if (passes(c, status_context(module_open(name, &opened), "%s", name),
                    needed ? EXIT_CODE_USAGE : WARNING, "modules"))
        found(c, OK, "modules", "%s: opens, with all the libraries it needs", name);
}

/* Several ranks over MPI are started by mpirun. */
static void check_mpirun(checkup *c)
{
    char path[FILE_PATH_BYTES];
    bool needed = c->spec.world_size > 1;
    if (strcmp(c->opts->backend, "mpi") == 0 && !executable_find("mpirun", path))
        found(c, needed ? EXIT_CODE_USAGE : WARNING, "backend",
              "mpi: there is no mpirun in $PATH%s: install openmpi-bin, or use --backend=shm",
              needed ? "" : ", which several ranks need");
}

static void checkup_modules(checkup *c)
{
    const char *backend = c->opts->backend;
    bool named = strcmp(backend, "gloo") == 0 || strcmp(backend, "hierarchical") == 0;
    bool chosen = strcmp(backend, "auto") == 0 && c->spec.nnodes > 1 && !uses(c, "cuda");
    if (!c->silent || (named && c->spec.world_size > 1) || chosen)
        check_module(c, "gloo", named || chosen);
    if (c->silent && strncmp(c->opts->device, "cuda", strlen("cuda")) == 0)
        check_module(c, "cuda", true);
    if (c->spec.backend == RDZV_ETCD)
        check_module(c, "curl", true);
    if (c->opts->health_check_port >= 0)
        check_module(c, "microhttpd", true);
}

static void check_backend(checkup *c)
{
    const char *backend = c->opts->backend;
    bool known = passes(c, backend_choice_check(backend), EXIT_CODE_USAGE, "backend");
    if (known && strcmp(backend, "shm") == 0 && c->spec.nnodes > 1)
        found(c, EXIT_CODE_RENDEZVOUS, "backend",
              "shm is for the ranks of one machine, and there are %d: take gloo or nccl",
              c->spec.nnodes);
    else if (known && !uses(c, "cuda"))
        (void)passes(c, backend_choice_check_cpu(backend), EXIT_CODE_USAGE, "backend");
    check_mpirun(c);
    checkup_modules(c);
    check_module(c, "mpi", strcmp(backend, "mpi") == 0);
    check_module(c, "cuda", strcmp(backend, "nccl") == 0);
}

/* Cores, memory, limits, devices, modules; and the modules alone that a run needs. */
static void checkup_machine(checkup *c)
{
    machine m;
    machine_read(&m);
    if (c->spec.nproc < 1)
        c->spec.nproc = 1; /* the settings were no launch */
    found(c, OK, "system", "%s, %s, %s", m.system, m.kernel, m.libc);
    check_cores(c, &m);
    check_memory(c, &m);
    check_limits(c, &m);
    check_device(c);
    check_backend(c);
}

enum { CONNECT_MS = 2000 };

/* gloo and NCCL find the way to the other nodes by this machine's own name. */
static void check_name(checkup *c)
{
    char name[256] = "?";
    struct addrinfo *list = NULL;
    if (gethostname(name, sizeof name - 1) != 0)
        return;
    if (socket_address_resolve(name, 0, &list) != STATUS_OK) {
        found(c, c->spec.nnodes > 1 ? WARNING : NOTE, "name",
              "this machine's name, %s, does not resolve here: programs that look for their "
              "own address by it will fail; add it to /etc/hosts",
              name);
        return;
    }
    char where[SOCKET_ADDRESS_BYTES], number[NI_MAXHOST] = "";
    socket_address_describe(name, 0, list, where);
    getnameinfo(list->ai_addr, list->ai_addrlen, number, sizeof number, NULL, 0, NI_NUMERICHOST);
    freeaddrinfo(list);
    char *port = strrchr(where, ':');
    if (port != NULL)
        *port = '\0';
    bool loopback = socket_address_is_loopback(name) || socket_address_says_loopback(number);
    if (loopback && c->spec.nnodes > 1)
        found(c, WARNING, "name",
              "this machine's name, %s, stands for a loopback address here: other programs "
              "tell the other nodes that one; give it its real address in /etc/hosts, or set "
              "GLOO_SOCKET_IFNAME",
              where);
    else
        found(c, OK, "name", "%s", where);
}

static bool has_interface(const char *name)
{
    local_address list[LOCAL_NETWORK_MAX];
    int n = local_network_list(list);
    size_t length = strlen(name);
    for (int i = 0; i < n; i++)
        if (strncmp(list[i].interface, name, length) == 0)
            return true;
    return false;
}

/* "^docker,=eth0": NCCL's way to name interfaces; gloo takes plain names. */
static void check_variable(checkup *c, const char *variable)
{
    const char *text = environment_text(variable);
    if (text == NULL || text[0] == '^')
        return;
    size_t length;
    for (const char *at = text, *word; (word = comma_list_next(&at, &length)) != NULL;) {
        char name[LOCAL_NETWORK_NAME_BYTES];
        bool exact = length > 0 && *word == '=';
        snprintf(name, sizeof name, "%.*s", (int)length - exact, word + exact);
        name[strcspn(name, ":")] = '\0';
        if (!has_interface(name))
            found(c, EXIT_CODE_RENDEZVOUS, "interfaces", "%s=%.80s: no interface '%s' is up here",
                  variable, text, name);
    }
}

static void check_interfaces(checkup *c)
{
    char text[512];
    local_network_describe(text, sizeof text);
    found(c, OK, "interfaces", "%s", text);
    check_variable(c, "GLOO_SOCKET_IFNAME");
    check_variable(c, "NCCL_SOCKET_IFNAME");
    check_variable(c, "TP_SOCKET_IFNAME");
}

/* Node 0, or the only one: the port must be there for the taking. */
static void check_own_port(checkup *c)
{
    const worker_spec *spec = &c->spec;
    int fd = -1, port = 0;
    char own[SOCKET_ADDRESS_BYTES], why[SOCKET_ADDRESS_BYTES + 80];
    if (spec->master_port == 0) {
        found(c, OK, "port", "one node: a free one is taken");
        return;
    }
    const char *host = agent_store_home(spec, own, why) ? own : NULL;
    if (!passes(c, socket_listen(host, spec->master_port, &fd, &port), EXIT_CODE_RENDEZVOUS,
                "port"))
        return;
    close(fd);
    found(c, OK, "port", "%d is free here", port);
}

/* Whether what listens there greets as a store does. */
static bool is_store(const worker_spec *spec)
{
    store *client = NULL;
    store_options how = {.host = spec->master_addr,
                         .port = spec->master_port,
                         .timeout_ms = CONNECT_MS,
                         .connect_timeout_ms = CONNECT_MS};
    status st = store_create(&how, &client);
    store_destroy(client);
    return st == STATUS_OK;
}

static void check_way(checkup *c)
{
    const worker_spec *spec = &c->spec;
    char way[SOCKET_ROUTE_BYTES], why[256];
    int fd = -1, level = EXIT_CODE_RENDEZVOUS;
    status st =
        socket_connect(spec->master_addr, spec->master_port, clock_deadline_ns(CONNECT_MS), &fd);
    snprintf(why, sizeof why, "%s", status_text());
    socket_route_describe(spec->master_addr, way);
    if (st == STATUS_OK)
        close(fd);
    if (st == STATUS_OK && !is_store(spec))
        found(c, level, "node 0",
              "something that is not mnist_ddp listens at %s:%d: stop it, or give all nodes "
              "another --master-port",
              spec->master_addr, spec->master_port);
    else if (st == STATUS_OK)
        found(c, OK, "node 0", "%s:%d answers, by %s", spec->master_addr, spec->master_port, way);
    else if (st == STATUS_UNKNOWN_HOST)
        found(c, level, "node 0", "%s; give an address, or make the name known (/etc/hosts, DNS)",
              why);
    else if (local_network_owns(spec->master_addr) && !spec->store_on_loopback)
        found(c, level, "node 0",
              "%s is an address of this machine, which is node %d: give all nodes node 0's "
              "address",
              spec->master_addr, spec->node_rank);
    else if (st == STATUS_REFUSED)
        found(c, WARNING, "node 0",
              "%s, by %s: the machine is there and lets us through, but nobody listens yet", why,
              way);
    else
        found(c, level, "node 0",
              "%s, by %s: is that machine on, and does a firewall let the port through?", why,
              way[0] != '\0' ? way : "no interface");
}

static void check_node_0(checkup *c)
{
    const worker_spec *spec = &c->spec;
    char own[512];
    if (spec->server == RDZV_HOST_ELSEWHERE) {
        check_way(c);
        return;
    }
    check_own_port(c);
    if (spec->nnodes == 1)
        return;
    if (spec->store_on_loopback) {
        found(c, NOTE, "node 0", "%s: the other nodes must be on this machine too",
              spec->master_addr);
    } else if (local_network_owns(spec->master_addr)) {
        found(c, OK, "node 0", "%s is this machine", spec->master_addr);
    } else {
        local_network_describe(own, sizeof own);
        found(c, WARNING, "node 0",
              "%s is none of this machine's addresses (%s), but the others look for node 0 "
              "there",
              spec->master_addr, own);
    }
}

/* Whether etcd answers at this endpoint. Reads what there is of the job, and writes nothing. */
static status ask_etcd(const worker_spec *spec, const char *endpoint, int *n_nodes)
{
    const rdzv_service_options how = {.endpoints = endpoint,
                                      .access = &spec->access,
                                      .run_id = spec->run_id,
                                      .node_id = "doctor",
                                      .ttl_ms = CONNECT_MS,
                                      .timeout_ms = CONNECT_MS};
    rdzv_view view = {0};
    void *etcd = NULL;
    TRY(rdzv_etcd.open(&how, &etcd));
    status st = rdzv_etcd.look(etcd, RDZV_ALL, -1, 0, &view);
    if (st == STATUS_OK)
        *n_nodes = view.n;
    rdzv_view_free(&view);
    rdzv_etcd.close(etcd);
    return st;
}

/* One of its members may be away; what is there is to be etcd. */
static void check_etcd(checkup *c)
{
    const char *at = c->spec.endpoints, *word;
    int n_there = 0, n_nodes = 0;
    for (size_t length; (word = comma_list_next(&at, &length)) != NULL;) {
        char endpoint[SOCKET_ADDRESS_BYTES];
        snprintf(endpoint, sizeof endpoint, "%.*s", (int)length, word);
        status st = ask_etcd(&c->spec, endpoint, &n_nodes);
        n_there += st == STATUS_OK;
        if (passes(c, st, st == STATUS_INVALID ? EXIT_CODE_RENDEZVOUS : WARNING, "etcd"))
            found(c, OK, "etcd", "%s answers; nodes of job '%s' there: %d", endpoint,
                  c->spec.run_id, n_nodes);
    }
    if (n_there == 0)
        found(c, EXIT_CODE_RENDEZVOUS, "etcd",
              "it answers at no endpoint: is it on, and does a firewall let its port "
              "through?");
}

/* Names, interfaces, ports, and the way to node 0. */
static void checkup_network(checkup *c)
{
    check_name(c);
    check_interfaces(c);
    if (c->spec.backend == RDZV_ETCD)
        check_etcd(c);
    else
        check_node_0(c);
}

/* A checkpoint holds the model, and at most two arrays of its size for the optimizer. */
enum { ARRAYS = 3, OTHER_BYTES = 1 << 20 };

/* The folder itself, or the nearest one above it that is there. */
static void nearest_folder(const char *path, char out[FILE_PATH_BYTES])
{
    char above[FILE_PATH_BYTES];
    snprintf(out, FILE_PATH_BYTES, "%s", path);
    while (!file_exists(out) && strcmp(out, ".") != 0 && strcmp(out, "/") != 0) {
        file_folder_of(out, above);
        memcpy(out, above, sizeof above);
    }
}

/* false, and it is noted, if nothing can be written to the folder or made in it. */
static bool check_writable(checkup *c, const char *flag, const char *path)
{
    char there[FILE_PATH_BYTES], inside[FILE_PATH_BYTES + 2];
    nearest_folder(path, there);
    snprintf(inside, sizeof inside, "%s/.", there); /* else a file would lack a permission */
    if (euidaccess(inside, W_OK | X_OK) == 0)
        return true;
    found(c, EXIT_CODE_CHECKPOINT, "results",
          "%s: %s: %s; name a folder that can be written with %s", path, there, strerror(errno),
          flag);
    return false;
}

static void check_space(checkup *c, const char *path)
{
    model_kind kind;
    struct statvfs disk;
    char there[FILE_PATH_BYTES];
    nearest_folder(path, there);
    if (model_kind_parse(c->opts->model, &kind) != STATUS_OK || statvfs(there, &disk) != 0)
        return;
    int64_t unused = (int64_t)disk.f_bavail * (int64_t)disk.f_frsize, needed = OTHER_BYTES;
    if (c->opts->save_model) /* those that stay, the best one, and the one that is being written */
        needed += (int64_t)(model_kind_count(kind) * sizeof(float)) * (c->opts->keep + 2) * ARRAYS;
    size_text room = machine_size(unused);
    if (unused < needed)
        found(c, WARNING, "results", "%s: %s are free, a run may need %s: give another --run-dir",
              path, room.text, machine_size(needed).text);
    else
        found(c, OK, "results", "%s: can be written, %s are free", path, room.text);
}

/* The run goes on without it, and says so too late to do something about it. */
static void check_log(checkup *c, const char *folder)
{
    char path[FILE_PATH_BYTES];
    if (file_join(folder, RUN_FILE_LOG, path) != STATUS_OK)
        return;
    int fd = open(path, O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT)
        found(c, WARNING, "results", "%s: %s: the run would keep no log there", path,
              strerror(errno));
    if (fd >= 0)
        close(fd);
}

static void check_run_folder(checkup *c)
{
    const options *o = c->opts;
    const char *path = o->run_dir != NULL ? o->run_dir : "runs";
    if (o->resume != NULL && o->run_dir == NULL &&
        !passes(c, run_folder_check(o), EXIT_CODE_USAGE, "results"))
        return;
    if (o->run_dir == NULL && !o->save_model) {
        found(c, OK, "results", "the model is not saved (--no-save-model)");
        return;
    }
    if (!check_writable(c, "--run-dir", path))
        return;
    check_space(c, path);
    if (o->run_dir != NULL)
        check_log(c, path);
    (void)passes(c, run_folder_check(o), EXIT_CODE_CHECKPOINT, "results");
}

/* The folders that a run writes to: permission, space, and whether a run is in them already. */
static void checkup_results(checkup *c)
{
    char folder[FILE_PATH_BYTES];
    if (c->opts->examined == COMMAND_TRAIN)
        check_run_folder(c);
    if (c->opts->log_dir != NULL && strcmp(c->opts->log_dir, "/dev/null") != 0)
        (void)check_writable(c, "--log-dir", c->opts->log_dir);
    if (c->opts->trace == NULL)
        return;
    file_folder_of(c->opts->trace, folder);
    const char *run = c->opts->run_dir; /* which rank 0 makes */
    if ((run != NULL && file_is_in(c->opts->trace, run)) || file_exists(folder))
        (void)check_writable(c, "--trace", folder);
    else
        found(c, EXIT_CODE_USAGE, "results", "--trace: there is no folder %s", folder);
}

/* A launcher whose processes would be the ranks. */
static status check_launcher(checkup *c)
{
    outer_launcher outer;
    char text[OUTER_LAUNCHER_TEXT_BYTES];
    TRY(outer_launcher_find(c->opts, &outer));
    outer_launcher_describe(&outer, text);
    if (outer.role == OUTER_ROLE_RANK && !outer.row->is_torchrun)
        found(c, OK, "launcher", "%s", text);
    return STATUS_OK;
}

/* What train or run would refuse before it starts a rank. */
static void check_command(checkup *c)
{
    entrypoint program = {.words = NULL};
    status st = check_launcher(c);
    if (st == STATUS_OK && c->opts->examined == COMMAND_TRAIN) {
        st = worker_spec_check_mode(&c->spec, c->opts);
        if (st == STATUS_OK)
            st = rank_settings_check(c->opts, c->spec.world_size, worker_spec_is_elastic(&c->spec));
    } else if (st == STATUS_OK && c->opts->program != NULL) {
        st = entrypoint_find(c->opts, &program);
        free(program.words);
    }
    (void)passes(c, st, EXIT_CODE_USAGE, "settings");
}

/* false: the settings make no launch, and the rest cannot be looked at. */
static bool check_settings(checkup *c)
{
    int gpus = 0;
    const char *rank = getenv("RANK");
    if (rank != NULL)
        found(c, WARNING, "settings",
              "RANK=%.20s is set here: train would join as that rank; unset it to launch", rank);
    (void)device_list_count(c->opts, &gpus); /* the device's own check says it */
    status st = worker_spec_read(c->opts, cores_count(), gpus, &c->spec);
    if (!passes(c, st, EXIT_CODE_USAGE, "settings"))
        return false;
    check_command(c);
    if (c->spec.counts_nodes) {
        found(c, OK, "settings", "world size %d, for the nodes that come; this is node %d",
              c->spec.world_size, c->spec.node_rank);
        return true;
    }
    found(c, OK, "settings", "%d node%s x %d rank%s = world size %d; this is node %d",
          c->spec.nnodes, c->spec.nnodes == 1 ? "" : "s", c->spec.nproc,
          c->spec.nproc == 1 ? "" : "s", c->spec.world_size,
          c->spec.node_rank < 0 ? 0 : c->spec.node_rank);
    return true;
}

/* Only where rank 0 is to be is the file needed. */
static void check_init(checkup *c)
{
    int code = EXIT_CODE_USAGE;
    bool here = c->spec.nnodes <= 1 || c->spec.node_rank == 0;
    status st = here ? train_check_init(c->opts, &code) : STATUS_OK;
    (void)passes(c, st, code, "init");
}

static void check_data(checkup *c)
{
    dataset_location location;
    dataset sets[2] = {{0}};
    dataset_kind kind;
    bool is_there = true;
    status st = dataset_kind_parse(c->opts->dataset, &kind);
    if (st == STATUS_OK && c->silent)
        st = dataset_find(kind, c->opts->data_dir, &location, &is_there);
    if (!is_there && kind == DATASET_MNIST)
        return; /* ranks draw digits once they know rank 0's data */
    if (st == STATUS_OK)
        st = dataset_locate(kind, c->opts->data_dir, &location);
    for (int i = 0; i < 2 && st == STATUS_OK; i++)
        st = dataset_open(&location, i == 0 ? DATASET_TRAIN : DATASET_TEST, &sets[i]);
    if (passes(c, st, EXIT_CODE_DATA, "data"))
        found(c, location.embedded ? WARNING : OK, "data", "%s (%s), %u train and %u test images%s",
              location.folder[0] != '\0' ? location.folder : "in memory", location.found_by,
              sets[0].count, sets[1].count,
              location.embedded ? ": digits of our own, not MNIST; mnist_ddp data fetch "
                                  "gets it, --data-dir names its folder"
                                : "");
    const char *why = dataset_uncached(&sets[0], &sets[1]);
    if (st == STATUS_OK && why[0] != '\0')
        found(c, WARNING, "cache",
              "%s: each rank decompresses the .gz files for itself; set XDG_CACHE_HOME to a "
              "folder that can be written",
              why);
    for (int i = 0; i < 2; i++)
        dataset_close(&sets[i]);
}

static status print_end(checkup *c)
{
    if (!c->opts->json) {
        printf("%d failed, %d warning%s\n", c->failures, c->warnings, c->warnings == 1 ? "" : "s");
        return STATUS_OK;
    }
    return json_value_print(json_pack("{s:b, s:i, s:i, s:O}", "ok", c->failures == 0, "failed",
                                      c->failures, "warnings", c->warnings, "checks", c->list));
}

status doctor_check_train(const options *opts, const worker_spec *spec, int *exit_code)
{
    checkup c = {.opts = opts, .spec = *spec, .silent = true};
    check_data(&c);
    check_init(&c);
    checkup_modules(&c);
    if (c.failures == 0 && spec->node_rank == 0 && !opts->dry_run)
        checkup_results(&c);
    *exit_code = c.exit_code;
    return c.failures == 0 ? STATUS_OK : FAIL(STATUS_INVALID, "%s", c.why);
}

int doctor_command(const options *opts)
{
    checkup c = {.opts = opts, .list = opts->json ? json_array() : NULL};
    if (check_settings(&c))
        checkup_network(&c);
    checkup_machine(&c);
    if (opts->examined == COMMAND_TRAIN) {
        check_data(&c);
        check_init(&c);
    }
    checkup_results(&c);
    status st = print_end(&c);
    json_decref(c.list);
    return st == STATUS_OK ? c.exit_code : exit_code_failed(st, EXIT_CODE_INTERNAL);
}
