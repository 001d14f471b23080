/* What this machine is: for doctor and for bug reports. */
#ifndef MNIST_DDP_APP_COMMON_MACHINE_H
#define MNIST_DDP_APP_COMMON_MACHINE_H

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
    int64_t max_files, max_processes;  /* of this process and user */
} machine;

void machine_read(machine *out);

/* "1.5 GiB" */
void machine_size(int64_t size_bytes, char *out, size_t out_bytes);

#endif
