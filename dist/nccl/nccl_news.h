/* What the ranks of a group tell each other through the store, so that each can say who is to
 * blame: NCCL only knows that something does not end.
 *
 *   nccl/waits/<rank>   it has waited in that collective for half the timeout
 *   nccl/left/<rank>    it has closed its group: collectives that it has done, its failure's code
 *                       and words, or 0
 *   nccl/left           the latest to do so
 *   nccl/lost           the first dead rank that anybody saw
 *
 * All calls take as long as the store does.
 */
#ifndef MNIST_DDP_DIST_NCCL_NEWS_H
#define MNIST_DDP_DIST_NCCL_NEWS_H

#include "dist/net/peer_watch.h"
#include "dist/process_group.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nccl_news {
    store *keys;             /* borrowed */
    const peer_watch *peers; /* NULL: on other hosts */
    char prefix[64];
    int rank, world_size;
} nccl_news;

/* How a rank has left. */
typedef struct nccl_leave {
    uint64_t number; /* collectives that it has done, sends and receives aside */
    status why;      /* STATUS_OK: in peace */
    char words[512];
} nccl_leave;

void nccl_news_init(nccl_news *news, const process_group_options *options, const char *prefix,
                    const peer_watch *peers);

/* This rank waits in collective `number`. */
void nccl_news_tell_waiting(const nccl_news *news, uint64_t number);

/* Who is late in it: ": rank 2 (pid 71) is stopped", ": rank 2 has not come, nor rank 3", or ""
 * where nobody is found. Processes of this host are looked at first: the store may be one that has
 * stopped. */
void nccl_news_name_late(const nccl_news *news, uint64_t number, char *out, size_t size_bytes);

/* Whether another rank's process, on this host, is stopped. */
bool nccl_news_has_stopped(const nccl_news *news);

void nccl_news_tell_leaving(const nccl_news *news, const nccl_leave *how);

/* Whether that rank has left; the latest rank to leave, or -1. */
bool nccl_news_has_left(const nccl_news *news, int rank, nccl_leave *how);
int nccl_news_latest_leaver(const nccl_news *news);

/* Of several dead ranks the one whose death began it: the first that any rank has seen, `dead`
 * being this rank's. */
int nccl_news_agree_on_lost(const nccl_news *news, int dead);

#endif
