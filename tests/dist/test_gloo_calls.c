/* Some of libgloo's calls of libc go to the gloo module (import_slot.h), and nobody else's
 * do. What the replacements change, and what they leave alone. */
#include "base/module.h"
#include "dist/backends/gloo/import_slot.h"
#include "tests/support/ranks.h"
#include "tests/support/suite.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLAMPED = 1448, MOST_FILES = 256 };

static int segment_of(int fd)
{
    int segment = 0;
    socklen_t size = sizeof segment;
    return getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, &size) == 0 ? segment : -1;
}

typedef int listen_fn(int fd, int backlog);

/* The segment size of a connection to a socket that listens on `address`. */
static int segment_of_connection(in_addr_t address, loopback_mss mode, listen_fn *start)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&at, size), 0);
    loopback_mss_set(mode);
    ck_assert_int_eq(start(listener, 1), 0);
    loopback_mss_set(LOOPBACK_MSS_LEAVE);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&at, &size), 0);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ck_assert_int_eq(connect(client, (struct sockaddr *)&at, size), 0);
    int segment = segment_of(client);
    close(client);
    close(listener);
    return segment;
}

START_TEST(clamps_loopback_while_set)
{
    ck_assert_int_le(
        segment_of_connection(INADDR_LOOPBACK, LOOPBACK_MSS_CLAMP, loopback_mss_listen), CLAMPED);
}
END_TEST

START_TEST(leaves_others_alone)
{
    int plain = segment_of_connection(INADDR_LOOPBACK, LOOPBACK_MSS_LEAVE, loopback_mss_listen);
    ck_assert_int_eq(segment_of_connection(INADDR_ANY, LOOPBACK_MSS_CLAMP, loopback_mss_listen),
                     plain);
    ck_assert_int_eq(segment_of_connection(INADDR_LOOPBACK, LOOPBACK_MSS_CLAMP, listen), plain);
    if (plain <= CLAMPED)
        printf("SKIP of the comparison: loopback's segments have %d bytes here\n", plain);
}
END_TEST

/* The connections of this process on which segments are small, and all. */
typedef struct connections {
    int small, all;
} connections;

static status count_connections(process_group *group, int rank, int world_size, void *arg)
{
    connections *out = arg;
    (void)world_size;
    float data[4] = {0};
    TRY(process_group_all_reduce(group, data, 4, DTYPE_F32, REDUCE_SUM, NULL));
    for (int fd = 0; rank == 0 && fd < MOST_FILES; fd++) {
        struct sockaddr_storage peer;
        socklen_t size = sizeof peer;
        if (getpeername(fd, (struct sockaddr *)&peer, &size) != 0 || segment_of(fd) <= 0)
            continue;
        out->all++;
        out->small += segment_of(fd) <= CLAMPED;
    }
    return process_group_barrier(group);
}

/* Two ranks that are threads: gloo's connection has an end for each, the store's have more. */
START_TEST(only_gloos_connections_are_clamped)
{
    connections found = {0};
    ranks_options options = {.world_size = 2, .backend = "gloo"};
    setenv("MNIST_DDP_GLOO_CLAMP", "1", 1); /* this test's process only */
    ck_assert_int_eq(run_ranks_with(&options, count_connections, &found), STATUS_OK);
    ck_assert_int_ge(found.small, 2);
    if (segment_of_connection(INADDR_LOOPBACK, LOOPBACK_MSS_LEAVE, listen) <= CLAMPED)
        printf("SKIP of the comparison: all segments are small here\n");
    else
        ck_assert_msg(found.small < found.all, "%d of %d connections", found.small, found.all);
}
END_TEST

static const char *file_of(void *function)
{
    Dl_info info;
    return function != NULL && dladdr(function, &info) != 0 ? info.dli_fname : "nothing";
}

/* What libgloo calls; NULL: it is no shared library of its own. */
static void **slot_of_libgloo(const char *name)
{
    struct link_map *map = NULL;
    void *library = dlopen("libgloo.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        library = dlopen("libgloo.so.0", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0)
        return NULL;
    return import_slot_find(map->l_ld, name);
}

static status nothing(process_group *group, int rank, int world_size, void *arg)
{
    (void)rank, (void)world_size, (void)arg;
    return process_group_barrier(group);
}

START_TEST(libgloo_alone_calls_the_module)
{
    static const char *const names[] = {"listen", "epoll_wait", "writev"};
    const char *name = names[_i];
    const module *gloo = NULL;
    ranks_options options = {.world_size = 2, .backend = "gloo"};
    ck_assert_int_eq(module_open("gloo", &gloo), STATUS_OK);
    void **slot = slot_of_libgloo(name);
    if (slot == NULL) {
        printf("SKIP: no libgloo.so is loaded that imports %s\n", name);
        return;
    }
    void *before = *slot;
    ck_assert_int_eq(run_ranks_with(&options, nothing, NULL), STATUS_OK);
    ck_assert_ptr_ne(*slot, before);
    ck_assert_msg(strstr(file_of(*slot), "mnist_ddp_gloo") != NULL, "%s", file_of(*slot));
    ck_assert_ptr_eq(dlsym(RTLD_DEFAULT, name), before);
#ifndef SANITIZED /* those define libc's functions in the program */
    ck_assert_msg(strstr(file_of(before), "/libc.so") != NULL, "%s", file_of(before));
#endif
}
END_TEST

/* In the test program itself. */
START_TEST(what_is_not_imported_is_not_found)
{
    static const char here[] = "in this program";
    ck_assert_ptr_null(import_slot_find(&errno, "listen")); /* a thread's own memory */
    ck_assert_ptr_null(import_slot_find(here, "no_such_function"));
    ck_assert_ptr_nonnull(import_slot_find(here, "dlsym"));
}
END_TEST

/* As with a libgloo that is linked into the module: the replacement would call itself. */
START_TEST(a_library_is_not_redirected_to_itself)
{
    void *replacement = (void *)(uintptr_t)loopback_mss_listen;
    void **slot = import_slot_find(replacement, "listen"), *before = slot != NULL ? *slot : NULL;
    ck_assert_ptr_nonnull(slot);
    ck_assert_int_eq(import_slot_redirect(replacement, "listen", replacement), STATUS_INVALID);
    ck_assert_ptr_eq(*slot, before);
    ck_assert_int_eq(import_slot_redirect(replacement, "no_such_function", replacement),
                     STATUS_INVALID);
}
END_TEST

int main(void)
{
    const module *gloo = NULL;
    Suite *suite = suite_create("gloo_calls");
    TCase *core = suite_case(suite, "core", 30);
    tcase_add_test(core, clamps_loopback_while_set);
    tcase_add_test(core, leaves_others_alone);
    tcase_add_test(core, what_is_not_imported_is_not_found);
    tcase_add_test(core, a_library_is_not_redirected_to_itself);
#ifdef __SANITIZE_THREAD__
    printf("SKIP of all that needs libgloo: it is opaque to the thread sanitizer\n");
    return suite_run(suite);
#endif
    if (module_exists("gloo") && module_open("gloo", &gloo) == STATUS_OK) {
        tcase_add_test(core, only_gloos_connections_are_clamped);
        tcase_add_loop_test(core, libgloo_alone_calls_the_module, 0, 3);
    }
    return suite_run(suite);
}
