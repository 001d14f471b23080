/* JSON for which memory has run out. */
#ifndef MNIST_DDP_TESTS_SUPPORT_NO_MEMORY_H
#define MNIST_DDP_TESTS_SUPPORT_NO_MEMORY_H

/* From now on every allocation for JSON fails, as the program sees it (base/json_text.h).
 * Sanitizers let it fail. */
void no_memory_begin(void);

/* Memory is there again. */
void no_memory_end(void);

#endif
