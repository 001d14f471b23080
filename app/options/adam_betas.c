#include "app/options/adam_betas.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>

static bool starts_number(const char *text)
{
    return isdigit((unsigned char)text[0]) || text[0] == '.';
}

/* PyTorch also takes a second beta of 0, which nobody needs: here 0 means that there is none
 * (kernels/step.h). */
status adam_betas_parse(const char *text, adam_betas *out)
{
    char *comma = NULL, *end = NULL;
    adam_betas betas = {0};
    bool ok = starts_number(text);
    if (ok)
        betas.first = strtod(text, &comma);
    ok = ok && *comma == ',' && starts_number(comma + 1);
    if (ok)
        betas.second = strtod(comma + 1, &end);
    /* As the optimizer sees them: float32. */
    ok = ok && *end == '\0' && (float)betas.first < 1.0f && (float)betas.second > 0.0f &&
         (float)betas.second < 1.0f;
    if (!ok)
        return FAIL(STATUS_INVALID,
                    "--adam-betas: '%.40s' is not two numbers from 0 to below 1, the second above "
                    "0: give --adam-betas=0.9,0.999",
                    text);
    *out = betas;
    return STATUS_OK;
}
