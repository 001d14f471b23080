#include "dist/backends/hierarchical/level.h"

#include "dist/health/peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the level's backend is made from; lives as long as this. */
typedef struct level_setup {
    process_group_options options;
    char prefix[PROCESS_GROUP_PREFIX_BYTES];
    group_setup setup;
} level_setup;

static status describe(const level *l, const group_setup *whole, level_setup *out)
{
    out->options = *whole->options;
    out->options.rank = l->rank;
    out->options.world_size = l->n;
    out->options.shared_bytes = l->shared_bytes;
    int length = snprintf(out->prefix, sizeof out->prefix, "%s%s", whole->prefix, l->key);
    if (length < 0 || (size_t)length >= sizeof out->prefix)
        return FAIL(STATUS_INVALID, "sub-groups of sub-groups, too deep: at %s", whole->prefix);
    out->setup =
        (group_setup){.options = &out->options, .prefix = out->prefix, .one_host = l->one_host};
    return STATUS_OK;
}

/* "rank 1 (pid 71) is gone" -> "rank 5 (pid 71) is gone" */
static void name_ranks_of_the_whole(const level *l, status_kept *message)
{
    static const char word[] = "rank ";
    char text[sizeof message->text];
    size_t used = 0;
    for (const char *at = message->text; *at != '\0' && used + 32 < sizeof text;) {
        char *end = NULL;
        long number = -1;
        if (strncmp(at, word, sizeof word - 1) == 0)
            number = strtol(at + sizeof word - 1, &end, 10);
        if (number >= 0 && number < l->n && end != at + sizeof word - 1) {
            used += (size_t)snprintf(text + used, sizeof text - used, "rank %d", l->ranks[number]);
            at = end;
        } else {
            text[used++] = *at++;
        }
    }
    text[used] = '\0';
    memcpy(message->text, text, used + 1);
}

status level_fail(level *l, status st)
{
    status_kept message;
    status_keep(&message);
    name_ranks_of_the_whole(l, &message);
    status_restore(&message);
    l->failed = true;
    return status_context(st, "%s (%s)", l->name, l->ops->name);
}

static bool is_needed(const level *l)
{
    return l->rank >= 0 && (l->n > 1 || l->shared_bytes > 0);
}

status level_create(level *l, const group_setup *whole)
{
    level_setup made;
    if (!is_needed(l))
        return STATUS_OK;
    TRY(describe(l, whole, &made));
    status st = l->ops->create(&made.setup, &l->self);
    return st == STATUS_OK ? st : level_fail(l, st);
}

void level_decline(const level *l, const group_setup *whole)
{
    level_setup made;
    if (is_needed(l) && describe(l, whole, &made) == STATUS_OK)
        peers_decline(&made.setup);
}

status level_launch(level *l, const collective *c, void **out_work)
{
    collective numbered = *c;
    *out_work = NULL;
    if (l->n == 1) {
        collective_do_alone(c);
        return STATUS_OK;
    }
    if (l->numbers)
        numbered.seq = ++l->seq;
    status st = l->ops->launch(l->self, &numbered, NULL, out_work);
    return st == STATUS_OK ? st : level_fail(l, st);
}

status level_wait(level *l, void *w, int64_t deadline_ns)
{
    int64_t done_ns = 0;
    if (w == NULL)
        return STATUS_OK;
    status st = l->ops->wait(l->self, w, deadline_ns, &done_ns);
    return st == STATUS_OK ? st : level_fail(l, st);
}

void level_close(level *l, bool abandons)
{
    void *never_waited_for = NULL;
    if (l->self != NULL) {
        /* A backend that ends with work under way does not wait for its peers. No barrier of theirs
         * has that number: else they could pass it by this one. */
        if (abandons && !l->failed)
            (void)l->ops->launch(
                l->self,
                &(collective){.kind = COLLECTIVE_BARRIER, .prescale = 1, .seq = UINT64_MAX}, NULL,
                &never_waited_for);
        l->ops->destroy(l->self);
    }
    free(l->ranks);
    *l = (level){0};
}
