/* SPDX-License-Identifier: MIT */
/* Pictures: PNG out and in, JPEG, grids, the terminal; damaged files by name; faults. */
#include "nl_test.h"

#include <unistd.h>

#include <jpeglib.h>
#include <webp/encode.h>
#include <zlib.h>

#include "nl_image.h"

/* ---- Bytes of a file under test */

typedef struct test_bytes {
    uint8_t data[1 << 16];
    size_t size;
} test_bytes;

static void put(test_bytes *bytes, const void *data, size_t size)
{
    assert_true(bytes->size + size <= sizeof(bytes->data));
    if (size)
        memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

static void put_u32(test_bytes *bytes, uint32_t x)
{
    put(bytes, (uint8_t[]){(uint8_t)(x >> 24), (uint8_t)(x >> 16), (uint8_t)(x >> 8), (uint8_t)x},
        4);
}

static void put_chunk(test_bytes *bytes, const char *type, const void *data, size_t size)
{
    put_u32(bytes, (uint32_t)size);
    size_t start = bytes->size;
    put(bytes, type, 4);
    put(bytes, data, size);
    put_u32(bytes, (uint32_t)crc32(0, bytes->data + start, (uInt)(size + 4)));
}

static void put_header(test_bytes *bytes, uint32_t width, uint32_t height, int depth, int colour,
                       int interlace)
{
    put(bytes, "\x89PNG\r\n\x1a\n", 8);
    test_bytes header = {.size = 0};
    put_u32(&header, width);
    put_u32(&header, height);
    put(&header, (uint8_t[]){(uint8_t)depth, (uint8_t)colour, 0, 0, (uint8_t)interlace}, 5);
    put_chunk(bytes, "IHDR", header.data, header.size);
}

static void put_pixels(test_bytes *bytes, const void *rows, size_t size)
{
    uint8_t compressed[4096];
    uLongf length = sizeof(compressed);
    assert_int_equal(compress(compressed, &length, rows, size), Z_OK);
    put_chunk(bytes, "IDAT", compressed, length);
    put_chunk(bytes, "IEND", NULL, 0);
}

/* A good PNG of 2 x 2 grey pixels 0, 85, 170, 255. */
static void put_small_png(test_bytes *bytes)
{
    bytes->size = 0;
    put_header(bytes, 2, 2, 8, 0, 0);
    put_pixels(bytes, (uint8_t[]){0, 0, 85, 0, 170, 255}, 6);
}

static nl_status read_bytes(nl_context *context, const test_bytes *bytes, bool text_only,
                            nl_image *image)
{
    char path[] = "/tmp/nl_test_image_XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, bytes->data, bytes->size), bytes->size);
    close(file);
    nl_status status =
        text_only ? nl_png_read_text(context, path, image) : nl_image_read(context, path, image);
    unlink(path);
    return status;
}

static void expect_refusal(nl_context *context, const test_bytes *bytes, const char *part)
{
    nl_image image;
    int64_t used = context->memory_used;
    nl_status status = read_bytes(context, bytes, false, &image);
    if (status != NL_ERROR_INPUT || !strstr(nl_last_error(context), part))
        fail_msg("expected a refusal that says \"%s\", got %s: %s", part, nl_status_name(status),
                 nl_last_error(context));
    assert_null(image.rgb);
    assert_null(image.text);
    assert_int_equal(used, context->memory_used);
}

/* A picture without structure that a compressor could hide behind. */
static uint8_t *drawn_picture(int height, int width)
{
    uint8_t *rgb = malloc((size_t)height * (size_t)width * 3);
    uint32_t x = 1;
    for (int i = 0; i < height * width * 3; i++) {
        x = x * 1664525u + 1013904223u;
        rgb[i] = (uint8_t)(i / 7 + (x >> 28));
    }
    return rgb;
}

/* ---- PNG out and in */

static void test_png_round_trip(void **state)
{
    (void)state;
    static const int sizes[][2] = {{1, 1}, {1, 300}, {211, 1}, {64, 48}, {513, 257}};
    static const char *const text[] = {
        "parameters", "{\"class\": \"Kirche \xe2\x9b\xaa\"}", "Software", "nalagen", "empty", "",
        NULL};
    nl_context *context = test_context(NULL);
    char path[] = "/tmp/nl_test_image_XXXXXX";
    close(mkstemp(path));
    for (int i = 0; i < NL_COUNT(sizes); i++) {
        int height = sizes[i][0], width = sizes[i][1];
        uint8_t *rgb = drawn_picture(height, width);
        assert_ok(context, nl_png_write(context, path, true, rgb, height, width, text));
        nl_image image;
        assert_ok(context, nl_image_read(context, path, &image));
        assert_int_equal(image.height, height);
        assert_int_equal(image.width, width);
        assert_memory_equal(image.rgb, rgb, (size_t)height * (size_t)width * 3);
        for (int j = 0; j < 6; j++)
            assert_string_equal(image.text[j], text[j]);
        assert_null(image.text[6]);
        nl_image_free(context, &image);
        assert_ok(context, nl_png_read_text(context, path, &image));
        assert_int_equal(image.height, height);
        assert_null(image.rgb);
        assert_string_equal(image.text[1], text[1]);
        nl_image_free(context, &image);
        free(rgb);
    }
    assert_int_equal(context->memory_used, 0);
    unlink(path);
    nl_core_context_destroy(context);
}

/* Text goes between IHDR and the pixels, as its layout says. */
static void test_png_text_bytes(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    uint8_t *bytes;
    size_t size;
    static const char *const text[] = {"a", "\xc3\xa4", NULL};
    assert_ok(context, nl_png_encode(context, (uint8_t[]){1, 2, 3}, 1, 1, text, &bytes, &size));
    test_bytes expected = {.size = 0};
    put_chunk(&expected, "iTXt", "a\0\0\0\0\0\xc3\xa4", 8);
    assert_memory_equal(bytes + 33, expected.data, expected.size);
    assert_memory_equal(bytes + 33 + expected.size + 4, "IDAT", 4);
    nl_free(context, bytes);

    static const char *const bad[][3] = {
        {"", "x", NULL},
        {" a", "x", NULL},
        {"a ", "x", NULL},
        {"a  b", "x", NULL},
        {"a\nb", "x", NULL},
        {"\x7f", "x", NULL},
        {"no value", NULL, NULL},
        {"1234567890123456789012345678901234567890"
         "1234567890123456789012345678901234567890",
         "x", NULL},
    };
    for (int i = 0; i < NL_COUNT(bad); i++)
        assert_int_equal(nl_png_encode(context, (uint8_t[]){1, 2, 3}, 1, 1, bad[i], &bytes, &size),
                         NL_ERROR_USAGE);
    assert_int_equal(nl_png_encode(context, NULL, 0, 1, NULL, &bytes, &size), NL_ERROR_USAGE);
    assert_int_equal(nl_png_encode(context, NULL, 1 << 20, 1 << 20, NULL, &bytes, &size),
                     NL_ERROR_USAGE);
    nl_core_context_destroy(context);
}

/* What stood there stays unless it may be replaced, and a full disk is an error. */
static void test_png_write_errors(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    uint8_t rgb[3] = {9, 8, 7};
    char path[] = "/tmp/nl_test_image_XXXXXX";
    close(mkstemp(path));
    assert_int_not_equal(nl_png_write(context, path, false, rgb, 1, 1, NULL), NL_OK);
    assert_non_null(strstr(nl_last_error(context), path));
    assert_ok(context, nl_png_write(context, path, true, rgb, 1, 1, NULL));
    assert_int_equal(nl_png_write(context, "/tmp/no/such/folder/x.png", true, rgb, 1, 1, NULL),
                     NL_ERROR_WRITE);
    assert_int_equal(nl_png_write(context, "/dev/full", true, rgb, 1, 1, NULL), NL_ERROR_WRITE);
    nl_status status = NL_ERROR_WRITE;
    for (int64_t n = 1; status != NL_OK; n++) {
        context->fail_write = context->writes + n;
        status = nl_png_write(context, path, true, rgb, 1, 1, NULL);
        if (status != NL_OK)
            assert_int_equal(status, NL_ERROR_WRITE);
        nl_image image; /* whole, old or new */
        assert_ok(context, nl_image_read(context, path, &image));
        assert_int_equal(image.rgb[0], 9);
        nl_image_free(context, &image);
        assert_true(n < 100);
    }
    context->fail_write = 0;
    unlink(path);
    nl_core_context_destroy(context);
}

/* ---- PNG kinds */

static void expect_pixels(nl_context *context, const test_bytes *bytes, int count,
                          const uint8_t *expected)
{
    nl_image image;
    assert_ok(context, read_bytes(context, bytes, false, &image));
    assert_int_equal(image.height * image.width, count);
    assert_memory_equal(image.rgb, expected, (size_t)count * 3);
    nl_image_free(context, &image);
}

static void test_png_kinds(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    test_bytes bytes;

    put_small_png(&bytes); /* grey */
    expect_pixels(context, &bytes, 4,
                  (uint8_t[]){0, 0, 0, 85, 85, 85, 170, 170, 170, 255, 255, 255});

    bytes.size = 0; /* one bit of grey */
    put_header(&bytes, 3, 1, 1, 0, 0);
    put_pixels(&bytes, (uint8_t[]){0, 0xa0}, 2);
    expect_pixels(context, &bytes, 3, (uint8_t[]){255, 255, 255, 0, 0, 0, 255, 255, 255});

    bytes.size = 0; /* 16 bits RGB */
    put_header(&bytes, 1, 1, 16, 2, 0);
    put_pixels(&bytes, (uint8_t[]){0, 0xff, 0xff, 0x80, 0x80, 0, 0}, 7);
    expect_pixels(context, &bytes, 1, (uint8_t[]){255, 128, 0});

    bytes.size = 0; /* palette with one transparent entry: over white */
    put_header(&bytes, 3, 1, 8, 3, 0);
    put_chunk(&bytes, "PLTE", (uint8_t[]){10, 20, 30, 40, 50, 60, 70, 80, 90}, 9);
    put_chunk(&bytes, "tRNS", (uint8_t[]){255, 0}, 2);
    put_pixels(&bytes, (uint8_t[]){0, 0, 1, 2}, 4);
    expect_pixels(context, &bytes, 3, (uint8_t[]){10, 20, 30, 255, 255, 255, 70, 80, 90});

    bytes.size = 0; /* alpha: 100 * 0.4 + 255 * 0.6 */
    put_header(&bytes, 1, 1, 8, 6, 0);
    put_pixels(&bytes, (uint8_t[]){0, 100, 0, 255, 102}, 5);
    expect_pixels(context, &bytes, 1, (uint8_t[]){193, 153, 255});

    bytes.size = 0; /* grey with alpha */
    put_header(&bytes, 2, 1, 8, 4, 0);
    put_pixels(&bytes, (uint8_t[]){0, 7, 255, 7, 0}, 5);
    expect_pixels(context, &bytes, 2, (uint8_t[]){7, 7, 7, 255, 255, 255});

    bytes.size = 0; /* interlaced 2 x 2: passes 1, 6 and 7 */
    put_header(&bytes, 2, 2, 8, 0, 1);
    put_pixels(&bytes, (uint8_t[]){0, 1, 0, 2, 0, 3, 4}, 7);
    expect_pixels(context, &bytes, 4, (uint8_t[]){1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4});
    nl_core_context_destroy(context);
}

static void test_png_texts_of_others(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    test_bytes bytes = {.size = 0};
    put_header(&bytes, 1, 1, 8, 0, 0);
    put_chunk(&bytes, "tEXt", "Title\0caf\xe9", 10);
    uint8_t packed[100] = "zTXt key\0";
    uLongf length = 80;
    assert_int_equal(compress(packed + 10, &length, (const Bytef *)"packed", 6), Z_OK);
    put_chunk(&bytes, "zTXt", packed + 5, length + 5); /* "key" 0 method 0 ... */
    uint8_t wide[100] = "i\0\1\0de\0titre\0";
    length = 80;
    assert_int_equal(compress(wide + 13, &length, (const Bytef *)"\xe2\x82\xac", 3), Z_OK);
    put_chunk(&bytes, "iTXt", wide, length + 13);
    put_pixels(&bytes, (uint8_t[]){0, 5}, 2);
    nl_image image;
    for (int text_only = 0; text_only < 2; text_only++) {
        assert_ok(context, read_bytes(context, &bytes, text_only, &image));
        assert_string_equal(image.text[0], "Title");
        assert_string_equal(image.text[1], "caf\xc3\xa9");
        assert_string_equal(image.text[2], "key");
        assert_string_equal(image.text[3], "packed");
        assert_string_equal(image.text[4], "i");
        assert_string_equal(image.text[5], "\xe2\x82\xac");
        assert_null(image.text[6]);
        nl_image_free(context, &image);
    }
    nl_core_context_destroy(context);
}

/* ---- Damaged PNG files, by name */

static void test_png_damaged(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    test_bytes good, bytes;
    nl_image image;
    put_small_png(&good);

    bytes = good; /* cut off at every length */
    for (size_t size = 8; size < good.size; size++) {
        bytes.size = size;
        expect_refusal(context, &bytes, "cut off");
    }
    for (size_t size = 0; size < 8; size++) {
        bytes.size = size;
        expect_refusal(context, &bytes, "neither PNG nor JPEG");
    }
    for (size_t i = 8; i < good.size; i++) { /* every byte changed: nothing passes unseen */
        bytes = good;
        bytes.data[i] ^= 0x41;
        if (read_bytes(context, &bytes, false, &image) != NL_ERROR_INPUT)
            fail_msg("byte %zu changed and nobody noticed", i);
    }
    bytes = good; /* wrong CRC of the pixels */
    bytes.data[8 + 25 + 8] ^= 1;
    expect_refusal(context, &bytes, "wrong CRC of chunk IDAT");

    bytes.size = 0; /* pixels missing at the end of the stream */
    put_header(&bytes, 2, 2, 8, 0, 0);
    put_pixels(&bytes, (uint8_t[]){0, 0, 85}, 3);
    expect_refusal(context, &bytes, "damaged PNG");

    bytes.size = 0; /* no pixels */
    put_header(&bytes, 2, 2, 8, 0, 0);
    put_chunk(&bytes, "IEND", NULL, 0);
    expect_refusal(context, &bytes, "no IDAT");

    bytes.size = 0; /* size 0 */
    put_header(&bytes, 0, 2, 8, 0, 0);
    put_pixels(&bytes, (uint8_t[]){0}, 1);
    expect_refusal(context, &bytes, "0 x 2 pixels");

    bytes.size = 0; /* a size that overflows */
    put_header(&bytes, 0x7fffffff, 0x7fffffff, 8, 0, 0);
    put_pixels(&bytes, (uint8_t[]){0}, 1);
    expect_refusal(context, &bytes, "2147483647 x 2147483647 pixels");
    bytes.size = 0;
    put_header(&bytes, 0xffffffff, 0xffffffff, 8, 0, 0);
    put_pixels(&bytes, (uint8_t[]){0}, 1);
    expect_refusal(context, &bytes, "pixels");

    bytes.size = 0; /* more pixels than allowed */
    put_header(&bytes, 1 << 15, (1 << 13) + 1, 8, 0, 0);
    put_pixels(&bytes, (uint8_t[]){0}, 1);
    expect_refusal(context, &bytes, "2^28");

    bytes.size = 0; /* a depth that does not exist */
    put_header(&bytes, 1, 1, 3, 0, 0);
    put_pixels(&bytes, (uint8_t[]){0, 0}, 2);
    expect_refusal(context, &bytes, "damaged PNG");

    bytes.size = 0; /* palette picture without a palette */
    put_header(&bytes, 1, 1, 8, 3, 0);
    put_pixels(&bytes, (uint8_t[]){0, 0}, 2);
    expect_refusal(context, &bytes, "damaged PNG");

    bytes.size = 0; /* IHDR twice */
    put_header(&bytes, 1, 1, 8, 0, 0);
    put_chunk(&bytes, "IHDR", "\0\0\0\1\0\0\0\1\10\0\0\0\0", 13);
    put_pixels(&bytes, (uint8_t[]){0, 0}, 2);
    expect_refusal(context, &bytes, "starts with one IHDR");

    bytes.size = 0; /* a chunk name that is none */
    put_header(&bytes, 1, 1, 8, 0, 0);
    put_chunk(&bytes, "a1b2", "x", 1);
    expect_refusal(context, &bytes, "no PNG chunk at byte 33");

    bytes.size = 0; /* text without an end of its keyword, and a compressed bomb that is none */
    put_header(&bytes, 1, 1, 8, 0, 0);
    put_chunk(&bytes, "tEXt", "keyword", 7);
    put_pixels(&bytes, (uint8_t[]){0, 0}, 2);
    expect_refusal(context, &bytes, "malformed PNG text");
    bytes.size = 0;
    put_header(&bytes, 1, 1, 8, 0, 0);
    put_chunk(&bytes, "iTXt", "k\0\0\0en", 6);
    put_pixels(&bytes, (uint8_t[]){0, 0}, 2);
    expect_refusal(context, &bytes, "malformed PNG text");
    bytes.size = 0;
    put_header(&bytes, 1, 1, 8, 0, 0);
    put_chunk(&bytes, "zTXt", "k\0\0abcdef", 9);
    put_pixels(&bytes, (uint8_t[]){0, 0}, 2);
    expect_refusal(context, &bytes, "compressed PNG text");

    assert_int_equal(nl_image_read(context, "/tmp", &image), NL_ERROR_INPUT);
    assert_int_equal(nl_image_read(context, "/no/such/picture.png", &image), NL_ERROR_INPUT);
    nl_core_context_destroy(context);
}

/* A small file may unpack to a large text; it may not to an endless one. */
static void test_png_text_bomb(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    size_t large = 20 << 20;
    char *zeros = malloc(large);
    memset(zeros, 'a', large);
    uint8_t packed[1 << 15] = "k\0";
    uLongf length = sizeof(packed) - 3;
    assert_int_equal(compress2(packed + 3, &length, (Bytef *)zeros, large, 9), Z_OK);
    test_bytes bytes = {.size = 0};
    put_header(&bytes, 1, 1, 8, 0, 0);
    put_chunk(&bytes, "zTXt", packed, length + 3);
    put_pixels(&bytes, (uint8_t[]){0, 5}, 2);
    expect_refusal(context, &bytes, "compressed PNG text");
    free(zeros);
    nl_core_context_destroy(context);
}

/* Nor may many. */
static void test_png_text_bombs(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    size_t large = 1 << 20;
    char *letters = malloc(large);
    memset(letters, 'a', large);
    uint8_t packed[1 << 12] = "k\0";
    uLongf length = sizeof(packed) - 3;
    assert_int_equal(compress2(packed + 3, &length, (Bytef *)letters, large, 9), Z_OK);
    for (int texts = 15; texts <= 17; texts += 2) {
        test_bytes bytes = {.size = 0};
        put_header(&bytes, 1, 1, 8, 0, 0);
        for (int i = 0; i < texts; i++)
            put_chunk(&bytes, "zTXt", packed, length + 3);
        put_pixels(&bytes, (uint8_t[]){0, 5}, 2);
        if (texts > 16) {
            expect_refusal(context, &bytes, "compressed PNG text");
            continue;
        }
        nl_image image;
        assert_ok(context, nl_image_read_bytes(context, "t", bytes.data, bytes.size, &image));
        nl_image_free(context, &image);
    }
    free(letters);
    nl_core_context_destroy(context);
}

/* ---- JPEG */

/* exif: an APP1 segment of that orientation, or 0 */
static void put_jpeg_with(test_bytes *bytes, const uint8_t *samples, int height, int width,
                          int channels, bool progressive, bool adobe, int exif)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    unsigned char *memory = NULL;
    unsigned long size = 0;
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &memory, &size);
    jpeg.image_width = (JDIMENSION)width;
    jpeg.image_height = (JDIMENSION)height;
    jpeg.input_components = channels;
    jpeg.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, 98, TRUE);
    if (progressive)
        jpeg_simple_progression(&jpeg);
    if (!adobe)
        jpeg.write_Adobe_marker = FALSE;
    jpeg_start_compress(&jpeg, TRUE);
    uint8_t segment[] = "Exif\0\0MM\0*\0\0\0\10\0\1\1\22\0\3\0\0\0\1\0\0\0\0\0\0\0\0";
    segment[6 + 8 + 2 + 9] = (uint8_t)exif;
    if (exif)
        jpeg_write_marker(&jpeg, JPEG_APP0 + 1, segment, sizeof(segment) - 1);
    while (jpeg.next_scanline < jpeg.image_height) {
        JSAMPROW row = (JSAMPROW)samples + (size_t)jpeg.next_scanline * (size_t)(width * channels);
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    bytes->size = 0;
    put(bytes, memory, size);
    free(memory);
}

static void put_jpeg(test_bytes *bytes, const uint8_t *samples, int height, int width, int channels,
                     bool progressive)
{
    put_jpeg_with(bytes, samples, height, width, channels, progressive, true, 0);
}

/* Smooth, so that JPEG keeps it. */
static void draw_smooth(uint8_t *samples, int height, int width, int channels)
{
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            for (int c = 0; c < channels; c++)
                samples[(y * width + x) * channels + c] = (uint8_t)(40 + 3 * x + 2 * y + 20 * c);
}

static void expect_near(nl_context *context, const test_bytes *bytes, int height, int width,
                        const uint8_t *expected, int tolerance)
{
    nl_image image;
    assert_ok(context, read_bytes(context, bytes, false, &image));
    assert_int_equal(image.height, height);
    assert_int_equal(image.width, width);
    assert_null(image.text);
    for (int i = 0; i < height * width * 3; i++)
        if (abs(image.rgb[i] - expected[i]) > tolerance)
            fail_msg("sample %d is %d, expected %d", i, image.rgb[i], expected[i]);
    nl_image_free(context, &image);
}

enum { JPEG_HEIGHT = 21, JPEG_WIDTH = 27, JPEG_PIXELS = JPEG_HEIGHT * JPEG_WIDTH };

static void test_jpeg_kinds(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    test_bytes bytes;
    uint8_t samples[JPEG_PIXELS * 4], expected[JPEG_PIXELS * 3];
    for (int progressive = 0; progressive < 2; progressive++) {
        draw_smooth(samples, JPEG_HEIGHT, JPEG_WIDTH, 3);
        put_jpeg(&bytes, samples, JPEG_HEIGHT, JPEG_WIDTH, 3, progressive);
        expect_near(context, &bytes, JPEG_HEIGHT, JPEG_WIDTH, samples, 4);

        draw_smooth(samples, JPEG_HEIGHT, JPEG_WIDTH, 1);
        for (int i = 0; i < JPEG_PIXELS * 3; i++)
            expected[i] = samples[i / 3];
        put_jpeg(&bytes, samples, JPEG_HEIGHT, JPEG_WIDTH, 1, progressive);
        expect_near(context, &bytes, JPEG_HEIGHT, JPEG_WIDTH, expected, 4);

        /* CMYK as Adobe's programs write it: inverted, so that white is 255 */
        draw_smooth(samples, JPEG_HEIGHT, JPEG_WIDTH, 4);
        for (int i = 0; i < JPEG_PIXELS * 3; i++)
            expected[i] = (uint8_t)(samples[i / 3 * 4 + i % 3] * samples[i / 3 * 4 + 3] / 255);
        put_jpeg(&bytes, samples, JPEG_HEIGHT, JPEG_WIDTH, 4, progressive);
        expect_near(context, &bytes, JPEG_HEIGHT, JPEG_WIDTH, expected, 6);
        /* and as all others do, without Adobe's marker */
        put_jpeg_with(&bytes, samples, JPEG_HEIGHT, JPEG_WIDTH, 4, progressive, false, 0);
        expect_near(context, &bytes, JPEG_HEIGHT, JPEG_WIDTH, expected, 6);
    }
    assert_int_equal(context->memory_used, 0);
    nl_core_context_destroy(context);
}

/* The stored picture is read as it is; turned, its corner (0, 0) lies where EXIF's table says. */
static void test_orientation(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    test_bytes bytes;
    uint8_t samples[JPEG_PIXELS * 3];
    /* row and column of the stored first row and first column: top, right, bottom, left */
    static const struct {
        bool swapped, bottom, right; /* where the corner of the stored picture is */
    } table[9] = {{0},
                  {false, false, false},
                  {false, false, true},
                  {false, true, true},
                  {false, true, false},
                  {true, false, false},
                  {true, false, true},
                  {true, true, true},
                  {true, true, false}};
    draw_smooth(samples, JPEG_HEIGHT, JPEG_WIDTH, 3);
    for (int o = 1; o <= 8; o++) {
        nl_image image;
        put_jpeg_with(&bytes, samples, JPEG_HEIGHT, JPEG_WIDTH, 3, false, true, o);
        assert_ok(context, read_bytes(context, &bytes, false, &image));
        assert_int_equal(image.orientation, o);
        assert_int_equal(image.width, JPEG_WIDTH);
        uint8_t corner[3], beside[3];
        memcpy(corner, image.rgb, 3);
        memcpy(beside, image.rgb + 3 * 8, 3); /* eight to the right in the stored picture */
        assert_ok(context, nl_image_turn(context, &image));
        assert_int_equal(image.height, table[o].swapped ? JPEG_WIDTH : JPEG_HEIGHT);
        int y = table[o].bottom ? image.height - 1 : 0, x = table[o].right ? image.width - 1 : 0;
        assert_memory_equal(image.rgb + 3 * (y * image.width + x), corner, 3);
        if (table[o].swapped)
            y += table[o].bottom ? -8 : 8;
        else
            x += table[o].right ? -8 : 8;
        assert_memory_equal(image.rgb + 3 * (y * image.width + x), beside, 3);
        nl_image_free(context, &image);
    }
    assert_int_equal(context->memory_used, 0);
    nl_core_context_destroy(context);
}

static void test_webp(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    test_bytes bytes = {0};
    nl_image image;
    uint8_t samples[JPEG_PIXELS * 4], expected[JPEG_PIXELS * 3], *encoded;
    draw_smooth(samples, JPEG_HEIGHT, JPEG_WIDTH, 3);
    size_t size = WebPEncodeLosslessRGB(samples, JPEG_WIDTH, JPEG_HEIGHT, 3 * JPEG_WIDTH, &encoded);
    put(&bytes, encoded, size);
    WebPFree(encoded);
    assert_ok(context, read_bytes(context, &bytes, false, &image));
    assert_int_equal(image.width, JPEG_WIDTH);
    assert_memory_equal(image.rgb, samples, JPEG_PIXELS * 3);
    nl_image_free(context, &image);
    bytes.size /= 2;
    expect_refusal(context, &bytes, "damaged WebP");
    /* transparency lies on white */
    draw_smooth(samples, JPEG_HEIGHT, JPEG_WIDTH, 4);
    for (int i = 0; i < JPEG_PIXELS; i++) {
        samples[4 * i + 3] = 128;
        for (int c = 0; c < 3; c++)
            expected[3 * i + c] = (uint8_t)((samples[4 * i + c] * 128 + 255 * 127 + 127) / 255);
    }
    bytes.size = 0;
    size = WebPEncodeLosslessRGBA(samples, JPEG_WIDTH, JPEG_HEIGHT, 4 * JPEG_WIDTH, &encoded);
    put(&bytes, encoded, size);
    WebPFree(encoded);
    assert_ok(context, read_bytes(context, &bytes, false, &image));
    assert_memory_equal(image.rgb, expected, sizeof(expected));
    nl_image_free(context, &image);
    assert_int_equal(context->memory_used, 0);
    nl_core_context_destroy(context);
}

static void test_jpeg_damaged(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    test_bytes good, bytes;
    uint8_t samples[JPEG_PIXELS * 3];
    draw_smooth(samples, JPEG_HEIGHT, JPEG_WIDTH, 3);
    for (int progressive = 0; progressive < 2; progressive++) {
        put_jpeg(&good, samples, JPEG_HEIGHT, JPEG_WIDTH, 3, progressive);
        bytes = good; /* cut off anywhere */
        for (size_t size = 3; size < good.size; size++) {
            bytes.size = size;
            expect_refusal(context, &bytes, "damaged JPEG");
        }
    }
    bytes = good;
    put(&bytes, "trailing bytes are nobody's business", 36);
    expect_near(context, &bytes, JPEG_HEIGHT, JPEG_WIDTH, samples, 4);

    bytes = good; /* a frame of height 0 */
    for (size_t i = 0; i + 9 < good.size; i++)
        if (good.data[i] == 0xff && good.data[i + 1] == 0xc2)
            bytes.data[i + 5] = bytes.data[i + 6] = 0;
    expect_refusal(context, &bytes, "damaged JPEG");

    bytes = good; /* 65535 x 65535 */
    for (size_t i = 0; i + 9 < good.size; i++)
        if (good.data[i] == 0xff && good.data[i + 1] == 0xc2)
            memset(bytes.data + i + 5, 0xff, 4);
    expect_refusal(context, &bytes, "JPEG");

    memcpy(bytes.data, "\xff\xd8\xff garbage", 11);
    bytes.size = 11;
    expect_refusal(context, &bytes, "damaged JPEG");
    bytes.size = 0;
    expect_refusal(context, &bytes, "neither PNG nor JPEG");
    nl_core_context_destroy(context);
}

/* ---- Budget and faults */

static void test_budget(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    test_bytes bytes = {.size = 0};
    put_header(&bytes, 1 << 14, 1 << 14, 8, 2, 0); /* a few bytes that ask for 768 MiB */
    put_pixels(&bytes, (uint8_t[]){0}, 1);
    context->options.max_memory = 1 << 20;
    nl_image image;
    assert_int_equal(read_bytes(context, &bytes, false, &image), NL_ERROR_MEMORY);
    assert_int_equal(context->memory_used, 0);
    nl_core_context_destroy(context);
}

static void check_read_faults(nl_context *context, const test_bytes *bytes, int at_least)
{
    nl_status status = NL_ERROR_MEMORY;
    int failures = 0;
    for (int64_t n = 1; status != NL_OK; n++, failures++) {
        nl_image image;
        context->fail_allocation = context->allocations + n;
        status = read_bytes(context, bytes, false, &image);
        if (status != NL_OK) {
            assert_int_equal(status, NL_ERROR_MEMORY);
            assert_non_null(strstr(nl_last_error(context), "memory for"));
            assert_null(image.rgb);
        }
        nl_image_free(context, &image);
        assert_int_equal(context->memory_used, 0);
        assert_true(n < 1000);
    }
    assert_true(failures >= at_least);
    context->fail_allocation = 0;
}

static void test_faults(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    test_bytes bytes = {.size = 0};
    put_header(&bytes, 2, 2, 8, 3, 1);
    put_chunk(&bytes, "PLTE", (uint8_t[]){10, 20, 30, 40, 50, 60, 70, 80, 90}, 9);
    put_chunk(&bytes, "tRNS", (uint8_t[]){255, 0}, 2);
    put_chunk(&bytes, "tEXt", "key\0value", 9);
    put_pixels(&bytes, (uint8_t[]){0, 1, 0, 2, 0, 0, 1}, 7);
    check_read_faults(context, &bytes, 6);
    uint8_t samples[JPEG_PIXELS * 3];
    draw_smooth(samples, JPEG_HEIGHT, JPEG_WIDTH, 3);
    put_jpeg(&bytes, samples, JPEG_HEIGHT, JPEG_WIDTH, 3, true);
    check_read_faults(context, &bytes, 3);

    uint8_t *encoded;
    size_t size;
    context->fail_allocation = context->allocations + 1;
    assert_int_equal(nl_png_encode(context, samples, 8, 8, NULL, &encoded, &size), NL_ERROR_MEMORY);
    assert_null(encoded);
    context->fail_allocation = context->allocations + 1;
    nl_image grid;
    assert_int_equal(nl_image_grid(context, (const uint8_t *[]){samples}, 1, 8, 8, 1, 1, 0, &grid),
                     NL_ERROR_MEMORY);
    for (int n = 1; n <= 2; n++) {
        FILE *sink = tmpfile();
        context->fail_allocation = context->allocations + n;
        assert_int_equal(nl_image_show(context, sink, NL_SHOW_KITTY, samples, 8, 8, 80, 0),
                         NL_ERROR_MEMORY);
        fclose(sink);
    }
    assert_int_equal(context->memory_used, 0);
    nl_core_context_destroy(context);
}

/* ---- Grids */

/* The first picture reads as an ordinary PNG with its text; with a chunk fdAT turned into IDAT each other one does, too.
 * Sequence numbers count through both kinds of chunks. */
static void test_animated(void **state)
{
    (void)state;
    nl_context *context = test_context("cpu");
    enum { HEIGHT = 5, WIDTH = 7, BYTES = 3 * HEIGHT * WIDTH, COUNT = 3 };
    uint8_t *all = drawn_picture(COUNT * HEIGHT, WIDTH), *bytes;
    const uint8_t *pictures[COUNT] = {all, all + BYTES, all + 2 * BYTES};
    const char *text[] = {"how", "so", NULL};
    size_t size;
    assert_ok(context,
              nl_apng_encode(context, pictures, COUNT, HEIGHT, WIDTH, 80, text, &bytes, &size));
    nl_image image;
    assert_ok(context, nl_image_read_bytes(context, "animated", bytes, size, &image));
    assert_int_equal(image.height, HEIGHT);
    assert_int_equal(image.width, WIDTH);
    assert_memory_equal(image.rgb, all, BYTES);
    assert_string_equal(image.text[1], "so");
    nl_image_free(context, &image);
    uint32_t number = 0;
    int controls = 0, frames = 0;
    for (size_t at = 8, length; at < size; at += length + 12) {
        const uint8_t *data = bytes + at + 8;
        length = (size_t)bytes[at] << 24 | (size_t)bytes[at + 1] << 16 |
                 (size_t)bytes[at + 2] << 8 | bytes[at + 3];
        assert_true(at + length + 12 <= size);
        if (!memcmp(data - 4, "acTL", 4)) {
            assert_memory_equal(data, ((uint8_t[]){0, 0, 0, COUNT, 0, 0, 0, 0}), 8);
            assert_int_equal(controls + frames, 0);
        } else if (!memcmp(data - 4, "fcTL", 4)) {
            const uint8_t expected[26] = {0, 0,  0, (uint8_t)number++,
                                          0, 0,  0, WIDTH,
                                          0, 0,  0, HEIGHT,
                                          0, 0,  0, 0,
                                          0, 0,  0, 0,
                                          0, 80, 3, 232,
                                          0, 0};
            assert_memory_equal(data, expected, 26);
            controls++;
        } else if (!memcmp(data - 4, "fdAT", 4)) {
            test_bytes one = {.size = 0};
            assert_memory_equal(data, ((uint8_t[]){0, 0, 0, (uint8_t)number++}), 4);
            put_header(&one, WIDTH, HEIGHT, 8, 2, 0);
            put_chunk(&one, "IDAT", data + 4, length - 4);
            put_chunk(&one, "IEND", NULL, 0);
            assert_ok(context, nl_image_read_bytes(context, "a frame", one.data, one.size, &image));
            assert_memory_equal(image.rgb, pictures[++frames], BYTES);
            nl_image_free(context, &image);
        }
    }
    assert_int_equal(controls, COUNT);
    assert_int_equal(frames, COUNT - 1);
    nl_free(context, bytes);
    assert_int_equal(nl_apng_encode(context, pictures, 0, HEIGHT, WIDTH, 80, text, &bytes, &size),
                     NL_ERROR_USAGE);
    assert_int_equal(
        nl_apng_encode(context, pictures, COUNT, HEIGHT, WIDTH, 65536, text, &bytes, &size),
        NL_ERROR_USAGE);
    assert_null(bytes);
    free(all);
    nl_context_destroy(context);
}

static void test_grid(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    uint8_t a[2 * 3 * 3], b[2 * 3 * 3];
    memset(a, 10, sizeof(a));
    memset(b, 20, sizeof(b));
    const uint8_t *pictures[] = {a, NULL, b};
    nl_image grid;
    assert_ok(context, nl_image_grid(context, pictures, 3, 2, 3, 2, 2, 1, &grid));
    assert_int_equal(grid.height, 5);
    assert_int_equal(grid.width, 7);
    static const char expected[] = "aaa...."
                                   "aaa...."
                                   "......."
                                   "bbb...."
                                   "bbb....";
    for (int i = 0; i < 35; i++)
        for (int c = 0; c < 3; c++)
            assert_int_equal(grid.rgb[3 * i + c], expected[i] == 'a'   ? 10
                                                  : expected[i] == 'b' ? 20
                                                                       : 255);
    nl_image_free(context, &grid);
    assert_int_equal(nl_image_grid(context, pictures, 3, 2, 3, 1, 2, 1, &grid), NL_ERROR_USAGE);
    assert_int_equal(nl_image_grid(context, pictures, 3, 2, 3, 2, 2, -1, &grid), NL_ERROR_USAGE);
    assert_int_equal(
        nl_image_grid(context, pictures, 3, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 0, &grid),
        NL_ERROR_USAGE);
    nl_core_context_destroy(context);
}

/* ---- The terminal */

static int rows_of_terminal; /* 0: unknown */

/* What is written to the terminal, ended by 0. */
static char *show(nl_context *context, nl_show how, const uint8_t *rgb, int height, int width,
                  int columns)
{
    enum { LARGEST = 1 << 20 };
    FILE *stream = tmpfile();
    char *text = malloc(LARGEST);
    assert_ok(context,
              nl_image_show(context, stream, how, rgb, height, width, columns, rows_of_terminal));
    rewind(stream);
    text[fread(text, 1, LARGEST - 1, stream)] = '\0';
    fclose(stream);
    return text;
}

static int base64_value(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *place = strchr(digits, c);
    return place && c ? (int)(place - digits) : -1;
}

/* The picture in the base64 text comes back. */
static void expect_png(nl_context *context, const char *text, size_t length, const uint8_t *rgb,
                       int height, int width)
{
    test_bytes bytes = {.size = 0};
    assert_int_equal(length % 4, 0);
    for (size_t i = 0; i < length; i += 4) {
        int padding = (text[i + 2] == '=') + (text[i + 3] == '=');
        uint32_t group = 0;
        for (int j = 0; j < 4; j++) {
            int value = text[i + (size_t)j] == '=' ? 0 : base64_value(text[i + (size_t)j]);
            assert_true(value >= 0);
            group = group << 6 | (uint32_t)value;
        }
        put(&bytes, (uint8_t[]){(uint8_t)(group >> 16), (uint8_t)(group >> 8), (uint8_t)group},
            (size_t)(3 - padding));
    }
    nl_image image;
    assert_ok(context, read_bytes(context, &bytes, false, &image));
    assert_int_equal(image.height, height);
    assert_memory_equal(image.rgb, rgb, (size_t)height * (size_t)width * 3);
    nl_image_free(context, &image);
}

static void test_show_kitty(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    uint8_t *rgb = drawn_picture(60, 70);
    char *text = show(context, NL_SHOW_KITTY, rgb, 60, 70, 80), *all = malloc(strlen(text));
    size_t length = 0;
    int chunks = 0;
    bool more = true;
    for (char *place = text; more; chunks++) {
        const char *start = chunks ? "\033_Gm=" : "\033_Ga=T,f=100,m=";
        assert_memory_equal(place, start, strlen(start));
        place += strlen(start);
        more = *place == '1';
        assert_memory_equal(place + 1, ";", 1);
        char *end = strstr(place, "\033\\");
        assert_non_null(end);
        assert_true(end - place - 2 <= 4096 && end - place - 2 > 0);
        memcpy(all + length, place + 2, (size_t)(end - place - 2));
        length += (size_t)(end - place - 2);
        place = end + 2;
    }
    assert_true(chunks > 2);
    expect_png(context, all, length, rgb, 60, 70);
    free(all), free(text), free(rgb);
    nl_core_context_destroy(context);
}

static void test_show_iterm2(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    uint8_t *rgb = drawn_picture(5, 4);
    char *text = show(context, NL_SHOW_ITERM2, rgb, 5, 4, 80);
    char *data = strchr(text, ':') + 1, *end = strchr(text, '\a');
    assert_memory_equal(text, "\033]1337;File=inline=1;size=", 26);
    expect_png(context, data, (size_t)(end - data), rgb, 5, 4);
    free(text), free(rgb);
    nl_core_context_destroy(context);
}

static void test_show_blocks(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    const uint8_t rgb[] = {1, 2, 3, 250, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18};
    char *text = show(context, NL_SHOW_BLOCKS, rgb, 3, 2, 80);
    assert_string_equal(text, "\033[38;2;1;2;3m\033[48;2;7;8;9m\xe2\x96\x80"
                              "\033[38;2;250;5;6m\033[48;2;10;11;12m\xe2\x96\x80\033[0m\n"
                              "\033[38;2;13;14;15m\033[49m\xe2\x96\x80"
                              "\033[38;2;16;17;18m\033[49m\xe2\x96\x80\033[0m\n");
    free(text);
    text = show(context, NL_SHOW_BLOCKS, rgb, 2, 2, 1); /* the mean of all four */
    assert_string_equal(text, "\033[38;2;67;7;8m\033[49m\xe2\x96\x80\033[0m\n");
    free(text);
    FILE *full = fopen("/dev/full", "w");
    assert_int_equal(nl_image_show(context, full, NL_SHOW_BLOCKS, rgb, 3, 2, 80, 0),
                     NL_ERROR_WRITE);
    fclose(full);
    assert_int_equal(nl_image_show(context, stdout, NL_SHOW_BLOCKS, rgb, 3, 2, 0, 0),
                     NL_ERROR_USAGE);
    nl_core_context_destroy(context);
}

/* No wider and no higher than the terminal, and no control sequence where there may be none. */
static void test_show_fits(void **state)
{
    (void)state;
    nl_context *context = test_context(NULL);
    static const int sizes[][2] = {{64, 64}, {200, 20}, {20, 200}, {1, 500}, {500, 1}};
    for (int i = 0; i < NL_COUNT(sizes); i++)
        for (int rows = 1; rows < 60; rows += 7)
            for (nl_show how = NL_SHOW_BLOCKS; how <= NL_SHOW_LETTERS; how++) {
                uint8_t *rgb = drawn_picture(sizes[i][0], sizes[i][1]);
                rows_of_terminal = rows;
                char *text = show(context, how, rgb, sizes[i][0], sizes[i][1], 40);
                int lines = 0, across = 0, first = 0;
                for (const char *c = text; *c; c++) {
                    lines += *c == '\n';
                    bool block = how == NL_SHOW_BLOCKS && !strncmp(c, "\xe2\x96\x80", 3);
                    across += lines == 0 && (how == NL_SHOW_LETTERS || block);
                    first += *c == '\033';
                }
                assert_in_range(lines, 1, rows);
                assert_in_range(across, 1, 40);
                assert_int_equal(first > 0, how == NL_SHOW_BLOCKS);
                free(text), free(rgb);
            }
    rows_of_terminal = 0;
    const uint8_t rgb[] = {0, 0, 0, 255, 255, 255, 0, 0, 0, 255, 255, 255};
    char *text = show(context, NL_SHOW_LETTERS, rgb, 2, 2, 80);
    assert_string_equal(text, " @\n");
    free(text);
    nl_core_context_destroy(context);
}

/* The environment decides, and a multiplexer that passes no pictures on wins. */
static void test_show_auto(void **state)
{
    (void)state;
    static const char *const variables[] = {"TMUX",         "TERM",      "KITTY_WINDOW_ID",
                                            "TERM_PROGRAM", "COLORTERM", "NO_COLOR"};
    static const struct {
        const char *values[6], *start;
    } cases[] = {
        {{NULL, "xterm-256color", NULL, NULL, NULL}, "\033[38;5;16m"},
        {{NULL, "xterm-256color", NULL, NULL, "truecolor"}, "\033[38;2;1;2;3m"},
        {{NULL, "xterm-kitty", NULL, NULL, NULL}, "\033_G"},
        {{NULL, "xterm", "1", NULL, "truecolor"}, "\033_G"},
        {{NULL, "xterm", NULL, "iTerm.app", "truecolor"}, "\033]1337"},
        {{"/tmp/tmux", "screen", "1", "iTerm.app", "truecolor"}, "\033[38;2;1;2;3m"},
        {{NULL, "xterm-kitty", "1", NULL, "truecolor", "1"}, " \n"},
        {{NULL, "xterm", NULL, NULL, NULL, ""}, "\033[38;5;16m"}, /* empty: not asked for */
        {{NULL, "dumb", NULL, NULL, "truecolor"}, " \n"},
    };
    nl_context *context = test_context(NULL);
    const uint8_t rgb[] = {1, 2, 3};
    for (int i = 0; i < NL_COUNT(cases); i++) {
        for (int j = 0; j < 6; j++) {
            unsetenv(variables[j]);
            if (cases[i].values[j])
                setenv(variables[j], cases[i].values[j], 1);
        }
        char *text = show(context, NL_SHOW_AUTO, rgb, 1, 1, 80);
        assert_memory_equal(text, cases[i].start, strlen(cases[i].start));
        free(text);
    }
    nl_core_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_png_round_trip),
        cmocka_unit_test(test_png_text_bytes),
        cmocka_unit_test(test_png_write_errors),
        cmocka_unit_test(test_png_kinds),
        cmocka_unit_test(test_png_texts_of_others),
        cmocka_unit_test(test_png_damaged),
        cmocka_unit_test(test_png_text_bomb),
        cmocka_unit_test(test_png_text_bombs),
        cmocka_unit_test(test_jpeg_kinds),
        cmocka_unit_test(test_orientation),
        cmocka_unit_test(test_webp),
        cmocka_unit_test(test_jpeg_damaged),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_animated),
        cmocka_unit_test(test_grid),
        cmocka_unit_test(test_show_kitty),
        cmocka_unit_test(test_show_iterm2),
        cmocka_unit_test(test_show_blocks),
        cmocka_unit_test(test_show_fits),
        cmocka_unit_test(test_show_auto),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
