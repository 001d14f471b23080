#include "app/launch/roster.h"

#include "app/common/exit_codes.h"
#include "app/common/machine.h"
#include "app/launch/agent_store.h"
#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "dist/membership/keys.h"
#include "dist/membership/membership.h"
#include "dist/net/socket.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    /* While the nodes come. */
    FIRST_LINE_MS = 1000, /* until the first line about waiting */
    NEXT_LINE_MS = 5000,  /* until each line after it */
    COME_MS = 5000,       /* elastic: so long a node may take to come, if its lease is as long */
    LINGER_MS = 400,      /* a failure stays readable for the others */
    BEAT_MS = 50,         /* from one heartbeat to the next */

    /* Afterwards. */
    RETRY_MS = 100,
    QUIT_MS = 2000,
    FIRST_END_LINE_MS = 10000, /* node 0's, of who goes on while others have ended */
    NEXT_END_LINE_MS = 60000,
    SILENT_BEATS = 2,        /* heartbeats: after so many a node is said to be silent */
    RETURN_MS = 3000,        /* for an agent to come back whose connection was closed */
    ELASTIC_RETURN_MS = 400, /* who lives comes back as a newcomer then */

    WHO_BYTES = 320,
    TOKEN_BYTES = WHO_BYTES + 60,
    LIST_BYTES = 400,
    WHY_BYTES = 1024,
    SETTINGS_BYTES = 256 + AGREEMENT_BYTES,
};

/* What this agent tells the others: keys of the store. Each is sent until the store is known to
 * have it, and once more over each new connection. A word replaces the one before of its kind.
 * Ends are of two kinds in turn, as the next attempt's may come before the last is sent. */
typedef enum word_kind { WORD_TROUBLE, WORD_END, WORDS = WORD_END + 2 } word_kind;

typedef struct word {
    keys_text key;
    char *text; /* NULL: none */
    bool sent;
} word;

/* What the agent and the thread share, under the lock. But each of them reads without it what it
 * alone sets. Once the thread has ended, the agent needs no lock. */
typedef struct shared_state {
    /* The agent's. */
    int attempt;
    bool told_end;    /* it has said how the attempt ended here */
    int told_trouble; /* the last attempt whose trouble it has told; -1. Without the lock */

    /* The thread's. */
    bool joined;
    status failed;         /* `why`; STATUS_OK: not */
    bool finished;         /* it touches the roster no more */
    int trouble_attempt;   /* the last one that is known to be in trouble; -1 */
    int outcome_attempt;   /* the last one whose outcome is known; -1 */
    group_outcome outcome; /* that attempt's, until the agent takes it */
    word words[WORDS];     /* the agent puts them, the thread sends them */
} shared_state;

typedef struct roster_node {
    char token[TOKEN_BYTES];   /* "<who>#<token>": the latest agent that held the number; "" */
    bool there;                /* the key is: its connection is open */
    bool lost;                 /* it has not come in time, or is gone */
    int64_t set;               /* the revision of its latest heartbeat */
    int64_t heard_ns, gone_ns; /* when that was seen; since when the key is gone; 0 */
} roster_node;

/* From the connection to the start of all. */
typedef struct joining {
    membership nodes; /* all of the job; this one has no number yet */
    bool *there;      /* spec.nnodes of them */
    int64_t start_ns, line_ns, deadline_ns;
    node_count count;
    int64_t complete_ns; /* since when all are there; 0: they are not */
} joining;

/* Node 0's: how the nodes' workers ended in an attempt. */
typedef struct coordinator {
    node_end *ends; /* by node; AGENT_JOINING: not told yet */
    int attempt;
    bool decided;
    int alarmed_by;  /* the node whose end made this one stop all others; -1: none */
    int64_t line_ns; /* when to say who has not ended; 0: not yet */
} coordinator;

struct roster {
    worker_spec spec;     /* a copy that owns `now`; of counts_nodes: complete once all are there */
    store_server *server; /* node 0's agent, borrowed; the others': NULL */
    char prefix[SPEC_RUN_ID_BYTES + 24]; /* all keys': "<run id>/", elastic "<run id>/<round>/" */
    pthread_t thread;
    pthread_mutex_t lock;
    shared_state shared;
    int agent_fd, thread_fd; /* eventfds: wake the agent, the thread */
    atomic_bool quit;
    atomic_bool join_cancelled; /* set whenever `quit` is */

    /* The thread's; the agent reads `why`, `who`, its number and who is lost after it was told. */
    char why[WHY_BYTES];
    char who[WHO_BYTES]; /* this agent: "hostA at eth0 (10.0.0.1), pid 4711" */
    int member;          /* this node's number; -1: none yet */
    roster_node *nodes;  /* spec.nnodes as it was */

    /* The thread's own. */
    store *client; /* NULL: there is no connection */
    char token[TOKEN_BYTES];
    int64_t own_set;  /* the revision of its latest heartbeat; 0: none */
    int64_t revision; /* as of which the nodes are */
    joining join;
    coordinator node_0;   /* without ends: this is another node's */
    int attempt;          /* as in `shared` when this turn began */
    bool told_end;        /* likewise */
    int64_t heartbeat_ns; /* when the next one is due */
    int64_t stopped_ns;   /* how long this process did not run, since the last good turn; 0 */
};

static void unlock_and_wake_agent(roster *r)
{
    pthread_mutex_unlock(&r->lock);
    eventfd_write(r->agent_fd, 1);
}

/* Who lives. */

/* Sets this node's key, if that holds revision `expected` (0: none). */
static status put_own(roster *r, int node, int64_t expected)
{
    store_put_options how = {.value = r->token, .expected = expected, .goes_with_connection = true};
    return store_put(r->client, keys_make(r->prefix, KEYS_ALIVE, node).text, &how, &r->own_set);
}

static void describe_holder(const roster_node *node, char who[WHO_BYTES])
{
    int length = (int)strcspn(node->token, "#");
    snprintf(who, WHO_BYTES, "%.*s", length > 0 ? length : 1, length > 0 ? node->token : "?");
}

static status look_who_lives(roster *r)
{
    keys_text prefix = keys_make(r->prefix, KEYS_ALIVE "/", -1);
    store_watch_options how = {.prefix = prefix.text, .after = r->revision};
    store_watch_answer living;
    int64_t now_ns = clock_now_ns();
    TRY(store_watch(r->client, &how, &living));
    if (living.revision == 0)
        return STATUS_OK; /* nothing has changed */
    r->revision = living.revision;
    for (int i = 0; i < r->spec.nnodes; i++) {
        r->nodes[i].gone_ns = r->nodes[i].there ? now_ns : r->nodes[i].gone_ns;
        r->nodes[i].there = false;
    }
    for (size_t i = 0; i < living.n; i++) {
        const store_watch_key *key = &living.keys[i];
        const char *slash = strrchr(key->key, '/');
        int number;
        if (slash == NULL || !number_parse(slash + 1, 0, r->spec.nnodes - 1, &number))
            continue;
        roster_node *node = &r->nodes[number];
        node->there = true;
        node->gone_ns = 0;
        node->heard_ns = key->set != node->set ? now_ns : node->heard_ns;
        node->set = key->set;
        snprintf(node->token, sizeof node->token, "%s", key->value);
    }
    store_watch_free(&living);
    return STATUS_OK;
}

/* This node's sign of life. STATUS_INVALID, with who it is, if another process holds its number. */
static status put_heartbeat(roster *r)
{
    char who[WHO_BYTES];
    const roster_node *own = &r->nodes[r->member];
    TRY(put_own(r, r->member, r->own_set));
    if (r->own_set != 0)
        return STATUS_OK;
    TRY(look_who_lives(r)); /* it went with another connection, or is still there by one */
    bool free_or_own = !own->there || strcmp(own->token, r->token) == 0;
    if (free_or_own)
        TRY(put_own(r, r->member, own->there ? own->set : 0));
    if (free_or_own && r->own_set != 0)
        return STATUS_OK;
    describe_holder(own, who);
    return FAIL(STATUS_INVALID,
                "this process was silent for too long, and node %d is now held by another one (%s)",
                r->member, who);
}

/* Is this our job's store? Node 0 says which one it serves before anything else. */
static status check_job(const roster *r)
{
    const worker_spec *spec = &r->spec;
    char job[SPEC_RUN_ID_BYTES];
    if (r->server != NULL)
        return store_set(r->client, KEYS_JOB, spec->run_id, strlen(spec->run_id));
    int64_t wait_ms = AGENT_STORE_STRANGER_MS, half_lease_ms = worker_spec_lease_ms(spec) / 2;
    if (worker_spec_is_elastic(spec) && half_lease_ms > wait_ms)
        wait_ms = half_lease_ms; /* so long may it take until node 0, too, knows of the round */
    status st = store_get_text(r->client, KEYS_JOB, clock_deadline_ns(wait_ms), job, sizeof job);
    if (st == STATUS_TIMEOUT && worker_spec_is_elastic(spec)) /* the rendezvous has named it */
        return FAIL(STATUS_PEER,
                    "node 0's launcher at %s:%d has not said its job's id within %.3g s: it is "
                    "slow, or stopped",
                    spec->master_addr, spec->master_port, (double)wait_ms * 1e-3);
    if (st == STATUS_TIMEOUT)
        return FAIL(STATUS_INVALID,
                    "what serves %s:%d is not mnist_ddp's launcher (torchrun's, or a rank 0 "
                    "without one?): start all nodes with mnist_ddp, or take another --master-port",
                    spec->master_addr, r->spec.master_port);
    TRY(st);
    if (strcmp(job, spec->run_id) != 0)
        return FAIL(STATUS_INVALID,
                    "%s:%d belongs to the job '%.100s', and this node to '%.100s': give all nodes "
                    "the same --rdzv-id, or every job a port of its own",
                    spec->master_addr, r->spec.master_port, job, spec->run_id);
    return STATUS_OK;
}

/* What all nodes must have alike, as the user gives it: a line each. */
static void describe_settings(const worker_spec *spec, char out[SETTINGS_BYTES])
{
    char nodes[64];
    if (worker_spec_is_elastic(spec))
        snprintf(nodes, sizeof nodes, "--nnodes=%d:%d", spec->rdzv.min_nodes, spec->rdzv.max_nodes);
    else if (spec->counts_nodes)
        snprintf(nodes, sizeof nodes, "--world-size=%d", spec->world_size);
    else
        snprintf(nodes, sizeof nodes, "--nnodes=%d\n--nproc-per-node=%d", spec->nnodes,
                 spec->nproc);
    snprintf(out, SETTINGS_BYTES,
             "--rdzv-backend=%s\n%s\n--max-restarts=%d\n%sthe command train\n%s",
             RDZV_BACKEND_NAMES[spec->backend], nodes, spec->max_restarts,
             spec->policy.own ? "" : "not ", spec->alike);
}

/* What is wrong with one node is wrong for all that still wait: they are told. A newcomer to an
 * elastic job ends alone. */
static status agree_on_settings(roster *r)
{
    char settings[SETTINGS_BYTES], text[SETTINGS_BYTES + WHO_BYTES];
    agreement_difference found;
    keys_text key = keys_make(r->prefix, KEYS_SETTINGS, -1);
    describe_settings(&r->spec, settings);
    if (r->server != NULL) {
        int length = snprintf(text, sizeof text, "%s\n%s", r->who, settings);
        return store_set(r->client, key.text, text, (size_t)length);
    }
    TRY(store_get_text(r->client, key.text, clock_deadline_ns(AGENT_STORE_STRANGER_MS), text,
                       sizeof text));
    const char *its = strchr(text, '\n'); /* after who node 0 is */
    if (its == NULL)
        return FAIL(STATUS_PEER, "node 0's settings are nonsense: '%.100s'", text);
    if (!agreement_differ(settings, its + 1, &found))
        return STATUS_OK;
    status st =
        FAIL(STATUS_INVALID,
             "the nodes disagree: %s on one (%s), %s on node 0 (%.*s); give all nodes the same",
             found.of_a, r->who, found.of_b, (int)(its - text), text);
    return worker_spec_is_elastic(&r->spec) ? st : membership_give_up(&r->join.nodes, st);
}

/* What all look at while they wait: why the job cannot start, or whether it has. */
static status look_for_start(const roster *r, bool *started)
{
    status st = membership_hear(&r->join.nodes, started);
    if (st == STATUS_OK && !*started && atomic_load(&r->join_cancelled))
        return FAIL(STATUS_PEER, "told to stop");
    return st == STATUS_INVALID ? status_context(st, "the job cannot start") : st;
}

/* Somebody holds the number: it is free once the key is gone, or its holder is silent. From the
 * start on node 0 looks who lives. */
static status wait_for_number(roster *r, int node)
{
    const roster_node *holder = &r->nodes[node];
    int64_t deadline_ns = clock_deadline_ns(ROSTER_SILENT_MS), first_set = 0;
    for (bool over = false, late = false; r->own_set == 0 && !late;) {
        late = clock_passed(deadline_ns);
        TRY(look_for_start(r, &over));
        TRY(look_who_lives(r));
        first_set = first_set == 0 ? holder->set : first_set;
        if (over || (holder->there && holder->set != first_set))
            return STATUS_OK; /* it lives */
        if (late || !holder->there)
            TRY(put_own(r, node, holder->there ? holder->set : 0));
        if (r->own_set == 0)
            clock_sleep_ms(BEAT_MS);
    }
    return STATUS_OK;
}

/* Takes a number; all hear of a node that cannot have its own. */
static status take_number(roster *r)
{
    char other[WHO_BYTES];
    int node = r->spec.node_rank;
    snprintf(r->token, sizeof r->token, "%s#%x.%llx", r->who, (unsigned)getpid(),
             (unsigned long long)clock_now_ns());
    TRY(put_own(r, node, 0));
    if (r->own_set == 0)
        TRY(wait_for_number(r, node));
    if (r->own_set != 0) {
        r->member = node;
        return STATUS_OK;
    }
    describe_holder(&r->nodes[node], other);
    return membership_give_up(&r->join.nodes,
                              FAIL(STATUS_INVALID,
                                   "node %d is claimed twice, by one launcher (%s) and another "
                                   "(%s): give every node its own --node-rank",
                                   node, other, r->who));
}

/* Who is there: holds its number, and is heard. *all: everybody, and each was heard since all were
 * there for the first time, so that nobody has gone who was there when the last one came. */
static status look_for_all(roster *r, bool *all)
{
    bool complete = true;
    int64_t oldest_ns = INT64_MAX, now_ns = clock_now_ns();
    TRY(look_who_lives(r));
    for (int n = 0; n < r->spec.nnodes; n++) {
        const roster_node *node = &r->nodes[n];
        bool own = n == r->member;
        bool heard = own || now_ns - node->heard_ns < ROSTER_SILENT_MS * 1000000ll;
        r->join.there[n] = node->there && heard;
        complete = complete && r->join.there[n];
        if (!own && node->heard_ns < oldest_ns)
            oldest_ns = node->heard_ns;
    }
    if (!complete || r->join.complete_ns == 0)
        r->join.complete_ns = complete ? clock_now_ns() : 0;
    *all = complete && oldest_ns > r->join.complete_ns;
    return STATUS_OK;
}

/* "node 1 (ranks 8-15), node 3 (ranks 24-31)" of those that are not there; returns how many. */
static int list_missing(const roster *r, char out[LIST_BYTES])
{
    int missing = 0;
    size_t used = 0;
    out[0] = '\0';
    for (int n = 0; n < r->join.count.expected; n++) {
        if (r->join.there[n])
            continue;
        const char *before = missing++ > 0 ? ", " : "";
        int first = worker_spec_first_rank(&r->spec, n), nproc = worker_spec_ranks_of(&r->spec, n);
        if (used < LIST_BYTES - 80 && r->spec.counts_nodes)
            used += (size_t)snprintf(out + used, LIST_BYTES - used, "%snode %d", before, n);
        else if (used < LIST_BYTES - 80)
            used += (size_t)snprintf(out + used, LIST_BYTES - used,
                                     nproc > 1 ? "%snode %d (ranks %d-%d)" : "%snode %d (rank %d)",
                                     before, n, first, first + nproc - 1);
        else
            strcpy(out + used, ", ..."); /* once: `used` stays */
    }
    return missing;
}

static void say_missing(const roster *r)
{
    const worker_spec *spec = &r->spec;
    char list[LIST_BYTES], own[400] = "";
    int missing = list_missing(r, list);
    if (missing == 0)
        return; /* just now */
    if (r->server != NULL && !spec->store_on_loopback)
        local_network_describe(own, sizeof own);
    LOG_I("%d of %d nodes have joined at %s:%d%s%s%s, %.0f s of %.0f s; missing: %s",
          r->join.count.expected - missing, r->join.count.expected, spec->master_addr,
          spec->master_port, own[0] != '\0' ? " (this machine: " : "", own,
          own[0] != '\0' ? ")" : "", clock_seconds(clock_now_ns() - r->join.start_ns),
          (double)spec->rdzv.join_ms * 1e-3, list);
}

static status say_who_did_not_come(const roster *r)
{
    const worker_spec *spec = &r->spec;
    char list[LIST_BYTES];
    int missing = list_missing(r, list);
    for (int n = 0; n < spec->nnodes && r->server != NULL; n++)
        r->nodes[n].lost = !r->join.there[n];
    return FAIL(STATUS_TIMEOUT,
                "%d of %d nodes did not come to %s:%d within %.3g s: %s; see whether they were "
                "started and can reach that address (mnist_ddp doctor)",
                missing, r->join.count.expected, spec->master_addr, spec->master_port,
                (double)spec->rdzv.join_ms * 1e-3, list);
}

/* Nodes count themselves, and node 0 decides. */
static status count_nodes(roster *r, bool is_late, bool *all)
{
    const node_count *count = &r->join.count;
    status st = STATUS_OK;
    *all = node_count_look(&r->join.count, &r->spec, r->join.there, is_late);
    if (r->server == NULL)
        return st;
    if (count->is_news &&
        count->nodes == count->expected) { /* what comes of it, and what to type */
        char *line =
            count->nodes < r->spec.nnodes ? agent_store_join_command(&r->spec, count->nodes) : NULL;
        LOG_I("nodes 0 to %d are there: they start unless another one comes within %d s%s%s",
              count->nodes - 1, NODE_COUNT_QUIET_MS / 1000, line != NULL ? "; on one more: " : "",
              line != NULL ? line : "");
        free(line);
    }
    if (*all)
        st = node_count_publish(count, &r->spec, r->client, r->prefix);
    return st == STATUS_INVALID ? membership_give_up(&r->join.nodes, st) : st;
}

/* Node 0 looks who is there, and all go on at its word; the others look to say who is missing. */
static status wait_for_all(roster *r)
{
    bool serves = r->server != NULL, started = false;
    for (int64_t pause_ms = 1;;) {
        bool all = false;
        TRY(put_heartbeat(r));
        TRY(look_for_start(r, &started));
        if (started)
            return STATUS_OK;
        int64_t now = clock_now_ns();
        if (serves || now >= r->join.deadline_ns || now >= r->join.line_ns)
            TRY(look_for_all(r, &all));
        if (r->spec.counts_nodes && (serves || now >= r->join.line_ns))
            TRY(count_nodes(r, now >= r->join.deadline_ns, &all));
        if (serves && all)
            return membership_settle(&r->join.nodes, "");
        if (now >= r->join.deadline_ns)
            return say_who_did_not_come(r);
        if (now >= r->join.line_ns) {
            say_missing(r);
            r->join.line_ns = now + NEXT_LINE_MS * 1000000ll;
        }
        clock_sleep_ms(pause_ms);
        pause_ms = pause_ms < BEAT_MS / 2 ? pause_ms * 2 : BEAT_MS;
    }
}

/* Node 0 takes the store with it, after all have heard why. */
static void linger(const roster *r)
{
    status_kept kept;
    status_keep(&kept);
    if (r->server != NULL && atomic_load(&r->join_cancelled)) {
        status st = worker_spec_is_elastic(&r->spec) ? STATUS_PEER : STATUS_INVALID;
        membership_give_up(&r->join.nodes, FAIL(st,
                                                "node 0's launcher (%s) was told to stop before "
                                                "all nodes had come; start all nodes again",
                                                r->who));
    }
    if (r->server != NULL)
        clock_sleep_ms(LINGER_MS);
    status_restore(&kept);
}

/* A failure, `st`, of a node that has lost the store: a key says nothing to whoever reads that. */
static status explain_loss(const roster *r, status st)
{
    bool there, asks = r->server == NULL && st != STATUS_INVALID;
    store *again = NULL;
    status_kept kept;
    status_keep(&kept);
    if (asks && store_check(r->client, KEYS_JOB, &there) != STATUS_OK) {
        bool gone = agent_store_reach(&r->spec, r->server, &again) == STATUS_REFUSED;
        store_destroy(again);
        return FAIL(gone ? STATUS_REFUSED : STATUS_PEER,
                    "node 0's launcher at %s:%d %s before all nodes had come: its own output says "
                    "why, if anything does; start all nodes again",
                    r->spec.master_addr, r->spec.master_port,
                    st == STATUS_TIMEOUT ? "answers no more," : "went away");
    }
    status_restore(&kept);
    return st;
}

/* After the start: the spec is that of so many nodes, if they were counted. STATUS_INVALID for a
 * member that came too late. */
static status take_count(roster *r)
{
    enum { WAIT_MS = 5000 }; /* node 0 has set it before all started */
    char size[32];
    int nodes = 0;
    if (!r->spec.counts_nodes)
        return STATUS_OK;
    TRY(store_get_text(r->client, keys_make(r->prefix, KEYS_SIZE, -1).text,
                       clock_deadline_ns(WAIT_MS), size, sizeof size));
    if (!number_parse(size, 2, r->spec.nnodes, &nodes))
        return FAIL(STATUS_PEER, "node 0's number of nodes makes no sense: '%s'", size);
    if (r->member >= nodes)
        return FAIL(STATUS_INVALID, "the job has begun with %d nodes: node %d came too late", nodes,
                    r->member);
    node_count_apply(&r->spec, nodes);
    return STATUS_OK;
}

/* From the connection to the start of all. */
static status join_group(roster *r)
{
    const worker_spec *spec = &r->spec;
    r->join = (joining){.nodes = {.store = r->client,
                                  .prefix = r->prefix,
                                  .member = -1,
                                  .n = spec->nnodes,
                                  .noun = "node"},
                        .start_ns = clock_now_ns(),
                        .line_ns = clock_deadline_ns(FIRST_LINE_MS),
                        .count = {.expected = spec->counts_nodes ? 2 : spec->nnodes},
                        .deadline_ns = clock_deadline_ns(spec->rdzv.join_ms)};
    if (spec->counts_nodes && r->server == NULL) /* node 0 decides, and may begin later */
        r->join.deadline_ns += NODE_COUNT_QUIET_MS * 1000000ll;
    TRY(check_job(r));
    TRY(agree_on_settings(r));
    TRY(take_number(r));
    r->join.there = calloc((size_t)spec->nnodes, sizeof *r->join.there);
    if (r->join.there == NULL)
        return FAIL(STATUS_NO_MEMORY, "%d nodes", spec->nnodes);
    TRY(wait_for_all(r));
    return take_count(r);
}

/* Node 0 hears the others from now on. */
static status begin_turns(roster *r)
{
    if (r->member == 0) {
        r->node_0.ends = calloc((size_t)r->spec.nnodes, sizeof *r->node_0.ends);
        if (r->node_0.ends == NULL)
            return FAIL(STATUS_NO_MEMORY, "%d nodes", r->spec.nnodes);
    }
    if (atomic_load(&r->quit)) /* too late not to join: it leaves again, in order */
        roster_tell_end(r, &(node_end){.state = AGENT_BROKEN});
    for (int i = 0; i < r->spec.nnodes; i++)
        r->nodes[i].heard_ns = clock_now_ns();
    pthread_mutex_lock(&r->lock);
    r->shared.joined = true;
    unlock_and_wake_agent(r);
    return STATUS_OK;
}

static void name_self(roster *r)
{
    const worker_spec *spec = &r->spec;
    char host[128] = "?", way[SOCKET_ROUTE_BYTES] = "";
    if (gethostname(host, sizeof host - 1) != 0)
        strcpy(host, "?");
    if (spec->local_addr[0] == '\0')
        socket_route_describe(spec->master_addr, way);
    const char *address = spec->local_addr[0] != '\0' ? spec->local_addr : way;
    snprintf(r->who, sizeof r->who, "%.60s%s%.90s, pid %d", host, address[0] != '\0' ? " at " : "",
             address, (int)getpid());
}

/* Connects to the store and returns once all nodes are there. STATUS_INVALID if something else
 * listens there, or the nodes' settings, numbers or jobs do not fit; STATUS_TIMEOUT if the store
 * was not reached within the time to join, or the others have not come within so long after that,
 * with who is missing; STATUS_REFUSED if node 0's agent is gone; STATUS_PEER once told to stop. */
static status join_others(roster *r)
{
    status st = agent_store_await(&r->spec, r->server, &r->join_cancelled, &r->client);
    if (st != STATUS_OK) {
        r->nodes[0].lost = !atomic_load(&r->join_cancelled);
        return st;
    }
    name_self(r);
    st = join_group(r);
    free(r->join.there);
    if (st == STATUS_OK)
        return begin_turns(r);
    linger(r);
    return explain_loss(r, st);
}

/* What this agent tells the others. */

/* The thread tells the agent that this attempt is in trouble. */
static void set_trouble(roster *r)
{
    pthread_mutex_lock(&r->lock);
    r->shared.trouble_attempt = r->attempt;
    unlock_and_wake_agent(r);
}

/* The thread tells the agent this attempt's outcome, and hands it over. */
static void set_outcome(roster *r, const group_outcome *outcome)
{
    pthread_mutex_lock(&r->lock);
    group_outcome_free(&r->shared.outcome);
    r->shared.outcome = *outcome;
    r->shared.outcome_attempt = r->attempt;
    unlock_and_wake_agent(r);
}

/* The thread tells the agent that nothing more will come. The thread's latest message says why. */
static void set_failure(roster *r, status st)
{
    snprintf(r->why, sizeof r->why, "%s", status_text());
    r->nodes[0].lost = r->nodes[0].lost || st == STATUS_REFUSED;
    pthread_mutex_lock(&r->lock);
    r->shared.failed = st;
    unlock_and_wake_agent(r);
}

static void put(roster *r, int kind, keys_text key, const char *text)
{
    char *copy = strdup(text);
    word *w = &r->shared.words[kind];
    if (copy == NULL) {
        LOG_E("no memory for what the other nodes should hear");
        return;
    }
    pthread_mutex_lock(&r->lock);
    free(w->text);
    *w = (word){.key = key, .text = copy};
    pthread_mutex_unlock(&r->lock);
    eventfd_write(r->thread_fd, 1);
}

/* After a failure there will be a new connection, and all are sent again. */
static status send_words(roster *r)
{
    for (int i = 0; i < WORDS; i++) {
        word *w = &r->shared.words[i];
        bool there = false;
        pthread_mutex_lock(&r->lock);
        bool due = w->text != NULL && !w->sent;
        char *text = due ? strdup(w->text) : NULL;
        keys_text key = w->key;
        w->sent = w->sent || text != NULL;
        pthread_mutex_unlock(&r->lock);
        if (text == NULL)
            continue;
        status st = store_set(r->client, key.text, text, strlen(text));
        free(text);
        TRY(st);
        TRY(store_check(r->client, key.text, &there)); /* SET itself has no answer */
    }
    return STATUS_OK;
}

/* The first one on a connection also makes it an agent's: store_server_forget() ends the workers'
 * connections, and not those. And an end counts over the heartbeat's connection only. */
static status send_heartbeat(roster *r)
{
    if (r->heartbeat_ns != 0 && !clock_passed(r->heartbeat_ns))
        return STATUS_OK;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < WORDS && r->heartbeat_ns == 0; i++)
        r->shared.words[i].sent = false;
    pthread_mutex_unlock(&r->lock);
    r->heartbeat_ns = clock_deadline_ns(r->spec.rdzv.keep_alive_ms);
    return put_heartbeat(r);
}

static status look_for_trouble(roster *r)
{
    bool there = false;
    if (r->shared.trouble_attempt == r->attempt)
        return STATUS_OK;
    keys_text key = keys_make(r->prefix, KEYS_TROUBLE, r->attempt);
    TRY(store_check(r->client, key.text, &there));
    if (there)
        set_trouble(r);
    return STATUS_OK;
}

/* Node 0 hears how the nodes' workers ended, notices who is silent, and decides on the outcome. */

static bool has_ended(const roster *r, int node)
{
    return r->node_0.ends[node].state != AGENT_JOINING;
}

/* A node that cannot take part: how it ended is said here. */
static void lose(roster *r, int node, const char *why)
{
    node_end *end = &r->node_0.ends[node];
    *end = (node_end){.node = node, .lost = true, .state = AGENT_BROKEN};
    snprintf(end->text, sizeof end->text, "node %d%.500s", node, why);
}

static void lose_silent(roster *r, int node)
{
    char why[NODE_END_TEXT_BYTES], who[WHO_BYTES];
    roster_node *silent = &r->nodes[node];
    describe_holder(silent, who);
    if (silent->gone_ns != 0)
        snprintf(why, sizeof why,
                 " (%s) is gone: its launcher's connection, or its key in the store, went %.1f s "
                 "ago, and has not come back: its own output says why, if anything does",
                 who, clock_seconds(clock_now_ns() - silent->gone_ns));
    else
        snprintf(why, sizeof why,
                 " (%s) has not been heard of for %.1f s: its machine or its launcher is dead, or "
                 "the link to it is down",
                 who, clock_seconds(clock_now_ns() - silent->heard_ns));
    lose(r, node, why);
    silent->lost = true; /* it cannot be told the outcome */
}

/* A process that has ended closes its connections. A connection may also break: then the agent
 * comes back on another one. */
static status hear_living(roster *r)
{
    const worker_spec *spec = &r->spec;
    int64_t patience_ns = worker_spec_lease_ms(&r->spec) * 1000000,
            return_ns =
                (worker_spec_is_elastic(spec) ? ELASTIC_RETURN_MS : RETURN_MS) * INT64_C(1000000);
    TRY(look_who_lives(r));
    for (int i = 1; i < spec->nnodes; i++) {
        const roster_node *node = &r->nodes[i];
        if (!has_ended(r, i) &&
            (clock_now_ns() - node->heard_ns > patience_ns ||
             (node->gone_ns != 0 && clock_now_ns() - node->gone_ns > return_ns)))
            lose_silent(r, i);
    }
    return STATUS_OK;
}

/* *text: how the node says that this attempt ended, to be freed; NULL: not yet. A node's launcher
 * says it over the connection on which its heartbeat comes. Anybody may set the key. */
static status hear_end(const roster *r, int node, char **text)
{
    char author[SOCKET_ADDRESS_BYTES], launcher[SOCKET_ADDRESS_BYTES];
    keys_text key = keys_make_of(r->prefix, KEYS_ENDED, r->attempt, node);
    keys_text heartbeat = keys_make(r->prefix, KEYS_ALIVE, node);
    TRY(store_try_get(r->client, key.text, text));
    if (*text == NULL)
        return STATUS_OK;
    store_server_author(r->server, keys_make(AGENT_KEYS, key.text, -1).text, author);
    store_server_author(r->server, keys_make(AGENT_KEYS, heartbeat.text, -1).text, launcher);
    if (strcmp(author, launcher) != 0) {
        free(*text);
        *text = NULL;
    }
    return STATUS_OK;
}

/* Reads the ends that have not come yet; or `again` those that have: an agent may be told to stop
 * after its end, and leave before the outcome. Then it has told it once more. */
static status hear_ends(roster *r, bool again)
{
    for (int i = 0; i < r->spec.nnodes; i++) {
        node_end *end = &r->node_0.ends[i], heard;
        char why[NODE_END_TEXT_BYTES], *text = NULL;
        if (again ? end->signal != 0 || end->lost : has_ended(r, i))
            continue;
        TRY(hear_end(r, i, &text));
        if (text == NULL)
            continue;
        status st = node_end_read(text, i, &r->spec, &heard);
        free(text);
        if (st == STATUS_OK) {
            node_end_free(end);
            *end = heard;
        } else if (!again) {
            snprintf(why, sizeof why, ": %s", status_text());
            lose(r, i, why);
        }
    }
    return STATUS_OK;
}

/* Some have ended well and others go on: that is fine, and worth a line after a while. Or one of
 * the others is silent. */
static void say_who_goes_on(roster *r, int ended)
{
    int first = 0;
    if (r->node_0.line_ns == 0)
        r->node_0.line_ns = clock_deadline_ns(FIRST_END_LINE_MS);
    if (!clock_passed(r->node_0.line_ns))
        return;
    r->node_0.line_ns = clock_deadline_ns(NEXT_END_LINE_MS);
    while (has_ended(r, first))
        first++;
    double quiet_s = clock_seconds(clock_now_ns() - r->nodes[first].heard_ns);
    const worker_spec *spec = &r->spec;
    if (first != 0 && quiet_s * 1e3 > SILENT_BEATS * (double)spec->rdzv.keep_alive_ms)
        LOG_W(
            "%d of %d nodes have ended; node %d has not been heard of for %.1f s, and is given up "
            "after %.1f s",
            ended, r->spec.nnodes, first, quiet_s, (double)worker_spec_lease_ms(&r->spec) * 1e-3);
    else
        LOG_I("%d of %d nodes have ended; node %d goes on", ended, r->spec.nnodes, first);
}

/* All were stopped, and nobody says why: then at least who wanted it. */
static status say_who_stopped(const roster *r, group_outcome *outcome)
{
    keys_text key = keys_make(r->prefix, KEYS_TROUBLE, r->attempt);
    char address[SOCKET_ADDRESS_BYTES], name[256] = "";
    if (outcome->failed || outcome->code != EXIT_CODE_INTERNAL || outcome->text[0] != '\0')
        return STATUS_OK;
    if (r->node_0.alarmed_by >= 0) { /* this node stopped them because of how that one ended */
        key = keys_make_of(r->prefix, KEYS_ENDED, r->attempt, r->node_0.alarmed_by);
        snprintf(name, sizeof name, "node %d", r->node_0.alarmed_by);
    } else {
        char *text = NULL;
        TRY(store_try_get(r->client, key.text, &text));
        snprintf(name, sizeof name, "%.200s", text != NULL ? text : "");
        free(text);
    }
    store_server_author(r->server, keys_make(AGENT_KEYS, key.text, -1).text, address);
    snprintf(outcome->text, sizeof outcome->text,
             "all ranks were stopped, but none failed: the order came from %.64s, which calls "
             "itself '%s' and gave no reason",
             address[0] != '\0' ? address : "an unknown address", name);
    return STATUS_OK;
}

/* Node 0 believes itself, not what the store holds. */
static status decide_outcome(roster *r)
{
    group_outcome outcome = {0};
    keys_text key = keys_make(r->prefix, KEYS_OUTCOME, r->attempt);
    char *text = NULL;
    TRY(hear_ends(r, true));
    status st = group_outcome_make(r->node_0.ends, r->spec.nnodes, &r->spec, &outcome);
    if (st == STATUS_OK)
        st = say_who_stopped(r, &outcome);
    if (st == STATUS_OK && outcome.again && !worker_spec_is_elastic(&r->spec))
        store_server_forget(r->server);
    if (st == STATUS_OK)
        st = group_outcome_write(&outcome, &text);
    if (st == STATUS_OK)
        st = store_set(r->client, key.text, text, strlen(text));
    free(text);
    r->node_0.decided = st == STATUS_OK;
    if (st == STATUS_OK)
        set_outcome(r, &outcome);
    else
        group_outcome_free(&outcome);
    return st;
}

/* Looks who lives and who has ended in this attempt. If a node is lost or has ended badly, then
 * all others are told; once all have ended it decides. */
static status hear_nodes(roster *r)
{
    int ended = 0, bad = -1;
    node_end *ends = r->node_0.ends;
    if (r->node_0.attempt != r->attempt) {
        for (int i = 0; i < r->spec.nnodes; i++)
            node_end_free(&ends[i]);
        r->node_0 = (coordinator){.ends = ends, .attempt = r->attempt, .alarmed_by = -1};
    }
    if (r->node_0.decided)
        return STATUS_OK;
    TRY(hear_ends(r, false));
    TRY(hear_living(r));
    for (int i = 0; i < r->spec.nnodes; i++) {
        agent_state state = ends[i].state;
        ended += has_ended(r, i);
        bool ended_well =
            state == AGENT_SUCCEEDED || state == AGENT_PREEMPTED || state == AGENT_DIVERGED;
        if (bad < 0 && has_ended(r, i) && !ended_well)
            bad = i;
    }
    if (ended > 0 && ended < r->spec.nnodes)
        say_who_goes_on(r, ended);
    if (bad >= 0 && r->shared.trouble_attempt != r->attempt) {
        keys_text key = keys_make(r->prefix, KEYS_TROUBLE, r->attempt);
        r->node_0.alarmed_by = bad;
        TRY(store_set(r->client, key.text, "node 0", strlen("node 0")));
        set_trouble(r);
    }
    return ended == r->spec.nnodes ? decide_outcome(r) : STATUS_OK;
}

/* The others look for the outcome once they have told their end. */
static status look_for_outcome(roster *r)
{
    char *text = NULL;
    group_outcome outcome;
    if (!r->told_end || r->shared.outcome_attempt == r->attempt)
        return STATUS_OK;
    keys_text key = keys_make(r->prefix, KEYS_OUTCOME, r->attempt);
    TRY(store_try_get(r->client, key.text, &text));
    if (text == NULL)
        return STATUS_OK;
    status st = group_outcome_read(text, &outcome);
    free(text);
    if (st == STATUS_OK) {
        set_outcome(r, &outcome);
        return STATUS_OK;
    }
    set_failure(r, status_context(st, "node 0's outcome"));
    atomic_store(&r->quit, true); /* to ask again would not help */
    return STATUS_OK;
}

static status one_turn(roster *r)
{
    pthread_mutex_lock(&r->lock);
    r->attempt = r->shared.attempt;
    r->told_end = r->shared.told_end;
    pthread_mutex_unlock(&r->lock);
    TRY(send_heartbeat(r));
    TRY(send_words(r));
    TRY(look_for_trouble(r));
    return r->node_0.ends != NULL ? hear_nodes(r) : look_for_outcome(r);
}

/* Whether a failure, `st`, is final; then that is this thread's message. The connection may have
 * broken while node 0 is still there: that is believed for as long as a silent node is believed to
 * live, but not if its agent is known to be gone. `answered`: something was said over a connection.
 */
static bool gives_up(const roster *r, status st, bool answered, int64_t silent_since_ns)
{
    const worker_spec *spec = &r->spec;
    int64_t patience_ns = worker_spec_lease_ms(&r->spec) * 1000000;
    char why[512];
    if (st == STATUS_INVALID) /* another agent has this node's number */
        return true;
    snprintf(why, sizeof why, "%s", status_text());
    if (r->stopped_ns > patience_ns / 2) /* the last heartbeat was a little before that */
        FAIL(
            STATUS_PEER,
            "this node's launcher did not run for %.1f s (was it stopped, or its machine asleep?): "
            "node 0 takes a node for lost after %.3g s (--rdzv-conf=keep_alive_interval=%.3g,"
            "keep_alive_max_attempt=%d)",
            clock_seconds(r->stopped_ns), clock_seconds(patience_ns),
            (double)spec->rdzv.keep_alive_ms * 1e-3, spec->rdzv.keep_alive_misses);
    else if (st == STATUS_REFUSED)
        FAIL(STATUS_PEER,
             "node 0's launcher at %s:%d is gone: its own output says why, if anything does",
             spec->master_addr, spec->master_port);
    else if (clock_now_ns() - silent_since_ns <= patience_ns)
        return false;
    else
        FAIL(STATUS_PEER, "node 0 at %s:%d has not %s for %.1f s (%s)%s", spec->master_addr,
             spec->master_port, answered ? "given a useful answer" : "been reached",
             clock_seconds(clock_now_ns() - silent_since_ns), why,
             answered ? "" : ": that machine is down, or the link to it");
    return true;
}

/* Turn after turn; each failure costs a connection and a pause, and only a turn that went well
 * renews the patience. */
static void take_turns(roster *r)
{
    struct pollfd order = {.fd = r->thread_fd, .events = POLLIN};
    int interval_ms = (int)r->spec.monitor_ms;
    int64_t heard_ns = clock_now_ns();
    eventfd_t woken;
    while (!atomic_load(&r->quit)) {
        bool reached = r->client != NULL;
        status st = reached ? one_turn(r) : agent_store_reach(&r->spec, r->server, &r->client);
        if (st == STATUS_OK && reached) {
            heard_ns = clock_now_ns();
            poll(&order, 1, interval_ms > 0 ? interval_ms : 1);
            r->stopped_ns = clock_now_ns() - heard_ns - interval_ms * INT64_C(1000000);
            eventfd_read(r->thread_fd, &woken);
        }
        if (st == STATUS_OK)
            continue;
        store_destroy(r->client);
        r->client = NULL;
        r->heartbeat_ns = 0;
        if (gives_up(r, st, reached && st != STATUS_TIMEOUT, heard_ns)) {
            set_failure(r, st);
            return;
        }
        clock_sleep_ms(RETRY_MS);
    }
    if (r->client != NULL && send_words(r) != STATUS_OK)
        LOG_D("last words to the other nodes: %s", status_text());
}

static void *roster_thread(void *arg)
{
    roster *r = arg;
    status st = join_others(r);
    if (st == STATUS_OK)
        take_turns(r);
    else
        set_failure(r, st);
    pthread_mutex_lock(&r->lock);
    r->shared.finished = true;
    eventfd_write(r->agent_fd, 1); /* before the lock is free: then the roster may be freed */
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void free_roster(roster *r)
{
    store_destroy(r->client); /* the number is free again */
    free(r->nodes);
    for (int i = 0; i < r->spec.nnodes && r->node_0.ends != NULL; i++)
        node_end_free(&r->node_0.ends[i]);
    free(r->node_0.ends);
    for (int i = 0; i < WORDS; i++)
        free(r->shared.words[i].text);
    group_outcome_free(&r->shared.outcome);
    pthread_mutex_destroy(&r->lock);
    if (r->thread_fd >= 0)
        close(r->thread_fd);
    if (r->agent_fd >= 0)
        close(r->agent_fd);
    round_state_free(&r->spec.now);
    free(r);
}

/* Elastic: node 0 names who has not come in half of a lease, and the next round is without them.
 * Who lives is a newcomer then. The others wait for its word. */
static int64_t time_to_come_ms(const roster *r)
{
    if (r->server == NULL || worker_spec_lease_ms(&r->spec) < COME_MS)
        return r->server == NULL ? 2 * worker_spec_lease_ms(&r->spec)
                                 : worker_spec_lease_ms(&r->spec);
    return worker_spec_lease_ms(&r->spec) / 2 > COME_MS ? worker_spec_lease_ms(&r->spec) / 2
                                                        : COME_MS;
}

status roster_create(const worker_spec *spec, store_server *server, roster **out)
{
    roster *r = calloc(1, sizeof *r);
    if (r == NULL)
        return FAIL(STATUS_NO_MEMORY, "a roster");
    char prefix[sizeof AGENT_KEYS + sizeof r->prefix];
    r->agent_fd = r->thread_fd = -1;
    r->shared = (shared_state){.told_trouble = -1, .trouble_attempt = -1, .outcome_attempt = -1};
    pthread_mutex_init(&r->lock, NULL);
    r->server = server;
    r->member = -1;
    r->revision = -1;
    r->node_0.alarmed_by = -1;
    r->spec = *spec; /* a copy: the agent goes on, and the thread may hang in this round */
    r->spec.now = (round_state){0};
    status st = round_state_copy(&spec->now, &r->spec.now);
    if (worker_spec_is_elastic(spec))
        r->spec.rdzv.join_ms = time_to_come_ms(r);
    if (worker_spec_is_elastic(spec))
        snprintf(r->prefix, sizeof r->prefix, "%s/%lld/", spec->run_id, (long long)spec->now.round);
    else
        snprintf(r->prefix, sizeof r->prefix, "%s/", spec->run_id);
    r->nodes = calloc((size_t)spec->nnodes, sizeof *r->nodes);
    if (st == STATUS_OK && r->nodes == NULL)
        st = FAIL(STATUS_NO_MEMORY, "%d nodes", spec->nnodes);
    r->thread_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->agent_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (st == STATUS_OK && (r->thread_fd < 0 || r->agent_fd < 0))
        st = FAIL(STATUS_IO, "eventfd: %s", file_limit_reason(errno));
    /* Of an elastic job only the round's: those of ended rounds go with what its ranks have left.
     */
    snprintf(prefix, sizeof prefix, "%s%s", AGENT_KEYS,
             worker_spec_is_elastic(spec) ? r->prefix : "");
    if (st == STATUS_OK && server != NULL)
        st = store_server_keep(server, prefix);
    if (st == STATUS_OK)
        st = thread_start(roster_thread, r, "the roster's", &r->thread);
    if (st == STATUS_OK)
        *out = r;
    else
        free_roster(r);
    return st;
}

int roster_fd(const roster *r)
{
    return r != NULL ? r->agent_fd : -1;
}

roster_news roster_take_news(roster *r)
{
    const shared_state *s = &r->shared;
    eventfd_t woken;
    pthread_mutex_lock(&r->lock);
    eventfd_read(r->agent_fd, &woken);
    roster_news now = {.joined = s->joined,
                       .nnodes = s->joined ? r->spec.nnodes : 0,
                       .failure = s->failed != STATUS_OK ? r->why : NULL,
                       .unfit = s->failed == STATUS_INVALID,
                       .in_trouble = s->trouble_attempt == s->attempt,
                       .has_outcome = s->outcome_attempt == s->attempt};
    pthread_mutex_unlock(&r->lock);
    return now;
}

void roster_start_attempt(roster *r, int attempt)
{
    pthread_mutex_lock(&r->lock);
    r->shared.attempt = attempt;
    r->shared.told_end = false;
    if (!worker_spec_is_elastic(&r->spec))
        r->spec.now.restarts = attempt;
    pthread_mutex_unlock(&r->lock);
}

void roster_tell_trouble(roster *r)
{
    char text[WHO_BYTES + 32];
    if (r == NULL || r->shared.told_trouble == r->shared.attempt)
        return;
    r->shared.told_trouble = r->shared.attempt;
    snprintf(text, sizeof text, "node %d (%s)", r->member, r->who);
    put(r, WORD_TROUBLE, keys_make(r->prefix, KEYS_TROUBLE, r->shared.attempt), text);
}

void roster_tell_end(roster *r, const node_end *end)
{
    char *text = NULL;
    keys_text key = keys_make_of(r->prefix, KEYS_ENDED, r->shared.attempt, r->member);
    if (node_end_write(end, &text) == STATUS_OK)
        put(r, WORD_END + r->shared.attempt % 2, key, text);
    else
        LOG_E("%s", status_text());
    free(text);
    pthread_mutex_lock(&r->lock);
    r->shared.told_end = true;
    pthread_mutex_unlock(&r->lock);
    eventfd_write(r->thread_fd, 1);
}

bool roster_has_lost(const roster *r, int node)
{
    return r->nodes[node].lost;
}

group_outcome roster_take_outcome(roster *r)
{
    pthread_mutex_lock(&r->lock);
    group_outcome outcome = r->shared.outcome;
    r->shared.outcome = (group_outcome){0};
    pthread_mutex_unlock(&r->lock);
    return outcome;
}

/* Node 0's store is there until all others have read what it says: then they close their
 * connections. */
static void say_goodbye(roster *r)
{
    int64_t deadline_ns = clock_deadline_ns(ROSTER_GOODBYE_MS);
    bool waits = r->node_0.ends != NULL && r->shared.outcome_attempt >= 0 && r->client != NULL;
    while (waits && !clock_passed(deadline_ns) && look_who_lives(r) == STATUS_OK) {
        waits = false;
        for (int i = 1; i < r->spec.nnodes; i++)
            waits = waits || (r->nodes[i].there && !r->nodes[i].lost);
        if (waits)
            clock_sleep_ms(2);
    }
}

void roster_cancel_join(roster *r)
{
    atomic_store(&r->join_cancelled, true);
}

/* Waits QUIT_MS at most for the thread's end. */
static bool join_thread(roster *r)
{
    int64_t deadline_ns = clock_deadline_ns(QUIT_MS);
    struct pollfd wake = {.fd = r->agent_fd, .events = POLLIN};
    eventfd_t count;
    for (;;) {
        pthread_mutex_lock(&r->lock);
        bool finished = r->shared.finished;
        pthread_mutex_unlock(&r->lock);
        if (finished)
            return pthread_join(r->thread, NULL) == 0;
        if (clock_passed(deadline_ns))
            return false;
        poll(&wake, 1, clock_remaining_ms(deadline_ns));
        eventfd_read(r->agent_fd, &count);
    }
}

bool roster_destroy(roster *r)
{
    if (r == NULL)
        return true;
    atomic_store(&r->join_cancelled, true);
    atomic_store(&r->quit, true);
    eventfd_write(r->thread_fd, 1);
    if (!join_thread(r)) {
        pthread_detach(r->thread); /* it waits for a name or a dead host; the process ends */
        return false;
    }
    say_goodbye(r);
    free_roster(r);
    return true;
}
