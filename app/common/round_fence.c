#include "app/common/round_fence.h"

#include "base/clock.h"
#include "base/host.h"
#include "base/text.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What is shared. */
typedef struct fence_word {
    _Atomic int64_t valid_until_ns; /* clock_now_ns(), which is one clock for all of a host */
} fence_word;

struct round_fence {
    int fd;
    fence_word *word;
};

/* Takes `fd` at once, also on failure. */
static status map_word(int fd, round_fence **out)
{
    round_fence *fence = malloc(sizeof *fence);
    void *word = mmap(NULL, sizeof(fence_word), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fence == NULL || word == MAP_FAILED) {
        status st = fence == NULL ? FAIL(STATUS_NO_MEMORY, "a round's fence")
                                  : FAIL(STATUS_IO, "mmap of a round's fence: %s", strerror(errno));
        if (word != MAP_FAILED)
            munmap(word, sizeof(fence_word));
        free(fence);
        close(fd);
        return st;
    }
    *fence = (round_fence){.fd = fd, .word = word};
    *out = fence;
    return STATUS_OK;
}

status round_fence_create(round_fence **out)
{
    int fd = memfd_create("mnist_ddp round fence", MFD_CLOEXEC);
    if (fd < 0)
        return FAIL(STATUS_IO, "memfd_create: %s", file_limit_reason(errno));
    if (ftruncate(fd, sizeof(fence_word)) != 0) {
        status st = FAIL(STATUS_IO, "a round's fence: %s", strerror(errno));
        close(fd);
        return st;
    }
    return map_word(fd, out);
}

int round_fence_fd(const round_fence *fence)
{
    return fence->fd;
}

void round_fence_set(round_fence *fence, int64_t valid_until_ns)
{
    atomic_store(&fence->word->valid_until_ns, valid_until_ns);
}

status round_fence_open(round_fence **out)
{
    const char *text = environment_text(ROUND_FENCE_VARIABLE);
    struct stat facts;
    int fd = -1;
    *out = NULL;
    if (text == NULL)
        return STATUS_OK;
    if (!number_parse(text, 0, INT_MAX, &fd) || fstat(fd, &facts) != 0 ||
        facts.st_size < (off_t)sizeof(fence_word))
        return FAIL(STATUS_IO, "%s=%.40s is no memory that the launcher shares",
                    ROUND_FENCE_VARIABLE, text);
    return map_word(fd, out);
}

bool round_fence_allows(const round_fence *fence)
{
    return fence == NULL || clock_now_ns() < atomic_load(&fence->word->valid_until_ns);
}

void round_fence_close(round_fence *fence)
{
    if (fence == NULL)
        return;
    munmap(fence->word, sizeof *fence->word);
    close(fence->fd);
    free(fence);
}
