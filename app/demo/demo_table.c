#include "app/demo/demo_table.h"

#include "app/options/command_table.h"

#include <stdio.h>
#include <string.h>

enum { SHOWN_BYTES = 80, LIST_BYTES = 512 };

const demo_entry demo_table[] = {
    {"linear", "nn.Linear(10, 10) on two ranks: DDP averages gradients", 2, 1, 16, linear_demo,
     false, NULL},
    {"ring", "an all-reduce around a ring, chunk by chunk", 4, 2, 7, ring_demo, false, NULL},
    {"tree", "an all-reduce up and down a tree, in 2 log2 N steps", 8, 2, 12, tree_demo, false,
     NULL},
    {"sampler", "who gets which sample: DistributedSampler on all ranks", 3, 1, 16, sampler_demo,
     false, sampler_check_demo},
    {"buckets", "DDP's buckets: ready, sent, there; what overlap hides", 2, 2, 4, buckets_demo,
     true, NULL},
    {"dp", "DataParallel: a batch of 30 on three replicas", 1, 1, 1, dp_demo, true, dp_check_demo},
    {"ps", "a parameter server: who sends what, how many bytes", 4, 2, 8, ps_demo, true, NULL},
    {"rendezvous", "how ranks find each other, and what stands in the store", 3, 2, 7,
     rendezvous_demo, false, NULL},
    {"store", "TCPStore among ranks: set, get, wait, add, compare_set", 3, 2, 7, store_demo, false,
     NULL},
    {"p2p", "send, recv, isend, irecv; two ranks that both send first", 2, 2, 2, p2p_demo, false,
     NULL},
    {"groups", "new_group: who is which rank in which group", 4, 2, 7, groups_demo, false, NULL},
    {"world-size", "what nodes, processes, world size and ranks are", 1, 1, 1, world_size_demo,
     false, NULL},
    {"failure", "each fault of --inject, and how its cause is named", 1, 1, 1, failure_demo, true,
     failure_check_demo},
    {"precision", "gradients in fp16 and bf16: underflow, loss scaling", 1, 1, 1, precision_demo,
     true, NULL},
    {"one-batch-four-ways", "single, dp, ddp and ps: the same batch, the same loss", 2, 2, 4,
     one_batch_four_ways_demo, true, one_batch_four_ways_check_demo},
};
const int demo_table_count = sizeof demo_table / sizeof demo_table[0];

status demo_table_find(const char *name, const demo_entry **out)
{
    char names[LIST_BYTES] = "";
    nearest search;
    nearest_init(&search, name);
    for (int i = 0; i < demo_table_count; i++) {
        if (strcmp(name, demo_table[i].name) == 0) {
            *out = &demo_table[i];
            return STATUS_OK;
        }
        nearest_offer(&search, demo_table[i].name);
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i > 0 ? ", " : "",
                 demo_table[i].name);
    }
    if (nearest_found(&search))
        return FAIL(STATUS_INVALID, "'%.*s' is not a demo; did you mean '%s'?", SHOWN_BYTES, name,
                    search.best);
    return FAIL(STATUS_INVALID, "'%.*s' is not a demo; there are %s", SHOWN_BYTES, name, names);
}
