/* Pictures: each format gives the same pixels, what is damaged is refused, and a drawing of any
 * size, place and colour becomes the image that MNIST would have of it. */
#include "data/raster.h"

#include "data/digits.h"
#include "tests/data/sandbox.h"
#include "tests/support/suite.h"

#include <png.h>

enum { SIDE = MNIST_IMAGE_SIDE, IMAGES = 40 };

/* 3x2 pixels in each of netpbm's formats; a bitmap has only black and white. */
static const struct {
    const char *bytes;
    size_t size;
    uint8_t grey[6];
} NETPBM[] = {
#define TEXT(s) s, sizeof s - 1
    {TEXT("P1\n# made by hand\n3 2\n101\n0 1 0\n"), {0, 255, 0, 255, 0, 255}},
    {TEXT("P2 3 2 # comment\n100\n0 50 100\n100 50 0"), {0, 128, 255, 255, 128, 0}},
    {TEXT("P3\n3 2\n255\n0 0 0 255 255 255 255 0 0\n0 255 0 0 0 255 128 128 128"),
     {0, 255, 54, 182, 18, 128}},
    {TEXT("P4\n3 2\n\xa0\x40"), {0, 255, 0, 255, 0, 255}},
    {TEXT("P5\n3 2\n255\n\x00\x80\xff\x01\x02\x03"), {0, 128, 255, 1, 2, 3}},
    {TEXT("P5\n3 2\n65535\n\0\0\x80\x80\xff\xff\0\0\0\0\xff\xff"), {0, 128, 255, 0, 0, 255}},
    {TEXT("P6\n3 2\n255\n\0\0\0\xff\xff\xff\xff\0\0\0\xff\0\0\0\xff\x80\x80\x80"),
     {0, 255, 54, 182, 18, 128}},
};

enum { NETPBM_COUNT = sizeof NETPBM / sizeof NETPBM[0] };

START_TEST(netpbm_is_read)
{
    raster p;
    expect_ok(raster_file_decode("f", (const uint8_t *)NETPBM[_i].bytes, NETPBM[_i].size, &p));
    ck_assert_int_eq(p.width, 3);
    ck_assert_int_eq(p.height, 2);
    ck_assert_mem_eq(p.grey, NETPBM[_i].grey, 6);
    raster_free(&p);
}
END_TEST

/* Each beginning lies in memory of exactly its size: a sanitizer sees any read past its end. A
 * text's last number may be shorter than it was. */
START_TEST(netpbm_cut_short_is_refused)
{
    for (size_t size = 0; size + 2 < NETPBM[_i].size; size++) {
        raster p = {0};
        bytes part = bytes_alloc(size);
        memcpy(part.data, NETPBM[_i].bytes, size);
        expect_failure(raster_file_decode("the_file", part.data, size, &p), "the_file", NULL);
        ck_assert_ptr_null(p.grey);
        free(part.data);
    }
}
END_TEST

static const struct {
    const char *bytes;
    size_t size;
    const char *facts[4];
} REFUSED[] = {
    {TEXT(""), {"empty"}},
    {TEXT("P5 0 3 255\n"), {"0x3"}},
    {TEXT("P5 3 2 0\n......"), {"byte 7"}},
    {TEXT("P5 3 2 65536\n......"), {"65536", "65535"}},
    {TEXT("P2 2 1 9\n1 10"), {"byte 11", "10", "9"}},
    {TEXT("P2 2 1 9\n1 x"), {"byte 11"}},
    {TEXT("P5 99999 99999 255\n"), {"99999x99999", "32 million"}},
    {TEXT("P5 16385 1 255\n"), {"16385x1", "16384"}},
    {TEXT("P5 999999999999 1 255\n"), {"byte"}},
    {TEXT("P7\nWIDTH 3\n"), {"PNG", "PGM"}},
    {TEXT("\xff\xd8\xff\xe0\0\x10JFIF"), {"JPEG", "convert"}},
    {TEXT("\x89PNG\r\n\x1a\n"), {"PNG", "damaged"}},
    {TEXT("hello"), {"PNG", "PGM"}},
};

START_TEST(what_is_no_picture_is_refused)
{
    raster p = {0};
    status st =
        raster_file_decode("a_file", (const uint8_t *)REFUSED[_i].bytes, REFUSED[_i].size, &p);
    expect_failure(st, "a_file", NULL);
    for (int i = 0; i < 4 && REFUSED[_i].facts[i] != NULL; i++)
        expect_failure(st, REFUSED[_i].facts[i], NULL);
    ck_assert_ptr_null(p.grey);
}
END_TEST

/* A PNG of 3x2 pixels, of which the last is transparent if there is an alpha channel. */
typedef struct png_case {
    int colour, depth, interlace;
} png_case;

static const png_case PNGS[] = {
    {PNG_COLOR_TYPE_GRAY, 8, PNG_INTERLACE_NONE},
    {PNG_COLOR_TYPE_GRAY, 1, PNG_INTERLACE_NONE},
    {PNG_COLOR_TYPE_GRAY, 16, PNG_INTERLACE_ADAM7},
    {PNG_COLOR_TYPE_RGB, 8, PNG_INTERLACE_ADAM7},
    {PNG_COLOR_TYPE_RGB, 16, PNG_INTERLACE_NONE},
    {PNG_COLOR_TYPE_RGB_ALPHA, 8, PNG_INTERLACE_NONE},
    {PNG_COLOR_TYPE_RGB_ALPHA, 16, PNG_INTERLACE_ADAM7},
    {PNG_COLOR_TYPE_GRAY_ALPHA, 8, PNG_INTERLACE_NONE},
    {PNG_COLOR_TYPE_PALETTE, 8, PNG_INTERLACE_NONE},
};

enum { PNG_COUNT = sizeof PNGS / sizeof PNGS[0], ROW_BYTES = 3 * 4 * 2 };

static int channels_of(int colour)
{
    return (colour & PNG_COLOR_MASK_COLOR && colour != PNG_COLOR_TYPE_PALETTE ? 3 : 1) +
           (colour & PNG_COLOR_MASK_ALPHA ? 1 : 0);
}

/* Black and white in turn, opaque but for the last pixel. */
static void fill_row(const png_case *c, int y, uint8_t row[ROW_BYTES])
{
    int channels = channels_of(c->colour), width = c->depth == 16 ? 2 : 1;
    memset(row, 0, ROW_BYTES);
    for (int x = 0; x < 3; x++) {
        bool white = (x + y) % 2 == 1, last = x == 2 && y == 1;
        for (int i = 0; i < channels; i++) {
            bool alpha = (c->colour & PNG_COLOR_MASK_ALPHA) && i == channels - 1;
            uint8_t value = (alpha ? !last : white) ? 255 : 0;
            if (c->depth == 1)
                row[0] |= (uint8_t)((value & 1) << (7 - x));
            else if (c->colour == PNG_COLOR_TYPE_PALETTE)
                row[x] = white;
            else
                memset(row + (x * channels + i) * width, value, (size_t)width);
        }
    }
}

static void write_png(const png_case *c, const char *path)
{
    static const png_color palette[] = {{0, 0, 0}, {255, 255, 255}};
    uint8_t first[ROW_BYTES], second[ROW_BYTES];
    uint8_t *rows[] = {first, second};
    FILE *file = fopen(path, "wb");
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    png_init_io(png, file);
    png_set_IHDR(png, info, 3, 2, c->depth, c->colour, c->interlace, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    if (c->colour == PNG_COLOR_TYPE_PALETTE)
        png_set_PLTE(png, info, palette, 2);
    fill_row(c, 0, first);
    fill_row(c, 1, second);
    png_set_rows(png, info, rows);
    png_write_png(png, info, PNG_TRANSFORM_IDENTITY, NULL);
    png_destroy_write_struct(&png, &info);
    ck_assert_int_eq(fclose(file), 0);
}

START_TEST(png_is_read)
{
    static const uint8_t want[] = {0, 255, 0, 255, 0, 255};
    raster p;
    write_png(&PNGS[_i], "a.png");
    expect_ok(raster_file_read("a.png", &p));
    ck_assert_int_eq(p.width, 3);
    ck_assert_int_eq(p.height, 2);
    ck_assert_mem_eq(p.grey, want, sizeof want); /* what is transparent lies on white */
    raster_free(&p);
}
END_TEST

START_TEST(png_cut_short_is_refused)
{
    char *whole = NULL;
    size_t size_bytes = 0;
    write_png(&PNGS[_i], "a.png");
    expect_ok(file_read("a.png", 1 << 20, &whole, &size_bytes));
    for (size_t size = 8; size + 16 < size_bytes; size++) { /* after that only the end is missing */
        raster p = {0};
        bytes part = bytes_alloc(size);
        memcpy(part.data, whole, size);
        expect_failure(raster_file_decode("a.png", part.data, size, &p), "a.png", "damaged", NULL);
        ck_assert_ptr_null(p.grey);
        free(part.data);
    }
    free(whole);
}
END_TEST

START_TEST(a_folder_and_nothing_are_refused)
{
    raster p;
    expect_failure(raster_file_read(".", &p), "folder", "/*.png", NULL);
    expect_failure(raster_file_read("none.png", &p), "none.png", NULL);
}
END_TEST

/* Draws digits in black and white alone, with the centre of mass where MNIST has it. Returns how
 * many there are: those that fill the box of 20 pixels. */
static int draw(uint8_t images[IMAGES][MNIST_IMAGE_PIXELS])
{
    static uint8_t drawn[IMAGES][MNIST_IMAGE_PIXELS];
    uint8_t labels[IMAGES];
    int n = 0;
    const digits_range range = {.seed = 1, .split = DIGITS_TEST, .count = IMAGES};
    expect_ok(digits_generate(&range, 1, drawn[0], labels));
    for (int i = 0; i < IMAGES; i++) {
        int left = SIDE, right = 0, top = SIDE, bottom = 0, mass = 0, across = 0, down = 0;
        for (int pixel = 0; pixel < MNIST_IMAGE_PIXELS; pixel++) {
            int x = pixel % SIDE, y = pixel / SIDE;
            if (drawn[i][pixel] < 128)
                continue;
            left = x < left ? x : left;
            right = x > right ? x : right;
            top = y < top ? y : top;
            bottom = y;
            mass++;
            across += x;
            down += y;
        }
        int width = right - left + 1, height = bottom - top + 1;
        if ((width > height ? width : height) != MNIST_IMAGE_BOX)
            continue;
        /* so that the middle, 14, is at most half a pixel away */
        int dx = (SIDE * mass - 2 * across + 3 * mass - 1) / (2 * mass) - 1;
        int dy = (SIDE * mass - 2 * down + 3 * mass - 1) / (2 * mass) - 1;
        for (int pixel = 0; pixel < MNIST_IMAGE_PIXELS; pixel++) {
            int x = pixel % SIDE - dx, y = pixel / SIDE - dy;
            bool inside = x >= 0 && x < SIDE && y >= 0 && y < SIDE;
            images[n][pixel] = inside && drawn[i][y * SIDE + x] >= 128 ? 255 : 0;
        }
        n++;
    }
    ck_assert_int_ge(n, IMAGES / 4);
    return n;
}

/* How a drawing lies in a picture. */
typedef struct setting {
    int enlarged;      /* so many pixels a side for one */
    int width, height; /* of the picture, in pixels of the drawing */
    int x, y;          /* where the drawing's upper left corner lies, likewise */
    int paper, ink;    /* grey */
} setting;

static const setting SETTINGS[] = {
    {1, 28, 28, 0, 0, 0, 255},    {10, 28, 28, 0, 0, 255, 0},   {3, 90, 40, 61, 11, 255, 0},
    {5, 40, 100, -3, -3, 0, 255}, {4, 60, 60, 20, 30, 200, 30}, {4, 60, 60, 20, 30, 90, 20},
    {4, 60, 60, 20, 30, 40, 140},
};

static raster paint(const uint8_t image[MNIST_IMAGE_PIXELS], const setting *s)
{
    raster p;
    expect_ok(raster_make("p", (uint64_t)(s->width * s->enlarged),
                          (uint64_t)(s->height * s->enlarged), &p));
    for (int y = 0; y < p.height; y++)
        for (int x = 0; x < p.width; x++) {
            int i = y / s->enlarged - s->y, j = x / s->enlarged - s->x;
            int ink = i >= 0 && i < SIDE && j >= 0 && j < SIDE ? image[i * SIDE + j] : 0;
            p.grey[y * p.width + x] = (uint8_t)(s->paper + ink * (s->ink - s->paper) / 255);
        }
    return p;
}

START_TEST(a_drawing_becomes_its_image)
{
    static uint8_t images[IMAGES][MNIST_IMAGE_PIXELS];
    int n = draw(images);
    for (int i = 0; i < n; i++) {
        uint8_t seen[MNIST_IMAGE_PIXELS];
        raster p = paint(images[i], &SETTINGS[_i]);
        expect_ok(mnist_image_make("p", &p, seen));
        raster_free(&p);
        ck_assert_mem_eq(seen, images[i], sizeof seen);
    }
}
END_TEST

/* How many pixels agree on ink or not, if one image is moved. */
static int alike(const uint8_t *a, const uint8_t *b, int dx, int dy)
{
    int n = 0;
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            bool inside = x + dx >= 0 && x + dx < SIDE && y + dy >= 0 && y + dy < SIDE;
            int moved = inside ? b[(y + dy) * SIDE + x + dx] : 0;
            n += (a[y * SIDE + x] >= 128) == (moved >= 128);
        }
    return n;
}

/* Paper that is darker on one side and grainy, as a photograph has it. */
START_TEST(paper_is_no_ink)
{
    static uint8_t images[IMAGES][MNIST_IMAGE_PIXELS];
    int n = draw(images);
    for (int i = 0; i < n; i++) {
        uint8_t seen[MNIST_IMAGE_PIXELS];
        raster p = paint(images[i], &(setting){8, 60, 60, 16, 16, 210, 50});
        for (int y = 0; y < p.height; y++)
            for (int x = 0; x < p.width; x++) {
                int grain = (int)((unsigned)(y * p.width + x) * 2654435761u >> 28) - 8;
                p.grey[y * p.width + x] =
                    (uint8_t)(p.grey[y * p.width + x] - x * 30 / p.width + grain);
            }
        expect_ok(mnist_image_make("p", &p, seen));
        raster_free(&p);
        int most = 0; /* its centre of mass may come to another pixel */
        for (int at = 0; at < 9; at++) {
            int n_alike = alike(seen, images[i], at % 3 - 1, at / 3 - 1);
            most = n_alike > most ? n_alike : most;
        }
        ck_assert_int_ge(most, MNIST_IMAGE_PIXELS * 99 / 100);
    }
}
END_TEST

/* What is drawn with one pixel's width, or is one pixel, or is wide and low. */
START_TEST(thin_and_tiny_drawings_have_an_image)
{
    static const setting line = {1, 400, 400, 0, 0, 255, 0};
    static const uint8_t nothing[MNIST_IMAGE_PIXELS];
    uint8_t seen[MNIST_IMAGE_PIXELS];
    raster p = paint(nothing, &line);
    for (int i = 100; i < 300; i++)
        p.grey[i * p.width + 50] = 0;
    expect_ok(mnist_image_make("p", &p, seen));
    ck_assert_int_eq(seen[4 * SIDE + 14], 255);
    ck_assert_int_eq(seen[23 * SIDE + 14], 255);
    ck_assert_int_eq(seen[3 * SIDE + 14], 0);
    ck_assert_int_eq(seen[10 * SIDE + 13], 0);
    raster_free(&p);

    p = paint(nothing, &line);
    p.grey[399 * p.width + 399] = 0; /* in the corner, where the border is */
    expect_ok(mnist_image_make("p", &p, seen));
    raster_free(&p);

    p = paint(nothing, &(setting){1, 1, 1, 0, 0, 255, 0});
    expect_failure(mnist_image_make("small", &p, seen), "small", "nothing", NULL);
    raster_free(&p);
}
END_TEST

START_TEST(a_blank_picture_says_so)
{
    static const uint8_t nothing[MNIST_IMAGE_PIXELS];
    static const int papers[] = {0, 128, 255};
    uint8_t seen[MNIST_IMAGE_PIXELS];
    raster p = paint(nothing, &(setting){1, 50, 60, 0, 0, papers[_i], 0});
    for (int x = 0; x < 20; x++) /* faint grain is nothing */
        p.grey[30 * p.width + x] = (uint8_t)(p.grey[30 * p.width + x] ^ 3);
    expect_failure(mnist_image_make("blank.png", &p, seen), "blank.png", "nothing", "50x60", NULL);
    raster_free(&p);
}
END_TEST

/* Half black, half white: either could be the paper. */
START_TEST(ink_that_is_not_told_from_paper_says_so)
{
    static const uint8_t nothing[MNIST_IMAGE_PIXELS];
    uint8_t seen[MNIST_IMAGE_PIXELS];
    raster p = paint(nothing, &(setting){1, 50, 60, 0, 0, 255, 0});
    for (int y = 0; y < p.height; y++)
        memset(p.grey + y * p.width, 0, (size_t)p.width / 2);
    expect_failure(mnist_image_make("half.png", &p, seen), "half.png", "paper", "margin", NULL);
    raster_free(&p);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("raster");
    TCase *formats = suite_case(suite, "formats", 30);
    tcase_add_checked_fixture(formats, sandbox_create, sandbox_remove);
    tcase_add_loop_test(formats, netpbm_is_read, 0, NETPBM_COUNT);
    tcase_add_loop_test(formats, netpbm_cut_short_is_refused, 0, NETPBM_COUNT);
    tcase_add_loop_test(formats, what_is_no_picture_is_refused, 0,
                        sizeof REFUSED / sizeof REFUSED[0]);
    tcase_add_loop_test(formats, png_is_read, 0, PNG_COUNT);
    tcase_add_loop_test(formats, png_cut_short_is_refused, 0, PNG_COUNT);
    tcase_add_test(formats, a_folder_and_nothing_are_refused);
    TCase *images = suite_case(suite, "images", 30);
    tcase_add_loop_test(images, a_drawing_becomes_its_image, 0,
                        sizeof SETTINGS / sizeof SETTINGS[0]);
    tcase_add_test(images, paper_is_no_ink);
    tcase_add_test(images, thin_and_tiny_drawings_have_an_image);
    tcase_add_loop_test(images, a_blank_picture_says_so, 0, 3);
    tcase_add_test(images, ink_that_is_not_told_from_paper_says_so);
    return suite_run(suite);
}
