/* The shared memory of the block that runs. The device thread's alone. */
#ifndef MNIST_DDP_TESTS_EMULATOR_SHARED_MEMORY_H
#define MNIST_DDP_TESTS_EMULATOR_SHARED_MEMORY_H

namespace emulated
{

/* A kernel begins: nothing is declared yet. */
void forget_shared_memory();

/* A block begins: what earlier blocks declared holds no numbers again. */
void begin_shared_memory();

/* A block has ended: fatal if it wrote beside an array. */
void check_shared_memory();

} // namespace emulated

#endif
