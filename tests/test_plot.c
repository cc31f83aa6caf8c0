/* SPDX-License-Identifier: MIT */
/* Drawings: the same bytes for the same data in each format, what is written in them, what is coloured, faults. */
#include "nl_test.h"

#include <math.h>
#include <unistd.h>

#include "nl_chart.h"
#include "nl_plot.h"

static nl_context *context;
static char folder[64];

static int setup(void **state)
{
    (void)state;
    context = test_context(NULL);
    strcpy(folder, "/tmp/nalagen_plot_XXXXXX");
    return mkdtemp(folder) ? 0 : 1;
}

static int teardown(void **state)
{
    char command[96];
    (void)state;
    snprintf(command, sizeof(command), "rm -r %s", folder);
    nl_core_context_destroy(context);
    return system(command);
}

/* Kept until the test ends: a path in the folder. */
static const char *in_folder(const char *name)
{
    static char paths[32][128];
    static int next;
    char *path = paths[next++ % NL_COUNT(paths)];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static void write_text(const char *name, const char *text)
{
    char *path = strdup(in_folder(name)), *slash = strrchr(path, '/');
    *slash = 0;
    assert_ok(context, nl_make_folder(context, path));
    *slash = '/';
    assert_ok(context, nl_write_file(context, path, true, text, strlen(text)));
    free(path);
}

static nl_mapping map(const char *path)
{
    nl_mapping mapping;
    assert_ok(context, nl_map_file(context, path, &mapping));
    return mapping;
}

static bool holds(const char *path, const char *text)
{
    nl_mapping mapping = map(path);
    bool found = memmem(mapping.data, (size_t)mapping.size, text, strlen(text)) != NULL;
    nl_unmap(context, &mapping);
    return found;
}

static void assert_same(const char *a, const char *b)
{
    nl_mapping first = map(a), second = map(b);
    assert_int_equal(first.size, second.size);
    assert_memory_equal(first.data, second.data, (size_t)first.size);
    nl_unmap(context, &first);
    nl_unmap(context, &second);
}

/* How many pixels have about this colour. */
static int count_colour(const char *path, uint32_t colour)
{
    nl_image image;
    int count = 0;
    assert_ok(context, nl_image_read(context, path, &image));
    for (int i = 0; i < image.width * image.height; i++) {
        int away = 0;
        for (int c = 0; c < 3; c++)
            away += abs(image.rgb[3 * i + c] - (int)(colour >> (16 - 8 * c) & 255));
        count += away < 12;
    }
    nl_image_free(context, &image);
    return count;
}

static const nl_plot_options usual = {.log = "log.jsonl",
                                      .metrics = "metrics.jsonl",
                                      .value = "loss",
                                      .over = "step",
                                      .smoothing = 0.5,
                                      .log_scale = true,
                                      .overwrite = true,
                                      .width = 400,
                                      .height = 300};

static nl_status plot(const nl_plot_options *options, const char *run, const char *out)
{
    nl_plot_options o = *options;
    o.out = (const char *[]){out, NULL};
    return nl_plot(context, &run, 1, &o);
}

/* Two runs whose folders have the same name, one with held-out data. */
static void write_runs(void)
{
    write_text("a/run/log.jsonl", "{\"step\": 1, \"loss\": 3}\n{\"step\": 2, \"loss\": 2}\n"
                                  "no json\n{\"step\": 10000, \"loss\": 1}\n");
    write_text("b/run/log.jsonl", "{\"step\": 1, \"loss\": 2}\n{\"step\": 10000, \"loss\": 1.5}\n");
    write_text("b/run/metrics.jsonl", "{\"step\": 5000, \"val_loss\": 1.7}\n");
}

static void test_runs(void **state)
{
    (void)state;
    write_runs();
    const char *runs[] = {in_folder("a/run"), in_folder("b/run")};
    const char *out[] = {in_folder("x.svg"), in_folder("x.png"), in_folder("x.pdf"), NULL};
    const char *again[] = {in_folder("y.svg"), in_folder("y.png"), in_folder("y.pdf"), NULL};
    nl_plot_options options = usual;
    options.out = out;
    assert_ok(context, nl_plot(context, runs, 2, &options));
    options.out = again;
    assert_ok(context, nl_plot(context, runs, 2, &options));
    for (int i = 0; i < 3; i++)
        assert_same(out[i], again[i]);
    nl_image image;
    assert_ok(context, nl_image_read(context, out[1], &image));
    assert_true(image.width == 400 && image.height == 300);
    nl_image_free(context, &image);
    for (int i = 0; i < 2; i++)
        assert_true(count_colour(out[1], nl_series_colour(i)) > 100);
    assert_int_equal(count_colour(out[1], nl_series_colour(2)), 0);
    /* what each run and each kind of line is; the axes; names that are the same are told apart */
    const char *words[] = {"a/run\n",   "b/run\n",       "moving average, weight 0.5",
                           "as logged", "held-out data", "training step",
                           "loss",      "10,000\n"};
    for (int i = 0; i < NL_COUNT(words); i++)
        for (int file = 0; file < 2; file++)
            assert_true(holds(out[file], words[i]));
    nl_mapping svg = map(out[0]), pdf = map(out[2]);
    assert_memory_equal(svg.data + svg.size - 7, "</svg>\n", 7);
    assert_memory_equal(pdf.data, "%PDF-1.", 7);
    nl_unmap(context, &svg);
    nl_unmap(context, &pdf);
    assert_false(holds(out[2], "Date"));
}

static void test_odd_numbers(void **state)
{
    (void)state;
    const char *svg = in_folder("odd.svg");
    /* numbers that a tick's distance does not change */
    write_text("large/log.jsonl", "{\"step\": 100000000000000000, \"loss\": 1}\n"
                                  "{\"step\": 100000000000000016, \"loss\": 2}\n");
    assert_ok(context, plot(&usual, in_folder("large"), svg));
    write_text("one/log.jsonl", "{\"step\": 5, \"loss\": 1}\n");
    assert_ok(context, plot(&usual, in_folder("one"), svg));
    write_text("none/log.jsonl", "{\"step\": 5, \"loss\": -1}\n"); /* no logarithm */
    assert_ok(context, plot(&usual, in_folder("none"), svg));
    write_text("ends/log.jsonl", "{\"step\": 5, \"loss\": 1e-300}\n{\"step\": 6, \"loss\": 1e300}\n"
                                 "{\"step\": 7, \"loss\": -1.7e308}\n");
    assert_ok(context, plot(&usual, in_folder("ends"), svg));
    nl_plot_options linear = usual;
    linear.log_scale = false;
    assert_ok(context, plot(&linear, in_folder("ends"), svg));
    /* measured values over another number than steps: three decades, without a log of training */
    write_text("measured/metrics.jsonl",
               "{\"seconds\": 0.01, \"fid\": 3}\n{\"seconds\": 10, \"fid\": 1}\n"
               "{\"seconds\": 0, \"fid\": 1}\n{\"fid\": 2}\n");
    nl_plot_options other = usual;
    other.over = "seconds";
    other.value = "fid";
    other.log_over = true;
    assert_ok(context, plot(&other, in_folder("measured"), svg));
    const char *words[] = {"time in seconds\n", "0.01\n", "FID\n", "measured\n"};
    for (int i = 0; i < NL_COUNT(words); i++)
        assert_true(holds(svg, words[i]));
    assert_false(holds(svg, "held-out"));
    /* names that are neither UTF-8 nor XML */
    write_text("<a\xE9\x01&b>/log.jsonl", "{\"step\": 5, \"loss\": 1}\n");
    assert_ok(context, plot(&usual, in_folder("<a\xE9\x01&b>"), svg));
    assert_true(holds(svg, "<desc>&#60;a\xEF\xBF\xBD\xEF\xBF\xBD&#38;b&#62;\n"));
}

static void test_refusals(void **state)
{
    (void)state;
    write_runs();
    const char *run = in_folder("a/run"), *svg = in_folder("r.svg");
    nl_plot_options other = usual;
    other.over = "second";
    assert_int_equal(plot(&other, run, svg), NL_ERROR_INPUT);
    other = usual;
    other.value = "los";
    assert_int_equal(plot(&other, run, svg), NL_ERROR_INPUT);
    assert_int_equal(plot(&usual, "/nowhere", svg), NL_ERROR_INPUT);
    assert_int_equal(plot(&usual, run, in_folder("r.jpg")), NL_ERROR_USAGE);
    assert_non_null(strstr(nl_last_error(context), ".svg, .png or .pdf"));
    write_text("r.svg", "old");
    other = usual;
    other.overwrite = false;
    assert_int_equal(plot(&other, run, svg), NL_ERROR_WRITE);
    assert_true(holds(svg, "old"));
}

/* Every step of writing and every allocation fails in turn: said, nothing leaks, the old file stands. */
static void test_faults(void **state)
{
    (void)state;
    write_runs();
    const char *names[] = {"f.svg", "f.png", "f.pdf"}, *run = in_folder("b/run");
    for (int i = 0; i < NL_COUNT(names); i++) {
        const char *path = in_folder(names[i]);
        write_text(names[i], "old");
        int64_t used = context->memory_used, writes = context->writes;
        int64_t allocations = context->allocations;
        assert_ok(context, plot(&usual, run, in_folder(i == 1 ? "w.png" : i ? "w.pdf" : "w.svg")));
        writes = context->writes - writes;
        allocations = context->allocations - allocations;
        assert_true(writes >= 3 && allocations >= 3);
        for (int64_t k = 1; k <= writes; k++) {
            context->fail_write = context->writes + k;
            nl_status status = plot(&usual, run, path);
            context->fail_write = 0;
            if (status == NL_OK) /* the last step, the folder's, comes when the name is taken */
                continue;
            assert_int_equal(status, NL_ERROR_WRITE);
            assert_non_null(strstr(nl_last_error(context), names[i]));
            assert_int_equal(context->memory_used, used);
        }
        write_text(names[i], "old");
        for (int64_t k = 1; k <= allocations; k++) {
            context->fail_allocation = context->allocations + k;
            nl_status status = plot(&usual, run, path);
            context->fail_allocation = 0;
            assert_int_equal(status, NL_ERROR_MEMORY);
            assert_int_equal(context->memory_used, used);
            assert_true(holds(path, "old"));
        }
    }
}

/* Too large for Cairo's pictures: a status, no crash. */
static nl_status draw_nothing(void *user, nl_canvas *canvas)
{
    (void)user, (void)canvas;
    return NL_OK;
}

static void test_too_large(void **state)
{
    (void)state;
    nl_image image;
    nl_drawing drawing = {.width = 40000, .height = 10, .draw = draw_nothing};
    assert_int_equal(nl_drawing_render(context, &drawing, &image), NL_ERROR_INTERNAL);
    assert_non_null(strstr(nl_last_error(context), "a drawing failed"));
}

/* ---- Pieces */

static void test_numbers(void **state)
{
    (void)state;
    const struct {
        double value;
        const char *text;
    } rows[] = {{0, "0"},        {0.25, "0.25"},         {-0.5, "-0.5"},          {999, "999"},
                {1000, "1,000"}, {-1000, "-1,000"},      {-123456, "-123,456"},   {1e-9, "1e-9"},
                {2e20, "2e20"},  {1.5e-120, "1.5e-120"}, {12345678, "12,345,678"}};
    for (int i = 0; i < NL_COUNT(rows); i++) {
        char text[32];
        nl_number_text(rows[i].value, text);
        assert_string_equal(text, rows[i].text);
    }
}

static double brightness(uint32_t colour)
{
    return 0.299 * (colour >> 16) + 0.587 * (colour >> 8 & 255) + 0.114 * (colour & 255);
}

/* Without seeing hues, more is told from less; no two of the palette are the same to red-green blindness. */
static void test_colours(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        assert_true(brightness(nl_heat((i + 1) / 100.0)) > brightness(nl_heat(i / 100.0)));
        assert_true(brightness(nl_blues((i + 1) / 100.0)) < brightness(nl_blues(i / 100.0)));
    }
    assert_int_equal(nl_heat(-1), nl_heat(0));
    assert_int_equal(nl_heat(2), 0xfcffa4);
    for (int i = 0; i < 7; i++)
        for (int j = 0; j < i; j++) { /* what a deuteranope has: about red + green, and blue */
            uint32_t a = nl_series_colour(i), b = nl_series_colour(j);
            double yellow = 0.4 * ((a >> 16) - (double)(b >> 16)) +
                            0.6 * ((a >> 8 & 255) - (double)(b >> 8 & 255));
            assert_true(hypot(yellow, (a & 255) - (double)(b & 255)) > 30);
        }
}

static nl_status draw_picture(void *user, nl_canvas *canvas)
{
    nl_canvas_picture(canvas, 1, 1, 5, 3, user, 2, 4);
    nl_canvas_rectangle(canvas, 6, 0, 8, 4, 0x102030);
    nl_canvas_text(canvas, 0, 2, 0, nl_font_tick, "");
    return NL_OK;
}

static void test_pixels(void **state)
{
    (void)state;
    uint8_t rgb[2 * 4 * 3];
    for (int i = 0; i < NL_COUNT(rgb); i++)
        rgb[i] = (uint8_t)(10 * i);
    nl_image image;
    nl_drawing drawing = {.width = 8, .height = 4, .draw = draw_picture, .user = rgb};
    assert_ok(context, nl_drawing_render(context, &drawing, &image));
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 8; x++) {
            bool in = y >= 1 && y < 3 && x >= 1 && x < 5;
            uint8_t white[] = {255, 255, 255}, filled[] = {0x10, 0x20, 0x30};
            const uint8_t *expected = in       ? rgb + 3 * (4 * (y - 1) + x - 1)
                                      : x >= 6 ? filled
                                               : white;
            assert_memory_equal(image.rgb + 3 * (8 * y + x), expected, 3);
        }
    nl_image_free(context, &image);
}

static void test_sheet(void **state)
{
    (void)state;
    uint8_t red[16 * 16 * 3] = {0};
    for (int i = 0; i < 16 * 16; i++)
        red[3 * i] = 255;
    nl_sheet sheet = {.pictures = (const uint8_t *[]){red, NULL, red, red},
                      .rows = 2,
                      .columns = 2,
                      .height = 16,
                      .width = 16,
                      .over = (const char *[]){"sample", NULL},
                      .beside = (const char *[]){"first", "second"}};
    const char *path = in_folder("sheet.png");
    assert_ok(context, nl_sheet_write(context, &sheet, path, false));
    assert_int_equal(count_colour(path, 0xff0000), 3 * 16 * 16);
    assert_true(holds(path, "sample\nfirst\nsecond\n"));
    assert_int_equal(nl_sheet_write(context, &sheet, path, false), NL_ERROR_WRITE);
    /* Captions are cut to the width of their pictures, and what is enlarged keeps its pixels. */
    sheet.title = "step 1";
    sheet.captions = (const char *[]){"a cat", "none", NULL, "a name that is much too long"};
    sheet.enlarged = 6;
    path = in_folder("captions.png");
    assert_ok(context, nl_sheet_write(context, &sheet, path, false));
    assert_int_equal(count_colour(path, 0xff0000), 36 * 3 * 16 * 16);
    assert_true(holds(path, "step 1\nsample\nfirst\na cat\nsecond\na name that"));
    assert_false(holds(path, "too long"));
    nl_image image;
    assert_ok(context, nl_sheet_render(context, &sheet, &image));
    assert_true(image.width > 2 * 96 && image.height > 2 * 96);
    nl_image_free(context, &image);
}

int main(void)
{
#define NL_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        NL_TEST(test_runs),    NL_TEST(test_odd_numbers), NL_TEST(test_refusals),
        NL_TEST(test_faults),  NL_TEST(test_too_large),   NL_TEST(test_numbers),
        NL_TEST(test_colours), NL_TEST(test_pixels),      NL_TEST(test_sheet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
