#include "app/report/chart.h"

#include "app/report/html.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Of the picture, in its own units; on the page it is as wide as its figure. */
enum { WIDTH = 420, HEIGHT = 250, LEFT = 52, RIGHT = 12, TOP = 10, BOTTOM = 40 };
enum { LABEL_BYTES = 32 };

const char CHART_STYLE[] =
    ":root{--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#aa4499;--c4:#b8860b;--c5:#2b9fd9;"
    "--c6:#882255;--c7:#666666;--grid:#e4e4e4;--faint:#666}\n"
    "@media(prefers-color-scheme:dark){:root{--c0:#5ab4f0;--c1:#ff9350;--c2:#3ed0a3;--c3:#e59ad8;"
    "--c4:#f0c24b;--c5:#a5d8f5;--c6:#f07ba8;--c7:#b0b0b0;--grid:#333;--faint:#aaa}}\n"
    ".chart{display:block;width:100%;height:auto;font-size:12px}\n"
    ".chart text{fill:var(--faint)}\n.chart .grid{stroke:var(--grid);fill:none}\n"
    ".chart .mark{stroke:var(--faint);stroke-dasharray:3 3}\n"
    ".chart .line{fill:none;stroke-width:1.8;stroke-linejoin:round}\n"
    ".chart .thin{stroke-width:1;opacity:.45}\n.chart .dashed{stroke-dasharray:6 4}\n";

/* One axis: what of the data lies at its two ends. */
typedef struct range {
    double low, high;
    bool is_log;
} range;

typedef struct frame {
    FILE *out;
    range x, y;
} frame;

/* Beyond these a number's distance to another one may have no double. */
static const double FARTHEST = 1e300, SMALLEST = 1e-300;

static bool is_drawn(const range *r, double value)
{
    return fabs(value) <= FARTHEST && (!r->is_log || value >= SMALLEST);
}

static bool has_place(const frame *f, const chart_series *s, int i)
{
    return is_drawn(&f->x, s->x[i]) && is_drawn(&f->y, s->y[i]);
}

static void widen(range *r, double value)
{
    r->low = fmin(r->low, value);
    r->high = fmax(r->high, value);
}

/* 0 to 1 from the axis' low end to its high one. */
static double place(const range *r, double value)
{
    return r->is_log ? (log(value) - log(r->low)) / (log(r->high) - log(r->low))
                     : (value - r->low) / (r->high - r->low);
}

static double x_of(const frame *f, double value)
{
    return LEFT + place(&f->x, value) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const frame *f, double value)
{
    return HEIGHT - BOTTOM - place(&f->y, value) * (HEIGHT - TOP - BOTTOM);
}

/* Some room, and never a range so small that doubles cannot part it. */
static void pad(range *r, double share)
{
    double size = fmax(fabs(r->low), fabs(r->high)), span = r->high - r->low;
    if (r->is_log) {
        double all = log(r->high) - log(r->low), factor = exp(all > 1e-9 ? all * share : log(2));
        r->low = fmax(r->low / factor, DBL_MIN);
        r->high = fmin(r->high * factor, DBL_MAX);
        return;
    }
    double room = span > fmax(size * 1e-9, SMALLEST) ? span * share : fmax(size * 0.1, 1e-9);
    r->low -= room;
    r->high += room;
}

/* 1, 2 or 5 times a power of ten: about `n` such steps in the range. */
static double tick_step(const range *r, int n)
{
    double rough = (r->high - r->low) / n, power = pow(10, floor(log10(rough)));
    double times = rough / power;
    return power * (times < 1.5 ? 1 : times < 3.5 ? 2 : times < 7.5 ? 5 : 10);
}

static void label(double value, chart_axis axis, char out[LABEL_BYTES])
{
    if (axis == CHART_PERCENT)
        snprintf(out, LABEL_BYTES, "%.6g %%", 100 * value);
    else if (fabs(value) >= 1e6)
        snprintf(out, LABEL_BYTES, "%.4gM", value / 1e6);
    else if (fabs(value) >= 1e4)
        snprintf(out, LABEL_BYTES, "%.4gk", value / 1e3);
    else
        snprintf(out, LABEL_BYTES, "%.6g", value);
}

static void put_y_tick(const frame *f, double value, chart_axis axis)
{
    char text[LABEL_BYTES];
    double y = y_of(f, value);
    label(value, axis, text);
    fprintf(f->out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" ", LEFT, y,
            WIDTH - RIGHT, LEFT - 6, y + 4);
    fprintf(f->out, "text-anchor=\"end\">%s</text>\n", text);
}

static void put_x_tick(const frame *f, double value)
{
    char text[LABEL_BYTES];
    double x = x_of(f, value);
    label(value, CHART_LINEAR, text);
    fprintf(f->out, "<path class=\"grid\" d=\"M%.1f %dV%d\"/><text x=\"%.1f\" y=\"%d\" ", x, TOP,
            HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 16);
    fprintf(f->out, "text-anchor=\"middle\">%s</text>\n", text);
}

/* Of each decade 1, of many decades only some; 2 and 5 too if there are few. */
static void put_log_ticks(const frame *f)
{
    enum { MOST = 10 };
    int low = (int)floor(log10(f->y.low)), high = (int)floor(log10(f->y.high));
    bool few = log10(f->y.high) - log10(f->y.low) < 3;
    for (int at = low; at <= high; at += (high - low) / MOST + 1)
        for (int times = 1; times <= (few ? 5 : 1); times += times == 1 ? 1 : 3) {
            double value = pow(10, at) * times;
            if (value >= f->y.low && value <= f->y.high)
                put_y_tick(f, value, CHART_LOG);
        }
}

static void put_ticks(const frame *f, chart_axis axis)
{
    enum { X_TICKS = 5, Y_TICKS = 5 };
    double step = tick_step(&f->x, X_TICKS);
    for (double at = ceil(f->x.low / step); at * step <= f->x.high; at++)
        put_x_tick(f, at * step + 0.0); /* never -0 */
    if (f->y.is_log) {
        put_log_ticks(f);
        return;
    }
    step = tick_step(&f->y, Y_TICKS);
    for (double at = ceil(f->y.low / step); at * step <= f->y.high; at++)
        put_y_tick(f, at * step + 0.0, axis);
}

static void put_line(const frame *f, const chart_series *s)
{
    static const char *const kinds[] = {
        [CHART_LINE] = "", [CHART_DASHED] = " dashed", [CHART_THIN] = " thin", [CHART_DOTS] = ""};
    char command = 'M';
    fprintf(f->out, "<path class=\"line%s\" style=\"stroke:var(--c%d)\" d=\"", kinds[s->form],
            s->colour);
    for (int i = 0; i < s->n; i++) {
        bool drawn = has_place(f, s, i);
        if (drawn)
            fprintf(f->out, "%c%.1f %.1f", command, x_of(f, s->x[i]), y_of(f, s->y[i]));
        command = drawn ? 'L' : 'M';
    }
    fputs("\"/>\n", f->out);
}

static void put_dots(const frame *f, const chart_series *s, chart_axis axis)
{
    char text[LABEL_BYTES];
    for (int i = 0; i < s->n; i++) {
        if (!has_place(f, s, i))
            continue;
        label(s->y[i], axis, text);
        fprintf(f->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" style=\"fill:var(--c%d)\"><title>",
                x_of(f, s->x[i]), y_of(f, s->y[i]), s->colour);
        html_text(f->out, s->name);
        fprintf(f->out, ", step %.0f: %s</title></circle>\n", s->x[i], text);
    }
}

/* False if there is no point to draw. */
static bool measure(const chart *c, frame *f)
{
    f->x = (range){HUGE_VAL, -HUGE_VAL, false};
    f->y = (range){HUGE_VAL, -HUGE_VAL, c->y_axis == CHART_LOG};
    for (int s = 0; s < c->n_series; s++)
        for (int i = 0; i < c->series[s].n; i++)
            if (has_place(f, &c->series[s], i)) {
                widen(&f->x, c->series[s].x[i]);
                widen(&f->y, c->series[s].y[i]);
            }
    if (f->y.low > f->y.high)
        return false;
    widen(&f->x, 0); /* so that charts of a page have the same axis */
    double most = f->y.high;
    pad(&f->x, 0.02);
    pad(&f->y, 0.05);
    if (c->y_axis == CHART_PERCENT && most <= 1)
        f->y.high = fmin(f->y.high, 1);
    return true;
}

static void put_picture(const frame *f, const chart *c)
{
    fprintf(f->out, "<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH,
            HEIGHT);
    html_text(f->out, c->title);
    fputs("\">\n", f->out);
    put_ticks(f, c->y_axis);
    for (int i = 0; i < c->n_marks; i++)
        if (c->marks[i] >= f->x.low && c->marks[i] <= f->x.high)
            fprintf(f->out,
                    "<path class=\"mark\" d=\"M%.1f %dV%d\"><title>resumed after step %.0f</title>"
                    "</path>\n",
                    x_of(f, c->marks[i]), TOP, HEIGHT - BOTTOM, c->marks[i]);
    for (int i = 0; i < c->n_series; i++)
        put_line(f, &c->series[i]);
    for (int i = 0; i < c->n_series; i++)
        if (c->series[i].form == CHART_DOTS || c->series[i].n == 1)
            put_dots(f, &c->series[i], c->y_axis);
    fprintf(f->out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">", (LEFT + WIDTH - RIGHT) / 2,
            HEIGHT - 6);
    html_text(f->out, c->x_label);
    fputs("</text>\n</svg>\n", f->out);
}

void chart_write(FILE *out, const chart *c)
{
    frame f = {.out = out};
    fputs("<figure>\n", out);
    html_tagged(out, "h3", c->title);
    if (measure(c, &f))
        put_picture(&f, c);
    else
        html_tagged(out, "p", "no data");
    fputs("</figure>\n", out);
}
