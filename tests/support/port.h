/* TCP ports of the loopback interface. */
#ifndef MNIST_DDP_TESTS_SUPPORT_PORT_H
#define MNIST_DDP_TESTS_SUPPORT_PORT_H

/* A listening socket on loopback, with a port that was free. */
int port_listen(int *port);

/* A port that nobody listens at now, and that nobody is given: below those that the system gives to
 * who asks for any, and no other test's as long as this process lives. */
int port_find_free(void);

/* Returns once something accepts connections at this port; fails the test after RUN_S. */
void port_await_listener(int port);

#endif
