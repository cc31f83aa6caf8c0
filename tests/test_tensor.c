/* SPDX-License-Identifier: MIT */
/* Tensors: types, views, shapes as text, half precision there and back. */
#include "nl_e4m3.h"
#include "nl_test.h"

static void test_dtypes(void **state)
{
    (void)state;
    for (int i = 0; i < NL_F8; i++) {
        nl_dtype parsed;
        assert_true(nl_dtype_parse(nl_dtype_name((nl_dtype)i), &parsed));
        assert_int_equal(parsed, i);
    }
    nl_dtype dtype;
    assert_true(nl_dtype_parse("bf16", &dtype) && dtype == NL_BF16);
    assert_false(nl_dtype_parse("F8_E4M3", &dtype));
    assert_false(nl_dtype_parse("", &dtype));
    assert_int_equal(nl_dtype_size(NL_F32), 4);
    assert_int_equal(nl_dtype_size(NL_BF16), 2);
    assert_int_equal(nl_dtype_size(NL_I64), 8);
    assert_int_equal(nl_dtype_size(NL_BOOL), 1);
}

static void test_views(void **state)
{
    (void)state;
    float data[24];
    for (int i = 0; i < 24; i++)
        data[i] = (float)i;
    nl_tensor t = nl_tensor_of(data, NL_F32, 2, (int64_t[]){4, 6});
    assert_int_equal(nl_tensor_count(&t), 24);
    assert_int_equal(nl_tensor_bytes(&t), 96);
    assert_true(nl_tensor_contiguous(&t));
    assert_int_equal(t.shape[2], 1);

    nl_tensor rows = nl_tensor_rows(&t, 1, 2);
    assert_true(((float *)rows.data)[0] == 6);
    assert_int_equal(rows.shape[0], 2);

    nl_tensor columns = nl_tensor_columns(&t, 2, 3);
    assert_false(nl_tensor_contiguous(&columns));
    assert_int_equal(nl_tensor_count(&columns), 12);
    nl_tensor part = nl_tensor_rows(&columns, 3, 1);
    assert_true(((float *)part.data)[0] == 20); /* row 3, column 2 */
    assert_int_equal(part.row_stride, 6);

    nl_tensor images = nl_tensor_reshape(&t, 4, (int64_t[]){2, 3, 2, 2});
    nl_tensor second = nl_tensor_rows(&images, 1, 1);
    assert_true(((float *)second.data)[0] == 12);
    assert_true(nl_tensor_contiguous(&second));
    nl_tensor flat = nl_tensor_reshape(&t, 1, (int64_t[]){24});
    nl_tensor tail = nl_tensor_rows(&flat, 20, 4);
    assert_true(((float *)tail.data)[0] == 20);
    assert_true(nl_tensor_contiguous(&tail));

    assert_true(nl_tensor_same_shape(&t, &t));
    assert_false(nl_tensor_same_shape(&t, &flat));
    assert_false(nl_tensor_same_shape(&t, &rows));
    nl_tensor none = {0};
    none = nl_tensor_rows(&none, 3, 1);
    assert_null(none.data);
}

static void test_shape_text(void **state)
{
    (void)state;
    char text[64], small[8];
    assert_string_equal(nl_shape_text(3, (int64_t[]){3, 4, 8}, text, sizeof(text)), "[3, 4, 8]");
    assert_string_equal(nl_shape_text(0, NULL, text, sizeof(text)), "[]");
    nl_shape_text(3, (int64_t[]){1000, 1000, 1000}, small, sizeof(small));
    assert_string_equal(small, "[1000, ");
}

/* Every bf16 and f16 number survives the way to float and back; NaN stays NaN. */
static void test_all_half_numbers(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint16_t x = (uint16_t)bits;
        float as_bf16 = nl_bf16_to_float(x), as_f16 = nl_f16_to_float(x);
        if (isnan(as_bf16))
            assert_true(isnan(nl_bf16_to_float(nl_float_to_bf16(as_bf16))));
        else
            assert_int_equal(nl_float_to_bf16(as_bf16), x);
        if (isnan(as_f16))
            assert_true(isnan(nl_f16_to_float(nl_float_to_f16(as_f16))));
        else
            assert_int_equal(nl_float_to_f16(as_f16), x);
    }
    assert_true(nl_f16_to_float(0x3C00) == 1 && nl_f16_to_float(0xC000) == -2);
    assert_true(nl_f16_to_float(0x7BFF) == 65504 && nl_f16_to_float(1) == 0x1p-24f);
    assert_true(isinf(nl_f16_to_float(0x7C00)) && isinf(nl_bf16_to_float(0x7F80)));
}

/* The midpoint of two neighbours goes to the even one, anything beyond it to the nearer one. */
static void test_rounding(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x7C00; bits++) {
        uint16_t even = (uint16_t)(bits & 1 ? bits + 1 : bits);
        float low = nl_f16_to_float((uint16_t)bits);
        float high = bits == 0x7BFF ? 65536 : nl_f16_to_float((uint16_t)(bits + 1));
        float middle = low + (high - low) / 2;
        assert_int_equal(nl_float_to_f16(middle), even);
        assert_int_equal(nl_float_to_f16(-middle), even | 0x8000);
        assert_int_equal(nl_float_to_f16(nextafterf(middle, 0)), bits);
        assert_int_equal(nl_float_to_f16(nextafterf(middle, INFINITY)), bits + 1);
    }
    for (uint32_t bits = 0; bits < 0x7F7F; bits++) {
        uint16_t even = (uint16_t)(bits & 1 ? bits + 1 : bits);
        float low = nl_bf16_to_float((uint16_t)bits), high = nl_bf16_to_float((uint16_t)(bits + 1));
        float middle = low + (high - low) / 2;
        assert_int_equal(nl_float_to_bf16(middle), even);
        assert_int_equal(nl_float_to_bf16(nextafterf(middle, 0)), bits);
        assert_int_equal(nl_float_to_bf16(nextafterf(middle, INFINITY)), bits + 1);
    }
    assert_int_equal(nl_float_to_f16(1e9f), 0x7C00);
    assert_int_equal(nl_float_to_f16(INFINITY), 0x7C00);
    assert_int_equal(nl_float_to_f16(1e-9f), 0);
    assert_int_equal(nl_float_to_f16(-0.0f), 0x8000);
    assert_int_equal(nl_float_to_bf16(3.4e38f), 0x7F80);
    const uint32_t late_nan = 0x7F800001; /* its set bit is one that bf16 cuts off */
    float nan;
    memcpy(&nan, &late_nan, sizeof(nan));
    assert_true(isnan(nl_bf16_to_float(nl_float_to_bf16(nan))));
}

/* Every E4M3 number there and back; the middle of two goes to the even one; beyond 448 there is nothing. */
static void test_e4m3(void **state)
{
    (void)state;
    for (int code = 0; code < 256; code++) {
        float x = nl_e4m3_to_float((uint8_t)code);
        int exponent = code >> 3 & 15, mantissa = code & 7;
        float magnitude =
            exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
        if ((code & 127) == 127) {
            assert_true(isnan(x));
        } else {
            assert_true(x == (code & 128 ? -magnitude : magnitude));
            assert_int_equal(nl_float_to_e4m3(x), code);
        }
    }
    for (int code = 0; code < 126; code++) {
        float low = nl_e4m3_to_float((uint8_t)code), high = nl_e4m3_to_float((uint8_t)(code + 1));
        float middle = low + (high - low) / 2;
        int even = code & 1 ? code + 1 : code;
        assert_int_equal(nl_float_to_e4m3(middle), even);
        assert_int_equal(nl_float_to_e4m3(-middle), even | 128);
        assert_int_equal(nl_float_to_e4m3(nextafterf(middle, 0)), code);
        assert_int_equal(nl_float_to_e4m3(nextafterf(middle, INFINITY)), code + 1);
    }
    assert_int_equal(nl_float_to_e4m3(1e9f), 126);
    assert_int_equal(nl_float_to_e4m3(-INFINITY), 254);
    assert_int_equal(nl_float_to_e4m3(NAN) & 127, 127);
}

/* A row's factor is the least power of two with which it fits; a row that is not finite is lost whole. */
static void test_e4m3_rows(void **state)
{
    (void)state;
    static const float largest[] = {448, 449, 224, 1, 1.75f, 1.76f, 3e38f, 1e-30f, 0, 1e-42f};
    float inverse, x[3] = {1, INFINITY, -2}, back[3], scale;
    uint8_t codes[3];
    for (int i = 0; i < NL_COUNT(largest); i++) {
        int exponent;
        scale = nl_e4m3_scale(largest[i], &inverse);
        assert_true(frexpf(scale, &exponent) == 0.5f && scale * inverse == 1);
        assert_true(largest[i] <= 448 * scale && (largest[i] > 224 * scale || scale == 0x1p-126f));
    }
    nl_quantize(x, 1, 3, codes, &scale);
    nl_dequantize(codes, &scale, 1, 3, back);
    assert_true(isnan(back[0]) && isnan(back[1]) && isnan(back[2]));
    x[1] = NAN;
    nl_quantize(x, 1, 3, codes, &scale);
    nl_dequantize(codes, &scale, 1, 3, back);
    assert_true(isnan(back[0]) && isnan(back[2]));
    x[1] = 1000;
    nl_quantize(x, 1, 3, codes, &scale);
    nl_dequantize(codes, &scale, 1, 3, back);
    assert_true(scale == 4 && back[0] == 1 && back[1] == 1024 && back[2] == -2);
}

static void test_conversion(void **state)
{
    (void)state;
    const float numbers[] = {0, 1, -2, 0.5f, 100};
    const int count = NL_COUNT(numbers);
    const nl_dtype types[] = {NL_F32, NL_BF16, NL_F16, NL_F64};
    for (int i = 0; i < NL_COUNT(types); i++) {
        char bytes[1 + 5 * 8]; /* from an odd address */
        float back[5];
        nl_convert_from_float(numbers, count, types[i], bytes + 1);
        nl_convert_to_float(bytes + 1, types[i], count, back);
        assert_memory_equal(back, numbers, sizeof(numbers));
    }
    float to[3];
    nl_convert_to_float((int8_t[]){-128, 0, 127}, NL_I8, 3, to);
    assert_true(to[0] == -128 && to[1] == 0 && to[2] == 127);
    nl_convert_to_float((uint8_t[]){255, 0, 1}, NL_U8, 3, to);
    assert_true(to[0] == 255 && to[2] == 1);
    nl_convert_to_float((uint8_t[]){2, 0, 1}, NL_BOOL, 3, to);
    assert_true(to[0] == 1 && to[1] == 0 && to[2] == 1);
    nl_convert_to_float((int16_t[]){-300, 0, 300}, NL_I16, 3, to);
    assert_true(to[0] == -300 && to[2] == 300);
    nl_convert_to_float((int32_t[]){-70000, 0, 70000}, NL_I32, 3, to);
    assert_true(to[0] == -70000 && to[2] == 70000);
    nl_convert_to_float((int64_t[]){-(1ll << 40), 0, 1ll << 40}, NL_I64, 3, to);
    assert_true(to[0] == -0x1p40f && to[2] == 0x1p40f);
    nl_convert_to_float(NULL, NL_F32, 0, to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtypes),     cmocka_unit_test(test_views),
        cmocka_unit_test(test_shape_text), cmocka_unit_test(test_all_half_numbers),
        cmocka_unit_test(test_rounding),   cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_e4m3_rows),  cmocka_unit_test(test_conversion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
