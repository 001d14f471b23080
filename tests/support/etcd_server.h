/* A real etcd on loopback, or several members of one cluster, with a folder of their own. */
#ifndef MNIST_DDP_TESTS_SUPPORT_ETCD_SERVER_H
#define MNIST_DDP_TESTS_SUPPORT_ETCD_SERVER_H

#include "tests/support/program.h"

#include <stdbool.h>

enum { ETCD_MEMBERS_MAX = 3 };

typedef struct etcd_server {
    int n;
    program members[ETCD_MEMBERS_MAX];
    int ports[ETCD_MEMBERS_MAX], peer_ports[ETCD_MEMBERS_MAX];
    char folder[32];
    char endpoints[64];    /* "127.0.0.1:p,127.0.0.1:q" */
    char certificate[48];  /* a file, with its key; "": no TLS */
    char authority[48];    /* the same without the key */
    bool asks_certificate; /* of its clients, from the next start on: `certificate` is one */
} etcd_server;

/* NULL; or what is missing here: etcd itself, or libcurl. */
const char *etcd_server_missing(void);

/* Starts n members, and returns once each serves. Their clocks tick five times as fast as usual, so
 * a lease of 1 s is one. */
void etcd_server_start(etcd_server *etcd, int n);

/* One member that speaks TLS, with a certificate of its own. false: there is no openssl. */
bool etcd_server_start_tls(etcd_server *etcd);

/* Starts one that was killed, on what it has left. */
void etcd_server_restart(etcd_server *etcd, int member);

/* By SIGKILL. */
void etcd_server_kill(etcd_server *etcd, int member);

/* Kills all that are left, and removes their folder. */
void etcd_server_stop(etcd_server *etcd);

#endif
