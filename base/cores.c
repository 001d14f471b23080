/* Linux tells of every hardware thread which others are of its core and which package it is in:
 * two small files. That is all that is asked of a machine's topology here, and takes less time than
 * a library that reads all of it.
 */
#include "base/cores.h"

#include "base/fnv1a.h"
#include "base/host.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct hardware_thread {
    int package;
    int core; /* its first hardware thread: allowed or not */
    int id;
} hardware_thread;

int cores_count(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

uint64_t cores_number(void)
{
    cpu_set_t set;
    uint64_t host = host_number();
    if (host == 0 || sched_getaffinity(0, sizeof set, &set) != 0)
        return 0;
    return fnv1a(host, &set, sizeof set);
}

/* The first number of a file of the system's about a hardware thread, such as "2,66"; `otherwise`
 * if there is none. */
static int read_topology(int id, const char *name, int otherwise)
{
    char path[96];
    int value = otherwise;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", id, name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return otherwise;
    if (fscanf(file, "%d", &value) != 1)
        value = otherwise;
    fclose(file);
    return value;
}

static int by_place(const void *a_, const void *b_)
{
    const hardware_thread *a = a_, *b = b_;
    int order = (a->package > b->package) - (a->package < b->package);
    if (order == 0)
        order = (a->core > b->core) - (a->core < b->core);
    return order != 0 ? order : (a->id > b->id) - (a->id < b->id);
}

static int read_allowed(hardware_thread out[CORES_MAX])
{
    cpu_set_t set;
    int n = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 0;
    for (int id = 0; id < CORES_MAX; id++)
        if (CPU_ISSET((size_t)id, &set))
            out[n++] = (hardware_thread){.package = read_topology(id, "physical_package_id", 0),
                                         .core = read_topology(id, "thread_siblings_list", id),
                                         .id = id};
    qsort(out, (size_t)n, sizeof *out, by_place);
    return n;
}

void cores_list(int need, cores *out)
{
    hardware_thread all[CORES_MAX];
    int n = read_allowed(all), n_cores = 0;
    for (int i = 0; i < n; i++)
        n_cores += i == 0 || all[i].core != all[i - 1].core;
    out->n = 0;
    for (int i = 0; i < n && n >= need; i++)
        if (n_cores < need || i == 0 || all[i].core != all[i - 1].core)
            out->ids[out->n++] = (int16_t)all[i].id;
}

void cores_share(const cores *all, int part, int parts, cores *out)
{
    int first = (int)((int64_t)all->n * part / parts);
    int end = (int)((int64_t)all->n * (part + 1) / parts);
    out->n = 0;
    for (int i = first; i < end; i++)
        out->ids[out->n++] = all->ids[i];
}

static cpu_set_t set_of(const int16_t *ids, int n)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < n; i++)
        CPU_SET((size_t)ids[i], &set);
    return set;
}

bool cores_bind(pthread_t thread, const int16_t *ids, int n)
{
    cpu_set_t set = set_of(ids, n);
    return pthread_setaffinity_np(thread, sizeof set, &set) == 0;
}

void cores_bind_process(const cores *all)
{
    cpu_set_t set = set_of(all->ids, all->n);
    DIR *threads = opendir("/proc/self/task");
    if (threads == NULL)
        return;
    for (struct dirent *entry = readdir(threads); entry != NULL; entry = readdir(threads))
        if (entry->d_name[0] != '.')
            (void)sched_setaffinity(atoi(entry->d_name), sizeof set, &set);
    closedir(threads);
}
