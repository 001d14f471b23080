#include "tests/support/liar.h"

#include "tests/support/port.h"

#include <check.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void *lie(void *arg)
{
    liar *l = arg;
    for (int fd; (fd = accept(l->fd, NULL, NULL)) >= 0;) {
        char request[4096];
        ssize_t n = read(fd, request, sizeof request - 1);
        request[n > 0 ? n : 0] = '\0';
        bool asks_version = strncmp(request, "GET /version", 12) == 0 && l->version != NULL;
        const char *words = asks_version ? l->version : l->words;
        if (words == NULL)
            continue; /* the test's process ends with it open */
        ck_assert_int_eq(send(fd, words, strlen(words), MSG_NOSIGNAL), (ssize_t)strlen(words));
        shutdown(fd, SHUT_WR);
        while (read(fd, request, sizeof request) > 0)
            continue;
        close(fd);
    }
    return NULL;
}

void liar_start(liar *l, const char *words, const char *version)
{
    *l = (liar){.words = words, .version = version};
    l->fd = port_listen(&l->port);
    ck_assert_int_eq(pthread_create(&l->thread, NULL, lie, l), 0);
}

void liar_stop(liar *l)
{
    shutdown(l->fd, SHUT_RDWR);
    pthread_join(l->thread, NULL);
    close(l->fd);
}
