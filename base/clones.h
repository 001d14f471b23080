/* CLONES before a static function (clang gives others another name): it is compiled for several
 * widths of vectors, and the loader picks the widest that the processor has. Sanitizers do not
 * support its ifuncs. */
#ifndef MNIST_DDP_BASE_CLONES_H
#define MNIST_DDP_BASE_CLONES_H

#if defined(__x86_64__) && !defined(SANITIZED)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

#endif
