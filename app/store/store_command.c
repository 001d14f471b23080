#include "app/common/commands.h"
#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/common/machine.h"
#include "app/common/stop_signals.h"
#include "app/options/options.h"
#include "app/options/options_table.h"
#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "dist/net/socket.h"
#include "dist/store/store.h"
#include "dist/store/store_wire.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* On stdout, where a script reads it: it may connect once it has the line. */
static status print_address(const options *opts, int port)
{
    char name[SOCKET_ADDRESS_BYTES];
    local_network_name(opts->server.bind, port, name);
    if (!socket_address_says_loopback(opts->server.bind))
        LOG_W("--bind %s: whoever reaches this machine can read and change the store; there is "
              "neither a password nor encryption",
              opts->server.bind);
    if (opts->json)
        TRY(json_value_print(
            json_pack("{s:o, s:i}", "address", json_value_text(name), "port", port)));
    else
        puts(name);
    if (fflush(stdout) != 0)
        return FAIL(STATUS_IO, "stdout: %s", strerror(errno));
    return STATUS_OK;
}

/* Until a signal comes; or until the deadline, if there is one. */
static void await_end(const options *opts, const stop_signals *signals)
{
    bool ends = options_given(opts, "timeout");
    int64_t deadline_ns = clock_deadline_ns(opts->timeout * 1000);
    struct pollfd p = {.fd = signals->fd, .events = POLLIN};
    while (poll(&p, 1, ends ? clock_remaining_ms(deadline_ns) : -1) < 0) {
    }
}

/* Serves a store at --bind and --port: prints its address, and returns after SIGINT, SIGTERM or
 * SIGHUP, or after --timeout if that was given. STATUS_IO if the port cannot be had or stdout does
 * not take the address; on failure *code is what to exit with. */
static status store_serve(const options *opts, int *code)
{
    sigset_t which;
    stop_signals signals = {0};
    store_server *server = NULL;
    *code = EXIT_CODE_INTERNAL;
    (void)file_limit_raise(); /* a connection for each client */
    status st = stop_signals_parse("SIGTERM,SIGINT,SIGHUP", &which);
    if (st == STATUS_OK)
        st = stop_signals_take(&which, &signals); /* before the server's thread starts */
    if (st == STATUS_OK) {
        *code = EXIT_CODE_RENDEZVOUS;
        st = store_server_create(opts->server.bind, (int)opts->server.port, &server);
    }
    if (st == STATUS_OK) {
        *code = EXIT_CODE_OUTPUT;
        st = print_address(opts, store_server_port(server));
    }
    if (st == STATUS_OK)
        await_end(opts, &signals);
    store_server_destroy(server);
    stop_signals_close(&signals);
    return st;
}

enum {
    WAIT_LINE_MS = 5000, /* between two lines about a key that is not there yet */
    HOST_BYTES = 256,
    CHUNK_BYTES = 64 << 10,
    SHOWN_BYTES = 80,
    NO_PORT = -1,
};

/* What is asked of the store. */
typedef struct request {
    const options *opts;
    const char *const *words; /* keys and values, as the action's row counts them */
    int n;
    char where[SOCKET_ADDRESS_BYTES];
    store *client;
    int64_t deadline_ns;
    int64_t amount; /* what `add` adds */
    json_t *answer; /* with --json: what is printed */
    bool no;        /* the answer is no: EXIT_CODE_NO */
} request;

/* --json: all of stdout. NULL as `value` if memory is short, which printing reports. */
static void note(request *r, const char *name, json_t *value)
{
    json_object_set_new(r->answer, name, value);
}

/* The answer is a number: a line of stdout. */
static void answer_number(request *r, const char *name, int64_t value)
{
    if (r->opts->json)
        note(r, name, json_integer(value));
    else
        printf("%" PRId64 "\n", value);
}

/* The answer is yes or no, which the exit code says. */
static void answer_truth(request *r, const char *name, bool truth)
{
    note(r, name, json_boolean(truth));
    r->no = !truth;
}

/* The answer is bytes: nothing but them, so that a file gets what was set. A terminal gets the end
 * of a line too. */
static status answer_bytes(request *r, const void *value, size_t size_bytes)
{
    if (!r->opts->json) {
        (void)fwrite(value, 1, size_bytes, stdout); /* failures are reported at the program's end */
        if (isatty(STDOUT_FILENO) == 1)
            putchar('\n');
        return STATUS_OK;
    }
    json_t *text = json_stringn(value, size_bytes);
    if (text == NULL)
        return FAIL(STATUS_INVALID, "%s: its %zu bytes are no UTF-8 text: leave --json out",
                    r->words[0], size_bytes);
    note(r, "value", text);
    return STATUS_OK;
}

/* Waits until the key is there, and says so every few seconds. */
static status await_key(const request *r, const char *key)
{
    for (;;) {
        int left_ms = clock_remaining_ms(r->deadline_ns);
        status st = store_wait(r->client, key, left_ms < WAIT_LINE_MS ? left_ms : WAIT_LINE_MS);
        if (st != STATUS_TIMEOUT)
            return st;
        if (clock_passed(r->deadline_ns))
            return FAIL(STATUS_TIMEOUT, "nobody set \"%s\" at %s within %" PRId64 " s (--timeout)",
                        key, r->where, r->opts->timeout);
        LOG_I("waiting for \"%s\" at %s ... %d s of %" PRId64 " s are left", key, r->where,
              clock_remaining_ms(r->deadline_ns) / 1000, r->opts->timeout);
    }
}

/* All of stdin. One byte more than a value may have is enough: the store's client refuses that. */
static status read_stdin(byte_buffer *out)
{
    char chunk[CHUNK_BYTES];
    while (out->size <= STORE_VALUE_BYTES) {
        ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
        if (n < 0 && errno != EINTR)
            return FAIL(STATUS_IO, "stdin: %s", strerror(errno));
        if (n == 0)
            return STATUS_OK;
        if (n > 0)
            TRY(byte_buffer_append(out, chunk, (size_t)n));
    }
    return STATUS_OK;
}

/* SET has no answer. The answer to what is asked next shows that the store has it. */
static status send_value(request *r, const void *value, size_t size_bytes)
{
    bool there = false;
    TRY(store_set(r->client, r->words[0], value, size_bytes));
    TRY(store_check(r->client, r->words[0], &there));
    note(r, "bytes", json_integer((json_int_t)size_bytes));
    return STATUS_OK;
}

static status set(request *r)
{
    const char *text = r->words[1];
    if (strcmp(text, "-") != 0)
        return send_value(r, text, strlen(text));
    byte_buffer in = {0};
    status st = read_stdin(&in);
    if (st == STATUS_OK)
        st = send_value(r, in.data, in.size);
    byte_buffer_free(&in);
    return st;
}

static status get(request *r)
{
    void *value = NULL;
    size_t size_bytes = 0;
    TRY(await_key(r, r->words[0]));
    TRY(store_get(r->client, r->words[0], &value, &size_bytes));
    status st = answer_bytes(r, value, size_bytes);
    free(value);
    return st;
}

static status wait_for_all(request *r)
{
    for (int i = 0; i < r->n; i++)
        TRY(await_key(r, r->words[i]));
    return STATUS_OK;
}

static status parse_amount(request *r)
{
    char *end = NULL;
    r->amount = 1;
    if (r->n < 2)
        return STATUS_OK;
    errno = 0;
    r->amount = strtoll(r->words[1], &end, 10);
    if (errno != 0 || end == r->words[1] || *end != '\0')
        return FAIL(STATUS_INVALID, "store add: '%.*s' is not a whole number of 64 bits",
                    SHOWN_BYTES, r->words[1]);
    return STATUS_OK;
}

static status add(request *r)
{
    int64_t sum = 0;
    status st = store_add(r->client, r->words[0], r->amount, &sum);
    if (st == STATUS_PEER)
        status_append("; a store hangs up if what the key holds is no number");
    TRY(st);
    answer_number(r, "value", sum);
    return STATUS_OK;
}

static status delete (request *r)
{
    bool deleted = false;
    TRY(store_delete(r->client, r->words[0], &deleted));
    answer_truth(r, "deleted", deleted);
    return STATUS_OK;
}

static status check(request *r)
{
    bool all = true;
    for (int i = 0; i < r->n && all; i++)
        TRY(store_check(r->client, r->words[i], &all));
    answer_truth(r, "there", all);
    return STATUS_OK;
}

static status num_keys(request *r)
{
    int64_t count = 0;
    TRY(store_num_keys(r->client, &count));
    answer_number(r, "keys", count);
    return STATUS_OK;
}

/* As torch, it answers with what the key holds then; or with `expected` if the key is not there.
 * That shows nothing if `desired` is the same. */
static status compare_set(request *r)
{
    void *value = NULL;
    size_t size_bytes = 0;
    const char *key = r->words[0], *expected = r->words[1], *desired = r->words[2];
    TRY(store_compare_set(r->client, key, expected, desired, &value, &size_bytes));
    bool is_set = size_bytes == strlen(desired) && memcmp(value, desired, size_bytes) == 0;
    status st = STATUS_OK;
    if (is_set && expected[0] != '\0' && strcmp(expected, desired) == 0)
        st = store_check(r->client, key, &is_set);
    answer_truth(r, "set", is_set);
    if (st == STATUS_OK)
        st = answer_bytes(r, value, size_bytes);
    free(value);
    return st;
}

typedef struct action {
    const char *name;
    const char *words;          /* what follows it on the command line */
    int least, most;            /* how many words it takes */
    status (*read)(request *r); /* words, before the store is looked for; NULL: nothing to read */
    status (*ask)(request *r);  /* NULL: serve */
} action;

static const action ACTIONS[] = {
    {"serve", "no more", 0, 0, NULL, NULL},
    {"set", "KEY VALUE, where - stands for stdin", 2, 2, NULL, set},
    {"get", "KEY", 1, 1, NULL, get},
    {"wait", "KEY ...", 1, INT32_MAX, NULL, wait_for_all},
    {"add", "KEY [N]", 1, 2, parse_amount, add},
    {"delete", "KEY", 1, 1, NULL, delete},
    {"check", "KEY ...", 1, INT32_MAX, NULL, check},
    {"num_keys", "no more", 0, 0, NULL, num_keys},
    {"compare_set", "KEY EXPECTED DESIRED", 3, 3, NULL, compare_set},
};
enum { N_ACTIONS = sizeof ACTIONS / sizeof ACTIONS[0] };

const char *store_command_actions(void)
{
    static char names[N_ACTIONS * 16];
    size_t length = 0;
    for (int i = 0; i < N_ACTIONS; i++)
        length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", i > 0 ? " " : "",
                                   ACTIONS[i].name);
    return names;
}

/* The action that the command line names, with as many words as it takes. */
static status find_action(const options *opts, const action **out)
{
    const char *word = opts->action != NULL ? opts->action : "";
    char hint[HINT_BYTES];
    int i = names_find(word, ACTIONS, N_ACTIONS, sizeof *ACTIONS, hint);
    if (word[0] == '\0')
        return FAIL(STATUS_INVALID, "store: which action? As in mnist_ddp store get KEY, %s", hint);
    if (i < 0)
        return FAIL(STATUS_INVALID, "store: '%.*s' is none of its actions; %s", SHOWN_BYTES, word,
                    hint);
    const action *found = &ACTIONS[i];
    if (opts->n_files < found->least || opts->n_files > found->most)
        return FAIL(STATUS_INVALID, "store %s: takes %s; %d word%s given", word, found->words,
                    opts->n_files, opts->n_files == 1 ? " is" : "s are");
    *out = found;
    return STATUS_OK;
}

/* --port, else a job's MASTER_PORT. */
static status find_port(const options *opts, int *port)
{
    const char *number = environment_text("MASTER_PORT");
    *port = (int)opts->server.port;
    if (!options_given(opts, "port") && number != NULL && !number_parse(number, 1, 65535, port))
        return FAIL(STATUS_INVALID, "environment variable MASTER_PORT=%.40s is not in 1..65535",
                    number);
    return STATUS_OK;
}

/* --host, else a job's MASTER_ADDR. A port in it counts before all others. */
static status find_address(const options *opts, char host[HOST_BYTES], int *port)
{
    const char *address = environment_text("MASTER_ADDR");
    const char *text = opts->server.host != NULL ? opts->server.host
                       : address != NULL         ? address
                                                 : "127.0.0.1";
    TRY(status_context(socket_address_parse(text, NO_PORT, host, HOST_BYTES, port),
                       opts->server.host != NULL ? "--host" : "MASTER_ADDR"));
    if (*port == NO_PORT)
        TRY(find_port(opts, port));
    else if (opts->server.host != NULL && options_given(opts, "port") && opts->server.port != *port)
        return FAIL(STATUS_INVALID, "--host=%s, but --port=%lld: give the port once", text,
                    (long long)opts->server.port);
    if (*port == 0)
        return FAIL(STATUS_INVALID, "--port=0: name the port that the store listens on");
    return STATUS_OK;
}

static status connect_to(request *r, const char *host, int port)
{
    int64_t timeout_ms = r->opts->timeout * 1000;
    const store_options how = {
        .host = host, .port = port, .timeout_ms = timeout_ms, .connect_timeout_ms = timeout_ms};
    socket_address_name(host, port, r->where);
    status st = store_create(&how, &r->client);
    if (st == STATUS_TIMEOUT)
        status_append(" 'mnist_ddp store serve' serves one");
    return st == STATUS_OK ? store_join(r->client) : st;
}

static int ask(const options *opts, const action *what)
{
    char host[HOST_BYTES];
    int port = 0, code = EXIT_CODE_USAGE;
    request r = {.opts = opts,
                 .words = opts->files,
                 .n = opts->n_files,
                 .deadline_ns = clock_deadline_ns(opts->timeout * 1000),
                 .answer = json_object()};
    status st = what->read != NULL ? what->read(&r) : STATUS_OK;
    if (st == STATUS_OK)
        st = find_address(opts, host, &port);
    if (st == STATUS_OK) {
        code = EXIT_CODE_RENDEZVOUS;
        st = connect_to(&r, host, port);
    }
    if (st == STATUS_OK) {
        code = EXIT_CODE_USAGE;
        if (r.n > 0)
            note(&r, "key", json_value_text(r.words[0]));
        st = what->ask(&r);
        if (st == STATUS_IO)
            code = EXIT_CODE_OUTPUT; /* stdin */
    }
    store_destroy(r.client);
    if (st == STATUS_OK && opts->json)
        st = json_value_print(r.answer);
    else
        json_decref(r.answer);
    if (st != STATUS_OK)
        return exit_code_failed(st, code);
    return r.no ? EXIT_CODE_NO : EXIT_SUCCESS;
}

int store_command(const options *opts)
{
    const action *what = NULL;
    int code = EXIT_CODE_USAGE;
    status st = find_action(opts, &what);
    if (st == STATUS_OK && what->ask != NULL)
        return ask(opts, what);
    if (st == STATUS_OK)
        st = store_serve(opts, &code);
    return st == STATUS_OK ? EXIT_SUCCESS : exit_code_failed(st, code);
}
