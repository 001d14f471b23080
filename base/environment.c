#include "base/environment.h"

#include <stdlib.h>

const char *environment_text(const char *name)
{
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? text : NULL;
}
