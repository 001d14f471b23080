/* Sends and receives: one by one, many at once in every order, and in batches. */
#include "tests/support/conformance.h"

#include <stdlib.h>

enum {
    PER_PAIR = 6, /* messages from one rank to another, two of each tag */
    TAGS = PER_PAIR / 2,
    MOST = 2 * PER_PAIR * CONFORMANCE_RANKS,
    ORDERS = 4,
};

static const size_t COUNTS[] = {1, 7, 1009, 3, 20011, 64};

/* Every rank sends to the next, in turn. */
static status send_around(conformance_state *s, dtype type, size_t count, int turn)
{
    for (int from = 0; from < s->world_size && s->world_size > 1; from++) {
        int to = (from + 1) % s->world_size;
        conformance_case what = {.kind = s->rank == from ? COLLECTIVE_SEND : COLLECTIVE_RECV,
                                 .type = type,
                                 .memory = s->plan->memory[turn % s->plan->n_memory],
                                 .count = count,
                                 .root = s->rank == from ? to : from,
                                 .prescale = 1};
        if (s->rank == from || s->rank == to)
            TRY(conformance_case_run(s->group, &s->arena, &what));
    }
    return STATUS_OK;
}

status conformance_sends(conformance_state *s, const conformance_row *row)
{
    static const size_t counts[] = {0, 1, 7, 1009, 120001};
    int turn = 0;
    (void)row;
    for (int n = 0; n < 5; n++)
        for (int type = 0; type < DTYPE_COUNT; type++, turn++)
            for (int k = 0; k < (s->plan->whole ? s->plan->n_memory : 1); k++)
                TRY(send_around(s, (dtype)type, counts[n], turn + k));
    return STATUS_OK;
}

/* All messages between this rank and the others. */
typedef struct messages {
    prepared_case list[MOST];
    work *works[MOST];
    int n;
    size_t used_bytes;
} messages;

static status add(conformance_state *s, messages *m, collective_kind kind, int peer, int number,
                  int turn)
{
    conformance_case what = {.kind = kind,
                             .type = (dtype)((number + turn) % DTYPE_COUNT),
                             .memory = s->plan->memory[(number + turn) % s->plan->n_memory],
                             .count = COUNTS[(number + turn) % PER_PAIR],
                             .root = peer,
                             .tag = number / 2,
                             .prescale = 1};
    TRY(conformance_case_prepare(s->group, &s->arena, &what, m->used_bytes, &m->list[m->n]));
    m->used_bytes += conformance_case_bytes(&what, s->world_size);
    m->n++;
    return STATUS_OK;
}

/* Adds all messages of one kind with one peer. Equal tags keep their order, the tags do not. */
static status add_peer(conformance_state *s, messages *m, collective_kind kind, int peer, int turn)
{
    bool backwards = (kind == COLLECTIVE_RECV) == (turn % 2 == 0);
    for (int i = 0; i < TAGS; i++)
        for (int second = 0; second < 2; second++)
            TRY(add(s, m, kind, peer, (backwards ? TAGS - 1 - i : i) * 2 + second, turn));
    return STATUS_OK;
}

/* Turn 0: all receives first; 1: all sends; 2 and 3: peer by peer, up and down, so that some rank
 * sends first what another receives last. */
static status fill(conformance_state *s, messages *m, int turn)
{
    int peers = s->world_size - 1;
    collective_kind first = turn % 2 == 0 ? COLLECTIVE_RECV : COLLECTIVE_SEND;
    collective_kind second = turn % 2 == 0 ? COLLECTIVE_SEND : COLLECTIVE_RECV;
    m->n = 0;
    m->used_bytes = 0;
    for (int i = 1; i <= peers; i++) {
        int peer = turn < 3 ? (s->rank + i) % s->world_size : i - 1 + (i > s->rank);
        TRY(add_peer(s, m, first, peer, turn));
        if (turn >= 2)
            TRY(add_peer(s, m, second, peer, turn));
    }
    for (int i = 1; i <= peers && turn < 2; i++)
        TRY(add_peer(s, m, second, (s->rank + i) % s->world_size, turn));
    return STATUS_OK;
}

static status finish(conformance_state *s, messages *m)
{
    for (int i = 0; i < m->n; i++)
        TRY(process_group_wait(s->group, m->works[i], NULL));
    for (int i = 0; i < m->n; i++)
        TRY(conformance_case_check(&m->list[i]));
    return STATUS_OK;
}

static device_stream *stream_of(const conformance_state *s, const prepared_case *p)
{
    return p->on_device ? s->arena.stream : NULL;
}

static status exchange_singly(conformance_state *s, messages *m, int turn)
{
    TRY(fill(s, m, turn));
    for (int i = 0; i < m->n; i++)
        TRY(process_group_launch(s->group, &m->list[i].c, stream_of(s, &m->list[i]), &m->works[i]));
    return finish(s, m);
}

/* A batch is in one kind of memory: the plan's first. */
static status exchange_in_batch(conformance_state *s, messages *m, int turn)
{
    collective list[MOST];
    conformance_plan one = *s->plan;
    conformance_state state = *s;
    one.memory = &s->plan->memory[turn % s->plan->n_memory];
    one.n_memory = 1;
    state.plan = &one;
    TRY(fill(&state, m, turn));
    for (int i = 0; i < m->n; i++)
        list[i] = m->list[i].c;
    TRY(process_group_batch_isend_irecv(s->group, list, m->n,
                                        m->n > 0 ? stream_of(s, &m->list[0]) : NULL, m->works));
    return finish(s, m);
}

static status exchange(conformance_state *s, status (*how)(conformance_state *, messages *, int))
{
    messages *m = malloc(sizeof *m);
    if (m == NULL)
        return FAIL(STATUS_NO_MEMORY, "a list of messages");
    status st = STATUS_OK;
    for (int turn = 0; turn < ORDERS && st == STATUS_OK; turn++)
        st = how(s, m, turn);
    free(m);
    return st;
}

status conformance_isends(conformance_state *s, const conformance_row *row)
{
    (void)row;
    return exchange(s, exchange_singly);
}

status conformance_batches(conformance_state *s, const conformance_row *row)
{
    (void)row;
    return exchange(s, exchange_in_batch);
}
