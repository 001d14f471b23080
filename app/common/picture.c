#include "app/common/picture.h"

#include "app/common/terminal.h"
#include "base/host.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { HALF_INK = 128, DARKEST = 232, GREYS = 24 }; /* the last two: of a terminal's 256 colours */

static const char RISING_INK[] = " .:-=+*#%@";

/* By the upper pixel's ink times two, plus the lower one's. */
static const char *const BLOCKS[] = {" ", "▄", "▀", "█"};
static const char UPPER_HALF[] = "▀";

/* The locale as setlocale would find it. */
static bool is_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *locale = environment_text(names[i]);
        if (locale != NULL)
            return strcasestr(locale, "UTF-8") != NULL || strcasestr(locale, "UTF8") != NULL;
    }
    return false;
}

picture_style picture_style_of(int fd)
{
    if (!is_utf8())
        return PICTURE_ASCII;
    return terminal_of(fd).colours ? PICTURE_GREYS : PICTURE_BLOCKS;
}

int picture_lines(const picture *p)
{
    return (p->height + 1) / 2;
}

static int grey_of(int ink)
{
    return DARKEST + ink * (GREYS - 1) / 255;
}

void picture_line(const picture *p, picture_style style, int line, char *out)
{
    const uint8_t *upper = p->pixels + (ptrdiff_t)2 * line * p->width;
    const uint8_t *lower = 2 * line + 1 < p->height ? upper + p->width : NULL;
    int last_top = -1, last_bottom = -1;
    char *to = out;
    *to = '\0';
    for (int x = 0; x < p->width; x++) {
        int top = upper[x], bottom = lower != NULL ? lower[x] : 0;
        if (style == PICTURE_ASCII) {
            *to++ = RISING_INK[(top + bottom) * ((int)sizeof RISING_INK - 2) / (2 * 255)];
        } else if (style == PICTURE_BLOCKS) {
            to = stpcpy(to, BLOCKS[2 * (top >= HALF_INK) + (bottom >= HALF_INK)]);
        } else {
            top = grey_of(top);
            bottom = grey_of(bottom);
            if (top != last_top || bottom != last_bottom)
                to += sprintf(to, "\033[38;5;%d;48;5;%dm", top, bottom);
            to = stpcpy(to, UPPER_HALF);
            last_top = top;
            last_bottom = bottom;
        }
    }
    strcpy(to, style == PICTURE_GREYS ? TERMINAL_PLAIN : "");
}
