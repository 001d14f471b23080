#include "tests/support/etcd_server.h"

#include "base/clock.h"
#include "base/host.h"
#include "base/module.h"
#include "dist/net/socket.h"
#include "tests/support/port.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORD_BYTES = 256 };

const char *etcd_server_missing(void)
{
    if (!module_exists("curl"))
        return "built without libcurl";
    char path[4096], file[4200];
    snprintf(path, sizeof path, "%s", environment_text("PATH") != NULL ? getenv("PATH") : "");
    for (char *at = path, *folder; (folder = strsep(&at, ":")) != NULL;) {
        snprintf(file, sizeof file, "%s/etcd", folder);
        if (access(file, X_OK) == 0)
            return NULL;
    }
    return "no etcd (package etcd-server)";
}

void etcd_server_restart(etcd_server *etcd, int member)
{
    char name[8], folder[WORD_BYTES], client[WORD_BYTES], peer[WORD_BYTES], all[WORD_BYTES] = "";
    snprintf(name, sizeof name, "m%d", member);
    snprintf(folder, sizeof folder, "%s/%s", etcd->folder, name);
    bool is_tls = etcd->certificate[0] != '\0';
    snprintf(client, sizeof client, "http%s://127.0.0.1:%d", is_tls ? "s" : "",
             etcd->ports[member]);
    snprintf(peer, sizeof peer, "http://127.0.0.1:%d", etcd->peer_ports[member]);
    for (int m = 0; m < etcd->n; m++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%sm%d=http://127.0.0.1:%d",
                 m > 0 ? "," : "", m, etcd->peer_ports[m]);
    const char *const words[] = {"etcd",
                                 "--name",
                                 name,
                                 "--data-dir",
                                 folder,
                                 "--listen-client-urls",
                                 client,
                                 "--advertise-client-urls",
                                 client,
                                 "--listen-peer-urls",
                                 peer,
                                 "--initial-advertise-peer-urls",
                                 peer,
                                 "--initial-cluster",
                                 all,
                                 "--heartbeat-interval",
                                 "20",
                                 "--election-timeout",
                                 "200",
                                 "--cert-file",
                                 etcd->certificate,
                                 "--key-file",
                                 etcd->certificate,
                                 "--trusted-ca-file",
                                 etcd->asks_certificate ? etcd->authority : "",
                                 etcd->asks_certificate ? "--client-cert-auth=true"
                                                        : "--client-cert-auth=false",
                                 "--log-level",
                                 "error",
                                 NULL};
    etcd->members[member] = program_start(words);
}

/* It listens before it serves. One that speaks TLS says that this is none, or hangs up. */
static bool is_served(const etcd_server *etcd, int port)
{
    static const char ask[] = "GET /health HTTP/1.0\r\n\r\n";
    char answer[1024] = "";
    size_t used = 0, moved = 0;
    int fd = -1;
    int64_t deadline_ns = clock_deadline_ns(1000);
    if (socket_connect("127.0.0.1", port, deadline_ns, &fd) != STATUS_OK)
        return false;
    status st = socket_send(fd, ask, sizeof ask - 1, deadline_ns);
    while (st == STATUS_OK && used < sizeof answer - 1 &&
           (st = socket_await(fd, POLLIN, deadline_ns)) == STATUS_OK) {
        st = socket_receive_some(fd, answer + used, sizeof answer - 1 - used, &moved);
        used += st == STATUS_OK ? moved : 0;
    }
    close(fd);
    return etcd->certificate[0] != '\0' ? used > 0 || st == STATUS_PEER
                                        : strstr(answer, "\"true\"") != NULL;
}

static void start_all(etcd_server *etcd)
{
    for (int m = 0; m < etcd->n; m++) {
        etcd->ports[m] = port_find_free();
        etcd->peer_ports[m] = port_find_free();
        snprintf(etcd->endpoints + strlen(etcd->endpoints),
                 sizeof etcd->endpoints - strlen(etcd->endpoints), "%s127.0.0.1:%d",
                 m > 0 ? "," : "", etcd->ports[m]);
    }
    for (int m = 0; m < etcd->n; m++)
        etcd_server_restart(etcd, m);
    int64_t deadline_ns = clock_deadline_ns(RUN_S * 1000);
    for (int m = 0; m < etcd->n; m++)
        while (!is_served(etcd, etcd->ports[m])) {
            ck_assert_msg(!clock_passed(deadline_ns), "etcd %d does not serve", m);
            clock_sleep_ms(POLL_MS);
        }
}

static void make_folder(etcd_server *etcd, int n)
{
    *etcd = (etcd_server){.n = n, .folder = "/tmp/mnist_ddp-etcd-XXXXXX"};
    ck_assert_ptr_nonnull(mkdtemp(etcd->folder));
}

void etcd_server_start(etcd_server *etcd, int n)
{
    make_folder(etcd, n);
    start_all(etcd);
}

bool etcd_server_start_tls(etcd_server *etcd)
{
    make_folder(etcd, 1);
    snprintf(etcd->certificate, sizeof etcd->certificate, "%s/certificate", etcd->folder);
    program openssl = program_start(WORDS(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1",
        "-keyout", etcd->certificate, "-out", etcd->certificate));
    program_wait(&openssl, RUN_S);
    bool is_there = openssl.exit_code == 0;
    program_close(&openssl);
    snprintf(etcd->authority, sizeof etcd->authority, "%s/authority", etcd->folder);
    openssl =
        program_start(WORDS("openssl", "x509", "-in", etcd->certificate, "-out", etcd->authority));
    program_wait(&openssl, RUN_S);
    is_there = is_there && openssl.exit_code == 0;
    program_close(&openssl);
    if (is_there)
        start_all(etcd);
    return is_there;
}

void etcd_server_kill(etcd_server *etcd, int member)
{
    program *p = &etcd->members[member];
    if (p->pid == 0)
        return;
    kill(-p->pid, SIGKILL);
    program_wait(p, RUN_S);
    program_close(p);
    *p = (program){0};
}

void etcd_server_stop(etcd_server *etcd)
{
    for (int m = 0; m < etcd->n; m++)
        etcd_server_kill(etcd, m);
    program rm = program_start(WORDS("rm", "-rf", etcd->folder));
    program_wait(&rm, RUN_S);
    program_close(&rm);
}
