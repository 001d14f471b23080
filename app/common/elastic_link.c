#include "app/common/elastic_link.h"

#include "base/clock.h"
#include "base/host.h"
#include "base/json_text.h"
#include "base/text.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PACKET_BYTES = 1024 };

/* The numbers of a place. */
static const struct {
    const char *key;
    size_t at;
    int low, high;
} NUMBERS[] = {
    {"rank", offsetof(elastic_place, rank), 0, INT_MAX},
    {"world_size", offsetof(elastic_place, world_size), 1, INT_MAX},
    {"local_rank", offsetof(elastic_place, local_rank), 0, INT_MAX},
    {"local_world_size", offsetof(elastic_place, local_world_size), 1, INT_MAX},
    {"node_rank", offsetof(elastic_place, node_rank), 0, INT_MAX},
    {"nnodes", offsetof(elastic_place, nnodes), 1, INT_MAX},
    {"restarts", offsetof(elastic_place, restarts), 0, INT_MAX},
    {"master_port", offsetof(elastic_place, master_port), 1, 65535},
};
enum { N_NUMBERS = sizeof NUMBERS / sizeof NUMBERS[0] };

static const char *const WORDS[] = {
    [ELASTIC_PAUSE] = "pause",
    [ELASTIC_LEAVE] = "leave",
    [ELASTIC_LEFT] = "left",
    [ELASTIC_JOIN] = "join",
};
enum { N_WORDS = sizeof WORDS / sizeof WORDS[0] };

static json_t *make_place(const elastic_message *message)
{
    const elastic_place *place = &message->place;
    json_t *made = json_object();
    json_object_set_new(made, "round", json_integer(message->round));
    json_object_set_new(made, "master_addr", json_string(place->master_addr));
    for (int i = 0; i < N_NUMBERS; i++) {
        int value;
        memcpy(&value, (const char *)place + NUMBERS[i].at, sizeof value);
        json_object_set_new(made, NUMBERS[i].key, json_integer(value));
    }
    return made;
}

static status send_packet(int fd, const char *text)
{
    ssize_t n;
    do
        n = send(fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n >= 0 ? STATUS_OK
                  : FAIL(STATUS_PEER, "the other end of an elastic rank's link does not read: %s",
                         strerror(errno));
}

status elastic_link_send(int fd, const elastic_message *message)
{
    const char *word = WORDS[message->word];
    char *text = NULL;
    json_t *packet = json_object();
    json_object_set_new(packet, word,
                        message->word == ELASTIC_JOIN ? make_place(message)
                                                      : json_integer(message->round));
    if (message->word == ELASTIC_LEFT)
        json_object_set_new(packet, "step", json_integer(message->step));
    if (message->unmet)
        json_object_set_new(packet, "unmet", json_true());
    status st = json_text_print(packet, JSON_COMPACT, &text);
    json_decref(packet);
    if (st == STATUS_OK)
        st = send_packet(fd, text);
    free(text);
    return st;
}

static status nonsense(const char *text)
{
    return FAIL(STATUS_INVALID, "an elastic rank's link says nonsense: \"%.100s\"", text);
}

static bool read_number(const json_t *object, const char *key, int64_t low, int64_t high,
                        int64_t *out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_integer_value(value);
    return json_is_integer(value) && *out >= low && *out <= high;
}

static bool read_place(const json_t *from, elastic_message *out)
{
    elastic_place *place = &out->place;
    const char *address = json_string_value(json_object_get(from, "master_addr"));
    int64_t value = 0;
    if (!read_number(from, "round", 1, INT_MAX, &place->round) || address == NULL ||
        address[0] == '\0' || strlen(address) >= sizeof place->master_addr)
        return false;
    out->round = place->round;
    memcpy(place->master_addr, address, strlen(address) + 1);
    for (int i = 0; i < N_NUMBERS; i++) {
        if (!read_number(from, NUMBERS[i].key, NUMBERS[i].low, NUMBERS[i].high, &value))
            return false;
        memcpy((char *)place + NUMBERS[i].at, &(int){(int)value}, sizeof(int));
    }
    return place->rank < place->world_size && place->local_rank < place->local_world_size &&
           place->local_world_size <= place->world_size && place->node_rank < place->nnodes;
}

static bool read_message(const json_t *packet, elastic_message *out)
{
    for (int word = 0; word < N_WORDS; word++) {
        const json_t *value = json_object_get(packet, WORDS[word]);
        out->word = (elastic_word)word;
        if (value == NULL)
            continue;
        if (word == ELASTIC_JOIN)
            return read_place(value, out);
        out->unmet = json_is_true(json_object_get(packet, "unmet"));
        return read_number(packet, WORDS[word], 0, INT_MAX, &out->round) &&
               (word != ELASTIC_LEFT || read_number(packet, "step", -1, INT64_MAX, &out->step));
    }
    return false;
}

status elastic_link_receive(int fd, elastic_message *out, bool *came)
{
    char text[PACKET_BYTES + 1];
    elastic_message message = {0};
    ssize_t n;
    do
        n = recv(fd, text, PACKET_BYTES, MSG_DONTWAIT | MSG_TRUNC);
    while (n < 0 && errno == EINTR);
    *came = false;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return STATUS_OK;
    if (n <= 0)
        return FAIL(STATUS_PEER, "the other end of an elastic rank's link is gone");
    text[n < PACKET_BYTES ? n : PACKET_BYTES] = '\0';
    json_t *packet = n <= PACKET_BYTES ? json_text_parse(text, (size_t)n, 0, NULL) : NULL;
    bool ok = read_message(packet, &message);
    json_decref(packet);
    if (!ok)
        return nonsense(text);
    *out = message;
    *came = true;
    return STATUS_OK;
}

/* What is shared. */
typedef struct fence_word {
    _Atomic int64_t valid_until_ns; /* clock_now_ns(), which is one clock for all of a host */
} fence_word;

struct round_fence {
    int fd;
    fence_word *word;
};

/* Takes `fd` at once, also on failure. */
static status map_word(int fd, round_fence **out)
{
    round_fence *fence = malloc(sizeof *fence);
    void *word = mmap(NULL, sizeof(fence_word), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fence == NULL || word == MAP_FAILED) {
        status st = fence == NULL ? FAIL(STATUS_NO_MEMORY, "a round's fence")
                                  : FAIL(STATUS_IO, "mmap of a round's fence: %s", strerror(errno));
        if (word != MAP_FAILED)
            munmap(word, sizeof(fence_word));
        free(fence);
        close(fd);
        return st;
    }
    *fence = (round_fence){.fd = fd, .word = word};
    *out = fence;
    return STATUS_OK;
}

status round_fence_create(round_fence **out)
{
    int fd = memfd_create("mnist_ddp round fence", MFD_CLOEXEC);
    if (fd < 0)
        return FAIL(STATUS_IO, "memfd_create: %s", file_limit_reason(errno));
    if (ftruncate(fd, sizeof(fence_word)) != 0) {
        status st = FAIL(STATUS_IO, "a round's fence: %s", strerror(errno));
        close(fd);
        return st;
    }
    return map_word(fd, out);
}

int round_fence_fd(const round_fence *fence)
{
    return fence->fd;
}

void round_fence_set(round_fence *fence, int64_t valid_until_ns)
{
    atomic_store(&fence->word->valid_until_ns, valid_until_ns);
}

status round_fence_open(round_fence **out)
{
    const char *text = environment_text(ROUND_FENCE_VARIABLE);
    struct stat facts;
    int fd = -1;
    *out = NULL;
    if (text == NULL)
        return STATUS_OK;
    if (!number_parse(text, 0, INT_MAX, &fd) || fstat(fd, &facts) != 0 ||
        facts.st_size < (off_t)sizeof(fence_word))
        return FAIL(STATUS_IO, "%s=%.40s is no memory that the launcher shares",
                    ROUND_FENCE_VARIABLE, text);
    return map_word(fd, out);
}

bool round_fence_allows(const round_fence *fence)
{
    return fence == NULL || clock_now_ns() < atomic_load(&fence->word->valid_until_ns);
}

void round_fence_close(round_fence *fence)
{
    if (fence == NULL)
        return;
    munmap(fence->word, sizeof *fence->word);
    close(fence->fd);
    free(fence);
}
