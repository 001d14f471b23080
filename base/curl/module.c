/* The curl module: HTTP by libcurl, which knows TLS, and proxies ($https_proxy, $no_proxy and so
 * on). The program opens this only to fetch files, and to talk to etcd. */
#include "base/module.h"
#include "base/clock.h"
#include "base/host.h"
#include "base/transfer_ops.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
    REDIRECTS = 5,
    STALL_BYTES_PER_S = 1024, /* slower than this is as good as nothing */
    POLL_MS = 1000,
    HEADER_BYTES = 512,
};

typedef struct http {
    CURLM *multi; /* keeps the connections */
    CURL *easy;
} http;

/* One transfer under way. */
typedef struct exchange {
    const transfer_request *request;
    transfer_answer *answer;
    CURL *easy;
    bool begun;
    status failed; /* what a function of the request has returned */
} exchange;

/* Certificates of authorities: the request's, else the variable's; *from names it. libcurl itself
 * reads neither variable. */
static const char *bundle_of(const transfer_request *request, const char **from)
{
    static const char *const names[] = {"CURL_CA_BUNDLE", "SSL_CERT_FILE"};
    *from = "cacert";
    if (request->cacert != NULL && request->cacert[0] != '\0')
        return request->cacert;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        *from = names[i];
        if (environment_text(names[i]) != NULL)
            return environment_text(names[i]);
    }
    return NULL;
}

static void http_close(void *self)
{
    http *h = self;
    if (h == NULL)
        return;
    curl_easy_cleanup(h->easy);
    curl_multi_cleanup(h->multi);
    free(h);
}

static status http_open(void **out)
{
    http *h = calloc(1, sizeof *h);
    if (h == NULL || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        free(h);
        return FAIL(STATUS_NO_MEMORY, "libcurl");
    }
    h->multi = curl_multi_init();
    h->easy = curl_easy_init();
    if (h->multi == NULL || h->easy == NULL) {
        http_close(h);
        return FAIL(STATUS_NO_MEMORY, "libcurl");
    }
    *out = h;
    return STATUS_OK;
}

/* The value of a header line, without blanks and line end; false: its name is another one. */
static bool read_header(const char *line, size_t length, const char *name, char out[HEADER_BYTES])
{
    size_t n = strlen(name);
    if (length <= n || strncasecmp(line, name, n) != 0 || line[n] != ':')
        return false;
    line += n + 1;
    length -= n + 1;
    for (; length > 0 && (*line == ' ' || *line == '\t'); length--)
        line++;
    while (length > 0 && strchr("\r\n \t", line[length - 1]) != NULL)
        length--;
    snprintf(out, HEADER_BYTES, "%.*s", (int)length, line);
    return true;
}

static size_t take_header(char *line, size_t one, size_t length, void *ctx)
{
    exchange *x = ctx;
    char value[HEADER_BYTES];
    long long first, last, whole;
    if (length * one > 5 && strncmp(line, "HTTP/", 5) == 0) { /* another answer begins */
        x->answer->first_byte = x->answer->whole = -1;
    } else if (read_header(line, length * one, "Content-Range", value) &&
               sscanf(value, "bytes %lld-%lld/%lld", &first, &last, &whole) == 3) {
        x->answer->first_byte = first;
        x->answer->whole = whole;
    }
    return length * one;
}

static void note_answer(exchange *x)
{
    transfer_answer *a = x->answer;
    long code = 0;
    curl_off_t size_bytes = -1, retry_after_s = 0;
    const char *type = NULL, *url = NULL;
    curl_easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_getinfo(x->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &size_bytes);
    curl_easy_getinfo(x->easy, CURLINFO_RETRY_AFTER, &retry_after_s);
    curl_easy_getinfo(x->easy, CURLINFO_CONTENT_TYPE, &type);
    curl_easy_getinfo(x->easy, CURLINFO_EFFECTIVE_URL, &url);
    a->code = (int)code;
    a->size_bytes = size_bytes;
    a->retry_after_s = retry_after_s;
    snprintf(a->type, sizeof a->type, "%s", type != NULL ? type : "");
    snprintf(a->url, sizeof a->url, "%s", url != NULL ? url : "");
}

static size_t take_body(char *data, size_t one, size_t n, void *ctx)
{
    exchange *x = ctx;
    if (!x->begun) {
        x->begun = true;
        note_answer(x);
        if (x->request->begin != NULL)
            x->failed = x->request->begin(x->request->ctx, x->answer);
    }
    if (x->failed == STATUS_OK)
        x->failed = x->request->take(x->request->ctx, data, one * n);
    return x->failed == STATUS_OK ? one * n : 0;
}

/* A process that is started meanwhile does not inherit it. */
static curl_socket_t open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *address)
{
    (void)ctx;
    (void)purpose;
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

/* http is for a URL of http alone. The first is what may be asked for, the second where redirects
 * may lead. */
static void set_protocols(CURL *easy, bool is_https)
{
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, is_https ? "https" : "http,https");
#else
    long both = CURLPROTO_HTTP | CURLPROTO_HTTPS;
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS, both);
    curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS, is_https ? (long)CURLPROTO_HTTPS : both);
#endif
}

/* What is asked for, and how. */
static void set_method(const exchange *x, struct curl_slist *headers, char range[32])
{
    const transfer_request *r = x->request;
    snprintf(range, 32, "%llu-", (unsigned long long)r->from_byte);
    if (r->from_byte > 0)
        curl_easy_setopt(x->easy, CURLOPT_RANGE, range);
    if (r->json != NULL)
        curl_easy_setopt(x->easy, CURLOPT_POSTFIELDS, r->json);
    curl_easy_setopt(x->easy, CURLOPT_HTTPHEADER, headers);
    if (r->is_direct) {
        curl_easy_setopt(x->easy, CURLOPT_PROXY, "");
        return;
    }
    curl_easy_setopt(x->easy, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(x->easy, CURLOPT_MAXREDIRS, (long)REDIRECTS);
}

static void set_times(const exchange *x)
{
    const transfer_request *r = x->request;
    curl_easy_setopt(x->easy, CURLOPT_CONNECTTIMEOUT_MS, (long)r->connect_timeout_ms);
    curl_easy_setopt(x->easy, CURLOPT_LOW_SPEED_LIMIT, (long)STALL_BYTES_PER_S);
    curl_easy_setopt(x->easy, CURLOPT_LOW_SPEED_TIME, (long)r->stall_timeout_s);
    if (r->deadline_ns != 0) {
        long left_ms = clock_remaining_ms(r->deadline_ns);
        curl_easy_setopt(x->easy, CURLOPT_TIMEOUT_MS, left_ms > 0 ? left_ms : 1);
    }
}

static void set_up(exchange *x, char error[CURL_ERROR_SIZE])
{
    const transfer_request *r = x->request;
    CURL *easy = x->easy;
    const char *from, *bundle = bundle_of(r, &from);
    curl_easy_reset(easy); /* connections stay */
    curl_easy_setopt(easy, CURLOPT_URL, r->url);
    set_protocols(easy, strncasecmp(r->url, "https:", 6) == 0);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    set_times(x);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "mnist_ddp");
    if (bundle != NULL)
        curl_easy_setopt(easy, CURLOPT_CAINFO, bundle);
    if (r->cert != NULL && r->cert[0] != '\0')
        curl_easy_setopt(easy, CURLOPT_SSLCERT, r->cert);
    if (r->key != NULL && r->key[0] != '\0')
        curl_easy_setopt(easy, CURLOPT_SSLKEY, r->key);
#if LIBCURL_VERSION_NUM >= 0x075700
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* a resolver that hangs is not waited for */
#endif
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, x);
    error[0] = '\0';
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, error);
}

/* Until the transfer has ended. */
static status perform(http *h, exchange *x, CURLcode *out)
{
    struct curl_waitfd wake = {.fd = x->request->wake_fd, .events = CURL_WAIT_POLLIN};
    CURLMcode code = curl_multi_add_handle(h->multi, h->easy);
    *out = CURLE_OK;
    for (int running = 1, left; code == CURLM_OK && running > 0 && !x->answer->interrupted;) {
        code = curl_multi_perform(h->multi, &running);
        const CURLMsg *message = curl_multi_info_read(h->multi, &left);
        if (message != NULL && message->msg == CURLMSG_DONE)
            *out = message->data.result;
        wake.revents = 0;
        if (code == CURLM_OK && running > 0)
            code = curl_multi_poll(h->multi, &wake, wake.fd >= 0 ? 1 : 0, POLL_MS, NULL);
        x->answer->interrupted = wake.revents != 0;
    }
    note_answer(x);
    curl_multi_remove_handle(h->multi, h->easy);
    return code == CURLM_OK ? STATUS_OK
                            : FAIL(STATUS_NO_MEMORY, "libcurl: %s", curl_multi_strerror(code));
}

/* What libcurl's code means; the text is its own. */
static status code_status(CURLcode code)
{
    switch (code) {
    case CURLE_OK:
        return STATUS_OK;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
        return STATUS_UNKNOWN_HOST;
    case CURLE_COULDNT_CONNECT:
        return STATUS_REFUSED;
    case CURLE_OPERATION_TIMEDOUT:
        return STATUS_TIMEOUT;
    case CURLE_OUT_OF_MEMORY:
        return STATUS_NO_MEMORY;
    case CURLE_TOO_MANY_REDIRECTS:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
        return STATUS_INVALID;
    default:
        return STATUS_PEER;
    }
}

/* The caller frees them. Without memory one is left out, and the server says what it misses. */
static struct curl_slist *make_headers(const transfer_request *r)
{
    struct curl_slist *all = NULL, *more = NULL;
    if (r->json != NULL)
        all = curl_slist_append(NULL, "Content-Type: application/json");
    if (r->header != NULL && r->header[0] != '\0')
        more = curl_slist_append(all, r->header);
    return more != NULL ? more : all;
}

/* What is trusted, after a certificate was not. */
static void append_trusted(const transfer_request *r)
{
    const char *from, *bundle = bundle_of(r, &from);
    if (bundle != NULL)
        status_append("; %s=%s is what names the certificates that are trusted", from, bundle);
    else
        status_append("; name the certificates that are trusted in SSL_CERT_FILE, or install the "
                      "package ca-certificates");
}

static status http_perform(void *self, const transfer_request *request, transfer_answer *answer)
{
    http *h = self;
    exchange x = {.request = request, .answer = answer, .easy = h->easy};
    char error[CURL_ERROR_SIZE], range[32];
    CURLcode code = CURLE_OK;
    *answer = (transfer_answer){.size_bytes = -1, .first_byte = -1, .whole = -1};
    set_up(&x, error);
    struct curl_slist *headers = make_headers(request);
    set_method(&x, headers, range);
    status st = perform(h, &x, &code);
    curl_slist_free_all(headers);
    TRY(st);
    if (x.failed != STATUS_OK || answer->interrupted)
        return x.failed;
    if (code == CURLE_OK && !x.begun && request->begin != NULL) /* an answer without a body */
        return request->begin(request->ctx, answer);
    if (code == CURLE_OK)
        return STATUS_OK;
    FAIL(code_status(code), "%s", error[0] != '\0' ? error : curl_easy_strerror(code));
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE)
        append_trusted(request);
    return code_status(code);
}

static const transfer_ops curl_ops = {
    .open = http_open, .perform = http_perform, .close = http_close};

__attribute__((visibility("default")))
const module mnist_ddp_module = {.abi_version = MODULE_ABI_VERSION, .transfer = &curl_ops};
