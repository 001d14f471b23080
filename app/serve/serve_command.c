#include "app/serve/serve_command.h"

#include "app/common/exit_codes.h"
#include "app/common/local_network.h"
#include "app/common/standard_streams.h"
#include "app/serve/site.h"
#include "base/log.h"
#include "base/module.h"
#include "dist/net/socket.h"
#include "dist/net/socket_address.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONNECTIONS = 64, REQUEST_MS = 5000, LOOK_MS = 500 };

/* Those of the model's data set. They are a service: without them the page goes on. */
static void open_examples(const options *opts, site *s)
{
    dataset_kind kind;
    dataset_location location;
    const char *folder = opts->data_dir;
    bool found = false;
    if (s->examples_of == s->model.dataset)
        return;
    s->examples_of = s->model.dataset;
    if (folder == NULL && s->model.data_folder[0] != '\0')
        folder = s->model.data_folder;
    dataset_close(&s->examples);
    status st = dataset_kind_parse(s->model.dataset->name, &kind);
    if (st == STATUS_OK)
        st = dataset_find(kind, folder, &location, &found);
    if (st == STATUS_OK && found)
        st = dataset_open(&location, DATASET_TEST, &s->examples);
    if (st != STATUS_OK)
        LOG_W("no examples on the page: %s", status_text());
}

static status load(const options *opts, const struct stat *found, site *s)
{
    TRY(trained_model_load(opts, &s->model));
    s->watch.model = *found;
    s->loads++;
    open_examples(opts, s);
    return STATUS_OK;
}

/* A model that cannot be read leaves the page with the one before. For want of memory, say, it is
 * tried again, but told once. */
static void load_if_new(const options *opts, site *s)
{
    struct stat found;
    if (!run_watch_model_is_new(&s->watch, &found))
        return;
    status st = load(opts, &found, s);
    if (st == STATUS_INVALID)
        s->watch.model = found;
    if (st != STATUS_OK && !s->model_waits)
        LOG_W("%s", status_text());
    s->model_waits = st != STATUS_OK && st != STATUS_INVALID;
}

static void name_hosts(const options *opts, int port, site *s)
{
    const char *const names[SITE_HOSTS] = {"127.0.0.1", "localhost", "::1", opts->bind};
    s->checks_host = socket_address_says_loopback(opts->bind);
    for (int i = 0; i < SITE_HOSTS; i++)
        socket_address_name(names[i], port, s->hosts[i]);
}

static status print_url(const options *opts, int port)
{
    char name[SOCKET_ADDRESS_BYTES];
    local_network_name(opts->bind, port, name);
    if (!socket_address_says_loopback(opts->bind))
        LOG_W("--bind %s: whoever reaches this machine can use the page; there is neither a "
              "password nor encryption",
              opts->bind);
    printf("http://%s/\n", name);
    if (fflush(stdout) != 0)
        return FAIL(STATUS_IO, "stdout: %s", strerror(errno));
    return STATUS_OK;
}

static status serve(const options *opts, const http_server_ops *ops, void *server, site *s,
                    int port)
{
    TRY(print_url(opts, port));
    if (s->loads == 0)
        LOG_W("%s: there is no model yet; one is used as soon as it is there", s->watch.model_path);
    for (;;) {
        TRY(ops->run(server, LOOK_MS));
        load_if_new(opts, s);
    }
}

static status listen_and_serve(const options *opts, site *s, int *exit_code)
{
    const module *http = NULL;
    void *server = NULL;
    int fd = -1, port = 0;
    *exit_code = EXIT_CODE_INTERNAL;
    TRY(module_open("microhttpd", &http));
    if (http->http_server == NULL)
        return FAIL(STATUS_NO_MODULE, "module microhttpd: that file is another module; what does "
                                      "MNIST_DDP_MICROHTTPD_MODULE name?");
    *exit_code = EXIT_CODE_USAGE;
    TRY(socket_listen(opts->bind, (int)opts->port, &fd, &port));
    name_hosts(opts, port, s);
    const http_server_options settings = {
        .listen_fd = fd,
        .body_limit_bytes = SITE_BODY_BYTES,
        .connections = CONNECTIONS,
        .request_ms = REQUEST_MS,
        .headers = site_headers,
        .answer = site_answer,
        .ctx = s,
    };
    *exit_code = EXIT_CODE_INTERNAL;
    status st = http->http_server->open(&settings, &server);
    if (st != STATUS_OK) {
        close(fd);
        return st;
    }
    st = serve(opts, http->http_server, server, s, port);
    http->http_server->close(server);
    return st;
}

static status open_and_serve(const options *opts, site *s, int *exit_code)
{
    TRY(trained_model_open(opts, opts->n_runs > 0 ? opts->runs[0] : NULL, &s->model, exit_code));
    TRY(run_watch_open(s->model.path, &s->watch));
    struct stat found;
    if (run_watch_model_is_new(&s->watch, &found))
        TRY(load(opts, &found, s));
    return listen_and_serve(opts, s, exit_code);
}

int serve_command(const options *opts)
{
    site s = {0};
    int code = EXIT_CODE_INTERNAL;
    status st = open_and_serve(opts, &s, &code);
    code = exit_code_failed(st, code);
    dataset_close(&s.examples);
    trained_model_close(&s.model);
    free(s.text);
    return code;
}
