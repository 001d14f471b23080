/* mnist_ddp env: what a bug report needs to say, in one block. */
#include "app/common/commands.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/common/machine.h"
#include "app/common/version.h"
#include "base/json_text.h"
#include "base/module.h"
#include "kernels/device_kind.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VALUE_BYTES = 200, TEXT_BYTES = 2 * MACHINE_TEXT_BYTES };

/* Variables that change how ranks behave. Others are not shown: they may hold secrets. */
static const char PREFIXES[] =
    "MNIST_DDP_ PET_ TORCHELASTIC_ TORCH_ NCCL_ GLOO_ CUDA_ OMP_ KMP_ SLURM_ OMPI_COMM_WORLD_ "
    "PMIX_RANK PMIX_NAMESPACE PMI_RANK PMI_SIZE PMI_LOCAL_ MPI_LOCAL MV2_COMM_WORLD_ "
    "JOB_COMPLETION_INDEX KUBERNETES_SERVICE_HOST MASTER_ RANK= LOCAL_ WORLD_SIZE NODE_RANK "
    "GROUP_ ROLE_";

static const char *const SECRETS[] = {"SECRET", "TOKEN", "PASSWORD", "KEY", "CREDENTIAL", "AUTH"};

static bool is_shown(const char *entry)
{
    if (strstr(entry, "RDZV_ENDPOINT=") != NULL && strchr(entry, '@') != NULL)
        return false; /* USER:PASSWORD@ */
    for (size_t i = 0; i < sizeof SECRETS / sizeof SECRETS[0]; i++) {
        const char *found = strstr(entry, SECRETS[i]);
        if (found != NULL && found < entry + strcspn(entry, "="))
            return false;
    }
    for (const char *at = PREFIXES; *at != '\0'; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        if (strncmp(entry, at, length) == 0)
            return true;
        at += length;
    }
    return false;
}

__attribute__((format(printf, 3, 4))) static void add(json_t *object, const char *key,
                                                      const char *fmt, ...)
{
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    json_object_set_new(object, key, json_value_text(text));
}

static void add_room(json_t *object, const char *key, int64_t all, int64_t unused)
{
    add(object, key, "%s, %s free", machine_size(all).text, machine_size(unused).text);
}

static void add_machine(json_t *object)
{
    machine m;
    machine_read(&m);
    add(object, "system", "%s", m.system);
    add(object, "kernel", "%s", m.kernel);
    add(object, "libc", "%s", m.libc);
    add(object, "processor", "%d cores, %s", m.cores, m.processor);
    add_room(object, "memory", m.memory_bytes, m.memory_free_bytes);
    add_room(object, "shm", m.shm_bytes, m.shm_free_bytes);
    add(object, "limits", "%lld files, %lld processes", (long long)m.max_files,
        (long long)m.max_processes);
    add(object, "nvidia driver", "%s", m.driver[0] != '\0' ? m.driver : "none");
}

static void add_devices(json_t *object)
{
    int gpus = 0;
    if (device_count(&gpus, NULL) == STATUS_OK)
        add(object, "gpus", "%d", gpus);
    else
        add(object, "gpus", "%s", status_text());
    add(object, "cpu library", "%s", device_libraries());
}

static void add_modules(json_t *object)
{
    static const char *const names[] = {"gloo", "mpi", "curl", "microhttpd", "cuda"};
    char key[32];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const module *opened = NULL;
        snprintf(key, sizeof key, "module %s", names[i]);
        bool there = module_exists(names[i]);
        bool opens = there && module_open(names[i], &opened) == STATUS_OK;
        add(object, key, "%s", opens ? "opens" : there ? status_text() : "not installed");
    }
}

static json_t *list_variables(void)
{
    json_t *list = json_array();
    char text[VALUE_BYTES];
    for (char **entry = environ; *entry != NULL; entry++) {
        if (!is_shown(*entry))
            continue;
        snprintf(text, sizeof text, "%s", *entry);
        json_array_append_new(list, json_value_text(text));
    }
    return list;
}

static void print_block(const json_t *object)
{
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        if (json_is_string(value)) {
            printf("%-17s %s\n", key, json_string_value(value));
            continue;
        }
        for (size_t i = 0; i < json_array_size(value); i++)
            printf("%-17s %s\n", i == 0 ? key : "", json_string_value(json_array_get(value, i)));
        if (json_array_size(value) == 0)
            printf("%-17s none of interest\n", key);
    }
}

int env_command(const options *opts)
{
    char network[TEXT_BYTES], *line = NULL;
    json_t *object = json_object();
    add(object, "mnist_ddp", "%s, built with %s", MNIST_DDP_VERSION, __VERSION__);
    add_machine(object);
    add_devices(object);
    add_modules(object);
    local_network_describe(network, sizeof network);
    add(object, "network", "%s", network);
    json_object_set_new(object, "variables", list_variables());
    status st = json_text_print(object, JSON_COMPACT, &line); /* also tells whether all is there */
    if (st == STATUS_OK && opts->json)
        puts(line);
    else if (st == STATUS_OK)
        print_block(object);
    free(line);
    json_decref(object);
    return st == STATUS_OK ? EXIT_SUCCESS : exit_code_failed(st, EXIT_CODE_INTERNAL);
}
