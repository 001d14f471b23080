#include "app/options/adam_betas.h"

#include "base/number.h"

#include <stdbool.h>

/* PyTorch also takes a second beta of 0, which nobody needs: here 0 means that there is none
 * (kernels/step.h). */
status adam_betas_parse(const char *text, adam_betas *out)
{
    const char *at = text;
    adam_betas betas = {0};
    bool ok = number_next_real(&at, &betas.first) && *at++ == ',' &&
              number_next_real(&at, &betas.second) && *at == '\0';
    /* As the optimizer sees them: float32. */
    ok =
        ok && (float)betas.first < 1.0f && (float)betas.second > 0.0f && (float)betas.second < 1.0f;
    if (!ok)
        return FAIL(STATUS_INVALID,
                    "--adam-betas: '%.40s' is not two numbers from 0 to below 1, the second above "
                    "0: give --adam-betas=0.9,0.999",
                    text);
    *out = betas;
    return STATUS_OK;
}
