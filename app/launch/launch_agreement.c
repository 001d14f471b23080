#include "app/launch/launch_agreement.h"

#include "app/common/json_value.h"
#include "base/json_text.h"
#include "dist/net/socket_route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct item {
    const char *key;  /* in the text */
    const char *flag; /* as the user knows it */
    int value;
} item;

enum { N_ITEMS = 5 };

static void list_items(const worker_spec *spec, item out[N_ITEMS])
{
    const item items[N_ITEMS] = {{"nnodes", "--nnodes", spec->nnodes},
                                 {"nproc", "--nproc-per-node", spec->nproc},
                                 {"max_restarts", "--max-restarts", spec->max_restarts},
                                 {"c10d", "--rdzv-backend=c10d", spec->by_arrival},
                                 {"train", "the command train", spec->policy.own}};
    memcpy(out, items, sizeof items);
}

void launch_agreement_person(const worker_spec *spec, char out[AGREEMENT_PERSON_BYTES])
{
    char host[128] = "?", way[SOCKET_ROUTE_BYTES] = "";
    if (gethostname(host, sizeof host - 1) != 0)
        strcpy(host, "?");
    if (spec->local_addr[0] == '\0')
        socket_route_describe(spec->master_addr, way);
    const char *address = spec->local_addr[0] != '\0' ? spec->local_addr : way;
    snprintf(out, AGREEMENT_PERSON_BYTES, "%.60s%s%.90s, pid %d", host,
             address[0] != '\0' ? " at " : "", address, (int)getpid());
}

status launch_agreement_write(const worker_spec *spec, char **out)
{
    item items[N_ITEMS];
    char person[AGREEMENT_PERSON_BYTES];
    json_t *object = json_object();
    list_items(spec, items);
    launch_agreement_person(spec, person);
    for (int i = 0; i < N_ITEMS; i++)
        json_object_set_new(object, items[i].key, json_integer(items[i].value));
    json_object_set_new(object, "person", json_value_text(person));
    status st = json_text_print(object, JSON_COMPACT, out);
    json_decref(object);
    return st;
}

/* "--nnodes=3" or, of what has no number, "yes" and "no". */
static void describe(const item *setting, int value, char *out, size_t size_bytes)
{
    bool number = strchr(setting->flag, '=') == NULL && strncmp(setting->flag, "--", 2) == 0;
    if (number)
        snprintf(out, size_bytes, "%s=%d", setting->flag, value);
    else
        snprintf(out, size_bytes, "%s%s", value ? "" : "not ", setting->flag);
}

status launch_agreement_compare(const worker_spec *spec, const char *theirs, bool *same,
                                char why[AGREEMENT_TEXT_BYTES])
{
    item items[N_ITEMS];
    char person[AGREEMENT_PERSON_BYTES], node_0[AGREEMENT_PERSON_BYTES];
    json_error_t error;
    json_t *object = json_text_parse(theirs, strlen(theirs), 0, &error);
    if (object == NULL)
        return FAIL(STATUS_PEER, "node 0's settings: %s", error.text);
    status st = json_value_copy(object, "person", node_0, sizeof node_0);
    list_items(spec, items);
    launch_agreement_person(spec, person);
    *same = true;
    for (int i = 0; i < N_ITEMS && st == STATUS_OK && *same; i++) {
        int value = 0;
        char ours[64], its[64];
        st = json_value_integer(object, items[i].key, 0, 1 << 24, &value);
        if (st != STATUS_OK || value == items[i].value)
            continue;
        *same = false;
        describe(&items[i], items[i].value, ours, sizeof ours);
        describe(&items[i], value, its, sizeof its);
        snprintf(why, AGREEMENT_TEXT_BYTES,
                 "the nodes disagree: %s on one (%s), %s on node 0 (%s); give all nodes the same",
                 ours, person, its, node_0);
    }
    json_decref(object);
    return st;
}
