/* Deadlines, hang-ups, refusals, taken ports, and descriptors passed over local sockets. */
#include "base/clock.h"
#include "dist/net/socket.h"
#include "tests/support/facts.h"
#include "tests/support/port.h"
#include "tests/support/suite.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int64_t since_ms(int64_t start_ns)
{
    return (clock_now_ns() - start_ns) / 1000000;
}

/* Two connected TCP sockets. */
static void connect_pair(int *here, int *there)
{
    int listen_fd, port;
    ck_assert_int_eq(socket_listen("127.0.0.1", 0, &listen_fd, &port), STATUS_OK);
    ck_assert_msg(socket_connect("127.0.0.1", port, clock_deadline_ns(2000), here) == STATUS_OK,
                  "%s", status_text());
    ck_assert_int_eq(socket_await(listen_fd, POLLIN, clock_deadline_ns(2000)), STATUS_OK);
    ck_assert_int_eq(socket_accept(listen_fd, there), STATUS_OK);
    ck_assert_int_ge(*there, 0);
    close(listen_fd);
}

typedef struct transfer {
    int fd;
    uint8_t *data;
    size_t size;
    status st;
} transfer;

static void *send_all(void *arg)
{
    transfer *t = arg;
    t->st = socket_send(t->fd, t->data, t->size, clock_deadline_ns(5000));
    return NULL;
}

/* Far more than any socket buffer holds: both sides meet short transfers. */
START_TEST(moves_large_data_whole)
{
    enum { SIZE = 24 << 20 };
    int here, there;
    connect_pair(&here, &there);
    uint8_t *data = malloc(SIZE), *got = malloc(SIZE);
    ck_assert_ptr_nonnull(data);
    ck_assert_ptr_nonnull(got);
    for (size_t i = 0; i < SIZE; i++)
        data[i] = (uint8_t)(i * 2654435761u >> 24);
    transfer t = {.fd = here, .data = data, .size = SIZE};
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, send_all, &t), 0);
    status st = socket_receive(there, got, SIZE, clock_deadline_ns(5000));
    pthread_join(thread, NULL);
    ck_assert_int_eq(st, STATUS_OK);
    ck_assert_int_eq(t.st, STATUS_OK);
    ck_assert_int_eq(memcmp(data, got, SIZE), 0);
    free(data);
    free(got);
    close(here);
    close(there);
}
END_TEST

START_TEST(receive_ends_at_the_deadline)
{
    int here, there;
    char byte[2];
    connect_pair(&here, &there);
    ck_assert_int_eq(socket_send(there, "x", 1, clock_deadline_ns(1000)), STATUS_OK);
    int64_t start_ns = clock_now_ns();
    ck_assert_int_eq(socket_receive(here, byte, 2, clock_deadline_ns(150)), STATUS_TIMEOUT);
    ck_assert_int_ge(since_ms(start_ns), 149);
    ck_assert_int_le(since_ms(start_ns), 1000);
    ASSERT_FACTS(status_text(), "1 of 2 bytes");
    close(here);
    close(there);
}
END_TEST

START_TEST(send_ends_at_the_deadline)
{
    enum { SIZE = 64 << 20 };
    int here, there;
    connect_pair(&here, &there);
    uint8_t *data = calloc(1, SIZE);
    int64_t start_ns = clock_now_ns();
    ck_assert_int_eq(socket_send(here, data, SIZE, clock_deadline_ns(200)), STATUS_TIMEOUT);
    ck_assert_int_le(since_ms(start_ns), 2000);
    free(data);
    close(here);
    close(there);
}
END_TEST

START_TEST(a_hang_up_is_the_peer)
{
    int here, there;
    char byte[4];
    connect_pair(&here, &there);
    ck_assert_int_eq(socket_send(there, "abc", 3, clock_deadline_ns(1000)), STATUS_OK);
    close(there);
    ck_assert_int_eq(socket_receive(here, byte, 4, clock_deadline_ns(1000)), STATUS_PEER);
    ASSERT_FACTS(status_text(), "3 of 4 bytes");
    status st = STATUS_OK; /* no SIGPIPE either; the first send may still fit */
    for (int i = 0; i < 10 && st == STATUS_OK; i++) {
        st = socket_send(here, "abc", 3, clock_deadline_ns(1000));
        clock_sleep_ms(5);
    }
    ck_assert_int_eq(st, STATUS_PEER);
    close(here);
}
END_TEST

START_TEST(a_refusal_names_the_address)
{
    int fd = -1, port = port_find_free();
    ck_assert_int_eq(socket_connect("127.0.0.1", port, clock_deadline_ns(1000), &fd),
                     STATUS_REFUSED);
    char want[64];
    snprintf(want, sizeof want, "127.0.0.1:%d", port);
    ASSERT_FACTS(status_text(), want, "refused");
    ck_assert_int_eq(socket_connect("localhost", port, clock_deadline_ns(1000), &fd),
                     STATUS_REFUSED);
    ASSERT_FACTS(status_text(), "localhost", "127.0.0.1", "refused");
    ck_assert_int_eq(fd, -1);
}
END_TEST

START_TEST(an_unknown_name_has_its_code)
{
    int fd = -1, port;
    ck_assert_int_eq(socket_connect("no such host", 1, clock_deadline_ns(1000), &fd),
                     STATUS_UNKNOWN_HOST);
    ASSERT_FACTS(status_text(), "no such host:1");
    ck_assert_int_eq(socket_listen("no such host", 0, &fd, &port), STATUS_UNKNOWN_HOST);
    ck_assert_int_eq(socket_connect("127.0.0.1", 65536, clock_deadline_ns(1000), &fd),
                     STATUS_INVALID);
    ck_assert_int_eq(fd, -1);
}
END_TEST

/* A full backlog swallows the connection request, as a host that does not answer does. */
START_TEST(connect_ends_at_the_deadline)
{
    int listen_fd, port, fds[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    ck_assert_int_eq(socket_listen("127.0.0.1", 0, &listen_fd, &port), STATUS_OK);
    ck_assert_int_eq(listen(listen_fd, 0), 0);
    status st = STATUS_OK;
    int64_t start_ns = 0;
    for (int i = 0; i < 8 && st == STATUS_OK; i++) {
        start_ns = clock_now_ns();
        st = socket_connect("127.0.0.1", port, clock_deadline_ns(200), &fds[i]);
    }
    ck_assert_int_eq(st, STATUS_TIMEOUT);
    ck_assert_int_ge(since_ms(start_ns), 199);
    ck_assert_int_le(since_ms(start_ns), 1000);
    char where[32];
    snprintf(where, sizeof where, "127.0.0.1:%d", port);
    ASSERT_FACTS(status_text(), where);
    for (int i = 0; i < 8; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    close(listen_fd);
}
END_TEST

START_TEST(all_addresses_take_both_families)
{
    int listen_fd, port, fd;
    ck_assert_int_eq(socket_listen(NULL, 0, &listen_fd, &port), STATUS_OK);
    ck_assert_int_eq(socket_connect("127.0.0.1", port, clock_deadline_ns(1000), &fd), STATUS_OK);
    close(fd);
    if (socket_connect("::1", port, clock_deadline_ns(1000), &fd) == STATUS_OK)
        close(fd);
    else /* a host without IPv6 */
        ASSERT_FACTS(status_text(), "[::1]:");
    close(listen_fd);
}
END_TEST

START_TEST(a_taken_port_names_its_holder)
{
    int listen_fd, port, again = -1, again_port, spare = 0;
    ck_assert_int_eq(socket_listen("127.0.0.1", 0, &listen_fd, &port), STATUS_OK);
    ck_assert_int_eq(socket_listen("127.0.0.1", port, &again, &again_port), STATUS_IO);
    char want[64];
    snprintf(want, sizeof want, "pid %d", (int)getpid());
    ASSERT_FACTS(status_text(), want, "test_dist socket");
    for (const char *at = status_text(); spare == 0 && (at = strstr(at, "port ")) != NULL; at++)
        (void)sscanf(at, "port %d", &spare); /* the one that it offers */
    ck_assert_msg(spare > 0, "%s", status_text());
    ck_assert_int_eq(socket_listen("127.0.0.1", spare, &again, &again_port), STATUS_OK);
    ck_assert_int_eq(again_port, spare);
    /* All addresses include the taken one. */
    close(again);
    ck_assert_int_eq(socket_listen(NULL, port, &again, &again_port), STATUS_IO);
    close(listen_fd);
}
END_TEST

START_TEST(knows_loopback_addresses)
{
    ck_assert(socket_address_is_loopback("127.0.0.1"));
    ck_assert(socket_address_is_loopback("127.9.9.9"));
    ck_assert(socket_address_is_loopback("localhost"));
    ck_assert(!socket_address_is_loopback("192.0.2.1"));
    ck_assert(!socket_address_is_loopback("0.0.0.0"));
    ck_assert(!socket_address_is_loopback("no such host"));
}
END_TEST

/* By its letters alone: a name that stands for one is not looked up. */
START_TEST(knows_what_says_loopback)
{
    ck_assert(socket_address_says_loopback("localhost"));
    ck_assert(socket_address_says_loopback("127.9.9.9"));
    ck_assert(socket_address_says_loopback("::1"));
    ck_assert(!socket_address_says_loopback("192.0.2.1"));
    ck_assert(!socket_address_says_loopback("ip6-localhost"));
    ck_assert(!socket_address_says_loopback(""));
}
END_TEST

/* A name of this test and process alone. */
static const char *local_name(char *out, size_t size_bytes)
{
    snprintf(out, size_bytes, "mnist_ddp test %d", (int)getpid());
    return out;
}

START_TEST(passes_descriptors_to_another_process)
{
    char name[64];
    local_name(name, sizeof name);
    int listen_fd;
    ck_assert_int_eq(socket_listen_local(name, &listen_fd), STATUS_OK);
    pid_t child = fork();
    if (child == 0) {
        int fd, pipe_fd;
        alarm(10);
        bool well = socket_connect_local(name, clock_deadline_ns(2000), &fd) == STATUS_OK &&
                    socket_receive_descriptor(fd, &pipe_fd, clock_deadline_ns(2000)) == STATUS_OK &&
                    write(pipe_fd, "hi", 2) == 2;
        _exit(well ? 0 : 1);
    }
    int fd, ends[2];
    char text[2] = "";
    ck_assert_int_eq(socket_accept_local(listen_fd, clock_deadline_ns(2000), &fd), STATUS_OK);
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(socket_send_descriptor(fd, ends[1], clock_deadline_ns(2000)), STATUS_OK);
    close(ends[1]);
    ck_assert_int_eq(read(ends[0], text, 2), 2);
    ck_assert_int_eq(memcmp(text, "hi", 2), 0);
    int code;
    ck_assert_int_eq(waitpid(child, &code, 0), child);
    ck_assert_int_eq(code, 0);
    /* The child is gone now. */
    ck_assert_int_eq(socket_receive_descriptor(fd, &ends[1], clock_deadline_ns(1000)), STATUS_PEER);
    close(ends[0]);
    close(fd);
    close(listen_fd);
}
END_TEST

START_TEST(local_sockets_have_deadlines)
{
    char name[64], longest[200];
    int listen_fd, fd = -1, other;
    local_name(name, sizeof name);
    ck_assert_int_eq(socket_connect_local(name, clock_deadline_ns(100), &fd), STATUS_PEER);
    ck_assert_int_eq(socket_listen_local(name, &listen_fd), STATUS_OK);
    ck_assert_int_eq(socket_listen_local(name, &fd), STATUS_IO);
    int64_t start_ns = clock_now_ns();
    ck_assert_int_eq(socket_accept_local(listen_fd, clock_deadline_ns(100), &fd), STATUS_TIMEOUT);
    ck_assert_int_ge(since_ms(start_ns), 99);
    ck_assert_int_eq(socket_connect_local(name, clock_deadline_ns(100), &fd), STATUS_OK);
    ck_assert_int_eq(socket_receive_descriptor(fd, &other, clock_deadline_ns(100)), STATUS_TIMEOUT);
    close(fd);
    close(listen_fd);
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    ck_assert_int_eq(socket_listen_local(longest, &fd), STATUS_INVALID);
}
END_TEST

/* Data, or two descriptors, instead of one descriptor: refused, and none is left open. */
START_TEST(refuses_what_is_no_descriptor)
{
    char name[64];
    int listen_fd, here, there, got = -1;
    local_name(name, sizeof name);
    ck_assert_int_eq(socket_listen_local(name, &listen_fd), STATUS_OK);
    ck_assert_int_eq(socket_connect_local(name, clock_deadline_ns(500), &here), STATUS_OK);
    ck_assert_int_eq(socket_accept_local(listen_fd, clock_deadline_ns(500), &there), STATUS_OK);
    int lowest = dup(here); /* the next descriptor that this process gets */
    close(lowest);
    ck_assert_int_eq(socket_send(here, "x", 1, clock_deadline_ns(500)), STATUS_OK);
    ck_assert_int_eq(socket_receive_descriptor(there, &got, clock_deadline_ns(500)), STATUS_PEER);

    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec part = {.iov_base = name, .iov_len = 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(2 * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), (int[]){here, there}, 2 * sizeof(int));
    ck_assert_int_eq(sendmsg(here, &message, 0), 1);
    ck_assert_int_eq(socket_receive_descriptor(there, &got, clock_deadline_ns(500)), STATUS_PEER);
    ck_assert_int_eq(got, -1);
    int next = dup(here);
    ck_assert_int_eq(next, lowest);
    close(next);
    close(here);
    close(there);
    close(listen_fd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("socket");
    TCase *tcp = suite_case(suite, "tcp", 20);
    tcase_add_test(tcp, moves_large_data_whole);
    tcase_add_test(tcp, receive_ends_at_the_deadline);
    tcase_add_test(tcp, send_ends_at_the_deadline);
    tcase_add_test(tcp, a_hang_up_is_the_peer);
    tcase_add_test(tcp, a_refusal_names_the_address);
    tcase_add_test(tcp, an_unknown_name_has_its_code);
    tcase_add_test(tcp, connect_ends_at_the_deadline);
    tcase_add_test(tcp, all_addresses_take_both_families);
    tcase_add_test(tcp, a_taken_port_names_its_holder);
    tcase_add_test(tcp, knows_loopback_addresses);
    tcase_add_test(tcp, knows_what_says_loopback);
    TCase *local = suite_case(suite, "local", 20);
    tcase_add_test(local, passes_descriptors_to_another_process);
    tcase_add_test(local, local_sockets_have_deadlines);
    tcase_add_test(local, refuses_what_is_no_descriptor);
    return suite_run(suite);
}
