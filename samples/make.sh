#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes the grids of this folder again: one for each class of the shipped model, README.md with their commands.
#   samples/make.sh [PROGRAM]      the program to use (default: ./nalagen of this source tree)
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
program=${1:-$here/../nalagen}
options="-n 5 --grid 1x5 --seed 0"

json() { # FILE EXPRESSION: of what info says, x
    "$program" info --json "$1" | python3 -c 'import json, sys; x = json.load(sys.stdin); print(eval(sys.argv[1]))' "$2"
}

: >"$here/README.md.new"
json "$here"/../weights/shipped/nalasit-s2-256.safetensors '"\n".join(name for _, name in x["config"]["class_names"])' |
    while read -r class; do
        file=$(echo "$class" | tr 'A-Z ' 'a-z-').png
        # shellcheck disable=SC2086 # a list of options
        "$program" sample --class "$class" $options --out "$here/$file" --force --quiet </dev/null
        printf '| ![%s](%s) | `./nalagen sample --class "%s" %s --out %s` |\n' \
            "$class" "$file" "$class" "$options" "$file" >>"$here/README.md.new"
    done
{
    cat <<END
# What the shipped model draws

Five pictures of each class, seed 0, picture indices 0 to 4, default sampler ($(json "$here/church.png" '"%s, %s steps" % (x["parameters"]["sampler"], x["parameters"]["steps"])')). Nothing was
picked out. \`samples/make.sh\` makes these files and this page; each PNG carries its parameters too:
\`./nalagen info samples/church.png\` prints them and \`./nalagen sample --from samples/church.png\` makes it again.

| grid | command |
|---|---|
END
    cat "$here/README.md.new"
} >"$here/README.md"
rm "$here/README.md.new"
