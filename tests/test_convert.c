/* SPDX-License-Identifier: MIT */
/* One checkpoint to another: the numbers survive, the names are those asked for, nothing is written
 * by half. */
#include <unistd.h>

#include "nl_dit.h"
#include "nl_test.h"
#include "nl_vae.h"

static nl_context *context;

#define FILES NL_SOURCE_DIR "/tests/golden/torch/"
#define OUT   "test_convert.safetensors"

static int setup(void **state)
{
    (void)state;
    context = test_context(NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    nl_core_context_destroy(context);
    unlink(OUT);
    return 0;
}

static void says(const char *message)
{
    if (!strstr(nl_last_error(context), message))
        fail_msg("\"%s\" does not say \"%s\"", nl_last_error(context), message);
}

static nl_checkpoint *open_file(const char *path, bool rename)
{
    nl_checkpoint *checkpoint;
    assert_ok(context, rename ? nl_dit_open(context, path, NULL, &checkpoint)
                              : nl_checkpoint_open(context, path, &checkpoint));
    return checkpoint;
}

static float *read_entry(const nl_checkpoint *file, const char *name, int64_t *count)
{
    const nl_entry *entry = nl_checkpoint_find(file, name);
    if (!entry)
        fail_msg("%s has no %s", file->path, name);
    *count = nl_entry_count(entry);
    float *values = malloc((size_t)*count * sizeof(float));
    assert_ok(context, nl_entry_read(file, entry, values));
    return values;
}

/* Every tensor of `a` but `except` is in `b`, and differs by no more than `tolerance` of its norm.
 */
static void same_tensors(const nl_checkpoint *a, const nl_checkpoint *b, const char *except,
                         double tolerance)
{
    for (int64_t i = 0; i < a->count; i++) {
        const char *name = a->entries[i].name;
        int64_t count, other;
        if (except && strcmp(name, except) == 0)
            continue;
        float *x = read_entry(a, name, &count), *y = read_entry(b, name, &other);
        assert_int_equal(count, other);
        double error = test_relative_error(x, y, count);
        if (!(error <= tolerance))
            fail_msg("%s: relative error %g", name, error);
        free(x);
        free(y);
    }
}

/* FILES name to OUT. */
static nl_status convert(const char *name, nl_dtype dtype, nl_dit_spelling spelling)
{
    char path[512];
    nl_config config;
    snprintf(path, sizeof(path), FILES "%s", name);
    nl_checkpoint *file = open_file(path, true);
    assert_ok(context, nl_config_from_checkpoint(file, NULL, &config));
    nl_status status = nl_dit_convert(file, &config, OUT, true, dtype, spelling);
    nl_config_free(context, &config);
    nl_checkpoint_close(file);
    return status;
}

/* ---- Backbones */

static void to_our_names(void **state)
{
    (void)state;
    const char *names[] = {"dit.pt", "dit_legacy.pt", "0050000.pt", "diffusers", "sit_wrapped.pt"};
    for (int i = 0; i < NL_COUNT(names); i++) {
        assert_ok(context, convert(names[i], NL_F32, NL_SPELLING_NALAGEN));
        nl_checkpoint *want = open_file(FILES "dit.safetensors", true);
        nl_checkpoint *made = open_file(OUT, true);
        nl_config config;
        same_tensors(want, made, "pos_embed", 0);
        assert_int_equal(made->count, want->count - 1);
        /* it says what it is, whatever its name */
        assert_ok(context, nl_config_from_checkpoint(made, NULL, &config));
        assert_int_equal(config.depth, 2);
        nl_config_free(context, &config);
        nl_checkpoint_close(made);
        nl_checkpoint_close(want);
    }
}

static void to_public_names(void **state)
{
    (void)state;
    assert_ok(context, convert("diffusers", NL_F32, NL_SPELLING_PUBLIC));
    nl_checkpoint *want = open_file(FILES "dit.pt", false), *made = open_file(OUT, false);
    assert_int_equal(made->count, want->count);
    same_tensors(want, made, NULL, 1e-7); /* pos_embed is computed by both */
    assert_string_equal(nl_checkpoint_metadata(made, "format"), "pt");
    nl_checkpoint_close(made);
    nl_checkpoint_close(want);
}

static void to_diffusers_and_back(void **state)
{
    (void)state;
    assert_ok(context, convert("dit.pt", NL_F16, NL_SPELLING_DIFFUSERS));
    nl_checkpoint *want = open_file(FILES "diffusers", false), *made = open_file(OUT, false);
    assert_int_equal(made->count, want->count);
    same_tensors(want, made, NULL, 0);
    nl_checkpoint_close(made);
    nl_checkpoint_close(want);
    want = open_file(FILES "dit.pt", true);
    made = open_file(OUT, true);
    same_tensors(want, made, "pos_embed", 0);
    nl_checkpoint_close(made);
    nl_checkpoint_close(want);
}

static void types(void **state)
{
    (void)state;
    const struct {
        nl_dtype asked, matrix, vector;
        double tolerance;
    } rows[] = {{NL_F32, NL_F32, NL_F32, 0},
                {NL_BF16, NL_BF16, NL_F32, 0},
                {NL_F16, NL_F16, NL_F32, 0},
                {NL_I8, NL_I8, NL_BF16, 0.01},
                {NL_DTYPE_COUNT, NL_F16, NL_F16, 0}};
    for (int i = 0; i < NL_COUNT(rows); i++) {
        assert_ok(context, convert("dit_legacy.pt", rows[i].asked, NL_SPELLING_NALAGEN));
        nl_checkpoint *want = open_file(FILES "dit.pt", true), *made = open_file(OUT, true);
        same_tensors(want, made, "pos_embed", 1); /* they are all there */
        same_tensors(made, want, NULL, rows[i].tolerance);
        assert_int_equal(nl_checkpoint_find(made, "blocks.0.mlp.fc1.weight")->dtype,
                         rows[i].matrix);
        assert_int_equal(nl_checkpoint_find(made, "blocks.0.mlp.fc1.bias")->dtype, rows[i].vector);
        nl_checkpoint_close(made);
        nl_checkpoint_close(want);
    }
}

/* Halves the numbers of an I8 tensor in the file: no quantiser would choose that scale for them. Its checksums stay, or are
 * called something else. */
static void halve(const char *path, const char *name, bool checked)
{
    static const char key[] = "nalagen.crc32";
    nl_checkpoint *file = open_file(path, true);
    const nl_entry *entry = nl_checkpoint_find(file, name);
    int64_t count = nl_entry_count(entry);
    long at = (long)((const uint8_t *)entry->data - file->mapping.data);
    int8_t *q = malloc((size_t)count);
    memcpy(q, entry->data, (size_t)count);
    nl_checkpoint_close(file);
    for (int64_t i = 0; i < count; i++)
        q[i] /= 2;
    FILE *stream = fopen(path, "r+b");
    assert_non_null(stream);
    assert_int_equal(fseek(stream, at, SEEK_SET), 0);
    assert_int_equal(fwrite(q, 1, (size_t)count, stream), count);
    /* Behind the length and {"__metadata__":{" */
    assert_int_equal(fseek(stream, 8 + 18, SEEK_SET), 0);
    if (!checked)
        assert_int_equal(fwrite("replaced.crc0", 1, sizeof(key) - 1, stream), sizeof(key) - 1);
    assert_int_equal(fclose(stream), 0);
    free(q);
}

/* int8 that is kept is copied; made floats it is what nl_dit_load would have read. */
static void keeps_int8(void **state)
{
    (void)state;
    nl_config config;
    int64_t parameters;
    assert_ok(context, convert("dit.pt", NL_I8, NL_SPELLING_NALAGEN));
    assert_int_equal(rename(OUT, "test_convert_int8.safetensors"), 0);
    halve("test_convert_int8.safetensors", "blocks.0.mlp.fc1.weight", true);
    nl_checkpoint *damaged = open_file("test_convert_int8.safetensors", true);
    assert_ok(context, nl_config_from_checkpoint(damaged, NULL, &config));
    assert_int_equal(
        nl_dit_convert(damaged, &config, OUT, true, NL_DTYPE_COUNT, NL_SPELLING_NALAGEN),
        NL_ERROR_INPUT);
    says("tensor blocks.0.mlp.fc1.weight: its checksum does not fit");
    nl_config_free(context, &config);
    nl_checkpoint_close(damaged);
    halve("test_convert_int8.safetensors", "blocks.0.mlp.fc1.weight", false);
    nl_checkpoint *int8 = open_file("test_convert_int8.safetensors", true);
    assert_ok(context, nl_config_from_checkpoint(int8, NULL, &config));
    const nl_dtype dtypes[] = {NL_DTYPE_COUNT, NL_I8, NL_F32};
    for (int i = 0; i < NL_COUNT(dtypes); i++) {
        assert_ok(context,
                  nl_dit_convert(int8, &config, OUT, true, dtypes[i], NL_SPELLING_NALAGEN));
        nl_checkpoint *made = open_file(OUT, true);
        same_tensors(int8, made, NULL, 0);
        assert_ok(context, nl_dit_fits(made, &config, &parameters));
        nl_checkpoint_close(made);
    }
    assert_ok(context,
              nl_dit_convert(int8, &config, OUT, true, NL_DTYPE_COUNT, NL_SPELLING_PUBLIC));
    nl_checkpoint *made = open_file(OUT, false);
    same_tensors(int8, made, NULL, 0);
    assert_int_equal(nl_checkpoint_find(made, "blocks.0.mlp.fc1.weight")->dtype, NL_F32);
    nl_checkpoint_close(made);
    nl_config_free(context, &config);
    nl_checkpoint_close(int8);
    unlink("test_convert_int8.safetensors");
}

static void refuses_requests(void **state)
{
    (void)state;
    assert_int_equal(convert("dit.pt", NL_I8, NL_SPELLING_PUBLIC), NL_ERROR_USAGE);
    says("int8 with row scales is nalagen's own");
    assert_int_equal(convert("dit.pt", NL_I64, NL_SPELLING_NALAGEN), NL_ERROR_USAGE);
    nl_config config;
    nl_config_init(&config);
    nl_checkpoint *file = open_file(FILES "dit.pt", true);
    assert_ok(context, nl_config_from_checkpoint(file, NULL, &config));
    config.depth = 3;
    assert_int_equal(nl_dit_convert(file, &config, OUT, true, NL_F32, NL_SPELLING_NALAGEN),
                     NL_ERROR_INPUT);
    says("blocks.2.attn.qkv.weight [48, 16] is missing");
    nl_config_free(context, &config);
    nl_checkpoint_close(file);
}

/* ---- What does not fit is named as the file spells it */

/* The tensors of diffusers' folder but those that `skip` names, one of them changed by `change`. */
static void write_diffusers(const char *skip, const char *change)
{
    nl_checkpoint *file = open_file(FILES "diffusers", false);
    nl_tensor_header headers[64];
    nl_safetensors_writer *writer;
    int64_t count = 0;
    for (int64_t i = 0; i < file->count; i++) {
        const nl_entry *entry = &file->entries[i];
        if (skip && strstr(entry->name, skip))
            continue;
        headers[count] = (nl_tensor_header){entry->name, NL_F16, entry->ndim, {0}};
        memcpy(headers[count++].shape, entry->shape, sizeof(entry->shape));
    }
    assert_ok(context, nl_safetensors_create(context, OUT, true, NULL, headers, count, &writer));
    for (int64_t i = 0; i < count; i++) {
        const nl_entry *entry = nl_checkpoint_find(file, headers[i].name);
        int64_t bytes = 2 * nl_entry_count(entry);
        uint8_t *copy = malloc((size_t)bytes);
        memcpy(copy, entry->data, (size_t)bytes);
        if (change && strcmp(entry->name, change) == 0)
            copy[0] ^= 1;
        assert_ok(context, nl_safetensors_write(writer, copy, bytes));
        free(copy);
    }
    assert_ok(context, nl_safetensors_commit(&writer));
    nl_checkpoint_close(file);
}

static void refuse_diffusers(const char *message)
{
    nl_checkpoint *file;
    assert_int_equal(nl_dit_open(context, OUT, NULL, &file), NL_ERROR_INPUT);
    assert_null(file);
    says(message);
}

static void copies_that_differ(void **state)
{
    (void)state;
    write_diffusers(NULL, "transformer_blocks.1.norm1.emb.timestep_embedder.linear_2.weight");
    refuse_diffusers(
        "transformer_blocks.1.norm1.emb.timestep_embedder.linear_2.weight differs from "
        "transformer_blocks.0.norm1.emb.timestep_embedder.linear_2.weight");
    write_diffusers("transformer_blocks.0.norm1.emb.class_embedder", NULL);
    refuse_diffusers(
        "transformer_blocks.1.norm1.emb.class_embedder.embedding_table.weight is there "
        "without transformer_blocks.0");
}

static void parts_that_are_missing(void **state)
{
    (void)state;
    nl_checkpoint *file;
    nl_config config;
    int64_t parameters;
    write_diffusers("transformer_blocks.1.attn1.to_k.bias", NULL);
    refuse_diffusers("transformer_blocks.1.attn1.to_k.bias is missing");
    write_diffusers("transformer_blocks.1.attn1.to_q.bias", NULL);
    refuse_diffusers("transformer_blocks.1.attn1.to_v.bias is there without "
                     "transformer_blocks.1.attn1.to_q.bias");
    write_diffusers("transformer_blocks.1.ff.net.2.weight", NULL);
    file = open_file(OUT, true);
    assert_ok(context, nl_config_from_checkpoint(file, "DiT", &config));
    assert_int_equal(nl_dit_fits(file, &config, &parameters), NL_ERROR_INPUT);
    says("blocks.1.mlp.fc2.weight (transformer_blocks.1.ff.net.2.weight) [16, 64] is missing");
    nl_config_free(context, &config);
    nl_checkpoint_close(file);
}

/* ---- Autoencoders */

static void autoencoders(void **state)
{
    (void)state;
    const char *names[] = {FILES "vae_diffusers.bin", FILES "vae_diffusers_old.bin",
                           FILES "vae_compvis.ckpt"};
    nl_checkpoint *want = open_file(names[0], false);
    for (int i = 0; i < NL_COUNT(names); i++) {
        nl_checkpoint *file = open_file(names[i], false);
        nl_vae_kind kind;
        int64_t parameters;
        assert_true(nl_vae_recognizes(file));
        assert_ok(context, nl_vae_fits(file, NULL, &kind, &parameters));
        assert_int_equal(kind, NL_VAE_KL);
        assert_int_equal(parameters, 843847);
        assert_ok(context, nl_vae_convert(file, NULL, OUT, true, NL_F32, false));
        nl_checkpoint *made = open_file(OUT, false);
        assert_int_equal(made->count, want->count);
        same_tensors(want, made, NULL, 0);
        for (int64_t j = 0; j < made->count; j++)
            assert_int_equal(made->entries[j].ndim, want->entries[j].ndim);
        nl_checkpoint_close(made);
        assert_ok(context, nl_vae_convert(file, NULL, OUT, true, NL_I8, false));
        made = open_file(OUT, false);
        same_tensors(want, made, NULL, 0.02);
        assert_int_equal(nl_checkpoint_find(made, "decoder.conv_out.weight")->dtype, NL_BF16);
        assert_ok(context, nl_vae_fits(made, NULL, &kind, &parameters));
        nl_checkpoint_close(made);
        nl_checkpoint_close(file);
    }
    nl_checkpoint_close(want);
    want = open_file(FILES "dit.pt", false);
    assert_false(nl_vae_recognizes(want));
    nl_checkpoint_close(want);
}

/* ---- Under the file's own names */

static void any_network(void **state)
{
    (void)state;
    nl_checkpoint *file = open_file(FILES "tensors.pt", false);
    assert_ok(context, nl_checkpoint_save(file, OUT, true, NL_DTYPE_COUNT));
    nl_checkpoint *made = open_file(OUT, false);
    assert_int_equal(made->count, file->count);
    same_tensors(file, made, NULL, 0);
    assert_int_equal(nl_checkpoint_find(made, "i64")->dtype, NL_I64);
    assert_int_equal(nl_checkpoint_find(made, "i8")->dtype, NL_I8);
    assert_null(nl_checkpoint_find(made, "i8")->scale);
    assert_int_equal(nl_checkpoint_find(made, "bf16")->dtype, NL_BF16);
    nl_checkpoint_close(made);
    assert_int_equal(nl_checkpoint_save(file, OUT, true, NL_I8), NL_ERROR_USAGE);
    nl_checkpoint_close(file);
}

/* ---- Failures */

/* Every allocation and every step of writing fails once: the old file stays, nothing leaks. */
static void failures(void **state)
{
    (void)state;
    nl_config config;
    nl_checkpoint *file = open_file(FILES "diffusers", true);
    assert_ok(context, nl_config_from_checkpoint(file, NULL, &config));
    int64_t used = context->memory_used;
    for (int writes = 0; writes < 2; writes++) {
        nl_status status = NL_ERROR_MEMORY;
        int failed = 0;
        for (int64_t i = 1; status != NL_OK; i++) {
            assert_ok(context, nl_write_file(context, OUT, true, "old", 3));
            context->fail_allocation = writes ? 0 : context->allocations + i;
            context->fail_write = writes ? context->writes + i : 0;
            status = nl_dit_convert(file, &config, OUT, true, NL_I8, NL_SPELLING_NALAGEN);
            context->fail_allocation = context->fail_write = 0;
            assert_int_equal(context->memory_used, used);
            if (status == NL_OK)
                break;
            nl_mapping old;
            assert_int_equal(status, writes ? NL_ERROR_WRITE : NL_ERROR_MEMORY);
            assert_ok(context, nl_map_file(context, OUT, &old));
            /* a step behind the rename may fail: then the new file is there, whole */
            assert_true(old.size == 3 || writes);
            nl_unmap(context, &old);
            failed++;
        }
        assert_true(failed > 4);
    }
    nl_config_free(context, &config);
    nl_checkpoint_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(to_our_names),
        cmocka_unit_test(to_public_names),
        cmocka_unit_test(to_diffusers_and_back),
        cmocka_unit_test(types),
        cmocka_unit_test(keeps_int8),
        cmocka_unit_test(refuses_requests),
        cmocka_unit_test(copies_that_differ),
        cmocka_unit_test(parts_that_are_missing),
        cmocka_unit_test(autoencoders),
        cmocka_unit_test(any_network),
        cmocka_unit_test(failures),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
