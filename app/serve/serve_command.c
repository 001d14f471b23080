/* mnist_ddp serve. */
#include "app/common/commands.h"
#include "app/common/exit_codes.h"
#include "app/common/http_server_ops.h"
#include "app/common/json_value.h"
#include "app/common/machine.h"
#include "app/common/page_files.h"
#include "app/common/run_files.h"
#include "app/predict/predict.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/module.h"
#include "data/dataset.h"
#include "data/raster.h"
#include "dist/net/socket.h"
#include "model/checkpoint.h"
#include "model/classifier.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RUN_WATCH_GENERATION_BYTES = 64 };

typedef struct run_watch {
    char folder[FILE_PATH_BYTES];     /* "": there is only a model */
    char model_path[FILE_PATH_BYTES]; /* the safetensors file's */
    struct stat model;                /* that the caller has dealt with, or zeros */
} run_watch;

enum { PART_BYTES = 200 << 10 };

/* `path`: a folder, in which nothing need be yet, or a safetensors file. STATUS_INVALID if it is
 * neither. */
static status run_watch_open(const char *path, run_watch *out)
{
    run_watch watch = {0};
    struct stat info;
    if (stat(path, &info) != 0)
        return FAIL(STATUS_INVALID, "%s: %s; name a run's folder or a safetensors file", path,
                    strerror(errno));
    if (strlen(path) >= sizeof watch.folder)
        return FAIL(STATUS_INVALID, "%.80s...: the path is too long", path);
    if (S_ISDIR(info.st_mode)) {
        strcpy(watch.folder, path);
        TRY(file_join(path, CHECKPOINT_MODEL, watch.model_path));
    } else {
        strcpy(watch.model_path, path);
    }
    *out = watch;
    return STATUS_OK;
}

static bool is_same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Whether there is another model than the one that was dealt with. *found is then it: the caller
 * who has dealt with it assigns it to watch->model. */
static bool run_watch_model_is_new(const run_watch *watch, struct stat *found)
{
    struct stat now;
    const struct stat *last = &watch->model;
    if (stat(watch->model_path, &now) != 0 ||
        (now.st_ino == last->st_ino && now.st_size == last->st_size &&
         is_same_time(&now.st_mtim, &last->st_mtim)))
        return false;
    *found = now;
    return true;
}

/* When a file of the run was written; zeros if it is not there. */
static struct timespec time_of(const run_watch *watch, const char *name)
{
    char path[FILE_PATH_BYTES];
    struct stat info = {0};
    if (file_join(watch->folder, name, path) == STATUS_OK)
        (void)!stat(path, &info);
    return info.st_mtim;
}

/* Each start of the run writes config.json anew. */
static void name_generation(const run_watch *watch, char out[RUN_WATCH_GENERATION_BYTES])
{
    const struct timespec start = time_of(watch, RUN_FILE_CONFIG);
    snprintf(out, RUN_WATCH_GENERATION_BYTES, "%lld.%09ld", (long long)start.tv_sec, start.tv_nsec);
}

/* A line that is no JSON, as a torn one, is left out. Returns the bytes of all that are whole. */
static size_t parse_lines(const char *text, size_t size_bytes, json_t *lines)
{
    size_t at = 0;
    const char *end;
    while ((end = memchr(text + at, '\n', size_bytes - at)) != NULL) {
        size_t length = (size_t)(end - text) - at;
        json_t *line = json_text_parse(text + at, length, 0, NULL);
        if (json_is_object(line))
            json_array_append(lines, line);
        json_decref(line);
        at += length + 1;
    }
    return at;
}

/* Returns where the next line begins. *from is 0 if the file has become shorter. */
static long long read_lines(const run_watch *watch, long long *from, json_t *lines)
{
    char path[FILE_PATH_BYTES];
    struct stat info;
    int fd = -1;
    if (file_join(watch->folder, RUN_FILE_METRICS, path) != STATUS_OK ||
        file_open(path, &fd, &info) != STATUS_OK) {
        *from = 0;
        return 0;
    }
    *from = *from > info.st_size ? 0 : *from;
    char *text = malloc(PART_BYTES);
    ssize_t n = text != NULL ? pread(fd, text, PART_BYTES, (off_t)*from) : 0;
    size_t used = n > 0 ? parse_lines(text, (size_t)n, lines) : 0;
    if (n == PART_BYTES && used == 0) /* a part of a line that is none of ours */
        used = PART_BYTES;
    free(text);
    close(fd);
    return *from + (long long)used;
}

/* The result of an earlier start stays until the latest one has its own. */
static bool is_done(const run_watch *watch)
{
    const struct timespec none = {0}, start = time_of(watch, RUN_FILE_CONFIG),
                          result = time_of(watch, RUN_FILE_RESULT);
    if (is_same_time(&result, &none))
        return false;
    return result.tv_sec != start.tv_sec ? result.tv_sec > start.tv_sec
                                         : result.tv_nsec >= start.tv_nsec;
}

/* What metrics.jsonl (docs/run-folder.md) holds from byte `from` on, as
 *
 *     {"name": "a", "done": false, "generation": "...", "from": 0, "next": 4711, "lines": [...]}
 *
 * with whole lines only, and at most some 200 KB of them: the rest is had with from = next. If a
 * resume has begun the file anew, `generation` (NULL or the last answer's, of
 * RUN_WATCH_GENERATION_BYTES at most) is another one, and the answer is from its beginning. The run
 * is done if its latest start has left a result.json. NULL if there is no folder. What cannot be
 * read is left out. */
static json_t *run_watch_lines(const run_watch *watch, const char *generation, long long from)
{
    char now[RUN_WATCH_GENERATION_BYTES];
    if (watch->folder[0] == '\0')
        return NULL;
    json_t *lines = json_array();
    name_generation(watch, now);
    if (generation == NULL || strcmp(generation, now) != 0)
        from = 0;
    long long next = read_lines(watch, &from, lines);
    return json_pack("{s:o, s:b, s:s, s:I, s:I, s:o}", "name", json_value_text(watch->folder),
                     "done", (int)is_done(watch), "generation", now, "from", (json_int_t)from,
                     "next", (json_int_t)next, "lines", lines);
}

/* What the server answers: a page to draw on, what the model takes a drawing for, what the run has
 * come to.
 *
 *     GET  /, /page.css, /page.js
 *     GET  /watch/GENERATION/BYTE   {"model": null or {"name", "kind", "dataset", "classes",
 *                                    "loads"}, "run": null or as run_watch_lines has it,
 *                                    "examples": count}
 *     GET  /examples/INDEX          {"examples": [{"index", "label", "picture"}, ...]}
 *     POST /predict                 a drawing as a PGM file (data/raster.h) gives
 *                                   {"picture", "label", "probabilities"}, or {"error": "..."},
 *                                   with the picture if there is only no model
 *
 * A "picture" is 28x28 pixels of two hex digits. No name in a request becomes that of a file. */
enum { SITE_BODY_BYTES = 1 << 20, SITE_HOSTS = 4 };

typedef struct site {
    trained_model model;
    int loads; /* how often the model was loaded; 0: there is none yet */
    run_watch watch;
    dataset examples;                 /* count 0: there are none */
    const dataset_facts *examples_of; /* NULL: no model has been loaded */
    bool model_waits; /* it cannot be loaded now, but perhaps later: that was logged */
    bool checks_host; /* only this machine is to reach it: any other name for it is refused */
    char hosts[SITE_HOSTS][SOCKET_ADDRESS_BYTES]; /* the names that it has, with the port */
    char *text;                                   /* the last answer's */
} site;

enum { EXAMPLES = 12 };

static const char HTTP_PORT[] = ":80";

static const char JSON_TYPE[] = "application/json", TEXT_TYPE[] = "text/plain; charset=utf-8";

/* Of every answer; for http_server_options. */
static const char *const site_headers[] = {
    "Content-Security-Policy",
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options",
    "nosniff",
    "Referrer-Policy",
    "no-referrer",
    "Cross-Origin-Resource-Policy",
    "same-origin",
    "Cache-Control",
    "no-store",
    NULL,
};

static void answer_text(int code, const char *text, http_answer *out)
{
    *out = (http_answer){code, TEXT_TYPE, text, strlen(text)};
}

/* Takes the value. */
static void answer_json(site *s, int code, json_t *value, http_answer *out)
{
    free(s->text);
    s->text = NULL;
    status st = json_text_print(value, JSON_COMPACT | JSON_REAL_PRECISION(10), &s->text);
    json_decref(value);
    if (st == STATUS_OK)
        *out = (http_answer){code, JSON_TYPE, s->text, strlen(s->text)};
    else
        answer_text(500, "out of memory\n", out);
}

static json_t *make_model(const site *s)
{
    if (s->loads == 0)
        return json_null();
    json_t *classes = json_array();
    const network *net = classifier_network(s->model.classifier);
    for (int i = 0; i < NETWORK_CLASSES; i++)
        json_array_append_new(classes, json_string(s->model.dataset->classes[i]));
    return json_pack("{s:o, s:s, s:s, s:o, s:i}", "name", json_value_text(s->model.path), "kind",
                     model_kind_name(network_kind(net)), "dataset", s->model.dataset->title,
                     "classes", classes, "loads", s->loads);
}

/* A number up to the end of `text`; false if there is another thing. */
static bool read_number(const char *text, long long *out)
{
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return isdigit((unsigned char)*text) && *end == '\0' && errno == 0;
}

/* `rest`: "GENERATION/BYTE". */
static void answer_watch(site *s, const char *rest, http_answer *out)
{
    char generation[RUN_WATCH_GENERATION_BYTES];
    const char *slash = strchr(rest, '/');
    long long from = 0;
    if (slash == NULL || slash - rest >= RUN_WATCH_GENERATION_BYTES ||
        !read_number(slash + 1, &from)) {
        answer_text(404, "not found\n", out);
        return;
    }
    snprintf(generation, sizeof generation, "%.*s", (int)(slash - rest), rest);
    json_t *run = run_watch_lines(&s->watch, generation, from);
    json_t *object = json_pack("{s:o, s:o, s:i}", "model", make_model(s), "run",
                               run != NULL ? run : json_null(), "examples", (int)s->examples.count);
    answer_json(s, 200, object, out);
}

static void answer_examples(site *s, const char *rest, http_answer *out)
{
    long long first = 0;
    if (!read_number(rest, &first)) {
        answer_text(404, "not found\n", out);
        return;
    }
    json_t *list = json_array();
    for (int i = 0; i < EXAMPLES && s->examples.count > 0; i++) {
        size_t index = ((size_t)first + (size_t)i) % s->examples.count;
        const uint8_t *image = s->examples.images + index * DATASET_PIXELS;
        json_array_append_new(list, json_pack("{s:I, s:i, s:o}", "index", (json_int_t)index,
                                              "label", (int)s->examples.labels[index], "picture",
                                              json_value_hex(image, DATASET_PIXELS)));
    }
    answer_json(s, 200, json_pack("{s:o}", "examples", list), out);
}

static status predict(site *s, const http_request *request, json_t *object)
{
    uint8_t pixels[MNIST_IMAGE_PIXELS];
    float logits[NETWORK_CLASSES];
    raster picture = {0};
    if (!netpbm_magic(request->body, request->body_bytes))
        return FAIL(STATUS_INVALID, "the drawing: not a PGM file");
    TRY(netpbm_decode("the drawing", request->body, request->body_bytes, &picture));
    status st = mnist_image_make("the drawing", &picture, pixels);
    raster_free(&picture);
    TRY(st);
    json_object_set_new(object, "picture", json_value_hex(pixels, MNIST_IMAGE_PIXELS));
    if (s->loads == 0)
        return FAIL(STATUS_INVALID, "there is no model yet: the run has not saved one");
    TRY(classifier_run(s->model.classifier, pixels, 1, logits));
    const prediction found = prediction_of(logits);
    json_t *probabilities = json_array();
    for (int i = 0; i < NETWORK_CLASSES; i++)
        json_array_append_new(probabilities, json_value_rounded(found.probabilities[i], 6));
    json_object_set_new(object, "label", json_integer(found.label));
    json_object_set_new(object, "probabilities", probabilities);
    return STATUS_OK;
}

static void answer_predict(site *s, const http_request *request, http_answer *out)
{
    json_t *object = json_object();
    status st = predict(s, request, object);
    if (st != STATUS_OK)
        json_object_set_new(object, "error", json_value_text(status_text()));
    answer_json(s, st == STATUS_OK || st == STATUS_INVALID ? 200 : 500, object, out);
}

/* A page of another site may have a name of its own that leads to this machine: its scripts could
 * then read what is answered (DNS rebinding). The browser tells the name in Host, without a port if
 * that is HTTP's own. */
static bool host_is_ours(const site *s, const char *host)
{
    char full[SOCKET_ADDRESS_BYTES];
    if (!s->checks_host || host == NULL)
        return !s->checks_host;
    const char *colon = strrchr(host, ':');
    const bool has_port = colon != NULL && strchr(colon, ']') == NULL;
    if (snprintf(full, sizeof full, "%s%s", host, has_port ? "" : HTTP_PORT) >= (int)sizeof full)
        return false;
    for (int i = 0; i < SITE_HOSTS; i++)
        if (strcasecmp(full, s->hosts[i]) == 0)
            return true;
    return false;
}

/* The part of `path` after `beginning`, or NULL. */
static const char *after(const char *path, const char *beginning)
{
    size_t length = strlen(beginning);
    return strncmp(path, beginning, length) == 0 ? path + length : NULL;
}

/* False if it is none. */
static bool answer_file(const char *path, http_answer *out)
{
    static const char html[] = "text/html; charset=utf-8", css[] = "text/css; charset=utf-8",
                      js[] = "text/javascript; charset=utf-8";
    const struct {
        const char *path, *type, *text;
        size_t bytes;
    } files[] = {{"/", html, page_html, page_html_bytes},
                 {"/report.css", css, report_css, report_css_bytes},
                 {"/page.css", css, page_css, page_css_bytes},
                 {"/draw.js", js, draw_js, draw_js_bytes},
                 {"/page.js", js, page_js, page_js_bytes}};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (strcmp(path, files[i].path) == 0) {
            *out = (http_answer){200, files[i].type, files[i].text, files[i].bytes};
            return true;
        }
    return false;
}

static void answer_get(site *s, const char *path, http_answer *out)
{
    const char *rest;
    if (answer_file(path, out))
        return;
    if ((rest = after(path, "/watch/")) != NULL)
        answer_watch(s, rest, out);
    else if ((rest = after(path, "/examples/")) != NULL)
        answer_examples(s, rest, out);
    else
        answer_text(404, "not found\n", out);
}

/* For http_server_options, with the site as `ctx`. */
static void site_answer(void *self, const http_request *request, http_answer *out)
{
    site *s = self;
    bool get = strcmp(request->method, "GET") == 0, post = strcmp(request->method, "POST") == 0;
    bool predicts = strcmp(request->path, "/predict") == 0;
    if (!host_is_ours(s, request->host))
        answer_text(403, "This server has another name: open the address that it has printed.\n",
                    out);
    else if (post && predicts)
        answer_predict(s, request, out);
    else if (get && !predicts)
        answer_get(s, request->path, out);
    else
        answer_text(405, "not allowed\n", out);
}

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
 * tried again, but logged once. */
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
    const char *const names[SITE_HOSTS] = {"127.0.0.1", "localhost", "::1", opts->server.bind};
    s->checks_host = socket_address_says_loopback(opts->server.bind);
    for (int i = 0; i < SITE_HOSTS; i++)
        socket_address_name(names[i], port, s->hosts[i]);
}

static status print_url(const options *opts, int port)
{
    char name[SOCKET_ADDRESS_BYTES];
    local_network_name(opts->server.bind, port, name);
    if (!socket_address_says_loopback(opts->server.bind))
        LOG_W("--bind %s: whoever reaches this machine can use the page; there is neither a "
              "password nor encryption",
              opts->server.bind);
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
    *exit_code = EXIT_CODE_USAGE;
    TRY(socket_listen(opts->server.bind, (int)opts->server.port, &fd, &port));
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
