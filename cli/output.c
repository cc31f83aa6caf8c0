/* SPDX-License-Identifier: MIT */
/* Names of pictures to be written (file, folder, pattern, or made from the class), and what is refused of them. */
#include "nl_sample.h"

#include <string.h>
#include <sys/stat.h>

#include "nl_utf8.h"

/* The one %d or %0Nd of a pattern: *start and *end around it. */
static nl_status find_number(nl_context *context, const char *pattern, const char **start,
                             const char **end)
{
    *start = strchr(pattern, '%');
    *end = *start + 1 + strspn(*start + 1, "0123456789");
    if (**end != 'd' || *end - *start > 4 || strpbrk(*end, "%/"))
        return nl_fail(context, NL_ERROR_USAGE,
                       "--out %s: expected one %%d or %%06d in the file's name, for the picture's "
                       "index",
                       pattern);
    (*end)++;
    return NL_OK;
}

static bool is_device(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

static nl_status check_suffix(nl_context *context, const char *path)
{
    size_t length = strlen(path);
    if ((length > 4 && !strcmp(path + length - 4, ".png")) || is_device(path))
        return NL_OK;
    const char *slash = strrchr(path, '/');
    bool folder = !strchr(slash ? slash : path, '.');
    return nl_fail(context, NL_ERROR_USAGE,
                   "--out %s: expected a name that ends in .png, a folder (ending in /), "
                   "a pattern like out/%%06d.png, a .npz archive, or - for standard output%s%s%s",
                   path, folder ? "; did you mean the folder " : "", folder ? path : "",
                   folder ? "/?" : "");
}

/* What killed processes have left in the folder that the pictures go to. */
static nl_status clean_up(nl_context *context, const nl_output *output)
{
    const char *slash = strrchr(output->text, '/');
    bool folder = output->kind == NL_OUTPUT_NAMED;
    char *path;
    nl_status status = folder
                           ? nl_strdup(context, output->text, &path)
                           : nl_format(context, &path, "%.*s",
                                       slash ? (int)(slash + 1 - output->text) : 0, output->text);
    if (status == NL_OK)
        nl_remove_temporaries(context, path);
    nl_free(context, path);
    return status;
}

nl_status nl_output_open(nl_context *context, const nl_sample_options *options, int64_t files,
                         nl_output *output)
{
    const char *out = options->out, *start, *end;
    *output = (nl_output){.kind = NL_OUTPUT_NAMED,
                          .text = "",
                          .numbered = files > 1 || options->task.first_index > 0,
                          .whole = options->grid[0]   ? "grid"
                                   : options->animate ? "animation"
                                                      : NULL,
                          .seed = options->task.seed};
    if (!out)
        return options->resume ? clean_up(context, output) : NL_OK;
    output->text = out;
    if (nl_is_stdout(out)) {
        output->kind = NL_OUTPUT_STDOUT;
        output->text = "-";
    } else if (nl_is_archive(out)) {
        output->kind = NL_OUTPUT_ARCHIVE;
        NL_CHECK(nl_make_parent(context, out));
    } else if (out[strlen(out) - 1] == '/' || nl_path_is_folder(out)) {
        NL_CHECK(nl_make_folder(context, out));
    } else if (strchr(out, '%')) {
        output->kind = NL_OUTPUT_PATTERN;
        NL_CHECK(find_number(context, out, &start, &end));
        NL_CHECK(check_suffix(context, out));
        NL_CHECK(nl_make_parent(context, out));
    } else {
        output->kind = NL_OUTPUT_FILE;
        NL_CHECK(check_suffix(context, out));
        NL_CHECK(nl_make_parent(context, out));
    }
    if (files > 1 && (output->kind == NL_OUTPUT_FILE || output->kind == NL_OUTPUT_STDOUT))
        return nl_fail(
            context, NL_ERROR_USAGE,
            "--out %s is one file and there are %lld pictures: use a folder, a pattern like "
            "out/%%06d.png, an archive like out.npz, --grid or --animate",
            out, (long long)files);
    if (options->resume && output->kind != NL_OUTPUT_STDOUT)
        NL_CHECK(clean_up(context, output));
    return NL_OK;
}

/* "French horn" becomes "french-horn". Letters of other scripts stay, and bytes that are not UTF-8; whole characters, as many
 * as there is room for. */
static void file_word(const char *name, char *word, size_t size)
{
    size_t length = 0;
    for (size_t left = strlen(name), bytes; left > 0; name += bytes, left -= bytes) {
        uint32_t code;
        int decoded = nl_utf8_decode(name, left, &code);
        bytes = (size_t)NL_MAX(decoded, 1);
        if (length + bytes + 1 > size)
            break;
        char c = *name >= 'A' && *name <= 'Z' ? (char)(*name + 32) : *name;
        bool good = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || !decoded ||
                    (bytes > 1 && !nl_utf8_blank(code));
        if (good && bytes > 1)
            memcpy(word + length, name, bytes);
        else if (good)
            word[length] = c;
        else if (length && word[length - 1] != '-')
            word[length] = '-';
        else
            continue;
        length += good ? bytes : 1;
    }
    while (length && word[length - 1] == '-')
        length--;
    word[length] = '\0';
}

nl_status nl_output_name(nl_context *context, const nl_output *output, const nl_config *config,
                         int label, int64_t index, char **path)
{
    const char *start, *end;
    char word[160], text[24], number[24] = "", copy[16] = "";
    switch (output->kind) {
    case NL_OUTPUT_STDOUT:
    case NL_OUTPUT_FILE:
    case NL_OUTPUT_ARCHIVE:
        return nl_strdup(context, output->text, path);
    case NL_OUTPUT_PATTERN: {
        NL_CHECK(find_number(context, output->text, &start, &end));
        int width = 0;
        for (const char *c = start + 1; c < end - 1; c++)
            width = 10 * width + (*c - '0');
        bool zeros = start[1] == '0';
        return nl_format(context, path, zeros ? "%.*s%0*lld%s" : "%.*s%*lld%s",
                         (int)(start - output->text), output->text, width, (long long)index, end);
    }
    case NL_OUTPUT_NAMED:
        break;
    }
    file_word(nl_class_text(config, label, text, sizeof(text)), word, sizeof(word));
    if (!word[0]) /* a name of signs alone */
        snprintf(word, sizeof(word), "%d", label);
    if (output->numbered && !output->whole)
        snprintf(number, sizeof(number), "-%06lld", (long long)index);
    size_t length = strlen(output->text);
    const char *slash = length && output->text[length - 1] != '/' ? "/" : "";
    const char *digits = word[0] >= '0' && word[0] <= '9' && !output->whole ? "class" : "";
    if (output->copy > 1)
        snprintf(copy, sizeof(copy), "-%d", output->copy);
    return nl_format(context, path, "%s%s%s%s-seed%llu%s%s.png", output->text, slash, digits,
                     output->whole ? output->whole : word, (unsigned long long)output->seed, copy,
                     number);
    return NL_OK;
}

nl_status nl_output_check(nl_context *context, const char *path, bool overwrite, const char *advice)
{
    nl_status status = nl_writer_check(context, path);
    if (status != NL_OK || overwrite || !strcmp(path, "-") || !nl_path_exists(path) ||
        is_device(path))
        return status;
    return nl_fail(context, NL_ERROR_WRITE, "%s is there already: use --force to overwrite it%s",
                   path, advice);
}

nl_status nl_output_preview_name(nl_context *context, const char *path, int64_t step, char **name)
{
    size_t length = strlen(path);
    if (length > 4 && !strcmp(path + length - 4, ".png"))
        length -= 4;
    return nl_format(context, name, "%.*s-step%04lld.png", (int)length, path, (long long)step);
}
