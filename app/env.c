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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VALUE_BYTES = 200 };

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

static void add(json_t *object, const char *key, const char *text)
{
    json_object_set_new(object, key, json_value_text(text));
}

static void add_machine(json_t *object)
{
    machine m;
    char text[2 * MACHINE_TEXT_BYTES], total[32], unused[32];
    machine_read(&m);
    add(object, "system", m.system);
    add(object, "kernel", m.kernel);
    add(object, "libc", m.libc);
    snprintf(text, sizeof text, "%d cores, %s", m.cores, m.processor);
    add(object, "processor", text);
    machine_size(m.memory_bytes, total, sizeof total);
    machine_size(m.memory_free_bytes, unused, sizeof unused);
    snprintf(text, sizeof text, "%s, %s free", total, unused);
    add(object, "memory", text);
    machine_size(m.shm_bytes, total, sizeof total);
    machine_size(m.shm_free_bytes, unused, sizeof unused);
    snprintf(text, sizeof text, "%s, %s free", total, unused);
    add(object, "shm", text);
    snprintf(text, sizeof text, "%lld files, %lld processes", (long long)m.max_files,
             (long long)m.max_processes);
    add(object, "limits", text);
    add(object, "nvidia driver", m.driver[0] != '\0' ? m.driver : "none");
}

static void add_devices(json_t *object)
{
    char text[512];
    int gpus = 0;
    if (device_count(&gpus, NULL) == STATUS_OK)
        snprintf(text, sizeof text, "%d", gpus);
    else
        snprintf(text, sizeof text, "%s", status_text());
    add(object, "gpus", text);
    add(object, "cpu library", device_libraries());
}

static void add_modules(json_t *object)
{
    static const char *const names[] = {"gloo", "mpi", "curl", "microhttpd", "cuda"};
    char key[32], text[512];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const module *opened = NULL;
        snprintf(key, sizeof key, "module %s", names[i]);
        if (!module_exists(names[i]))
            snprintf(text, sizeof text, "not installed");
        else if (module_open(names[i], &opened) == STATUS_OK)
            snprintf(text, sizeof text, "opens");
        else
            snprintf(text, sizeof text, "%s", status_text());
        add(object, key, text);
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
    char text[512], *line = NULL;
    json_t *object = json_object();
    snprintf(text, sizeof text, "%s, built with %s", MNIST_DDP_VERSION, __VERSION__);
    add(object, "mnist_ddp", text);
    add_machine(object);
    add_devices(object);
    add_modules(object);
    local_network_describe(text, sizeof text);
    add(object, "network", text);
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
