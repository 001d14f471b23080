#include "dist/rendezvous.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/host.h"
#include "base/log.h"
#include "base/text.h"
#include "dist/membership/keys.h"
#include "dist/membership/membership.h"
#include "dist/net/socket.h"
#include "dist/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* --init-method. */

enum { SHOWN_BYTES = 200, WORD_BYTES = 64 };

/* Are the first `length` bytes of `text` this word? */
static bool is_word(const char *text, size_t length, const char *word)
{
    return length == strlen(word) && memcmp(text, word, length) == 0;
}

/* Copies [from, to) and ends it. false if it does not fit. */
static bool copy(const char *from, const char *to, char *out, size_t size_bytes)
{
    size_t length = (size_t)(to - from);
    if (length >= size_bytes)
        return false;
    memcpy(out, from, length);
    out[length] = '\0';
    return true;
}

/* "rank=0" or "world_size=2". */
static status take_pair(const char *pair, init_method *method)
{
    const char *equals = strchr(pair, '=');
    size_t length = equals != NULL ? (size_t)(equals - pair) : strlen(pair);
    int *field = NULL, low = 0;
    if (is_word(pair, length, "rank"))
        field = &method->rank;
    if (is_word(pair, length, "world_size")) {
        field = &method->world_size;
        low = 1;
    }
    if (field == NULL)
        return FAIL(STATUS_INVALID, "'%s' is neither rank=R nor world_size=N", pair);
    if (*field >= 0)
        return FAIL(STATUS_INVALID, "'%s' is the second of its name: give it once", pair);
    if (equals == NULL || !number_parse(equals + 1, low, INT_MAX, field))
        return FAIL(STATUS_INVALID, "'%s' is not a whole number from %d on", pair, low);
    return STATUS_OK;
}

/* "rank=0&world_size=2", after the question mark. */
static status take_query(const char *query, init_method *method)
{
    for (const char *at = query; *at != '\0';) {
        char pair[WORD_BYTES];
        const char *end = at + strcspn(at, "&");
        if (!copy(at, end, pair, sizeof pair))
            return FAIL(STATUS_INVALID, "'%.*s...' is neither rank=R nor world_size=N", WORD_BYTES,
                        at);
        TRY(take_pair(pair, method));
        at = end + (*end == '&');
    }
    return STATUS_OK;
}

static status take_tcp(const char *place, init_method *method)
{
    enum { NO_PORT = -1 };
    TRY(socket_address_parse(place, NO_PORT, method->host, sizeof method->host, &method->port));
    if (method->port == NO_PORT)
        return FAIL(STATUS_INVALID, "the port is missing: tcp://HOST:PORT, the same for all ranks");
    if (method->port == 0)
        return FAIL(STATUS_INVALID, "port 0 is no port that the other ranks could know");
    return STATUS_OK;
}

static status take_file(const char *place, init_method *method)
{
    if (place[0] != '/' || place[1] == '\0')
        return FAIL(STATUS_INVALID, "the path is absolute, and begins with a third slash: "
                                    "file:///PATH");
    if (!copy(place, place + strlen(place), method->path, sizeof method->path))
        return FAIL(STATUS_INVALID, "a path of %zu bytes: at most %d are allowed", strlen(place),
                    INIT_METHOD_PATH_BYTES - 1);
    return STATUS_OK;
}

static status parse(const char *text, init_method *method)
{
    char place[INIT_METHOD_PATH_BYTES + WORD_BYTES];
    size_t scheme = strcspn(text, ":");
    if (strncmp(text + scheme, "://", strlen("://")) != 0)
        return FAIL(STATUS_INVALID, "expected is env://, tcp://HOST:PORT or file:///PATH");
    const char *from = text + scheme + strlen("://"), *end = from + strcspn(from, "?");
    if (!copy(from, end, place, sizeof place))
        return FAIL(STATUS_INVALID, "%zu bytes are too many", strlen(text));
    if (*end == '?')
        TRY(take_query(end + 1, method));
    if (is_word(text, scheme, "tcp")) {
        method->kind = INIT_METHOD_TCP;
        return take_tcp(place, method);
    }
    if (is_word(text, scheme, "file")) {
        method->kind = INIT_METHOD_FILE;
        return take_file(place, method);
    }
    if (!is_word(text, scheme, "env"))
        return FAIL(STATUS_INVALID, "no such method: there are env://, tcp://HOST:PORT and "
                                    "file:///PATH");
    if (place[0] != '\0')
        return FAIL(STATUS_INVALID, "nothing but ?rank=R&world_size=N may follow env://");
    return STATUS_OK;
}

status init_method_parse(const char *text, init_method *out)
{
    init_method method = {.rank = -1, .world_size = -1};
    TRY(status_context(parse(text, &method), "--init-method=%.*s", SHOWN_BYTES, text));
    *out = method;
    return STATUS_OK;
}

/* This process's place. */

enum { MAX_RANKS = 1 << 20 };

static status number(const char *name, const char *text, int low, int high, int *out)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0')
        return FAIL(STATUS_INVALID, "environment variable %s=%.40s is not a whole number", name,
                    text);
    if (errno != 0 || value < low || value > high)
        return FAIL(STATUS_INVALID, "environment variable %s=%.40s is not in %d..%d", name, text,
                    low, high);
    *out = (int)value;
    return STATUS_OK;
}

static status missing(const char *name, const char *hint)
{
    return FAIL(STATUS_INVALID,
                "environment variable %s expected, but not set: %s, or start the ranks with "
                "`mnist_ddp run` or torchrun, which set it",
                name, hint);
}

static status required(const char *name, const char *hint, int low, int high, int *out)
{
    const char *text = environment_text(name);
    return text == NULL ? missing(name, hint) : number(name, text, low, high, out);
}

static status optional(const char *name, int low, int high, int absent, int *out)
{
    const char *text = environment_text(name);
    if (text != NULL)
        return number(name, text, low, high, out);
    *out = absent;
    return STATUS_OK;
}

static status copy_text(const char *name, const char *text, size_t size_bytes, char *out)
{
    if (strlen(text) >= size_bytes)
        return FAIL(STATUS_INVALID,
                    "environment variable %s has %zu bytes: at most %zu are allowed", name,
                    strlen(text), size_bytes - 1);
    memcpy(out, text, strlen(text) + 1);
    return STATUS_OK;
}

static status read_master(rendezvous_place *place)
{
    const char *address = environment_text("MASTER_ADDR");
    if (address == NULL)
        return missing("MASTER_ADDR", "set it to the host of rank 0 (127.0.0.1 on one host)");
    TRY(copy_text("MASTER_ADDR", address, sizeof place->master_addr, place->master_addr));
    TRY(required("MASTER_PORT", "set it to a free port of that host, the same for all ranks", 1,
                 65535, &place->master_port));
    const char *agent = environment_text("TORCHELASTIC_USE_AGENT_STORE");
    place->agent_store = agent != NULL && strcmp(agent, "True") == 0;
    return STATUS_OK;
}

/* Where the store is. */
static status read_method(const rendezvous_request *asked, const init_method *method,
                          rendezvous_place *place)
{
    const char *own = asked->own_address != NULL ? asked->own_address : "";
    if (method->kind == INIT_METHOD_ENV)
        return read_master(place);
    place->master_port = method->port;
    memcpy(place->master_addr, method->host, sizeof place->master_addr);
    memcpy(place->init_file, method->path, sizeof place->init_file);
    if (method->kind != INIT_METHOD_FILE)
        return STATUS_OK;
    if (strlen(own) >= sizeof place->master_addr)
        return FAIL(STATUS_INVALID, "--local-addr: %zu bytes are too many", strlen(own));
    memcpy(place->master_addr, own, strlen(own) + 1);
    return STATUS_OK;
}

static status read_local(rendezvous_place *place)
{
    TRY(optional("LOCAL_WORLD_SIZE", 1, place->world_size, place->world_size,
                 &place->local_world_size));
    int local_rank = 0;
    if (environment_text("LOCAL_RANK") == NULL &&
        (place->init_file[0] != '\0' || socket_address_is_loopback(place->master_addr)))
        local_rank = place->rank;
    TRY(optional("LOCAL_RANK", 0, INT_MAX, local_rank, &place->local_rank));
    if (place->local_rank >= place->local_world_size)
        return FAIL(STATUS_INVALID, "LOCAL_RANK %d is not in 0..%d, as LOCAL_WORLD_SIZE says",
                    place->local_rank, place->local_world_size - 1);
    const char *node = environment_text("GROUP_RANK") != NULL ? "GROUP_RANK" : "NODE_RANK";
    return optional(node, 0, MAX_RANKS, 0, &place->node_rank);
}

/* Rank or world size. By flag, query and variable: those that say it have to agree. */
typedef struct number_row {
    const char *flag, *key, *variable;
    const char *by_env, *by_flag; /* what to do if nothing says it */
    int low, high;
} number_row;

static const number_row SIZE = {"world-size",
                                "world_size",
                                "WORLD_SIZE",
                                "set it to the number of ranks",
                                "give --world-size=N, or set it to the number of ranks",
                                1,
                                MAX_RANKS};

static const number_row RANK = {"rank",
                                "rank",
                                "RANK",
                                "set it to this process's number, from 0",
                                "give --rank=R, or set it to this process's number, from 0",
                                0,
                                INT_MAX};

/* flag, query: -1, not there. */
static status read_number(const number_row *row, const char *hint, int flag, int query, int *out)
{
    int variable = -1, value = flag >= 0 ? flag : query;
    TRY(optional(row->variable, row->low, row->high, -1, &variable));
    if (value < 0)
        return required(row->variable, hint, row->low, row->high, out);
    if (query >= 0 && query != value)
        return FAIL(STATUS_INVALID, "--%s=%d, but --init-method says %s=%d: give it once",
                    row->flag, value, row->key, query);
    if (variable >= 0 && variable != value)
        return FAIL(STATUS_INVALID, "%s is %d, but the environment has %s=%d: they have to agree",
                    row->key, value, row->variable, variable);
    *out = value;
    return STATUS_OK;
}

static status read_rank(const rendezvous_request *asked, const init_method *method,
                        rendezvous_place *place)
{
    bool is_env = method->kind == INIT_METHOD_ENV;
    /* Else --world-size is a launcher's. */
    bool is_flag = !is_env || asked->rank >= 0 || method->rank >= 0;
    TRY(read_number(&SIZE, is_env ? SIZE.by_env : SIZE.by_flag, is_flag ? asked->world_size : -1,
                    method->world_size, &place->world_size));
    TRY(read_number(&RANK, is_env ? RANK.by_env : RANK.by_flag, asked->rank, method->rank,
                    &place->rank));
    if (place->rank >= place->world_size)
        return FAIL(STATUS_INVALID, "RANK %d is not in 0..%d, as WORLD_SIZE says", place->rank,
                    place->world_size - 1);
    return STATUS_OK;
}

status rendezvous_place_read(const rendezvous_request *asked, rendezvous_place *out, bool *found)
{
    const rendezvous_request nothing = {.rank = -1, .world_size = -1};
    init_method method;
    rendezvous_place place = {0};
    if (asked == NULL)
        asked = &nothing;
    TRY(init_method_parse(asked->init_method != NULL ? asked->init_method : "env://", &method));
    bool is_named = environment_text("RANK") != NULL || environment_text("WORLD_SIZE") != NULL ||
                    asked->rank >= 0 || method.rank >= 0 || method.world_size >= 0;
    if (!is_named && method.kind == INIT_METHOD_ENV) {
        *found = false;
        return STATUS_OK;
    }
    TRY(read_rank(asked, &method, &place));
    TRY(read_method(asked, &method, &place));
    TRY(read_local(&place));
    int round = 0;
    TRY(optional("TORCHELASTIC_RESTART_COUNT", 0, INT_MAX, 0, &place.restart_count));
    TRY(optional("MNIST_DDP_ROUND", 0, INT_MAX, 0, &round));
    place.round = round;
    const char *run_id = environment_text("TORCHELASTIC_RUN_ID");
    TRY(copy_text("TORCHELASTIC_RUN_ID", run_id != NULL ? run_id : "none", sizeof place.run_id,
                  place.run_id));
    *out = place;
    *found = true;
    return STATUS_OK;
}

/* The file of --init-method=file://PATH. */

enum {
    LINE_BYTES = 1024,
    LOOK_MS = 2000, /* for a store to answer */
    FIRST_PAUSE_MS = 10,
    LAST_PAUSE_MS = 200,
    FIRST_LINE_MS = 3000, /* until the first line about waiting */
    NEXT_LINE_MS = 5000,  /* until each line after it */
    TURN_MS = 5000,       /* another rank 0 looks for LOOK_MS twice at most */
    WHO_BYTES = 440,
    WHY_BYTES = 800,
};

static const char MARK[] = "mnist_ddp-init-file-1", NEXT[] = ".next";

void init_file_init(init_file *line)
{
    unsigned char bits[(INIT_FILE_ID_BYTES - 1) / 2] = {0};
    *line = (init_file){.pid = (int)getpid(), .host_number = host_number()};
    if (getrandom(bits, sizeof bits, GRND_NONBLOCK) < 0)
        memcpy(bits, &line->pid, sizeof line->pid);
    for (size_t i = 0; i < sizeof bits; i++)
        snprintf(line->id + 2 * i, 3, "%02x", bits[i]);
    if (gethostname(line->host, sizeof line->host - 1) != 0 || line->host[0] == '\0')
        snprintf(line->host, sizeof line->host, "?");
}

/* *there: false if the file is not there, or empty. */
static status read_line(const char *path, init_file *out, bool *there)
{
    char *text = NULL;
    size_t size_bytes = 0;
    init_file line = {0};
    *there = false;
    if (!file_exists(path))
        return STATUS_OK;
    status st = file_read(path, LINE_BYTES, &text, &size_bytes);
    if (st == STATUS_IO && !file_exists(path))
        return STATUS_OK; /* removed meanwhile */
    if (st == STATUS_OK && size_bytes > 0) {
        char mark[sizeof MARK] = "";
        int fields =
            sscanf(text, "%21s %32[0-9a-f] %255s %5d %10d %16" SCNx64 " %255s", mark, line.id,
                   line.address, &line.port, &line.pid, &line.host_number, line.host);
        *there = fields == 7 && strcmp(mark, MARK) == 0 && text[size_bytes - 1] == '\n';
        if (!*there)
            st = FAIL(STATUS_INVALID, "it is no file of ours");
    }
    free(text);
    if (st != STATUS_OK)
        return status_context(st, "%s: file:// takes a path that is new, or an empty file", path);
    *out = line;
    return STATUS_OK;
}

typedef enum job_state { JOB_LIVES, JOB_GONE, JOB_UNKNOWN } job_state;

/* Whether the store of the line lives; if it does not, the text says what was found. */
static job_state look_at(const init_file *line)
{
    char prefix[INIT_FILE_ID_BYTES + 32];
    store *client = NULL;
    bool there = false;
    snprintf(prefix, sizeof prefix, "mnist_ddp/%s/0/", line->id);
    const store_options options = {.host = line->address,
                                   .port = line->port,
                                   .prefix = prefix,
                                   .timeout_ms = LOOK_MS,
                                   .connect_timeout_ms = LOOK_MS,
                                   .once = true};
    status st = store_create(&options, &client);
    if (st == STATUS_REFUSED)
        return JOB_GONE;
    if (st == STATUS_OK)
        st = store_check(client, INIT_FILE_KEY, &there);
    store_destroy(client);
    if (st != STATUS_OK)
        return JOB_UNKNOWN;
    if (!there)
        (void)FAIL(STATUS_PEER, "another job serves a store there");
    return there ? JOB_LIVES : JOB_GONE;
}

/* "10.0.0.1:4711, of pid 12 on host a". */
static void describe(const init_file *line, char out[WHO_BYTES])
{
    char name[SOCKET_ADDRESS_BYTES];
    socket_address_name(line->address, line->port, name);
    snprintf(out, WHO_BYTES, "%.300s, of pid %d on host %.80s", name, line->pid, line->host);
}

/* STATUS_INVALID if the path is a living job's, or no file of ours. A link would be replaced, and
 * ranks that look at what it names would find nothing. */
static status check_free(const char *path)
{
    char who[WHO_BYTES];
    init_file line;
    bool there = false;
    struct stat info;
    if (lstat(path, &info) == 0 && S_ISLNK(info.st_mode))
        return FAIL(STATUS_INVALID, "%s is a symbolic link: file:// takes the path of the file",
                    path);
    TRY(read_line(path, &line, &there));
    if (!there)
        return STATUS_OK;
    describe(&line, who);
    switch (look_at(&line)) {
    case JOB_LIVES:
        return FAIL(STATUS_INVALID,
                    "%s: another rank 0 has it and serves at %s: give every job a path of its own",
                    path, who);
    case JOB_UNKNOWN:
        return status_context(STATUS_INVALID,
                              "%s: a job has left it, whose store at %s does not answer; if that "
                              "job has ended, remove the file",
                              path, who);
    case JOB_GONE:
        break;
    }
    LOG_W("%s: a job that is gone has left it (%s): replaced", path, who);
    return STATUS_OK;
}

/* Opens the file that becomes `path`. While it is there, another rank 0 waits for its turn. */
static status open_next(const char *path, file_draft *out)
{
    file_draft next = {.fd = -1};
    int64_t deadline_ns = clock_deadline_ns(TURN_MS);
    int length = snprintf(next.path, sizeof next.path, "%s", path);
    if (length < 0 || (size_t)length >= sizeof next.path - sizeof NEXT)
        return FAIL(STATUS_INVALID, "path too long: %.64s...", path);
    memcpy(next.temporary, path, (size_t)length);
    memcpy(next.temporary + length, NEXT, sizeof NEXT);
    while (next.fd < 0) {
        next.fd = open(next.temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (next.fd < 0 && errno != EEXIST)
            return FAIL(STATUS_IO, "create %s: %s", next.temporary, strerror(errno));
        if (next.fd < 0 && clock_passed(deadline_ns))
            return FAIL(STATUS_INVALID,
                        "%s: another rank 0 writes %s for more than %d s: if there is none, "
                        "remove that file",
                        path, next.temporary, TURN_MS / 1000);
        if (next.fd < 0)
            clock_sleep_ms(FIRST_PAUSE_MS);
    }
    *out = next;
    return STATUS_OK;
}

status init_file_publish(const char *path, const init_file *line)
{
    char text[LINE_BYTES];
    file_draft next;
    int length = snprintf(text, sizeof text, "%s %s %s %d %d %" PRIx64 " %s\n", MARK, line->id,
                          line->address, line->port, line->pid, line->host_number, line->host);
    ASSERT(length > 0 && (size_t)length < sizeof text);
    TRY(open_next(path, &next));
    status st = check_free(path);
    if (st == STATUS_OK)
        st = file_append(next.fd, next.temporary, text, (size_t)length);
    if (st == STATUS_OK)
        return file_draft_commit(&next);
    file_draft_drop(&next);
    return st;
}

/* Removes the file if it is still this job's. */
static void init_file_remove(const char *path, const char *id)
{
    init_file line;
    bool there = false;
    if (read_line(path, &line, &there) != STATUS_OK || !there || strcmp(line.id, id) != 0)
        return;
    if (unlink(path) != 0 && errno != ENOENT)
        LOG_W("cannot remove %s: %s", path, strerror(errno));
}

/* One look at the file. *lives: *out leads to the store; else `why` says what is missing. */
static status look(const char *path, init_file *out, bool *lives, char why[WHY_BYTES])
{
    char who[WHO_BYTES];
    bool there = false;
    *lives = false;
    snprintf(why, WHY_BYTES,
             "there is no such file, or it is empty; has rank 0 started, and does "
             "it see the same file?");
    TRY(read_line(path, out, &there));
    if (!there)
        return STATUS_OK;
    describe(out, who);
    if (out->host_number != host_number() && socket_address_says_loopback(out->address))
        return FAIL(STATUS_INVALID,
                    "%s: rank 0 serves at %s, which no other host reaches: start it with "
                    "--local-addr=ADDRESS, its own address",
                    path, who);
    *lives = look_at(out) == JOB_LIVES;
    if (!*lives)
        snprintf(why, WHY_BYTES, "it leads to %s: %.200s; has rank 0 of this job started?", who,
                 status_text());
    return STATUS_OK;
}

/* The other ranks: waits until the file leads to a living store, and says every few seconds what
 * is missing. STATUS_TIMEOUT after timeout_ms; STATUS_INVALID if the file holds something else, or
 * an address that only rank 0's host can reach. `describe` begins every line: "rank 1". */
static status init_file_await(const char *path, int64_t timeout_ms, const char *describe,
                              init_file *out)
{
    char why[WHY_BYTES];
    int64_t deadline_ns = clock_deadline_ns(timeout_ms);
    int64_t line_ns = clock_deadline_ns(FIRST_LINE_MS);
    for (int64_t pause_ms = FIRST_PAUSE_MS;; pause_ms *= 2) {
        init_file line;
        bool lives = false;
        TRY(status_context(look(path, &line, &lives, why), "%s", describe));
        if (lives) {
            *out = line;
            return STATUS_OK;
        }
        int left_ms = clock_remaining_ms(deadline_ns);
        if (left_ms == 0)
            return FAIL(STATUS_TIMEOUT, "%s: %s led to no store within %.3g s: %s", describe, path,
                        (double)timeout_ms * 1e-3, why);
        if (clock_passed(line_ns)) {
            LOG_I("%s: waiting for rank 0 at %s (%s) ... %d s of %.3g s are left", describe, path,
                  why, left_ms / 1000, (double)timeout_ms * 1e-3);
            line_ns = clock_deadline_ns(NEXT_LINE_MS);
        }
        if (pause_ms > LAST_PAUSE_MS)
            pause_ms = LAST_PAUSE_MS;
        clock_sleep_ms(pause_ms < left_ms ? pause_ms : left_ms);
    }
}

/* Joining. */

enum {
    GOODBYE_MS = 5000,
    PERSON_BYTES = 200,
    ADVICE_BYTES = SOCKET_ADDRESS_BYTES + 120,
    LIST_BYTES = 160,
    HOST_BYTES = 200,
    LIST_ITEM_BYTES = 48, /* one of a list, and its end */
};

struct rendezvous {
    rendezvous_place place;
    store_server *server; /* NULL if somebody else serves, or nobody needs to */
    store *store;         /* NULL for a world of one without an agent */
    bool published;       /* this rank's init file is there */
    int64_t start_ns, timeout_ms;
    char where[SOCKET_ADDRESS_BYTES];
};

/* The node of a rank, if all nodes have equally many; those of an elastic job need not. */
static int node_of(const rendezvous_place *place, int rank)
{
    return rank / place->local_world_size;
}

/* The last rank of those from `first` on that are missing and of one node. */
static int end_of_run(const rendezvous_place *place, const bool *there, int first)
{
    int last = first;
    while (last + 1 < place->world_size && !there[last + 1] &&
           node_of(place, last + 1) == node_of(place, first))
        last++;
    return last;
}

/* "1, 3, 8-15 (node 1), ..." of the ranks that are not there, at most as many as fit; returns how
 * many. Nodes are named if there are several. */
static int list_missing(const rendezvous_place *place, const bool *there, char *out)
{
    int missing = 0;
    size_t length = 0;
    bool nodes = place->round == 0 && place->local_world_size < place->world_size &&
                 place->world_size % place->local_world_size == 0;
    out[0] = '\0';
    for (int first = 0, last; first < place->world_size; first = last + 1) {
        last = first;
        if (there[first])
            continue;
        last = end_of_run(place, there, first);
        const char *comma = missing > 0 ? ", " : "";
        missing += last - first + 1;
        if (length > LIST_BYTES - LIST_ITEM_BYTES)
            continue;
        length += (size_t)snprintf(out + length, LIST_BYTES - length, "%s%d", comma, first);
        if (last > first)
            length += (size_t)snprintf(out + length, LIST_BYTES - length, "-%d", last);
        if (nodes)
            length += (size_t)snprintf(out + length, LIST_BYTES - length, " (node %d)",
                                       node_of(place, first));
        if (length > LIST_BYTES - LIST_ITEM_BYTES)
            length += (size_t)snprintf(out + length, LIST_BYTES - length, ", ...");
    }
    return missing;
}

/* One rank of each node speaks: the lowest that is there. */
static bool speaks(const rendezvous *r, const bool *joined)
{
    const rendezvous_place *place = &r->place;
    int first = node_of(place, place->rank) * place->local_world_size;
    while (first < place->rank && !joined[first])
        first++;
    return first == place->rank;
}

/* A meeting's missing(). */
static status name_missing(void *ctx, const bool *joined, bool is_over)
{
    const rendezvous *r = ctx;
    char list[LIST_BYTES], way[SOCKET_ROUTE_BYTES];
    int world_size = r->place.world_size, missing = list_missing(&r->place, joined, list);
    double total_s = (double)r->timeout_ms * 1e-3;
    if (!is_over && !speaks(r, joined))
        return STATUS_OK;
    socket_route_describe(r->place.master_addr, way);
    const char *from = way[0] != '\0' ? ", seen from " : "";
    if (is_over)
        return FAIL(STATUS_TIMEOUT,
                    "%d of %d ranks (%s) did not join at %s%s%s within %.3g s: see whether they "
                    "were started, and whether they can reach that address",
                    missing, world_size, list, r->where, from, way, total_s);
    LOG_I("waiting for %d of %d ranks (%s) at %s%s%s, %.0f s of %.0f s", missing, world_size, list,
          r->where, from, way, clock_seconds(clock_now_ns() - r->start_ns), total_s);
    return STATUS_OK;
}

/* Rank 0 without an agent. Other hosts can connect unless the address says that there are none. */
static status serve_store(rendezvous *r)
{
    const rendezvous_place *place = &r->place;
    char own[SOCKET_ADDRESS_BYTES], why[SOCKET_ADDRESS_BYTES + 80];
    const char *host = place->master_addr;
    if (!socket_address_is_loopback(host))
        host = socket_address_home(host, own, why) ? own : NULL;
    status st = store_server_create(host, place->master_port, &r->server);
    return st == STATUS_OK
               ? st
               : status_context(st, "rank 0 cannot serve the store (does another job, or another "
                                    "rank 0, run here?)");
}

static status connect_store(rendezvous *r, int64_t store_timeout_ms)
{
    const rendezvous_place *place = &r->place;
    char prefix[sizeof place->run_id + 64], describe[32];
    snprintf(prefix, sizeof prefix, "mnist_ddp/%s/%" PRId64 "/", place->run_id,
             rendezvous_place_attempt(place));
    snprintf(describe, sizeof describe, "rank %d", place->rank);
    store_options options = {.host = place->master_addr,
                             .port = place->master_port,
                             .prefix = prefix,
                             .timeout_ms = store_timeout_ms,
                             .connect_timeout_ms = r->timeout_ms,
                             .describe = describe,
                             .breaker = place->breaker};
    TRY(store_create(&options, &r->store));
    if (place->agent_store) /* perhaps torch's; and an agent sees that its rank ends */
        return STATUS_OK;
    const store_put_options own = {.value = "", .goes_with_connection = true};
    int64_t revision;
    return store_put(r->store, keys_make("", KEYS_ALIVE, place->rank).text, &own, &revision);
}

/* All ranks of the job, which meet for `prefix`. */
static membership members(const rendezvous *r, const char *prefix)
{
    return (membership){.store = r->store,
                        .prefix = prefix,
                        .member = r->place.rank,
                        .n = r->place.world_size,
                        .noun = "rank",
                        .of_job = true};
}

/* The address that others are given: this host's own if they can reach it by that, else one that
 * processes of this host can. */
static void choose_address(char out[INIT_METHOD_HOST_BYTES])
{
    char name[HOST_BYTES] = "", number[SOCKET_ADDRESS_BYTES], why[SOCKET_ADDRESS_BYTES + 80];
    bool home = gethostname(name, sizeof name - 1) == 0 && socket_address_home(name, number, why);
    snprintf(out, INIT_METHOD_HOST_BYTES, "%.200s", home ? number : "127.0.0.1");
}

/* Rank 0 serves at a port that is free, and names it to the others in the file. */
static status serve_by_file(rendezvous *r, int64_t store_timeout_ms)
{
    rendezvous_place *place = &r->place;
    init_file line;
    if (place->master_addr[0] == '\0')
        choose_address(place->master_addr);
    TRY(serve_store(r));
    place->master_port = store_server_port(r->server);
    init_file_init(&line);
    line.port = place->master_port;
    snprintf(line.address, sizeof line.address, "%s", place->master_addr);
    snprintf(place->run_id, sizeof place->run_id, "%s", line.id);
    TRY(connect_store(r, store_timeout_ms));
    TRY(store_set(r->store, INIT_FILE_KEY, "", 0));
    bool there = false;
    TRY(store_check(r->store, INIT_FILE_KEY, &there)); /* SET has no answer */
    TRY(init_file_publish(place->init_file, &line));
    r->published = true;
    return STATUS_OK;
}

static status find_by_file(rendezvous *r)
{
    rendezvous_place *place = &r->place;
    init_file line;
    char describe[32];
    snprintf(describe, sizeof describe, "rank %d", place->rank);
    TRY(init_file_await(place->init_file, r->timeout_ms, describe, &line));
    snprintf(place->master_addr, sizeof place->master_addr, "%s", line.address);
    snprintf(place->run_id, sizeof place->run_id, "%s", line.id);
    place->master_port = line.port;
    return STATUS_OK;
}

/* Serves the store, if this rank is to, and connects to it. */
static status open_store(rendezvous *r, int64_t store_timeout_ms)
{
    const rendezvous_place *place = &r->place;
    if (place->init_file[0] != '\0' && place->rank == 0)
        return serve_by_file(r, store_timeout_ms);
    if (place->init_file[0] != '\0')
        TRY(find_by_file(r));
    if (place->rank == 0 && !place->agent_store)
        TRY(serve_store(r));
    return connect_store(r, store_timeout_ms);
}

/* The init file has done its work once all have joined. */
static void remove_file(rendezvous *r)
{
    if (r->published)
        init_file_remove(r->place.init_file, r->place.run_id);
    r->published = false;
}

static status meet_ranks(rendezvous *r)
{
    char host[128] = "?", person[PERSON_BYTES], advice[ADVICE_BYTES];
    membership ranks = members(r, "join/");
    meeting how = {.record = person,
                   .deadline_ns = r->start_ns + r->timeout_ms * 1000000,
                   .missing = name_missing,
                   .ctx = r};
    if (gethostname(host, sizeof host) != 0)
        memcpy(host, "?", 2);
    host[sizeof host - 1] = '\0';
    snprintf(person, sizeof person, "pid %d on %s", (int)getpid(), host);
    snprintf(advice, sizeof advice,
             "at %s give every process its own RANK, or every job its own MASTER_PORT", r->where);
    ranks.size_name = "WORLD_SIZE";
    ranks.who = person;
    ranks.advice = advice;
    return membership_meet(&ranks, &how, NULL);
}

status rendezvous_join(const rendezvous_place *place, int64_t timeout_ms, int64_t store_timeout_ms,
                       rendezvous **out)
{
    status st = STATUS_OK;
    rendezvous *r = calloc(1, sizeof *r);
    if (r == NULL)
        return FAIL(STATUS_NO_MEMORY, "a rendezvous");
    r->place = *place;
    r->start_ns = clock_now_ns();
    r->timeout_ms = timeout_ms;
    if (place->world_size > 1) /* a connection to each of the others, and as rank 0 the store */
        (void)file_limit_raise();
    if (place->world_size > 1 || place->agent_store) {
        st = open_store(r, store_timeout_ms);
        socket_address_name(r->place.master_addr, r->place.master_port, r->where);
        if (st == STATUS_OK)
            st = meet_ranks(r);
        remove_file(r);
        if (st != STATUS_OK)
            goto out;
    }
    *out = r;
    r = NULL; /* handed over */

out:
    rendezvous_destroy(r);
    return st;
}

const rendezvous_place *rendezvous_joined(const rendezvous *r)
{
    return &r->place;
}

store *rendezvous_store(rendezvous *r)
{
    return r->store;
}

bool rendezvous_watches(const rendezvous *r)
{
    return !r->place.agent_store || environment_text("MNIST_DDP_LAUNCHED") != NULL;
}

/* A meeting's missing(): the ranks that have not said goodbye. */
static status name_silent(void *ctx, const bool *said, bool is_over)
{
    const rendezvous *r = ctx;
    char list[LIST_BYTES];
    if (!is_over)
        return STATUS_OK;
    int missing = list_missing(&r->place, said, list);
    return FAIL(STATUS_TIMEOUT, "%d of %d ranks (%s) did not say goodbye within %d s", missing,
                r->place.world_size, list, GOODBYE_MS / 1000);
}

/* All say goodbye; only who serves the store waits for the others. */
static status say_goodbye(rendezvous *r)
{
    membership ranks = members(r, "bye/");
    meeting how = {.record = "",
                   .deadline_ns = clock_deadline_ns(GOODBYE_MS),
                   .missing = name_silent,
                   .ctx = r};
    TRY(membership_arrive(&ranks, &how));
    return r->server != NULL ? membership_wait(&ranks, &how, NULL) : STATUS_OK;
}

void rendezvous_leave(rendezvous *r)
{
    if (r->store != NULL && say_goodbye(r) != STATUS_OK)
        LOG_W("goodbye to the other ranks: %s", status_text());
}

void rendezvous_destroy(rendezvous *r)
{
    if (r == NULL)
        return;
    store_destroy(r->store);
    store_server_destroy(r->server);
    free(r);
}
