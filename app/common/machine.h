/* What this machine is, for doctor and for bug reports; and what it knows of its own network: its
 * addresses and interfaces. */
#ifndef MNIST_DDP_APP_COMMON_MACHINE_H
#define MNIST_DDP_APP_COMMON_MACHINE_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MACHINE_TEXT_BYTES = 256 };

/* Each is "" or -1 if it is not known. */
typedef struct machine {
    char system[MACHINE_TEXT_BYTES];    /* "Debian GNU/Linux 12 (bookworm)" */
    char kernel[MACHINE_TEXT_BYTES];    /* "Linux 6.1.0 x86_64" */
    char libc[MACHINE_TEXT_BYTES];      /* "glibc 2.36" */
    char processor[MACHINE_TEXT_BYTES]; /* "AMD EPYC ..." */
    char driver[MACHINE_TEXT_BYTES];    /* NVIDIA's: "580.65.06" */
    int cores;                          /* that this process may use */
    int64_t memory_bytes, memory_free_bytes;
    int64_t shm_bytes, shm_free_bytes; /* /dev/shm */
    int64_t max_files, max_processes;  /* limits of this process and user */
} machine;

void machine_read(machine *out);

/* "1.5 GiB"; "unknown" of a negative one. */
typedef struct size_text {
    char text[32];
} size_text;

size_text machine_size(int64_t size_bytes);

enum { LOCAL_NETWORK_NAME_BYTES = 64, LOCAL_NETWORK_MAX = 64 };

/* An address of an interface that is up. */
typedef struct local_address {
    char interface[LOCAL_NETWORK_NAME_BYTES]; /* "eth0" */
    char number[LOCAL_NETWORK_NAME_BYTES];    /* "10.0.0.1", "fe80::1" */
    int prefix_bits;                          /* its network's */
    bool loopback, link_local;
} local_address;

/* Lists at most LOCAL_NETWORK_MAX of them into `out`; returns how many. */
int local_network_list(local_address *out);

/* Whether `host` (a name or an address) stands for this machine: its own name, or one that resolves
 * to an address of an interface. */
bool local_network_owns(const char *host);

/* "HOST:PORT" of what listens on `bind`, as another machine would type it if it is for other
 * machines. `out` has SOCKET_ADDRESS_BYTES (dist/net/socket.h). */
void local_network_name(const char *bind, int port, char *out);

/* "10.0.0.1 on eth0, ...": all but loopback, for messages. */
void local_network_describe(char *out, size_t size_bytes);

/* What a report says of NCCL: {"version": "2.28.9", "algo": null, "proto": null, "nvls": false}.
 * algo and proto as NCCL_ALGO and NCCL_PROTO have them, null if they are not set; nvls: whether it
 * may be used for an all-reduce, null if that is not clear from the settings. For a process that
 * has used NCCL. */
json_t *nccl_record(void);

#endif
