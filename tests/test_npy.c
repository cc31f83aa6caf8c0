/* SPDX-License-Identifier: MIT */
/* numpy arrays: what is read, what is written, every malformed header by name. */
#include "file_test.h"
#include "nl_npy.h"

/* version.0, the header's text, then eight bytes; in an allocation of exactly that size. */
static uint8_t *array_of(int version, const char *header, int64_t *size)
{
    uint8_t bytes[512], *at = bytes;
    put_bytes(&at, "\x93NUMPY", 6);
    put(&at, (uint64_t)version, 2);
    put(&at, strlen(header), version == 1 ? 2 : 4);
    put_bytes(&at, header, strlen(header));
    put_bytes(&at, "01234567", 8);
    *size = at - bytes;
    return exact_copy(bytes, (size_t)*size);
}

static void refuse(const char *header, const char *message)
{
    int64_t size, used = context->memory_used;
    nl_npy npy;
    uint8_t *bytes = array_of(1, header, &size);
    nl_status status = nl_npy_open_memory(context, "test.npy", bytes, size, &npy);
    assert_refused(header, status, used, "test.npy", message);
    free(bytes);
}

#define HEADER(descr, order, shape)                                                                \
    "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }   \n"

static void reads_all_versions(void **state)
{
    (void)state;
    const char *headers[] = {HEADER("'<f4'", "False", "(1, 2)"),
                             "{\"shape\":(1,2),'descr':'<f4','fortran_order':False}",
                             HEADER("'<f4'", "False", "(1, 2,)")};
    for (int version = 1; version <= 3; version++)
        for (int i = 0; i < NL_COUNT(headers); i++) {
            int64_t size;
            nl_npy npy;
            uint8_t *bytes = array_of(version, headers[i], &size);
            assert_ok(context, nl_npy_open_memory(context, "test.npy", bytes, size, &npy));
            assert_int_equal(npy.dtype, NL_F32);
            assert_int_equal(npy.ndim, 2);
            assert_int_equal(npy.shape[0], 1);
            assert_int_equal(npy.shape[1], 2);
            assert_ptr_equal(npy.data, bytes + size - 8);
            nl_npy_close(context, &npy);
            free(bytes);
        }
}

static void reads_all_types(void **state)
{
    (void)state;
    const struct {
        const char *header;
        nl_dtype dtype;
    } rows[] = {{HEADER("'<f4'", "False", "(2,)"), NL_F32},
                {HEADER("'<f8'", "False", "(1,)"), NL_F64},
                {HEADER("'|u1'", "False", "(8,)"), NL_U8},
                {HEADER("'<i4'", "False", "(2,)"), NL_I32},
                {HEADER("'<i8'", "False", "(1,)"), NL_I64},
                {HEADER("'<f8'", "False", "()"), NL_F64},
                {HEADER("'<f2'", "False", "(4,)"), NL_F16},
                {HEADER("'<f8'", "True", "(1,)"), NL_F64}}; /* one size: both orders are the same */
    for (int i = 0; i < NL_COUNT(rows); i++) {
        int64_t size;
        nl_npy npy;
        uint8_t *bytes = array_of(1, rows[i].header, &size);
        assert_ok(context, nl_npy_open_memory(context, "test.npy", bytes, size, &npy));
        assert_int_equal(npy.dtype, rows[i].dtype);
        free(bytes);
    }
}

static void bad_magic(void **state)
{
    (void)state;
    nl_npy npy;
    assert_int_equal(nl_npy_open_memory(context, "t", "", 0, &npy), NL_ERROR_INPUT);
    assert_int_equal(nl_npy_open_memory(context, "t", "\x93NUMPY\1\0\0", 9, &npy), NL_ERROR_INPUT);
    assert_int_equal(nl_npy_open_memory(context, "t", "\x93NUMPX\1\0\0\0", 10, &npy),
                     NL_ERROR_INPUT);
    assert_non_null(strstr(nl_last_error(context), "not a numpy array"));
}

static void unknown_version(void **state)
{
    (void)state;
    nl_npy npy;
    assert_int_equal(nl_npy_open_memory(context, "t", "\x93NUMPY\4\0\0\0\0\0", 12, &npy),
                     NL_ERROR_INPUT);
    assert_non_null(strstr(nl_last_error(context), "version 4.0"));
    assert_int_equal(nl_npy_open_memory(context, "t", "\x93NUMPY\2\0\0\0", 10, &npy),
                     NL_ERROR_INPUT);
}

static void cut_off_anywhere(void **state)
{
    (void)state;
    for (int version = 1; version <= 2; version++) {
        int64_t size;
        nl_npy npy;
        uint8_t *bytes = array_of(version, HEADER("'<f4'", "False", "(2,)"), &size);
        for (int64_t cut = 0; cut < size; cut++) {
            uint8_t *part = exact_copy(bytes, (size_t)cut);
            assert_int_equal(nl_npy_open_memory(context, "t", part, cut, &npy), NL_ERROR_INPUT);
            free(part);
        }
        free(bytes);
    }
}

static void fortran_order(void **state)
{
    (void)state;
    refuse(HEADER("'<f4'", "True", "(1, 2)"), "Fortran order");
}

static void types_that_are_not_read(void **state)
{
    (void)state;
    refuse(HEADER("'>f4'", "False", "(2,)"), "big endian");
    refuse(HEADER("'<c8'", "False", "(1,)"), "'<c8'");
    refuse(HEADER("'|O'", "False", "(1,)"), "'|O'");
    refuse(HEADER("[('a', '<f4')]", "False", "(2,)"), "expected a string");
    refuse(HEADER("'<f4<f4<f4<f4<f4<f4'", "False", "(2,)"), "end of a string");
}

static void header_is_not_the_dictionary(void **state)
{
    (void)state;
    refuse("", "{");
    refuse("[]", "{");
    refuse("{", "a string");
    refuse("{'descr': '<f4', 'fortran_order': False}", "the keys");
    refuse("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", "once each");
    refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}", "the keys");
    refuse("{'descr' '<f4'}", "colon");
    refuse("{'descr': '<f4' 'fortran_order': False}", "comma");
    refuse("{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", "True or False");
    refuse("{'descr': '<f4', 'fortran_order': False, 'shape': [2]}", "tuple");
    refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x", "nothing behind");
    refuse("{'descr': '<f4", "end of a string");
}

static void impossible_shapes(void **state)
{
    (void)state;
    refuse(HEADER("'<f4'", "False", "(-2,)"), "whole numbers");
    refuse(HEADER("'<f4'", "False", "(2L,)"), "comma");
    refuse(HEADER("'<f4'", "False", "(2.0,)"), "comma");
    refuse(HEADER("'<f4'", "False", "(2"), "whole numbers");
    refuse(HEADER("'<f4'", "False", "(,)"), "whole numbers");
    refuse(HEADER("'<f4'", "False", "(3,)"), "does not fill the 8 bytes");
    refuse(HEADER("'<f4'", "False", "(1,)"), "does not fill the 8 bytes");
    refuse(HEADER("'<f4'", "False", "(1, 1, 1, 1, 1, 2)"), "at most 5");
    refuse(HEADER("'<f4'", "False", "(4294967296, 4294967296)"), "does not fill");
    refuse(HEADER("'<f4'", "False", "(99999999999999999999,)"), "below 2^63");
}

static void writes_what_it_reads(void **state)
{
    (void)state;
    const char path[] = "test_npy_written.npy";
    const float values[6] = {0, 1, -2, 3.5f, 1e-30f, 1e30f};
    const int64_t shapes[][5] = {{6}, {2, 3}, {1, 1, 2, 1, 3}, {0, 5}};
    const int ndims[] = {1, 2, 5, 2};
    for (int i = 0; i < NL_COUNT(ndims); i++) {
        nl_npy npy;
        assert_ok(context, nl_npy_write(context, path, true, NL_F32, ndims[i], shapes[i], values));
        assert_ok(context, nl_npy_open(context, path, &npy));
        assert_int_equal(npy.ndim, ndims[i]);
        assert_memory_equal(npy.shape, shapes[i], (size_t)ndims[i] * sizeof(int64_t));
        if (shapes[i][0] > 0)
            assert_memory_equal(npy.data, values, sizeof(values));
        assert_int_equal(((const uint8_t *)npy.data - npy.mapping.data) % 64, 0);
        nl_npy_close(context, &npy);
    }
    assert_int_equal(nl_npy_write(context, path, false, NL_F32, 1, shapes[0], values),
                     NL_ERROR_WRITE);
    assert_int_equal(nl_npy_write(context, path, true, NL_BF16, 1, shapes[0], values),
                     NL_ERROR_INTERNAL);
    remove(path);
    nl_npy npy;
    assert_int_equal(nl_npy_open(context, path, &npy), NL_ERROR_INPUT);
    assert_null(npy.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_all_versions),
        cmocka_unit_test(reads_all_types),
        cmocka_unit_test(bad_magic),
        cmocka_unit_test(unknown_version),
        cmocka_unit_test(cut_off_anywhere),
        cmocka_unit_test(fortran_order),
        cmocka_unit_test(types_that_are_not_read),
        cmocka_unit_test(header_is_not_the_dictionary),
        cmocka_unit_test(impossible_shapes),
        cmocka_unit_test(writes_what_it_reads),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
