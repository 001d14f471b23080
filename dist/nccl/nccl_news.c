#include "dist/nccl/nccl_news.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 96, VALUE_BYTES = 640, STAT_BYTES = 256, MOST_NAMED = 4 };

void nccl_news_init(nccl_news *news, const process_group_options *options, const char *prefix,
                    const peer_watch *peers)
{
    *news = (nccl_news){.keys = options->store,
                        .peers = peers,
                        .rank = options->rank,
                        .world_size = options->world_size};
    snprintf(news->prefix, sizeof news->prefix, "%s", prefix);
}

/* Sets "<prefix>nccl/<name>", or "<prefix>nccl/<name>/<rank>". Where that fails the others learn
 * less. */
static void tell(const nccl_news *news, const char *name, int rank, const char *text)
{
    char key[KEY_BYTES];
    if (rank < 0)
        snprintf(key, sizeof key, "%snccl/%s", news->prefix, name);
    else
        snprintf(key, sizeof key, "%snccl/%s/%d", news->prefix, name, rank);
    (void)store_set(news->keys, key, text, strlen(text));
}

/* STATUS_OK with "" where the key is not there. */
static status ask(const nccl_news *news, const char *name, int rank, char *text)
{
    char key[KEY_BYTES];
    bool there = false;
    void *value = NULL;
    size_t size_bytes = 0;
    if (rank < 0)
        snprintf(key, sizeof key, "%snccl/%s", news->prefix, name);
    else
        snprintf(key, sizeof key, "%snccl/%s/%d", news->prefix, name, rank);
    text[0] = '\0';
    TRY(store_check(news->keys, key, &there));
    if (!there)
        return STATUS_OK;
    TRY(store_get(news->keys, key, &value, &size_bytes));
    snprintf(text, VALUE_BYTES, "%s", (const char *)value);
    free(value);
    return STATUS_OK;
}

void nccl_news_tell_waiting(const nccl_news *news, uint64_t number)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, number);
    tell(news, "waits", news->rank, text);
}

/* By SIGSTOP or a debugger: the state behind the name in /proc/<pid>/stat. */
static bool is_stopped(int pid)
{
    char path[64], text[STAT_BYTES] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return false;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    const char *name_end = strrchr(text, ')');
    return name_end != NULL && name_end[1] == ' ' && (name_end[2] == 'T' || name_end[2] == 't');
}

static bool name_stopped(const nccl_news *news, char *out, size_t size_bytes)
{
    for (int rank = 0; rank < news->world_size && news->peers != NULL; rank++) {
        int pid = peer_watch_pid(news->peers, rank);
        if (rank == news->rank || !is_stopped(pid))
            continue;
        snprintf(out, size_bytes, ": rank %d (pid %d) is stopped", rank, pid);
        return true;
    }
    return false;
}

bool nccl_news_has_stopped(const nccl_news *news)
{
    char who[64];
    return name_stopped(news, who, sizeof who);
}

void nccl_news_name_late(const nccl_news *news, uint64_t number, char *out, size_t size_bytes)
{
    char text[VALUE_BYTES];
    int named = 0;
    size_t used = 0;
    out[0] = '\0';
    if (name_stopped(news, out, size_bytes))
        return;
    for (int rank = 0; rank < news->world_size && named < MOST_NAMED && used < size_bytes; rank++) {
        if (rank == news->rank)
            continue;
        if (ask(news, "waits", rank, text) != STATUS_OK)
            return;
        if (text[0] != '\0' && strtoull(text, NULL, 10) >= number)
            continue;
        used += (size_t)snprintf(out + used, size_bytes - used,
                                 named == 0 ? ": rank %d has not come" : ", nor rank %d", rank);
        named++;
    }
}

void nccl_news_tell_leaving(const nccl_news *news, const nccl_leave *how)
{
    char text[VALUE_BYTES], me[32];
    snprintf(text, sizeof text, "%" PRIu64 " %d %s", how->number, (int)how->why, how->words);
    tell(news, "left", news->rank, text);
    snprintf(me, sizeof me, "%d", news->rank);
    tell(news, "left", -1, me);
}

bool nccl_news_has_left(const nccl_news *news, int rank, nccl_leave *how)
{
    char text[VALUE_BYTES];
    int code = 0, words_at = 0;
    if (ask(news, "left", rank, text) != STATUS_OK ||
        sscanf(text, "%" SCNu64 " %d %n", &how->number, &code, &words_at) < 2)
        return false;
    how->why = code > STATUS_OK && code <= STATUS_DEVICE ? (status)code : STATUS_OK;
    snprintf(how->words, sizeof how->words, "%.500s", text + words_at);
    return true;
}

int nccl_news_latest_leaver(const nccl_news *news)
{
    char text[VALUE_BYTES];
    if (ask(news, "left", -1, text) != STATUS_OK || text[0] == '\0')
        return -1;
    int rank = atoi(text);
    return rank >= 0 && rank < news->world_size && rank != news->rank ? rank : -1;
}

int nccl_news_agree_on_lost(const nccl_news *news, int dead)
{
    char key[KEY_BYTES], mine[32];
    void *value = NULL;
    size_t size_bytes = 0;
    snprintf(key, sizeof key, "%snccl/lost", news->prefix);
    snprintf(mine, sizeof mine, "%d", dead);
    if (store_compare_set(news->keys, key, "", mine, &value, &size_bytes) != STATUS_OK)
        return dead;
    int lost = atoi(value);
    free(value);
    return lost >= 0 && lost < news->world_size && lost != news->rank ? lost : dead;
}
