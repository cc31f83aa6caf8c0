# SPDX-License-Identifier: MIT
# The documents: links lead somewhere, options that they name exist.
load helper

# FILE:TARGET of every link and picture that leads into the repository, without its #part.
links() {
    cd "$NL_SOURCE_DIR" || return
    find . -name '*.md' -not -path './build*' -not -path './out/*' -not -path './.*/*' |
        while read -r file; do
            grep -Eo '\]\([^) ]+\)' "$file" | sed -E 's/^\]\(//; s/\)$//; s/#.*//' |
                grep -Ev '^([a-z]+:|$)' | sed "s|^|$file:|"
        done
}

@test "every link of the documents leads somewhere" {
    broken=
    count=0
    while IFS=: read -r file target; do
        count=$((count + 1))
        [ -e "$NL_SOURCE_DIR/$(dirname "$file")/$target" ] || broken+="$file: $target"$'\n'
    done < <(links)
    printf '%s' "$broken"
    [ -z "$broken" ]
    [ "$count" -ge 100 ]
}

@test "every option that the documents name is one of the program" {
    known=$("$NALAGEN" generate-man | sed 's/\\-/-/g' | grep -Eo -- '--[a-z][a-z0-9-]+' | sort -u)
    named=$(grep -Eho '^ *nalagen [a-z]+ .*|`--[a-z][a-z0-9-]+' "$NL_SOURCE_DIR"/README.md "$NL_SOURCE_DIR"/docs/*.md |
        sed 's/ #.*//' | grep -Eo -- '(^|[ `])--[a-z][a-z0-9-]+' | tr -d ' `' | sort -u)
    others='--(gpu-bind|gpus-per-task|kill-on-bad-exit|prefix|seconds)' # of srun, CMake and the benches
    unknown=$(comm -23 <(grep -vxE -- "$others" <<<"$named") <(printf '%s\n' "$known"))
    printf '%s' "$unknown"
    [ -z "$unknown" ]
    [ "$(wc -l <<<"$named")" -ge 50 ]
}

@test "what comments cite is in the repository" {
    cd "$NL_SOURCE_DIR"
    grep -rnoE '[a-z/-]+\.md( [A-E][0-9]?)?' core kernels weights vae src eval cli tests include \
        --include='*.[ch]' --include='*.cu' --include='*.cuh' --include='*.inc' >"$BATS_TEST_TMPDIR/cited"
    [ "$(wc -l <"$BATS_TEST_TMPDIR/cited")" -ge 40 ]
    while IFS=: read -r file line cited; do
        read -r name section <<<"$cited"
        [ -e "$name" ] || name=docs/$name
        [ -e "$name" ] && { [ -z "$section" ] || grep -q "^##* $section\\. \|^##* $section " "$name"; } ||
            { echo "$file:$line: $cited"; false; }
    done <"$BATS_TEST_TMPDIR/cited"
}

@test "the containers are built from the packages that ./nalagen installs" {
    packages=$(sed -n 's/^build_packages="\(.*\)"/\1/p' "$NL_SOURCE_DIR/cmake/bootstrap.sh")
    [ "$(wc -w <<<"$packages")" -gt 10 ]
    for file in "$NL_SOURCE_DIR"/containers/Containerfile*; do
        for package in $packages; do
            grep -qE "(^|[[:space:]])$package([[:space:]]|\$)" "$file" || { echo "$file: $package"; false; }
        done
    done
}

@test "the README stays short" {
    [ "$(wc -l <"$NL_SOURCE_DIR/README.md")" -lt 120 ]
}
