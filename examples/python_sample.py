# SPDX-License-Identifier: MIT
"""Pictures of one class through the Python package: `pip install ./python`, then

    python3 examples/python_sample.py church 4

Writes picture-0.png and so on; Ctrl-C stops it and keeps what is finished.
"""
import argparse
import struct
import sys
import zlib

import nalagen


def write_png(path, rgb):
    """PIL does this in one line; here without it. rgb: uint8 [H, W, 3]."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = rgb.shape
    rows = b"".join(b"\0" + row.tobytes() for row in rgb)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                   chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def show(progress):
    print(f"\r{progress.stage} {progress.step}/{progress.steps} ", end="", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name", nargs="?", default="church")
    parser.add_argument("n", nargs="?", type=int, default=4)
    parser.add_argument("--size", type=int)
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    try:
        with nalagen.load(size=options.size) as model:
            for picture in model.stream(options.name, options.n, seed=7, steps=options.steps, progress=show):
                path = f"picture-{picture.index}.png"
                write_png(path, picture.rgb)
                print(path)
    except nalagen.Error as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


main()
