#include "app/report/html.h"

#include <stdbool.h>

void html_text(FILE *out, const char *text)
{
    static const char replacement[] = "\uFFFD"; /* of a control character: HTML may not hold one */
    for (; text != NULL && *text != '\0'; text++) {
        bool controls =
            (*text > 0 && *text < ' ' && *text != '\n' && *text != '\t') || *text == 0x7f;
        const char *entity = *text == '&'   ? "&amp;"
                             : *text == '<' ? "&lt;"
                             : *text == '>' ? "&gt;"
                             : *text == '"' ? "&quot;"
                             : controls     ? replacement
                                            : NULL;
        if (entity != NULL)
            fputs(entity, out);
        else
            fputc(*text, out);
    }
}

void html_tagged(FILE *out, const char *tag, const char *text)
{
    fprintf(out, "<%s>", tag);
    html_text(out, text);
    fprintf(out, "</%s>\n", tag);
}

void html_begin(FILE *out, const char *title, const char *const *styles)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<link rel=\"icon\" href=\"data:,\">\n",
          out);
    html_tagged(out, "title", title);
    fputs("<style>\n", out);
    for (; *styles != NULL; styles++)
        fputs(*styles, out);
    fputs("</style>\n</head>\n<body>\n", out);
    html_tagged(out, "h1", title);
}

void html_end(FILE *out)
{
    fputs("</body>\n</html>\n", out);
}
