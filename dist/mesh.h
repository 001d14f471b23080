/* Ranks in rows and columns, as torch's DeviceMesh with two axes.
 *
 * The ranks of a row lie along the model axis: each has a part of one network, or of its state. The
 * ranks of a column lie along dp: they have the same part, and other samples. Rows follow each
 * other: rank = dp.rank * model.world_size + model.rank.
 */
#ifndef MNIST_DDP_DIST_MESH_H
#define MNIST_DDP_DIST_MESH_H

#include "base/status.h"
#include "dist/process_group/process_group.h"

#include <stddef.h>
#include <stdint.h>

typedef struct mesh_axis {
    int rank, world_size; /* this rank's place along the axis, and how many there are */
    process_group *group; /* they; NULL: this rank is the only one */
} mesh_axis;

typedef struct mesh {
    const char *axis; /* the model axis's name: "pp"; NULL: there is none */
    mesh_axis dp, model;
} mesh;

/* Where `rank` of `world_size` ranks lies; no groups yet. `text`: "dp=2,pp=2" if `axis` is "pp";
 * NULL: all ranks lie in one row, or, if `axis` is NULL, in one column. `axis` is borrowed.
 * STATUS_INVALID if the text has other axes or another number of ranks. */
status mesh_place(const char *text, const char *axis, int rank, int world_size, mesh *out);

/* Makes the groups of a placed mesh from that of all its ranks, which call this alike and block as
 * in process_group_new_group. An axis that all ranks lie on borrows `group`. */
status mesh_open(mesh *m, process_group *group);
void mesh_close(mesh *m); /* accepts one without groups */

/* STATUS_OK, or why one of the groups that the mesh has made broke (process_group_check). Never
 * blocks. */
status mesh_check(const mesh *m);

/* Adds what this rank has sent and got in groups that the mesh has made (process_group_traffic). */
void mesh_add_traffic(const mesh *m, uint64_t *sent, uint64_t *received);

/* A line of the drawing of which rank lies where: 0 is the columns' names, then come the rows, as
 * many as dp.world_size. Cut at size_bytes. */
void mesh_draw_line(const mesh *m, int line, char *out, size_t size_bytes);

#endif
