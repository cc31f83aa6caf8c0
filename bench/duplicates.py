# SPDX-License-Identifier: MIT
"""Names the pictures of a data set that stand in it twice, in two classes or in both of its parts.

    python3 bench/duplicates.py FOLDER [--bits 14] [--remove]

FOLDER holds train/<class>/* and val/<class>/*. Two pictures are the same where their difference hashes
(is each of 16 x 16 grey cells brighter than its left neighbour?) differ in at most --bits of 256: that finds copies of other size or
compression, and nothing else among the 26,348 of Imagenette and Imagewoof. Prints a line for each pair: the
distance, the one to leave out, the other. Left out is the training part's where both parts have it, otherwise the later by name.
With --remove those files are deleted. Needs NumPy and Pillow.
"""
import argparse
import concurrent.futures
import os

import numpy as np
from PIL import Image


def bits(path):
    with Image.open(path) as picture:
        grey = np.asarray(picture.convert("L").resize((17, 16), Image.Resampling.BOX), dtype=np.int16)
    return (grey[:, 1:] > grey[:, :-1]).ravel()


def main():
    p = argparse.ArgumentParser(description="Names pictures that stand in a data set twice.")
    p.add_argument("folder")
    p.add_argument("--bits", type=int, default=14)
    p.add_argument("--remove", action="store_true")
    args = p.parse_args()
    paths = sorted(os.path.join(place, name) for part in ("train", "val")
                   for place, _, names in os.walk(os.path.join(args.folder, part)) for name in names)
    with concurrent.futures.ProcessPoolExecutor() as pool:
        hashes = np.array(list(pool.map(bits, paths, chunksize=64)), dtype=np.float32) * 2 - 1
    pairs = []
    for first in range(0, len(paths), 1024):
        apart = (256 - hashes[first:first + 1024] @ hashes.T) / 2
        pairs += [(int(apart[i, j]), first + i, j) for i, j in zip(*np.where(apart <= args.bits)) if first + i < j]
    gone = set()
    for apart, i, j in sorted(pairs):
        in_train = [k for k in (i, j) if os.path.relpath(paths[k], args.folder).startswith("train")]
        leave = in_train[0] if len(in_train) == 1 else j
        print(apart, paths[leave], paths[i + j - leave])
        gone.add(leave)
    print(f"{len(paths)} pictures, {len(pairs)} pairs, {len(gone)} to leave out")
    if args.remove:
        for k in gone:
            os.remove(paths[k])


if __name__ == "__main__":
    main()
