/* What agents of one job tell each other: keys in their store, and the JSON under them. Here for
 * the tests that forge it; app/launch has the meaning. */
#ifndef MNIST_DDP_TESTS_APP_SUPPORT_LAUNCHER_KEYS_H
#define MNIST_DDP_TESTS_APP_SUPPORT_LAUNCHER_KEYS_H

/* Of the first attempt. */
#define KEY_END_OF_NODE_0 "ended/0/0"
#define KEY_END_OF_NODE_1 "ended/0/1"
#define KEY_TROUBLE "trouble/0"
#define KEY_OUTCOME "outcome/0"
/* Of the job. */
#define KEY_ALIVE_OF_NODE_1 \
    "alive/1" /* watched: who node 1 is; that it is put again its heartbeat */

/* How a node ended: RESULT 0 is success, 2 an agent stopped by SIGNAL, 3 ranks that were stopped,
 * 4 a failure, which needs a cause. */
#define ENDED(result, signal) "{\"result\":" #result ",\"signal\":" #signal ",\"notes\":\"\"}"

/* Node 0's outcome for all: AGAIN (true or false) and the exit code. TEXT is shown. */
#define OUTCOME(again, code, text) \
    "{\"again\":" #again ",\"code\":" #code ",\"text\":\"" text "\",\"notes\":\"\"}"

#endif
