#include "app/report/plot.h"

#include "app/common/subprocess.h"
#include "app/report/report.h"
#include "base/file.h"
#include "base/host.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DRAW_TIMEOUT_MS = 60000, LABEL_BYTES = 256 };

bool plot_is_possible(void)
{
    char path[FILE_PATH_BYTES];
    return executable_find("gnuplot", path);
}

void plot_quote(const char *text, char *out, size_t size_bytes)
{
    size_t used = 0;
    for (; *text != '\0' && used + 4 < size_bytes; text++) {
        if (*text == '"' || *text == '\\' || (unsigned char)*text < ' ')
            continue;
        if (strchr("_^{}@&~", *text) != NULL) { /* what gnuplot's enhanced text means otherwise */
            out[used++] = '\\';
            out[used++] = '\\';
        }
        out[used++] = *text;
    }
    out[used] = '\0';
}

static void set_label(plot_writer *p, const char *what, const char *text)
{
    char quoted[LABEL_BYTES];
    plot_quote(text, quoted, sizeof quoted);
    plot_set(p, "set %s \"%s\"", what, quoted);
}

status plot_open(plot_writer *p, const plot_labels *labels)
{
    *p = (plot_writer){.blocks = 0};
    TRY(text_stream_open(&p->settings));
    status st = text_stream_open(&p->command);
    if (st != STATUS_OK) {
        char *nothing = NULL;
        (void)text_stream_close(&p->settings, &nothing, NULL);
        free(nothing);
        return st;
    }
    set_label(p, "title", labels->title);
    if (labels->x != NULL)
        set_label(p, "xlabel", labels->x);
    set_label(p, "ylabel", labels->y);
    return STATUS_OK;
}

static void write_line(FILE *out, const char *fmt, va_list args)
{
    vfprintf(out, fmt, args);
    fputc('\n', out);
}

void plot_set(plot_writer *p, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    write_line(p->settings.file, fmt, args);
    va_end(args);
}

void plot_point(plot_writer *p, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    write_line(p->settings.file, fmt, args);
    va_end(args);
}

void plot_curve(plot_writer *p, const char *fmt, ...)
{
    va_list args;
    if (p->blocks > 0)
        fputs("EOD\n", p->settings.file);
    fprintf(p->settings.file, "$data%d << EOD\n", ++p->blocks);
    fputs(p->curves++ == 0 ? "plot " : ", \\\n     ", p->command.file);
    fprintf(p->command.file, "$data%d ", p->blocks);
    va_start(args, fmt);
    vfprintf(p->command.file, fmt, args);
    va_end(args);
}

/* One image: under a name of its own first, so that a failure leaves no half of it. */
static status draw(const char *folder, const char *name, const char *kind, const char *terminal)
{
    char command[LABEL_BYTES + FILE_PATH_BYTES], script[FILE_PATH_BYTES], path[FILE_PATH_BYTES];
    char made[FILE_PATH_BYTES + 8], *said = NULL;
    snprintf(script, sizeof script, "%s.gp", name);
    snprintf(command, sizeof command, "set terminal %s; set output '%s.%s.tmp'", terminal, name,
             kind);
    snprintf(path, sizeof path, "%.3000s/%.200s.%s", folder, name, kind);
    snprintf(made, sizeof made, "%s.tmp", path);
    char *const argv[] = {"gnuplot", "-e", command, script, NULL};
    subprocess gnuplot = {.argv = argv, .folder = folder, .timeout_ms = DRAW_TIMEOUT_MS};
    status st = subprocess_run(&gnuplot, &said);
    free(said);
    if (st == STATUS_OK && rename(made, path) != 0)
        return FAIL(STATUS_IO, "rename %s: %s", made, strerror(errno));
    if (st == STATUS_OK)
        return STATUS_OK;
    unlink(made);
    return status_context(STATUS_INVALID, "gnuplot");
}

status plot_draw(const char *folder, const char *name, const char *script)
{
    char file[FILE_PATH_BYTES], path[FILE_PATH_BYTES], svg[LABEL_BYTES], word[65];
    snprintf(word, sizeof word, "%s", name); /* what gnuplot takes for a name */
    for (char *c = word; *c != '\0'; c++)
        *c = isalnum((unsigned char)*c) ? *c : '_';
    snprintf(file, sizeof file, "%s.gp", name);
    TRY(file_join(folder, file, path));
    const file_part part = {script, strlen(script)};
    TRY(file_replace(path, &part, 1));
    snprintf(svg, sizeof svg,
             "svg size 900,540 dynamic name '%s' font 'sans-serif,14' background 'white'", word);
    TRY(draw(folder, name, "svg", svg));
    return draw(
        folder, name, "png",
        "pngcairo size 1800,1080 fontscale 2 linewidth 2 pointscale 2 font 'sans-serif,14'");
}

/* Settings and data, then the plot command; NULL if memory ran out. */
static char *script_of(plot_writer *p)
{
    char *settings = NULL, *command = NULL, *script = NULL;
    if (p->blocks > 0)
        fputs("EOD\n", p->settings.file);
    status st = text_stream_close(&p->settings, &settings, NULL);
    if (text_stream_close(&p->command, &command, NULL) == STATUS_OK && st == STATUS_OK &&
        asprintf(&script, "%s%s\n", settings, command) < 0)
        script = NULL;
    free(settings);
    free(command);
    return script;
}

void plot_finish(plot_writer *p, json_t *document, const char *folder, const char *name,
                 const char *caption)
{
    char *script = script_of(p);
    status st = script != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "the script of a plot");
    bool possible = plot_is_possible();
    if (st == STATUS_OK && p->curves > 0 && possible)
        st = plot_draw(folder, name, script);
    if (!possible)
        report_say(document, REPORT_NOTES,
                   "no plots: gnuplot is not installed (Debian: apt-get install gnuplot-nox)");
    else if (st != STATUS_OK)
        report_say(document, REPORT_NOTES, "no plot %s: %s", name, status_text());
    else if (p->curves > 0)
        report_plot(document, name, caption);
    free(script);
}
