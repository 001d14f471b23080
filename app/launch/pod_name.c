#include "app/launch/pod_name.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HOST_BYTES = 256 };

status pod_name_first(const char *name, int index, char *out, size_t size_bytes)
{
    char end[24];
    size_t host = strcspn(name, ".");
    size_t length = (size_t)snprintf(end, sizeof end, "-%d", index);
    if (host <= length || strncmp(name + host - length, end, length) != 0)
        return FAIL(STATUS_INVALID,
                    "JOB_COMPLETION_INDEX=%d, but this host is %.80s, not <job>%s: give the host "
                    "of pod 0 by --master-addr=HOST",
                    index, name, end);
    if (name[host] == '\0')
        return FAIL(STATUS_INVALID,
                    "the pod %.80s has no domain, so no other pod finds it by name: give its "
                    "template `subdomain:`, the name of a headless service (configs/cluster/), or "
                    "give --master-addr=HOST",
                    name);
    if (strlen(name) + 1 >= size_bytes)
        return FAIL(STATUS_INVALID, "the host name %.80s... is too long", name);
    snprintf(out, size_bytes, "%.*s-0%s", (int)(host - length), name, name + host);
    return STATUS_OK;
}

/* Kubernetes writes the full name into the pod's /etc/hosts. */
status pod_name_of_first(int index, char *out, size_t size_bytes)
{
    char host[HOST_BYTES] = "", full[HOST_BYTES];
    struct addrinfo hints = {.ai_flags = AI_CANONNAME, .ai_socktype = SOCK_STREAM}, *found = NULL;
    if (gethostname(host, sizeof host - 1) != 0)
        return FAIL(STATUS_INVALID, "this host has no name: give --master-addr=HOST");
    snprintf(full, sizeof full, "%s", host);
    if (getaddrinfo(host, NULL, &hints, &found) == 0) {
        if (found->ai_canonname != NULL)
            snprintf(full, sizeof full, "%s", found->ai_canonname);
        freeaddrinfo(found);
    }
    return pod_name_first(full, index, out, size_bytes);
}
