/* Shared memory of blocks: its arrays lie between guards. */
#include "shared_memory.h"
#include "runtime.h"

#include <emulated_launch.h>

#include <cstring>
#include <vector>

namespace emulated
{

namespace
{

constexpr size_t LIMIT_BYTES = 48 << 10, GUARD_BYTES = 64, MOST_ARRAYS = 64;
constexpr unsigned char UNINITIALISED = 0xFF, GUARD = 0xA5;

struct array {
    const char *declaration;
    size_t offset, size_bytes;
};

struct block_memory {
    alignas(GUARD_BYTES) char memory[LIMIT_BYTES + (MOST_ARRAYS + 1) * 2 * GUARD_BYTES];
    std::vector<array> arrays; /* each has a guard after it; the first also before it */
    size_t declared_bytes = 0;
};

block_memory all[SHARED_MEMORIES];
block_memory *used = &all[0];

bool is_guard_intact(size_t offset)
{
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (static_cast<unsigned char>(used->memory[offset + i]) != GUARD)
            return false;
    return true;
}

size_t end_of(const array &a)
{
    return a.offset + (a.size_bytes + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;
}

array add(const char *declaration, size_t size_bytes)
{
    used->declared_bytes += size_bytes;
    if (used->declared_bytes > LIMIT_BYTES || used->arrays.size() == MOST_ARRAYS)
        fatal("a block declares %zu bytes of shared memory in %zu arrays", used->declared_bytes,
              used->arrays.size() + 1);
    size_t offset = used->arrays.empty() ? GUARD_BYTES : end_of(used->arrays.back()) + GUARD_BYTES;
    array made = {declaration, offset, size_bytes};
    std::memset(used->memory + offset - GUARD_BYTES, GUARD, GUARD_BYTES);
    std::memset(used->memory + end_of(made) - GUARD_BYTES, GUARD, 2 * GUARD_BYTES);
    std::memset(used->memory + offset, UNINITIALISED, size_bytes);
    used->arrays.push_back(made);
    return made;
}

} // namespace

void *shared_memory(const char *declaration, size_t size_bytes, size_t alignment)
{
    if (!in_kernel())
        fatal("shared memory is declared outside a kernel");
    if (alignment > GUARD_BYTES)
        fatal("shared memory aligned to %zu bytes is not emulated", alignment);
    for (const array &a : used->arrays)
        if (a.declaration == declaration)
            return used->memory + a.offset;
    return used->memory + add(declaration, size_bytes).offset;
}

void use_shared_memory(unsigned which)
{
    used = &all[which];
}

void forget_shared_memory()
{
    for (block_memory &one : all) {
        one.arrays.clear();
        one.declared_bytes = 0;
    }
}

void begin_shared_memory()
{
    for (const array &a : used->arrays)
        std::memset(used->memory + a.offset, UNINITIALISED, a.size_bytes);
}

void check_shared_memory()
{
    for (const array &a : used->arrays) {
        bool behind = true;
        for (size_t i = a.offset + a.size_bytes; i < end_of(a); i++)
            behind = behind && static_cast<unsigned char>(used->memory[i]) == GUARD;
        if (!behind || !is_guard_intact(end_of(a)) || !is_guard_intact(a.offset - GUARD_BYTES))
            fatal("wrote beside an array of %zu bytes in shared memory", a.size_bytes);
    }
}

} // namespace emulated
