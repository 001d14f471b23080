#include "kernels/cuda/choices.h"

#include <stdlib.h>
#include <string.h>

static bool same_subject(const device_choice *a, const device_choice *b)
{
    return strcmp(a->library, b->library) == 0 && strcmp(a->subject, b->subject) == 0 &&
           strcmp(a->pass, b->pass) == 0 && a->batch == b->batch;
}

status cuda_note_choice(device *dev, const device_choice *choice, bool *is_new)
{
    cuda_state *s = cuda_state_of(dev);
    if (is_new != NULL)
        *is_new = false;
    for (int i = 0; i < s->choice_count; i++)
        if (same_subject(&s->choices[i], choice))
            return STATUS_OK;
    size_t count = (size_t)s->choice_count + 1;
    device_choice *all = realloc(s->choices, sizeof *all * count);
    if (all == NULL)
        return FAIL(STATUS_NO_MEMORY, "%zu notes about libraries", count);
    all[s->choice_count++] = *choice;
    s->choices = all;
    if (is_new != NULL)
        *is_new = true;
    return STATUS_OK;
}

bool cuda_choice(const device *dev, int index, device_choice *out)
{
    const cuda_state *s = cuda_state_of(dev);
    if (index < 0 || index >= s->choice_count)
        return false;
    *out = s->choices[index];
    return true;
}

void cuda_forget_choices(device *dev)
{
    cuda_state *s = cuda_state_of(dev);
    free(s->choices);
    s->choices = NULL;
    s->choice_count = 0;
}
