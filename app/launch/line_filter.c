#include "app/launch/line_filter.h"

#include <string.h>

/* A word ends at the text's next zero byte. */
status line_filter_parse(const char *flag, const char *list, line_filter *out)
{
    line_filter filter = {.n = 0};
    size_t used = 0;
    if (list != NULL && strlen(list) >= sizeof filter.text - 1)
        return FAIL(STATUS_INVALID, "%s: longer than %d letters", flag, LINE_FILTER_BYTES - 2);
    for (const char *at = list; at != NULL && *at != '\0';) {
        if (filter.n == LINE_FILTER_WORDS)
            return FAIL(STATUS_INVALID, "%s: more than %d words", flag, LINE_FILTER_WORDS);
        size_t begin = used;
        for (; *at != '\0' && (*at != ',' || at[1] == ','); at++) {
            at += *at == ',';
            filter.text[used++] = *at;
        }
        if (used > begin) { /* an empty word would match every line */
            filter.begins[filter.n++] = (int)begin;
            filter.text[used++] = '\0';
        }
        at += *at == ',';
    }
    *out = filter;
    return STATUS_OK;
}

bool line_filter_matches(const line_filter *filter, const char *line, size_t size_bytes)
{
    for (int i = 0; i < filter->n; i++) {
        const char *word = filter->text + filter->begins[i];
        if (memmem(line, size_bytes, word, strlen(word)) != NULL)
            return true;
    }
    return false;
}
