# SPDX-License-Identifier: MIT
# Figures side by side: nalagen's and the peer's files of lines (name, value and unit between tabs, padded with
# blanks) to a table, or with -v json=1 to a JSON object.
#
#   awk -f bench/figures.awk ours.tsv peer.tsv
#
# A row of the peer is named as ours with "eager" or "compiled" behind it, and perhaps how; the best one's is named. The ratio says how many times better ours is
# than the best of them; for NaLa a second one is to the best softmax row of the peer, which does the same work.
BEGIN { FS = "\t" }
function less_is_better(unit) { return unit == "ms" || unit == "MiB" }
function trim(text) { gsub(/^ +| +$/, "", text); return text }
/^#/ || NF < 3 { next }
{ name = trim($1); value = trim($2); unit = trim($3) }
FILENAME == ARGV[1] {
    if (!(name in ours))
        order[++count] = name
    ours[name] = value
    units[name] = unit
    next
}
{
    row = name
    sub(/ (eager|compiled)( .*)?$/, "", row)
    how = name == row ? "" : substr(name, length(row) + 2)
    # trim() makes text of a number, and "4251" is more than "13609"
    if (!(row in best) || (less_is_better(unit) ? value + 0 < best[row] + 0 : value + 0 > best[row] + 0)) {
        best[row] = value
        by[row] = how
    }
    said[row] = said[row] (said[row] == "" ? "" : ", ") sprintf("\"%s\": %s", how == "" ? "PyTorch" : how, value)
}
function ratio(name, row) {
    if (!(row in best) || ours[name] + 0 == 0)
        return ""
    return sprintf("%.3g", less_is_better(units[name]) ? best[row] / ours[name] : ours[name] / best[row])
}
END {
    for (i = 1; i <= count; i++) {
        name = order[i]
        softmax = name
        if (!sub(/NaLa /, "softmax ", softmax) && !sub(/NaLa/, "", softmax))
            softmax = ""
        same = ratio(name, name)
        other = softmax == "" ? "" : ratio(name, softmax)
        if (json) {
            printf "%s\"%s\": {\"value\": %s, \"unit\": \"%s\"", (i > 1 ? ",\n  " : "{\n  "), name, ours[name], units[name]
            if (name in said) printf ", \"peer\": {%s}", said[name]
            if (same != "") printf ", \"ratio\": %s", same
            if (other != "") printf ", \"ratio_to_softmax\": %s", other
            printf "}"
        } else {
            if (i == 1)
                printf "| measurement | nalagen | best of PyTorch | ratio | to its softmax |\n|---|---|---|---|---|\n"
            printf "| %s | %s %s | %s%s | %s | %s |\n", name, ours[name], units[name], best[name], by[name] == "" ? "" : " (" by[name] ")", same, other
        }
    }
    if (json)
        printf "%s}", count ? "\n " : "{"
}
