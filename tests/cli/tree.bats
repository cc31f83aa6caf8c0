# SPDX-License-Identifier: MIT
# The source tree itself: includes go down the tower, files say what they are, tests signal recorded processes alone.
load helper

# Includes of the tree in $1 that run up: from a folder to one above it, top-level folders in the order of the tower,
# those of src in the order in which CMakeLists.txt makes components of them. "x.h" is the file in the same folder, or
# else the lowest one of that name; headers that are none of the tree's are passed over.
upward() {
    (cd "$1" && find include core kernels weights vae src eval serve cli \
        \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \) -print | sort) >sources
    (cd "$1" && awk '
        # The level of a file: its folder in the tower, and its room within src.
        function level(path, parts) {
            split(path, parts, "/")
            return 100 * floor[parts[1]] + (parts[1] == "src" ? room[parts[2]] : 0)
        }
        BEGIN {
            count = split("include core kernels weights vae src eval serve cli", names, " ")
            for (i = 1; i <= count; i++)
                floor[names[i]] = i
        }
        FILENAME == "CMakeLists.txt" {
            if (match($0, /^nl_component\([a-z_]+ src\/[a-z]+/)) {
                path = substr($0, RSTART, RLENGTH)
                sub(/.*src\//, "", path)
                room[path] = ++rooms
            }
            next
        }
        FILENAME == "-" {
            here[$0] = 1
            name = $0
            sub(/.*\//, "", name)
            files[name] = files[name] " " $0
            next
        }
        /^[ \t]*#[ \t]*include[ \t]*"/ {
            split($0, quoted, "\"")
            folder = FILENAME
            sub(/[^\/]*$/, "", folder)
            target = quoted[2]
            if ((folder target) in here)
                next
            name = target
            sub(/.*\//, "", name)
            lowest = 10000
            split(files[name], candidates, " ")
            for (i in candidates)
                if (("/" candidates[i]) ~ ("/" target "$") && level(candidates[i]) < lowest) {
                    lowest = level(candidates[i])
                    found = candidates[i]
                }
            if (lowest < 10000 && lowest > level(FILENAME))
                print FILENAME " includes " found
        }' CMakeLists.txt - $(cat "$OLDPWD/sources") <"$OLDPWD/sources")
}

@test "JSON is printed and read in one place, which knows names that are not UTF-8" {
    run grep -rnE 'cJSON_(Print|Parse)' "$NL_SOURCE_DIR"/{include,core,kernels,weights,vae,src,eval,cli} \
        --include='*.[ch]' --exclude=json.c
    [ -z "$output" ] || { echo "$output"; false; }
}

@test "no include runs up the tower" {
    run upward "$NL_SOURCE_DIR"
    [ "$status" -eq 0 ]
    [ -z "$output" ] || { echo "$output"; false; }
    [ "$(wc -l <sources)" -gt 300 ]
}

@test "an include that runs up is seen" {
    mkdir -p tree/{include,core,kernels/cpu,weights,vae,src/image,src/data,eval,serve,cli}
    cd tree
    echo 'nl_component(nl_image src/image nl_core)
nl_component(nl_data src/data nl_image)' >CMakeLists.txt
    touch core/a.h kernels/k.h kernels/cpu/k.h src/image/i.h src/data/d.h eval/e.h cli/c.h
    echo '#include "k.h"' | tee kernels/cpu/good.c >weights/good.c
    echo '#include "i.h"' | tee src/data/good.c >core/bad.c
    echo '#  include "d.h"' >src/image/bad.c
    echo '#include "e.h"' | tee cli/good.c >src/data/bad.c
    echo '#include <c.h>' >eval/good.c
    cd ..
    run upward tree
    [ "$output" = "core/bad.c includes src/image/i.h
src/data/bad.c includes eval/e.h
src/image/bad.c includes src/data/d.h" ] || { echo "$output"; false; }
}

@test "every source file begins with its licence and says what it is" {
    cd "$NL_SOURCE_DIR"
    found=$(find CMakeLists.txt cmake include core kernels weights vae src eval serve cli python examples bench tests -path python/build -prune -o -type f \
        \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' -o -name '*.sh' -o -name '*.bash' -o \
        -name '*.bats' -o -name '*.cmake' -o -name CMakeLists.txt -o -name '*.py' \) -exec awk '
        FNR == 1 { line = 0 }
        FNR == 1 && /^#!/ { next }
        ++line == 1 && !/^(\/\*|#) SPDX-License-Identifier: MIT/ { print FILENAME ": no SPDX line" }
        line == 2 && !/^(\/\*|#|""")/ { print FILENAME ": nothing says what it is" }
        line == 2 && /^#(include|ifndef|pragma|define)/ { print FILENAME ": nothing says what it is" }' {} +)
    [ -z "$found" ] || { echo "$found"; false; }
}

# core/thread.c has nl_team; the CPU back end is given its number of threads by dispatch.c.
@test "the size of every OpenMP team is nl_team's" {
    cd "$NL_SOURCE_DIR"
    files=$(grep -rl '#pragma omp parallel' core weights vae src eval serve cli --include='*.c' --exclude=thread.c)
    [ "$(wc -l <<<"$files")" -gt 5 ]
    for file in $files; do
        ! grep "#pragma omp parallel" "$file" | grep -v "num_threads(team)" || { echo "$file"; false; }
        grep -q 'int team = .*nl_team(' "$file" || { echo "$file"; false; }
    done
}

# bash goes on after "! command" and after the first of "one && other": such a line says nothing.
@test "every check of a suite can fail" {
    cd "$NL_SOURCE_DIR/tests"
    mutes='^ *(! |(\[|cmp |grep |json_lines ).* && )'
    heard='\|\| |&& (break|continue|return|echo|script=)|\[\[ .* && .*\]\]|\$\(.* && .*\)|\\$'
    mute() { grep -rnE "$mutes" "$1" --include='*.bats' --include='*.bash' | grep -vE "$heard"; }
    found=$(mute cli) || true
    [ -z "$found" ] || { echo "$found"; false; }
    mkdir "$BATS_TEST_TMPDIR/a"
    printf '    %s\n' '! cmp a b' '[ -e a ] && [ -e b ]' '! cmp a b || false' '[ -e a ] && break' >"$BATS_TEST_TMPDIR/a/a.bats"
    [ "$(mute "$BATS_TEST_TMPDIR/a" | wc -l)" -eq 2 ]
}

@test "no test signals processes by name" {
    ! grep -rnE '(pkill|killall|pgrep)' "$NL_SOURCE_DIR"/tests --include='*.bats' --include='*.bash' --include='*.sh' \
        --include='*.py' --include='*.c' | grep -v 'tree.bats'
}
