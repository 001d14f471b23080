/* The keys of all meetings in the store, and the one place that builds them.
 *
 * Before each stands what the store's client puts there, "mnist_ddp/<run id>/<attempt>/" for ranks
 * and "mnist_ddp/launcher/" for launchers, and then the prefix of the group that meets:
 *
 *   prefix             who meets, and for what
 *   join/              the ranks of a job, at its start (rendezvous.c)
 *   bye/               the same, at its end
 *   settings/          the same, before training: were all started alike? (agreement.c)
 *   pg/<g>/            the ranks of process group g: which backend? (backend_choice.c)
 *   pg/<g>/peers/      the same: their processes (health/peers.c)
 *   pg/<g>/nccl/       the same: their communicator (nccl_comm.c)
 *   <run id>/          the launchers of a job's nodes (launch_join.c)
 *
 *   key           value                               set by
 *   size          "<members> <member> <who>"          the first one to come
 *   claim/<m>     "<who>#<token>": who member m is    it (lease.h)
 *   beat/<m>      any change is a sign of life        who holds that lease
 *   record/<m>    what it says of itself              it
 *   came          counts those who have come          each
 *   outcome       "ok <text>" or "no <status> <why>"  the first one who knows, for good
 *   heard         counts who has read a "no"          each
 *
 *   pg/created/<rank>  counts the groups that the rank has created: the last one is its <g>
 *   id                 under pg/<g>/nccl/: NCCL's unique id, by rank 0
 *   job                without a prefix: the run id, by node 0's launcher after its settings
 *   settings           under <run id>/: what all nodes must have alike, by node 0's launcher
 *   arrived            under <run id>/: counts nodes that get their numbers as they come
 *
 * Launchers that have met go on under "<run id>/": app/launch/launch_link.h.
 */
#ifndef MNIST_DDP_DIST_MEMBERSHIP_KEYS_H
#define MNIST_DDP_DIST_MEMBERSHIP_KEYS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Of a group. */
#define KEY_SIZE "size"
#define KEY_CAME "came"
#define KEY_OUTCOME "outcome"
#define KEY_HEARD "heard"
/* Of a member, with its number. */
#define KEY_RECORD "record"
#define KEY_LEASE "claim"
#define KEY_BEAT "beat"
/* Of one kind of group. */
#define KEY_CREATED "pg/created"
#define KEY_NCCL_ID "id"
#define KEY_JOB "job"
#define KEY_SETTINGS "settings"
#define KEY_ARRIVED "arrived"

enum { KEYS_BYTES = 320 };

typedef struct keys_text {
    char text[KEYS_BYTES];
} keys_text;

/* "<prefix><name>" and, unless `number` is negative, "/<number>". To be used at once:
 * store_set(s, keys_make(prefix, KEY_RECORD, 3).text, ...). */
keys_text keys_make(const char *prefix, const char *name, int number);

#ifdef __cplusplus
}
#endif
#endif
