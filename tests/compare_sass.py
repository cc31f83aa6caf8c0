#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Whether two builds with CUDA have the same machine code, kernel by kernel:

    tests/compare_sass.py BUILD_BEFORE BUILD_AFTER [PATTERN]

A kernel counts as the same when one of the other build has the same instructions, registers and memory, whatever its name:
files and functions may be renamed. PATTERN (a regular expression) chooses object files of the build after. Exit code 1 when
some differ. Needs cuobjdump, which comes with CUDA; builds of one compiler and one list of architectures.
"""
import collections
import concurrent.futures
import hashlib
import os
import re
import subprocess
import sys


def cuobjdump(option, path):
    return subprocess.run(["cuobjdump", option, path], capture_output=True, text=True, check=True).stdout.splitlines()


def kernels_of(path):
    """(object file, kernel, resources, hash of both with the instructions) of an object file."""
    resources, found, name, lines = {}, [], None, []
    for line in cuobjdump("-res-usage", path):
        function = re.match(r"\s*Function (\S+):", line)
        name = function.group(1) if function else name
        if "REG:" in line:
            resources[name] = line.strip()

    def end():
        if name:
            about = resources.get(name, "")
            code = hashlib.sha256("\n".join(lines + [about]).encode()).hexdigest()
            found.append((os.path.basename(path), name, f"{len(lines)} instructions, {about}", code))

    name = None
    for line in cuobjdump("-sass", path):
        function = re.match(r"\s*Function : (\S+)", line)
        instruction = re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?;)", line)
        if function:
            end()
            name, lines = function.group(1), []
        elif instruction:
            lines.append(re.sub(r"`\(.*?\)", "`(symbol)", instruction.group(1)))
    end()
    return found


def kernels(folder, pattern):
    objects = [os.path.join(place, file) for place, _, files in os.walk(folder) for file in files
               if "nl_cuda" in place and file.endswith(".cu.o") and re.search(pattern, os.path.join(place, file))]
    if not objects:
        sys.exit(f"{folder}: no object files of nl_cuda: is this a build with -DNL_CUDA=ON?")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [kernel for found in pool.map(kernels_of, sorted(objects)) for kernel in found]


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    pattern = sys.argv[3] if len(sys.argv) > 3 else ""
    before, after = kernels(sys.argv[1], ""), kernels(sys.argv[2], pattern)
    code = [collections.Counter(kernel[3] for kernel in side) for side in (before, after)]
    print(f"{len(before)} kernels before, {len(after)} after, {sum((code[0] & code[1]).values())} the same")
    status = 0
    for title, side, others in (("before", before, code[0] - code[1]), ("after", after, code[1] - code[0])):
        for file, name, about, own in side:
            if others[own] > 0 and not (pattern and title == "before"):
                others[own] -= 1
                status = 1
                print(f"only {title}: {file} {name}: {about}")
    sys.exit(status)


main()
