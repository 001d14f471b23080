#include "tests/support/port.h"

#include "base/clock.h"
#include "tests/support/program.h"

#include <arpa/inet.h>
#include <check.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* At *port; 0: at any, which it then is. -1: it is not free. */
static int try_listen(int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)*port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    if (bind(fd, (struct sockaddr *)&address, size) != 0 || listen(fd, 8) != 0) {
        close(fd);
        return -1;
    }
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

int port_listen(int *port)
{
    *port = 0;
    int fd = try_listen(port);
    ck_assert_int_ge(fd, 0);
    return fd;
}

/* The claim of this process to a port, by the name of a socket. */
static bool is_claimed(int port)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int n = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "mnist_ddp-test-port-%d", port);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    if (bind(fd, (struct sockaddr *)&name, size) == 0)
        return false; /* open until the process ends */
    close(fd);
    return true;
}

int port_find_free(void)
{
    enum { FIRST = 10000, COUNT = 2000 };
    static int next = -1;
    if (next < 0)
        next = (int)getpid() % COUNT;
    for (int i = 0; i < COUNT; i++) {
        int port = FIRST + next;
        next = (next + 1) % COUNT;
        int fd = is_claimed(port) ? -1 : try_listen(&port);
        if (fd < 0)
            continue;
        close(fd);
        return port;
    }
    ck_abort_msg("no port from %d on is free", FIRST);
}

static bool is_listened_at(const struct sockaddr *address, socklen_t size)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool there = fd >= 0 && connect(fd, address, size) == 0;
    if (fd >= 0)
        close(fd);
    return there;
}

/* "localhost" is either of the two, as /etc/hosts has it. */
void port_await_listener(int port)
{
    struct sockaddr_in four = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)port),
                               .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6,
                               .sin6_port = htons((uint16_t)port),
                               .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int64_t deadline_ns = clock_deadline_ns(RUN_S * 1000);
    while (!is_listened_at((struct sockaddr *)&four, sizeof four) &&
           !is_listened_at((struct sockaddr *)&six, sizeof six)) {
        ck_assert_msg(!clock_passed(deadline_ns), "nobody listens at port %d", port);
        clock_sleep_ms(POLL_MS);
    }
}
