#include "dist/membership/keys.h"

#include "base/status.h"

#include <stdio.h>

keys_text keys_make(const char *prefix, const char *name, int number)
{
    keys_text key;
    int length = number < 0 ? snprintf(key.text, sizeof key.text, "%s%s", prefix, name)
                            : snprintf(key.text, sizeof key.text, "%s%s/%d", prefix, name, number);
    ASSERT(length >= 0 && (size_t)length < sizeof key.text);
    return key;
}

keys_text keys_make_of(const char *prefix, const char *name, int number, int part)
{
    return keys_make(keys_make(prefix, name, number).text, "", part);
}
