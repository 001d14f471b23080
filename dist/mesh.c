#include "dist/mesh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 4096 };

/* Takes "name=N" off *text, and the comma after it. 0: something else stands there. */
static int take_axis(const char **text, const char *name)
{
    char *end = NULL;
    size_t length = strlen(name);
    if (strncmp(*text, name, length) != 0 || (*text)[length] != '=')
        return 0;
    long n = strtol(*text + length + 1, &end, 10);
    if (end == *text + length + 1 || n < 1 || n > RANKS_MAX)
        return 0;
    *text = *end == ',' ? end + 1 : end;
    return (int)n;
}

static status check_text(const char *text, const char *axis, int world_size, int *out)
{
    const char *rest = text;
    int dp = take_axis(&rest, "dp"), n = take_axis(&rest, axis);
    if (dp == 0 || n == 0 || *rest != '\0')
        return FAIL(STATUS_INVALID, "the mesh '%.60s' is not dp=ROWS,%s=COLUMNS", text, axis);
    if ((long long)dp * n != world_size)
        return FAIL(STATUS_INVALID,
                    "the mesh '%.60s' has %d x %d ranks, and this job has %d: give %lld in all, as "
                    "by --nproc-per-node=%lld, or another mesh",
                    text, dp, n, world_size, (long long)dp * n, (long long)dp * n);
    *out = n;
    return STATUS_OK;
}

status mesh_place(const char *text, const char *axis, int rank, int world_size, mesh *out)
{
    int n = axis != NULL ? world_size : 1;
    if (text != NULL && axis != NULL)
        TRY(check_text(text, axis, world_size, &n));
    *out = (mesh){.axis = axis,
                  .dp = {.rank = rank / n, .world_size = world_size / n},
                  .model = {.rank = rank % n, .world_size = n}};
    return STATUS_OK;
}

/* The groups are the mesh's own if there are rows and columns. */
static bool has_own_groups(const mesh *m)
{
    return m->dp.world_size > 1 && m->model.world_size > 1;
}

/* All lines of ranks along one axis. *out: the one with this rank. */
static status open_lines(process_group *group, int n_lines, int n, int step, int between,
                         process_group **out)
{
    int ranks[RANKS_MAX];
    for (int line = 0; line < n_lines; line++) {
        process_group *made = NULL;
        for (int i = 0; i < n; i++)
            ranks[i] = line * between + i * step;
        TRY(process_group_new_group(group, &(sub_group){.ranks = ranks, .n = n}, &made));
        if (made != NULL)
            *out = made;
    }
    return STATUS_OK;
}

status mesh_open(mesh *m, process_group *group)
{
    int rows = m->dp.world_size, columns = m->model.world_size;
    if (!has_own_groups(m)) {
        m->dp.group = rows > 1 ? group : NULL;
        m->model.group = columns > 1 ? group : NULL;
        return STATUS_OK;
    }
    TRY(open_lines(group, rows, columns, 1, columns, &m->model.group));
    return open_lines(group, columns, rows, columns, 1, &m->dp.group);
}

void mesh_close(mesh *m)
{
    if (has_own_groups(m)) {
        process_group_destroy(m->dp.group);
        process_group_destroy(m->model.group);
    }
    m->dp.group = m->model.group = NULL;
}

static const mesh_axis *axis_of(const mesh *m, int i)
{
    return i == 0 ? &m->dp : &m->model;
}

status mesh_check(const mesh *m)
{
    for (int i = 0; i < 2 && has_own_groups(m); i++)
        if (axis_of(m, i)->group != NULL) /* it is being made */
            TRY(process_group_check(axis_of(m, i)->group));
    return STATUS_OK;
}

void mesh_add_traffic(const mesh *m, uint64_t *sent, uint64_t *received)
{
    for (int i = 0; i < 2 && has_own_groups(m); i++) {
        uint64_t out = 0, in = 0;
        process_group_traffic(axis_of(m, i)->group, &out, &in);
        *sent += out;
        *received += in;
    }
}

void mesh_draw_line(const mesh *m, int line, char *out, size_t size_bytes)
{
    int n = m->model.world_size;
    size_t length = (size_t)(line > 0 ? snprintf(out, size_bytes, "dp %-3d", line - 1)
                                      : snprintf(out, size_bytes, "%-6s", ""));
    for (int i = 0; i < n && length < size_bytes; i++)
        length += (size_t)snprintf(out + length, size_bytes - length, "  %4s %-3d",
                                   line > 0 ? "rank" : m->axis, line > 0 ? (line - 1) * n + i : i);
}
