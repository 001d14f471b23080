#include "app/store/store_serve.h"

#include "app/common/exit_codes.h"
#include "app/common/json_value.h"
#include "app/common/local_network.h"
#include "app/common/stop_signals.h"
#include "base/clock.h"
#include "base/file_limit.h"
#include "base/log.h"
#include "dist/net/socket_address.h"
#include "dist/store/store.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

/* On stdout, where a script reads it: it may connect once it has the line. */
static status print_address(const options *opts, int port)
{
    char name[SOCKET_ADDRESS_BYTES];
    local_network_name(opts->bind, port, name);
    if (!socket_address_says_loopback(opts->bind))
        LOG_W("--bind %s: whoever reaches this machine can read and change the store; there is "
              "neither a password nor encryption",
              opts->bind);
    if (opts->json) {
        json_t *object = json_object();
        json_object_set_new(object, "address", json_value_text(name));
        json_object_set_new(object, "port", json_integer(port));
        TRY(json_value_print(object));
    } else {
        puts(name);
    }
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

status store_serve(const options *opts, int *code)
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
        st = store_server_create(opts->bind, (int)opts->port, &server);
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
