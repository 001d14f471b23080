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

void port_await_listener(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int64_t deadline_ns = clock_deadline_ns(RUN_S * 1000);
    bool there = false;
    while (!there) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        there = connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
        close(fd);
        ck_assert_msg(there || !clock_passed(deadline_ns), "nobody listens at port %d", port);
        clock_sleep_ms(POLL_MS);
    }
}
