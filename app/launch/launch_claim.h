/* A node's number while the nodes join: one launcher holds it, as long as it beats. Keys of
 * agent_channel.h: claim/<n> says who holds it, beat/<n> changes while it lives. */
#ifndef MNIST_DDP_APP_LAUNCH_CLAIM_H
#define MNIST_DDP_APP_LAUNCH_CLAIM_H

#include "app/launch/launch_agreement.h"
#include "app/launch/launch_join.h"

enum {
    LAUNCH_CLAIM_BYTES = AGREEMENT_PERSON_BYTES + 40,
    LAUNCH_CLAIM_LOOK_MS = 50,    /* a beat at least so often, */
    LAUNCH_CLAIM_SILENT_MS = 3000 /* and whose beat is silent for so long holds nothing */
};

typedef struct launch_claim {
    int node;
    char holder[LAUNCH_CLAIM_BYTES]; /* who it is, and what tells it from its predecessor */
    int64_t beats;
} launch_claim;

/* Takes this node's own number or, where nodes are numbered as they come, a free one: one that
 * nobody holds, or a silent launcher. *full where there is none and the number is not this node's
 * own doing: STATUS_INVALID, as where its number is held, with who holds it. Returns within
 * LAUNCH_CLAIM_SILENT_MS and some looks; STATUS_PEER once *joining->quit. */
status launch_claim_take(const launch_joining *joining, store *client, bool *full,
                         launch_claim *out);

/* One beat; STATUS_INVALID where somebody else holds the number now. */
status launch_claim_keep(launch_claim *claim, const launch_joining *joining, store *client);

/* The number is free again, if this launcher still holds it. */
void launch_claim_release(const launch_claim *claim, const launch_joining *joining, store *client);

/* The nodes' beats, as somebody sees them who looks time and again. */
typedef struct launch_sighting {
    char beat[32]; /* the last one, as far as it fits */
    int64_t changed_ns;
} launch_sighting;

/* Looks once; *changed: the beat has changed since the last look. */
status launch_claim_look(const launch_joining *joining, store *client, int node,
                         launch_sighting *sighting, bool *changed);

/* Who holds a number, as it has said; "" for nobody. */
status launch_claim_holder(const launch_joining *joining, store *client, int node,
                           char person[LAUNCH_CLAIM_BYTES]);

#endif
