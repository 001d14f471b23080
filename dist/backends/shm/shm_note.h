/* What a rank tells the others of a collective before it begins. */
#ifndef MNIST_DDP_DIST_BACKENDS_SHM_SHM_NOTE_H
#define MNIST_DDP_DIST_BACKENDS_SHM_SHM_NOTE_H

#include "dist/backends/shm/shm_region.h"
#include "dist/collective/collective.h"

/* What a rank's note says of data that fits no annex: where they lie in its heap; SHM_NO_OFFSET:
 * not there, or not for others. */
typedef struct shm_offer {
    uint64_t in, out;
} shm_offer;

/* Does a giver's data lie in its note, or in that's annex? All ranks say the same. */
bool shm_note_fits_annex(const collective *c, int world_size);

/* Writes this rank's note of collective `index`, all but that, and its annex. An all_reduce out of
 * place whose `out` lies in the heap, and `in` does not, is copied there first and is in place for
 * the others. */
void shm_note_write(const shm_region *region, const collective *c, uint32_t index);

/* Of collective `index`, whose notes have come. STATUS_INVALID with the first rank that has
 * announced another collective than this rank. */
status shm_note_check_all(const shm_region *region, const collective *c, uint32_t index);

/* Sets out (world_size) to where data that fits lies. */
void shm_note_find_data(const shm_region *region, const collective *c, uint32_t index,
                        const void **out);

/* Of data that does not fit, offers (world_size). STATUS_PEER if a rank points outside its heap. */
status shm_note_read_offers(const shm_region *region, const collective *c, uint32_t index,
                            shm_offer *offers);

#endif
