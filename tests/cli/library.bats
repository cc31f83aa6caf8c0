# SPDX-License-Identifier: MIT
# The library as others take it: its header as C and as C++, what it exports under which version, the example.
load helper

# A program that uses every macro of the header.
program() {
    cat <<'PROGRAM'
#include <nalagen.h>

#if NL_VERSION_MAJOR * 10000 + NL_VERSION_MINOR * 100 + NL_VERSION_PATCH < 100
#error "older than 0.1"
#endif

static nl_status take(void *user, const nl_picture *picture)
{
    (void)user;
    return picture->rgb ? NL_OK : NL_ERROR_INTERNAL;
}

int main(void)
{
    nl_context_options options;
    nl_model_options model_options;
    nl_request request;
    nl_context *context = NULL;
    nl_model *model = NULL;
    char reason[256] = "";
    int label = 0;
    NL_INIT(&options);
    NL_INIT(&model_options);
    NL_INIT(&request);
    nl_sampling_init(&request.sampling);
    request.sampling = NL_SAMPLING_DEFAULT;
    request.sampling.cfg_scale = NL_CFG_UNCONDITIONAL;
    request.labels = &label;
    request.count = 1;
    options.device = "no such device";
    options.message = reason;
    options.message_size = sizeof(reason);
    if (nl_context_create(&options, &context) != NL_ERROR_USAGE || context || !reason[0])
        return 1;
    return model ? (int)nl_generate(model, &request, take, NULL) : 0;
}
PROGRAM
}

@test "the header compiles as C and as C++ without a warning" {
    local compiler standard tried=0
    program >program.c
    cp program.c program.cpp
    for compiler in gcc clang; do
        command -v $compiler >/dev/null || continue
        for standard in c99 c11 gnu17; do
            $compiler -std=$standard -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -fsyntax-only \
                -I "$NL_SOURCE_DIR/include" program.c
        done
    done
    for compiler in g++ clang++; do
        command -v $compiler >/dev/null || continue
        echo '#include <nalagen.h>' | $compiler -x c++ -fsyntax-only -I "$NL_SOURCE_DIR/include" - || continue
        tried=$((tried + 1))
        for standard in c++11 c++17 c++20; do
            $compiler -std=$standard -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -fsyntax-only \
                -I "$NL_SOURCE_DIR/include" program.cpp
        done
    done
    [ $tried -gt 0 ] || skip "no C++ compiler"
}

@test "a program without a log learns why there is no context" {
    command -v cc >/dev/null || skip "no C compiler"
    local sanitizers= # what the library was built with, the program needs too
    ! ldd "$NL_LIBRARY" | grep -q libasan || sanitizers=-fsanitize=address,undefined
    program >program.c
    cc $sanitizers program.c -I "$NL_SOURCE_DIR/include" "$NL_LIBRARY" -Wl,-rpath,"$(dirname "$NL_LIBRARY")" -o program
    ./program
}

@test "the shared library exports what the header declares, under its version, and nothing else" {
    command -v nm >/dev/null || skip "no nm"
    nm -D --defined-only --with-symbol-versions "$NL_LIBRARY" | awk '$2 == "T" { print $3 }' | sort >exported
    grep -o '^NL_API .*' "$NL_SOURCE_DIR/include/nalagen.h" | grep -o 'nl_[a-z0-9_]*(' | tr -d '(' |
        sed 's/$/@@NALAGEN_0.1/' | sort >declared
    [ -s declared ]
    diff exported declared
}

@test "the version of the header is the project's, in numbers and as text" {
    local header=$NL_SOURCE_DIR/include/nalagen.h numbers
    numbers=$(awk '/#define NL_VERSION_(MAJOR|MINOR|PATCH)/ { text = text dot $3; dot = "." } END { print text }' "$header")
    grep -q "^#define NL_VERSION  *\"$numbers\"" "$header"
    grep -q "^project(nalagen VERSION $numbers " "$NL_SOURCE_DIR/CMakeLists.txt"
}

@test "in a prefix that was moved, the library finds the weights that ship" {
    [ -f "$model" ] && command -v cmake >/dev/null && command -v cc >/dev/null || skip "no compiler, or no weights"
    ! ldd "$NL_LIBRARY" | grep -q libasan || skip "this program is built without the library's sanitizers"
    cmake --install "$(dirname "$NL_LIBRARY")" --prefix "$PWD/first" >/dev/null
    mv first second
    local library
    library=$(dirname "$(find "$PWD/second" -name 'libnalagen.so.0')")
    cat >load.c <<'PROGRAM'
#include <nalagen.h>
#include <stdio.h>

int main(void)
{
    nl_context *context;
    nl_model *model = NULL;
    nl_status status = nl_context_create(NULL, &context);
    if (status == NL_OK)
        status = nl_model_load(context, NULL, &model);
    if (status == NL_OK)
        puts("loaded");
    else
        fprintf(stderr, "%s\n", nl_last_error(context));
    nl_model_destroy(model);
    nl_context_destroy(context);
    return status;
}
PROGRAM
    cc load.c -o load -I second/include -L "$library" -lnalagen
    # with no source tree to fall back to: another file under the name of the one that ships is what is found
    printf 'no model' >second/share/nalagen/nalasit-s2-256.safetensors
    run -3 env LD_LIBRARY_PATH="$library" ./load
    [[ $output == *"/second/"*"share/nalagen/nalasit-s2-256.safetensors: not a checkpoint"* ]]
}
