#include "dist/store/store_commands.h"

#include "base/host.h"
#include "dist/net/socket_address.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { AUTHOR_BYTES = 16 << 20 };

status store_kept_init(store_kept *kept)
{
    *kept = (store_kept){0};
    return store_table_create(AUTHOR_BYTES, &kept->authors);
}

void store_kept_close(store_kept *kept)
{
    store_table_destroy(kept->authors);
    free(kept->prefix);
    *kept = (store_kept){0};
}

status store_kept_choose(store_kept *kept, const char *prefix)
{
    char *copy = NULL;
    if (prefix[0] != '\0' && asprintf(&copy, "/%s", prefix) < 0)
        return FAIL(STATUS_NO_MEMORY, "a store's prefix");
    free(kept->prefix);
    kept->prefix = copy;
    return STATUS_OK;
}

bool store_kept_has(const store_kept *kept, store_bytes key)
{
    size_t length = kept->prefix == NULL ? 0 : strlen(kept->prefix);
    return length > 0 && key.size >= length && memcmp(key.data, kept->prefix, length) == 0;
}

status store_kept_note(store_kept *kept, store_bytes key, int fd)
{
    char address[SOCKET_ADDRESS_BYTES];
    socket_address_peer(fd, address);
    store_bytes text = {.data = (const uint8_t *)address, .size = strlen(address) + 1};
    return store_table_set(kept->authors, key, text);
}

void store_kept_author(const store_kept *kept, const char *key, char *out)
{
    char whole[STORE_KEY_BYTES];
    store_bytes address = {0};
    int length = snprintf(whole, sizeof whole, "/%s", key);
    store_bytes name = {.data = (const uint8_t *)whole, .size = (size_t)length};
    bool there = (size_t)length < sizeof whole && store_table_find(kept->authors, name, &address);
    snprintf(out, SOCKET_ADDRESS_BYTES, "%s", there ? (const char *)address.data : "");
}

status store_commands_init(store_commands *commands)
{
    *commands = (store_commands){.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (commands->wake_fd < 0)
        return FAIL(STATUS_IO, "eventfd: %s", file_limit_reason(errno));
    pthread_mutex_init(&commands->lock, NULL);
    pthread_cond_init(&commands->changed, NULL);
    return STATUS_OK;
}

void store_commands_close(store_commands *commands)
{
    if (commands->wake_fd < 0)
        return;
    pthread_mutex_lock(&commands->lock);
    while (commands->callers > 0)
        pthread_cond_wait(&commands->changed, &commands->lock);
    pthread_mutex_unlock(&commands->lock);
    pthread_mutex_destroy(&commands->lock);
    pthread_cond_destroy(&commands->changed);
    close(commands->wake_fd);
    commands->wake_fd = -1;
}

void store_commands_run(store_commands *commands, store_command *command)
{
    uint64_t one = 1;
    pthread_mutex_lock(&commands->lock);
    commands->callers++;
    if (!commands->stopped) {
        store_command **end = &commands->first;
        while (*end != NULL)
            end = &(*end)->next;
        *end = command;
        atomic_store(&commands->waiting, true);
        ssize_t n = write(commands->wake_fd, &one, sizeof one);
        ASSERT(n == (ssize_t)sizeof one);
    }
    while (!command->done && !commands->stopped)
        pthread_cond_wait(&commands->changed, &commands->lock);
    commands->callers--;
    pthread_cond_broadcast(&commands->changed);
    pthread_mutex_unlock(&commands->lock);
}

bool store_commands_take(store_commands *commands, store_command_fn carry_out, void *ctx)
{
    uint64_t count;
    pthread_mutex_lock(&commands->lock);
    ssize_t n = read(commands->wake_fd, &count, sizeof count);
    ASSERT(n == (ssize_t)sizeof count || errno == EAGAIN);
    atomic_store(&commands->waiting, false);
    while (commands->first != NULL) {
        store_command *command = commands->first;
        commands->first = command->next;
        if (command->task == STORE_STOP)
            commands->stopped = true;
        if (!commands->stopped)
            carry_out(ctx, command);
        command->done = true;
    }
    bool stopped = commands->stopped;
    pthread_cond_broadcast(&commands->changed);
    pthread_mutex_unlock(&commands->lock);
    return !stopped;
}
