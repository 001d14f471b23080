#include "tests/support/port.h"

#include "base/clock.h"
#include "tests/support/program.h"

#include <arpa/inet.h>
#include <check.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

int port_listen(int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, size), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

int port_find_free(void)
{
    int port = 0;
    close(port_listen(&port));
    return port;
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
