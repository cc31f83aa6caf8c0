# SPDX-License-Identifier: MIT
"""NaLa against softmax from 256 to 65,536 tokens: a drawing and a table of the figures that tests/gpu.sh wrote.

    python3 bench/curve.py bench/results/DATE-CARD.json -o docs/tokens.svg >table.md

Two panels, both axes logarithmic: attention alone (nalagen and PyTorch), and the whole S/2 backbone.
"""
import json
import math
import re
import sys

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 420, 300, 70, 40, 50, 30
SERIES = {  # legend: colour, dashes
    "softmax, PyTorch": ("#d62728", "4 3"),
    "softmax": ("#d62728", ""),
    "NaLa, PyTorch": ("#1f77b4", "4 3"),
    "NaLa": ("#1f77b4", ""),
}


def collect(figures):
    """{panel: {legend: [(tokens, milliseconds)]}}"""
    alone, whole = {}, {}
    for name, figure in figures.items():
        if match := re.fullmatch(r"attention (NaLa|softmax) \d+ x (\d+) x 64 forward", name):
            kind, tokens = match[1], int(match[2])
            alone.setdefault(kind, []).append((tokens, figure["value"]))
            if peer := figure.get("peer"):
                alone.setdefault(kind + ", PyTorch", []).append((tokens, min(peer.values())))
        elif match := re.fullmatch(r"forward (NaLa)?SiT-S/2 (\d+) x (\d+) tokens time", name):
            whole.setdefault(match[1] or "softmax", []).append((int(match[3]), figure["value"] / int(match[2])))
    return {"attention alone, ms for 65,536 tokens": alone, "S/2 backbone forward, ms an image": whole}


def text(x, y, what, anchor="middle", size=12):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{what}</text>'


def panel(title, curves, left):
    points = [point for curve in curves.values() for point in curve]
    xs, ys = ([math.log10(point[i]) for point in points] for i in (0, 1))
    low, high = math.floor(min(ys)), math.ceil(max(ys))

    def place(tokens, value):
        x = (math.log10(tokens) - min(xs)) / (max(xs) - min(xs))
        y = (math.log10(value) - low) / (high - low)
        return left + x * WIDTH, TOP + (1 - y) * HEIGHT

    out = [text(left + WIDTH / 2, TOP - 14, title, size=14)]
    for decade in range(low, high + 1):
        y = place(points[0][0], 10**decade)[1]
        out.append(f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#ddd"/>')
        out.append(text(left - 8, y + 4, f"{10.0**decade:g}", "end"))
    for tokens in sorted({point[0] for point in points}):
        x = place(tokens, 1)[0]
        out.append(f'<path d="M{x:.1f} {TOP}v{HEIGHT}" stroke="#ddd"/>')
        out.append(text(x, TOP + HEIGHT + 18, f"{tokens:,}"))
    out.append(text(left + WIDTH / 2, TOP + HEIGHT + 38, "tokens"))
    line = 0
    for legend, (colour, dashes) in SERIES.items():
        if legend not in curves:
            continue
        at = [place(*point) for point in sorted(curves[legend])]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in at)
        style = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}" fill="none"'
        out.append(f'<path d="{path}" {style}/>')
        y = TOP + 18 + 18 * line
        out.append(f'<path d="M{left + 12} {y - 4}h28" {style}/>')
        out.append(text(left + 46, y, legend, "start"))
        line += 1
    return out


def table(figures):
    """Lines of Markdown: the S/2 backbone by number of tokens."""
    rate, memory = {}, {}
    for name, figure in figures.items():
        if match := re.fullmatch(r"forward (NaLa)?SiT-S/2 (\d+) x (\d+) tokens(| memory)", name):
            (memory if match[4] else rate)[match[1] or "softmax", int(match[3])] = int(match[2]), figure["value"]
    yield "| tokens | batch | NaLa, images/s | softmax, images/s | NaLa / softmax | NaLa, MiB | softmax, MiB |"
    yield "|---|---|---|---|---|---|---|"
    for kind, tokens in sorted(rate, key=lambda key: key[1]):
        if kind == "softmax":
            continue
        (batch, nala), (_, softmax) = (rate[kind, tokens] for kind in ("NaLa", "softmax"))
        sizes = " | ".join(f"{memory[kind, tokens][1]:,.0f}" for kind in ("NaLa", "softmax"))
        rates = " | ".join(f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (nala, softmax))
        yield f"| {tokens:,} | {batch} | {rates} | {nala / softmax:.3g} | {sizes} |"


def main():
    source, flag, target = sys.argv[1:]
    assert flag == "-o"
    with open(source) as file:
        result = json.load(file)
    panels = collect(result["figures"])
    step = LEFT + WIDTH + GAP
    print("\n".join(table(result["figures"])))
    body = [line for i, (title, curves) in enumerate(panels.items()) for line in panel(title, curves, LEFT + i * step)]
    body.append(text(2 * step - GAP, TOP + HEIGHT + 38, result["card"] + ", bf16", "end"))
    width, height = 2 * step, TOP + HEIGHT + BOTTOM
    with open(target, "w") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                   f'font-family="sans-serif" fill="#333">\n<rect width="{width}" height="{height}" fill="#fff"/>\n')
        file.write("\n".join(body) + "\n</svg>\n")


if __name__ == "__main__":
    main()
