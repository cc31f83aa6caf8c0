# SPDX-License-Identifier: MIT
"""The charts of docs/ and a table, from the records in bench/results, drawn by `nalagen plot`.

    python3 bench/charts.py NALAGEN                   all charts whose records are in the repository
    python3 bench/charts.py NALAGEN --table RECORD    Markdown: the S/2 backbone by number of tokens

A record of tests/gpu.sh has figures by name; those of training runs have [step, loss] pairs; the sweep has a row a setting.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RECORD = "2026-11-30-nvidia-h200.json"  # of tests/gpu.sh


def record(name):
    with open(os.path.join(ROOT, "bench/results", name)) as file:
        return json.load(file)


def draw(nalagen, out, curves, options):
    """curves: {name: {"log" or "metrics": [line as a dict]}}, each a folder as a run has it."""
    with tempfile.TemporaryDirectory() as folder:
        for name, files in curves.items():
            os.makedirs(os.path.join(folder, name))
            for file, lines in files.items():
                with open(os.path.join(folder, name, file + ".jsonl"), "w") as stream:
                    stream.writelines(json.dumps(line) + "\n" for line in lines)
        subprocess.run([nalagen, "plot", *(os.path.join(folder, name) for name in curves), *options, "-f",
                        "-o", os.path.join(ROOT, "docs", out)], check=True)


def run(training):
    """A run's logs out of what its record keeps."""
    return {"log": [{"step": step, "loss": loss} for step, loss in training["loss"]],
            "metrics": [{"step": step, "val_loss": loss} for step, loss in training["held_out"]]}


def minute(training):
    """Losses by the seconds that the run had taken."""
    return {"log": [{"step": step, "seconds": seconds, "loss": loss} for seconds, step, loss in training["loss"]]}


def four_minutes(runs):
    """Held-out losses at 256 tokens by seconds. A conversion's own loss is the distance to its teacher: its end alone has one of the data."""
    curves = {}
    for kind in "SiT", "NaLaSiT with lepe":
        training = runs[f"{kind}, 4 minutes, 256 tokens"]
        seconds = {step: seconds for seconds, step, _ in training["loss"]}
        curves[kind] = [{"seconds": seconds[step], "held-out loss": loss} for step, loss in training["held_out"]]
    curves["NaLaSiT with lepe converted from that SiT: two runs' ends"] = [
        {"seconds": training["seconds"], "held-out loss": training["held_out_of_the_data"]}
        for name, training in runs.items() if " from " in name]
    return {name: {"metrics": lines} for name, lines in curves.items()}


def tokens(figures):
    """({name: [line]} of attention alone, the same of whole backbones), milliseconds by tokens."""
    alone, whole = {}, {}
    for name, figure in figures.items():
        if match := re.fullmatch(r"attention (NaLa|softmax) \d+ x (\d+) x 64 forward", name):
            times = {match[1]: figure["value"]}
            if peer := figure.get("peer"):
                times[match[1] + " in PyTorch"] = min(peer.values())
            for kind, value in times.items():
                alone.setdefault(kind, []).append({"tokens": int(match[2]), "milliseconds for 65,536 tokens": value})
        elif match := re.fullmatch(r"forward (NaLa)?SiT-S/2 (\d+) x (\d+) tokens time", name):
            line = {"tokens": int(match[3]), "milliseconds an image": figure["value"] / int(match[2])}
            whole.setdefault(match[1] or "softmax", []).append(line)
    return [{kind: {"metrics": sorted(lines, key=lambda line: line["tokens"])}
             for kind, lines in sorted(curves.items(), key=lambda item: ("PyTorch" in item[0], item[0]))}
            for curves in (alone, whole)]


def seconds(sweep, times):
    """FID by the seconds that a picture takes on a CPU, from the command to the file. The noise of flow-sde takes none that can be measured."""
    took = {(row["sampler"], row["steps"], row["dtype"]): row["whole"] / 1000 for row in times}
    curves = {}
    for dtype, said in ("f32", "fp32"), ("bf16", "bf16"):
        for row in sweep:
            if whole := took.get((row["sampler"].removesuffix("-sde"), row["steps"], dtype)):
                curves.setdefault(f"{row['sampler']}, {said}", {"metrics": []})["metrics"].append(
                    {"step": row["steps"], "seconds a picture": whole, "fid_768": row["fid_768"]})
    return curves


def least(rows):
    """Of each sampler and number of steps, to eight, the row of the least distance, of 5,000 pictures in bf16 against the train part."""
    found = {}
    for row in sorted(rows, key=lambda row: row["fid_768"]):
        if (row["pictures"], row["dtype"], row["against"]) == (5000, "bf16", "train") and row["steps"] <= 8:
            found.setdefault((row["sampler"], row["steps"]), row)
    return [found[key] for key in sorted(found)]


def table(figures):
    """Lines of Markdown: the S/2 backbone by number of tokens."""
    rate, memory = {}, {}
    for name, figure in figures.items():
        if match := re.fullmatch(r"forward (NaLa)?SiT-S/2 (\d+) x (\d+) tokens(| memory)", name):
            (memory if match[4] else rate)[match[1] or "softmax", int(match[3])] = int(match[2]), figure["value"]
    yield "| tokens | batch | NaLa, images/s | softmax, images/s | NaLa / softmax | NaLa, MiB | softmax, MiB |"
    yield "|---|---|---|---|---|---|---|"
    for kind, count in sorted(rate, key=lambda key: key[1]):
        if kind == "softmax":
            continue
        (batch, nala), (_, softmax) = (rate[kind, count] for kind in ("NaLa", "softmax"))
        sizes = " | ".join(f"{memory[kind, count][1]:,.0f}" for kind in ("NaLa", "softmax"))
        rates = " | ".join(f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (nala, softmax))
        yield f"| {count:,} | {batch} | {rates} | {nala / softmax:.3g} | {sizes} |"


def main():
    nalagen, *rest = sys.argv[1:]
    if rest:
        assert rest[0] == "--table"
        print("\n".join(table(record(os.path.basename(rest[1]))["figures"])))
        return
    nalagen = os.path.abspath(nalagen)
    alone, whole = tokens(record(RECORD)["figures"])
    axes = "--over tokens --log-over --log-scale --size 420x560 --value".split()
    draw(nalagen, "tokens-attention.svg", alone, [*axes, "milliseconds for 65,536 tokens"])
    draw(nalagen, "tokens-backbone.svg", whole, [*axes, "milliseconds an image"])
    first = record("2026-11-28-h200-comparison.json")["comparison"]
    draw(nalagen, "results/loss.png", {name: run(training) for name, training in first.items()},
         ["--smoothing", "0", "--log-scale"])
    sweep = {}
    rows = [row for row in least(record("2026-11-30-h200-flow-sde.json")["rows"]) if row["sampler"] != "heun"]  # one point is no curve
    for row in rows:
        sweep.setdefault(row["sampler"], {"metrics": []})["metrics"].append({"step": row["steps"], **row})
    axes = "--log-over --value fid_768 --smoothing 0 --size 380x560 --over".split()
    draw(nalagen, "results/evaluations.svg", sweep, [*axes, "evaluations"])
    draw(nalagen, "results/seconds.svg", seconds(rows, record("2026-11-29-cpu-steps.json")["rows"]), [*axes, "seconds a picture"])
    minutes = record("2026-11-29-h200-equal-minutes.json")["runs"]
    minutes |= record("2026-11-30-h200-equal-minutes-2.json")["runs"]
    kinds = "SiT", "NaLaSiT", "NaLaSiT with lepe"  # in this order everywhere, so that a kind has one colour
    for count in "1024", "4096":
        some = {kind: minute(minutes[f"{kind}, {count} tokens"]) for kind in kinds}
        draw(nalagen, f"results/minutes-{count}.svg", some, "--over seconds --smoothing 0.3 --log-scale --size 380x560".split())
    draw(nalagen, "results/minutes-256.svg", four_minutes(record("2026-11-30-h200-equal-minutes.json")["runs"]),
         ["--value", "held-out loss", *"--over seconds --smoothing 0 --size 380x560".split()])
    large = record("2026-11-29-h200-large.json")["runs"]["NaLaSiT with lepe, 16,384 tokens"]
    # The first losses, from 2 downwards, would press the rest into a line.
    large = {**large, "loss": [line[1:] for line in large["loss"] if line[1] >= 250]}
    draw(nalagen, "results/large.svg", {"NaLaSiT with lepe": run(large)}, "--smoothing 0.9 --log-scale --size 380x760".split())


if __name__ == "__main__":
    main()
