#include "app/report/trace_picture.h"

#include "app/common/page_files.h"
#include "app/report/html.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 1200,
    NAMES = 170, /* of it: the column with the lanes' names */
    ROW = 18,
    GAP = 8, /* between lanes */
    DEPTH_MAX = 8,
    STEP_FIRST = 4, /* the first ones are slower: of those that the report shows */
    STEPS_SHOWN = 3,
    LETTER = 7, /* so wide */
};

/* The file has three decimals. */
#define ROUNDING_US 0.002

/* What one thread of one rank did. */
typedef struct lane {
    int pid, tid, depth, top; /* rows, and where they begin */
    const char *name;
} lane;

typedef struct trace_picture {
    json_t *trace;
    const json_t *events;
    lane *lanes;
    int n_lanes, height;
    double from_us, to_us;
} trace_picture;

static const char *text_of(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text != NULL ? text : "";
}

static double number_of(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

static bool is_span(const json_t *event)
{
    return strcmp(text_of(event, "ph"), "X") == 0;
}

static lane *find_lane(const trace_picture *p, const json_t *event)
{
    int pid = (int)number_of(event, "pid"), tid = (int)number_of(event, "tid");
    for (int i = 0; i < p->n_lanes; i++)
        if (p->lanes[i].pid == pid && p->lanes[i].tid == tid)
            return &p->lanes[i];
    return NULL;
}

/* One for each name of a thread; ranks in their order, as the file has them. */
static status find_lanes(trace_picture *p)
{
    size_t i;
    json_t *event;
    TRY(memory_alloc(sizeof *p->lanes * (json_array_size(p->events) + 1), (void **)&p->lanes));
    json_array_foreach(p->events, i, event) if (strcmp(text_of(event, "name"), "thread_name") == 0)
        p->lanes[p->n_lanes++] = (lane){.pid = (int)number_of(event, "pid"),
                                        .tid = (int)number_of(event, "tid"),
                                        .depth = 1,
                                        .name = text_of(json_object_get(event, "args"), "name")};
    return STATUS_OK;
}

/* Calls `see` with each span and how deep it lies inside others. A lane's spans stand in the order
 * of their beginnings, outer ones first. */
typedef void see_fn(void *ctx, lane *in, const json_t *span, int depth);

static void walk(const trace_picture *p, see_fn *see, void *ctx)
{
    size_t i;
    json_t *event;
    double ends[DEPTH_MAX];
    const lane *last = NULL;
    int depth = 0;
    json_array_foreach(p->events, i, event)
    {
        lane *in = is_span(event) ? find_lane(p, event) : NULL;
        double begin = number_of(event, "ts");
        if (in == NULL)
            continue;
        depth = in == last ? depth : 0;
        while (depth > 0 && ends[depth - 1] <= begin + ROUNDING_US)
            depth--;
        see(ctx, in, event, depth);
        if (depth < DEPTH_MAX - 1)
            ends[depth++] = begin + number_of(event, "dur");
        last = in;
    }
}

static void measure(void *ctx, lane *in, const json_t *span, int depth)
{
    trace_picture *p = ctx;
    double end = number_of(span, "ts") + number_of(span, "dur");
    if (depth + 1 > in->depth)
        in->depth = depth + 1;
    if (end > p->to_us)
        p->to_us = end;
}

static void place_lanes(trace_picture *p)
{
    p->height = GAP;
    for (int i = 0; i < p->n_lanes; i++) {
        p->lanes[i].top = p->height;
        p->height += p->lanes[i].depth * ROW + GAP;
    }
}

static void close_picture(trace_picture *p)
{
    free(p->lanes);
    json_decref(p->trace);
}

static status open_picture(const char *path, trace_picture *p)
{
    json_error_t error;
    *p = (trace_picture){.trace = json_load_file(path, 0, &error)};
    p->events = json_object_get(p->trace, "traceEvents");
    if (!json_is_array(p->events))
        return FAIL(STATUS_INVALID, "%s is no trace", path);
    TRY(find_lanes(p));
    walk(p, measure, p);
    place_lanes(p);
    return STATUS_OK;
}

/* The span's kind, which gives it its colour. */
static const char *kind_of(const char *name)
{
    static const struct {
        const char *part, *kind;
    } all[] = {{"forward", "forward"},     {"backward", "backward"}, {"loss", "backward"},
               {"wait", "wait"},           {"all_reduce", "sends"},  {"broadcast", "sends"},
               {"reduce", "sends"},        {"gather", "sends"},      {"scatter", "sends"},
               {"send", "sends"},          {"recv", "sends"},        {"barrier", "wait"},
               {"optimizer", "optimizer"}, {"data", "data"}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strstr(name, all[i].part) != NULL)
            return all[i].kind;
    return "other";
}

/* "all_reduce bucket 0", its time, and what else the trace knows of it. */
static void write_title(FILE *out, const json_t *span)
{
    const char *key;
    json_t *value;
    html_text(out, text_of(span, "name"));
    fprintf(out, "\n%.3f ms", number_of(span, "dur") * 1e-3);
    json_object_foreach(json_object_get(span, "args"), key, value)
    {
        fputs("\n", out);
        html_text(out, key);
        if (json_is_integer(value))
            fprintf(out, ": %" JSON_INTEGER_FORMAT, json_integer_value(value));
        else if (json_is_string(value)) {
            fputs(": ", out);
            html_text(out, json_string_value(value));
        }
    }
}

/* The picture while it is written. */
typedef struct drawing {
    const trace_picture *p;
    FILE *out;
} drawing;

static bool is_inside(const trace_picture *p, const json_t *span)
{
    double begin = number_of(span, "ts");
    return begin < p->to_us && begin + number_of(span, "dur") > p->from_us;
}

static void draw_span(void *ctx, lane *in, const json_t *span, int depth)
{
    const drawing *d = ctx;
    if (!is_inside(d->p, span))
        return;
    fprintf(d->out, "<rect class=\"%s\" x=\"%.3f\" y=\"%d\" width=\"%.3f\" height=\"%d\"><title>",
            kind_of(text_of(span, "name")), number_of(span, "ts") - d->p->from_us,
            in->top + depth * ROW, number_of(span, "dur"), ROW - 2);
    write_title(d->out, span);
    fputs("</title></rect>\n", d->out);
}

/* If there is room in it. */
static void draw_name(void *ctx, lane *in, const json_t *span, int depth)
{
    const drawing *d = ctx;
    const char *name = text_of(span, "name");
    double scale = (WIDTH - NAMES) / (d->p->to_us - d->p->from_us);
    double begin = (number_of(span, "ts") - d->p->from_us) * scale;
    double end = begin + number_of(span, "dur") * scale;
    begin = begin > 0 ? begin : 0;
    end = end < WIDTH - NAMES ? end : WIDTH - NAMES;
    if (end - begin < LETTER * (double)strlen(name) + 4)
        return;
    fprintf(d->out, "<text class=\"name\" x=\"%.1f\" y=\"%d\">", NAMES + begin + 3,
            in->top + depth * ROW + ROW - 6);
    html_text(d->out, name);
    fputs("</text>\n", d->out);
}

static void draw_lanes(const drawing *d)
{
    for (int i = 0; i < d->p->n_lanes; i++) {
        const lane *in = &d->p->lanes[i];
        fprintf(d->out, "<text class=\"lane\" x=\"0\" y=\"%d\">rank %d, ", in->top + ROW - 6,
                in->pid);
        html_text(d->out, in->name);
        fputs("</text>\n", d->out);
    }
}

/* Times are microseconds from the beginning of what is shown. */
static void draw(const trace_picture *p, FILE *out)
{
    drawing d = {p, out};
    fprintf(out,
            "<svg class=\"trace\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
            "role=\"img\" aria-label=\"what every rank did when\">\n<style>%.*s</style>\n",
            WIDTH, p->height, (int)trace_css_bytes, trace_css);
    draw_lanes(&d);
    fprintf(out,
            "<svg class=\"time\" x=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %.3f %d\" "
            "preserveAspectRatio=\"none\">\n",
            NAMES, WIDTH - NAMES, p->height, p->to_us - p->from_us, p->height);
    walk(p, draw_span, &d);
    fputs("</svg>\n", out);
    walk(p, draw_name, &d);
    fputs("</svg>\n", out);
}

/* From the beginning of one step of rank 0 to the end of a later one. */
static void look_at_steps(trace_picture *p)
{
    size_t i;
    json_t *event;
    int step = 0;
    double begins[STEPS_SHOWN] = {0};
    json_array_foreach(p->events, i, event)
    {
        if (!is_span(event) || number_of(event, "pid") > 0 ||
            strcmp(text_of(event, "name"), "step") != 0 || step >= STEP_FIRST + STEPS_SHOWN - 1)
            continue;
        begins[step % STEPS_SHOWN] = number_of(event, "ts");
        p->to_us = number_of(event, "ts") + number_of(event, "dur");
        step++;
    }
    p->from_us = step > 0 ? begins[step >= STEPS_SHOWN ? step % STEPS_SHOWN : 0] : 0;
}

static void draw_page(const trace_picture *p, FILE *out)
{
    char style[4096];
    snprintf(style, sizeof style, "%.*s", (int)trace_page_css_bytes, trace_page_css);
    html_begin(out, "What every rank did when", (const char *const[]){style, NULL});
    html_tagged(
        out, "p",
        "The wheel zooms, the mouse moves, a double click shows all. Under the mouse a span "
        "says its time, and what it moved. Blue is forward, orange backward, violet a message, red "
        "a wait, green the optimizer.");
    draw(p, out);
    fputs("<script>\n", out);
    fwrite(trace_js, 1, trace_js_bytes, out);
    fputs("</script>\n", out);
    html_end(out);
}

static status write_picture(const char *trace_path, const char *path,
                            void (*choose)(trace_picture *p),
                            void (*write)(const trace_picture *p, FILE *out))
{
    trace_picture p;
    text_stream stream;
    status st = open_picture(trace_path, &p);
    if (st == STATUS_OK && choose != NULL)
        choose(&p);
    if (st == STATUS_OK && p.to_us <= p.from_us)
        st = FAIL(STATUS_INVALID, "%s has no spans", trace_path);
    if (st == STATUS_OK)
        st = text_stream_open(&stream);
    if (st == STATUS_OK) {
        write(&p, stream.file);
        st = text_stream_save(&stream, STATUS_OK, path);
    }
    close_picture(&p);
    return st;
}

status trace_picture_write_page(const char *trace_path, const char *page_path)
{
    return write_picture(trace_path, page_path, NULL, draw_page);
}

status trace_picture_write_steps(const char *trace_path, const char *svg_path)
{
    return write_picture(trace_path, svg_path, look_at_steps, draw);
}
