/* The shared memory of the blocks that have begun. The device thread's alone. */
#ifndef MNIST_DDP_TESTS_EMULATOR_SHARED_MEMORY_H
#define MNIST_DDP_TESTS_EMULATOR_SHARED_MEMORY_H

namespace emulated
{

enum : unsigned { SHARED_MEMORIES = 2 }; /* blocks that have begun and not ended */

/* What follows is about the block with that one. */
void use_shared_memory(unsigned which);

/* A kernel begins: nothing is declared yet, in none of them. */
void forget_shared_memory();

/* A block begins: what earlier blocks declared holds no numbers again. */
void begin_shared_memory();

/* A block has ended: fatal if it wrote beside an array. */
void check_shared_memory();

} // namespace emulated

#endif
