/* A driver that only pretends, for what asks it for a context: bench/gpu/held_context.py.
 * Who holds it says so in the file that HOLDER names. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int cuInit(unsigned flags)
{
    return (int)flags;
}
int cuDeviceGetCount(int *count)
{
    return *count = 1, 0;
}
int cuDeviceGet(int *device, int index)
{
    return *device = index, 0;
}
int cuDeviceGetAttribute(int *value, int which, int device)
{
    return *value = which == 20 ? device : 7, 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    FILE *holder = fopen(getenv("HOLDER"), "w");
    *context = NULL;
    return fprintf(holder, "%d\n", (int)getpid()) < 0 || fclose(holder) != 0 ? 1 : device;
}
