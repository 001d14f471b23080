#include "dist/elastic/rdzv_ops.h"

#include "base/json_text.h"
#include "base/log.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    FORMAT = 2,
    LAST_ROUND = INT_MAX - 1, /* as ranks count them */
    MOST_RANKS = 1 << 16,     /* in a round */
    MOST_ABSENCES = 1 << 20,
};

static status print(json_t *value, const char *what, char **out)
{
    if (value == NULL)
        return FAIL(STATUS_INVALID, "%s holds a text that is no UTF-8, or memory is short", what);
    status st = json_text_print(value, JSON_COMPACT, out);
    json_decref(value);
    return st;
}

/* Without `order`, which is the service's, and `lost`. */
static json_t *json_of_node(const round_node *node)
{
    return json_pack("{s:s, s:i, s:s, s:i, s:b, s:I, s:i}", "id", node->id, "nproc", node->nproc,
                     "address", node->address, "port", node->port, "waits", (int)node->waits,
                     "round", (json_int_t)node->round, "restarts", node->restarts);
}

status round_text_of_node(const round_node *node, char **out)
{
    json_t *value = json_of_node(node), *lost = json_array();
    int failed = json_object_set_new(value, "format", json_integer(FORMAT));
    for (int i = 0; i < node->n_lost; i++)
        failed |= json_array_append_new(lost, json_string(node->lost[i]));
    failed |= json_object_set_new(value, "lost", lost);
    failed |= json_object_set_new(value, "unmet", json_boolean(node->unmet));
    if (failed != 0) {
        json_decref(value);
        value = NULL;
    }
    return print(value, "this node's record", out);
}

status round_text_of_state(const round_state *state, char **out)
{
    json_t *members = json_array(), *absences = json_array();
    int failed = 0;
    for (int i = 0; i < state->n; i++) {
        json_t *member = json_of_node(&state->members[i]);
        failed |=
            json_object_set_new(member, "order", json_integer((json_int_t)state->members[i].order));
        failed |= json_array_append_new(members, member);
    }
    for (int i = 0; i < state->n_absences; i++)
        failed |=
            json_array_append_new(absences, json_pack("{s:s, s:i}", "id", state->absences[i].id,
                                                      "times", state->absences[i].times));
    json_t *value =
        json_pack("{s:i, s:I, s:b, s:b, s:b, s:i, s:s, s:o, s:o}", "format", FORMAT, "round",
                  (json_int_t)state->round, "over", (int)state->over, "closed", (int)state->closed,
                  "well", state->ending == ROUND_WELL, "restarts", state->restarts, "reason",
                  state->reason, "members", members, "absences", absences);
    if (failed != 0) {
        json_decref(value);
        value = NULL;
    }
    return print(value, "the state of the rendezvous", out);
}

/* What is being read, for messages. */
typedef struct source {
    const json_t *object;
    const char *name;
} source;

static status read_integer(source from, const char *key, int64_t high, int64_t *out)
{
    const json_t *value = json_object_get(from.object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > high)
        return FAIL(STATUS_PEER, "%s: \"%s\" is no number from 0 to %lld", from.name, key,
                    (long long)high);
    *out = json_integer_value(value);
    return STATUS_OK;
}

static status read_int(source from, const char *key, int high, int *out)
{
    int64_t value = 0;
    TRY(read_integer(from, key, high, &value));
    *out = (int)value;
    return STATUS_OK;
}

static status read_bool(source from, const char *key, bool *out)
{
    const json_t *value = json_object_get(from.object, key);
    if (!json_is_boolean(value))
        return FAIL(STATUS_PEER, "%s: \"%s\" is neither true nor false", from.name, key);
    *out = json_is_true(value);
    return STATUS_OK;
}

/* A text of size_bytes - 1 bytes at most. */
static status copy_text(source from, const char *key, const json_t *value, char *out,
                        size_t size_bytes)
{
    size_t length = json_string_length(value);
    if (!json_is_string(value) || length >= size_bytes)
        return FAIL(STATUS_PEER, "%s: \"%s\" is no text of %zu bytes at most", from.name, key,
                    size_bytes - 1);
    memcpy(out, json_string_value(value), length + 1);
    return STATUS_OK;
}

static status read_text(source from, const char *key, char *out, size_t size_bytes)
{
    return copy_text(from, key, json_object_get(from.object, key), out, size_bytes);
}

static status read_node(source from, round_node *out)
{
    TRY(read_text(from, "id", out->id, sizeof out->id));
    TRY(read_int(from, "nproc", MOST_RANKS, &out->nproc));
    TRY(read_text(from, "address", out->address, sizeof out->address));
    TRY(read_int(from, "port", 65535, &out->port));
    TRY(read_bool(from, "waits", &out->waits));
    TRY(read_integer(from, "round", LAST_ROUND, &out->round));
    TRY(read_int(from, "restarts", INT_MAX / 2, &out->restarts));
    if (out->nproc == 0 || out->port == 0)
        return FAIL(STATUS_PEER, "%s: a node with %d ranks at port %d", from.name, out->nproc,
                    out->port);
    return out->id[0] != '\0' ? STATUS_OK : FAIL(STATUS_PEER, "%s: \"id\" is empty", from.name);
}

static status read_array(source from, const char *key, int *n)
{
    const json_t *array = json_object_get(from.object, key);
    if (!json_is_array(array) || json_array_size(array) > ROUND_MAX_NODES)
        return FAIL(STATUS_PEER, "%s: \"%s\" is no list of %d at most", from.name, key,
                    ROUND_MAX_NODES);
    *n = (int)json_array_size(array);
    return STATUS_OK;
}

static status read_lost(source from, round_node *out)
{
    int n = 0;
    TRY(read_array(from, "lost", &n));
    out->lost = calloc((size_t)n + 1, sizeof *out->lost);
    if (out->lost == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d lost nodes", n);
    out->n_lost = n;
    const json_t *array = json_object_get(from.object, "lost");
    for (int i = 0; i < n; i++)
        TRY(copy_text(from, "lost", json_array_get(array, (size_t)i), out->lost[i],
                      sizeof out->lost[0]));
    return STATUS_OK;
}

static status read_absences(source from, round_state *out)
{
    int n = 0;
    TRY(read_array(from, "absences", &n));
    out->absences = calloc((size_t)n + 1, sizeof *out->absences);
    if (out->absences == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d absent nodes", n);
    out->n_absences = n;
    const json_t *array = json_object_get(from.object, "absences");
    for (int i = 0; i < n; i++) {
        source one = {json_array_get(array, (size_t)i), from.name};
        TRY(read_text(one, "id", out->absences[i].id, sizeof out->absences[i].id));
        TRY(read_int(one, "times", MOST_ABSENCES, &out->absences[i].times));
    }
    return STATUS_OK;
}

static int by_id(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static status check_once(source from, const round_state *state)
{
    status st = STATUS_OK;
    const char **ids = malloc(((size_t)state->n + 1) * sizeof *ids);
    if (ids == NULL)
        return FAIL(STATUS_NO_MEMORY, "a round of %d nodes", state->n);
    for (int i = 0; i < state->n; i++)
        ids[i] = state->members[i].id;
    qsort(ids, (size_t)state->n, sizeof *ids, by_id);
    for (int i = 1; i < state->n && st == STATUS_OK; i++)
        if (strcmp(ids[i - 1], ids[i]) == 0)
            st = FAIL(STATUS_PEER, "%s: %s is in it twice", from.name, ids[i]);
    free(ids);
    return st;
}

static status read_members(source from, round_state *out)
{
    int n = 0, ranks = 0;
    TRY(read_array(from, "members", &n));
    out->members = calloc((size_t)n + 1, sizeof *out->members);
    if (out->members == NULL)
        return FAIL(STATUS_NO_MEMORY, "a round of %d nodes", n);
    const json_t *array = json_object_get(from.object, "members");
    for (int i = 0; i < n; i++) {
        source member = {json_array_get(array, (size_t)i), from.name};
        round_node *node = &out->members[i];
        TRY(read_node(member, node));
        TRY(read_integer(member, "order", INT64_MAX / 2, &node->order));
        out->n = i + 1;
        ranks += node->nproc;
        if (ranks > MOST_RANKS)
            return FAIL(STATUS_PEER, "%s: a round of more than %d ranks", from.name, MOST_RANKS);
    }
    return check_once(from, out);
}

static status read_state(source from, round_state *out)
{
    bool well = false;
    TRY(read_integer(from, "round", LAST_ROUND, &out->round));
    TRY(read_bool(from, "over", &out->over));
    TRY(read_bool(from, "closed", &out->closed));
    TRY(read_bool(from, "well", &well));
    out->ending = well ? ROUND_WELL : ROUND_BADLY;
    TRY(read_int(from, "restarts", INT_MAX / 2, &out->restarts));
    TRY(read_text(from, "reason", out->reason, sizeof out->reason));
    TRY(read_members(from, out));
    TRY(read_absences(from, out));
    if ((out->round > 0) != (out->n > 0))
        return FAIL(STATUS_PEER, "%s: round %lld has %d nodes", from.name, (long long)out->round,
                    out->n);
    return STATUS_OK;
}

/* *out is the caller's to decref. */
static status parse(const char *text, size_t size_bytes, const char *name, json_t **out)
{
    int64_t format = 0;
    json_t *value = NULL;
    if (size_bytes > ROUND_TEXT_BYTES)
        return FAIL(STATUS_PEER, "%s has more than %d bytes", name, ROUND_TEXT_BYTES);
    status st = json_text_value(text, size_bytes, name, &value);
    if (st == STATUS_INVALID)
        return STATUS_PEER;
    TRY(st);
    st = read_integer((source){value, name}, "format", INT_MAX, &format);
    if (st == STATUS_OK && format != FORMAT)
        st = FAIL(STATUS_PEER, "%s is of another version of this program", name);
    if (st == STATUS_OK)
        *out = value;
    else
        json_decref(value);
    return st;
}

static status read_record(const rdzv_record *record, round_node *out)
{
    char name[ROUND_ID_BYTES + 64];
    json_t *value = NULL;
    snprintf(name, sizeof name, "the rendezvous' record of %.*s", ROUND_ID_BYTES - 1, record->id);
    TRY(parse(record->value, strlen(record->value), name, &value));
    status st = read_node((source){value, name}, out);
    if (st == STATUS_OK)
        st = read_lost((source){value, name}, out);
    if (st == STATUS_OK)
        st = read_bool((source){value, name}, "unmet", &out->unmet);
    if (st == STATUS_OK && strcmp(out->id, record->id) != 0)
        st = FAIL(STATUS_PEER, "%s says that it is %s", name, out->id);
    out->order = record->order;
    json_decref(value);
    return st;
}

/* One that makes no sense here, of a later version say, is no node's. */
static status add_record(const rdzv_record *record, round_view *view)
{
    round_node node = {0};
    status st = read_record(record, &node);
    if (st == STATUS_OK) {
        view->nodes[view->n++] = node;
        return STATUS_OK;
    }
    round_node_free(&node);
    if (st == STATUS_PEER)
        LOG_D("a node is left out: %s", status_text());
    return st == STATUS_PEER ? STATUS_OK : st;
}

static int by_order(const void *a, const void *b)
{
    const round_node *left = a, *right = b;
    if (left->order != right->order)
        return left->order < right->order ? -1 : 1;
    return strcmp(left->id, right->id);
}

static status read_job(const rdzv_view *text, round_state *out)
{
    static const char NAME[] = "the rendezvous' state";
    json_t *value = NULL;
    status st = parse(text->state, text->state_bytes, NAME, &value);
    if (st == STATUS_OK)
        st = read_state((source){value, NAME}, out);
    json_decref(value);
    return st;
}

status round_text_read(const rdzv_view *text, round_view *out)
{
    status st = STATUS_OK;
    round_view view = {.state_revision = text->state_revision};
    if (text->n < 0 || text->n > ROUND_MAX_NODES)
        return FAIL(STATUS_PEER, "the rendezvous has %d nodes", text->n);
    view.nodes = calloc((size_t)text->n + 1, sizeof *view.nodes);
    if (view.nodes == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d nodes", text->n);
    if (text->state != NULL)
        st = read_job(text, &view.state);
    for (int i = 0; i < text->n && st == STATUS_OK; i++)
        st = add_record(&text->nodes[i], &view);
    if (st == STATUS_OK) {
        qsort(view.nodes, (size_t)view.n, sizeof *view.nodes, by_order);
        *out = view;
    } else {
        round_view_free(&view);
    }
    return st;
}
