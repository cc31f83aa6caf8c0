#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes the grids of this folder again: one for each class of the shipped model, README.md with their commands.
#   samples/make.sh [PROGRAM]      the program to use (default: ./nalagen of this source tree)
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
program=${1:-$here/../nalagen}
options="-n 5 --grid 1x5 --seed 0"

make_grid() { # FILE CLASS
    # shellcheck disable=SC2086 # a list of options
    "$program" sample --class "$2" $options --out "$here/$1.png" --force --quiet
    printf '| ![%s](%s.png) | `./nalagen sample --class "%s" %s --out %s.png` |\n' \
        "$2" "$1" "$2" "$options" "$1" >>"$here/README.md.new"
}

fact() { # KEY: how a grid says it was made
    "$program" info --json "$here/church.png" | python3 -c 'import json, sys; print("%s" % json.load(sys.stdin)["parameters"][sys.argv[1]])' "$1"
}

: >"$here/README.md.new"
make_grid tench tench
make_grid english-springer "English springer"
make_grid cassette-player "cassette player"
make_grid chain-saw "chain saw"
make_grid church church
make_grid french-horn "French horn"
make_grid garbage-truck "garbage truck"
make_grid gas-pump "gas pump"
make_grid golf-ball "golf ball"
make_grid parachute parachute
{
    cat <<END
# What the shipped model draws

Five pictures of each class, seed 0, picture indices 0 to 4, default sampler ($(fact sampler), $(fact steps) steps, guidance $(fact cfg_scale) for t in $(fact cfg_interval)). Nothing was
picked out. \`samples/make.sh\` makes these files and this page; each PNG carries its parameters too:
\`./nalagen info samples/church.png\` prints them and \`./nalagen sample --from samples/church.png\` makes it again.

| grid | command |
|---|---|
END
    cat "$here/README.md.new"
} >"$here/README.md"
rm "$here/README.md.new"
