#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Pictures of parquet files (Hugging Face's image data sets) into a tar that `nalagen encode` reads. Needs pyarrow.

    python3 python/parquet_to_tar.py DATA/train-*.parquet -o train.tar
    nalagen encode train.tar -o data --class-names train.names

The bytes of the pictures are copied as they are: KEY.jpg, KEY.png or KEY.webp beside KEY.cls, as webdataset has them. Where the
files name their classes, the names go into train.names, a line each. The pictures are the first column of Hugging Face's images
(a struct with `bytes`) or of bytes; the labels a column of whole numbers called label, labels, fine_label, class or cls.
"""
import argparse
import io
import json
import os
import sys
import tarfile

KINDS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"RIFF": "webp"}
LABELS = "label", "labels", "fine_label", "class", "cls"


def choose(schema, arrow, image, label):
    """The names of both columns; label None: there is none."""
    def holds(field):
        kind = field.type
        if arrow.types.is_struct(kind):
            return any(kind[i].name == "bytes" for i in range(kind.num_fields))
        return arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind)

    image = image or next((field.name for field in schema if holds(field)), None)
    label = label if label is not None else next((name for name in LABELS
                                                  if name in schema.names and arrow.types.is_integer(schema.field(name).type)), None)
    for name in filter(None, (image, label)):
        if name not in schema.names:
            sys.exit(f"no column {name}: there are {', '.join(schema.names)}")
    if not image:
        sys.exit(f"no column of pictures: there are {', '.join(schema.names)}; say which with --image")
    return image, label


def class_names(schema, label):
    """What Hugging Face notes of a ClassLabel, or []."""
    facts = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    return facts.get("info", {}).get("features", {}).get(label, {}).get("names", [])


def add(tar, name, data):
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def export(paths, out, image=None, label=None):
    """Writes the tar, under its name when it is whole; returns how many pictures it has and the names of the classes."""
    import pyarrow
    import pyarrow.parquet
    count, names = 0, []
    part = out + ".part"
    with tarfile.open(part, "w", format=tarfile.USTAR_FORMAT) as tar:
        for path in paths:
            file = pyarrow.parquet.ParquetFile(path)
            pictures, labels = choose(file.schema_arrow, pyarrow, image, label)
            names = names or class_names(file.schema_arrow, labels)
            for batch in file.iter_batches(batch_size=256, columns=[c for c in (pictures, labels) if c]):
                for row in batch.to_pylist():
                    data = row[pictures]
                    data = data["bytes"] if isinstance(data, dict) else data
                    kind = next((k for magic, k in KINDS.items() if data and data.startswith(magic)), None)
                    if not kind:
                        sys.exit(f"{path}: picture {count} is no JPEG, PNG or WebP, or lies in another file")
                    if labels:
                        if row[labels] is None or row[labels] < 0:
                            sys.exit(f"{path}: picture {count} has no label: is it the part for testing? --label none takes it without")
                        add(tar, f"{count:09}.cls", str(row[labels]).encode())
                    add(tar, f"{count:09}.{kind}", data)
                    count += 1
    os.replace(part, out)
    return count, names


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", help="parquet files, in the order of the pictures")
    parser.add_argument("-o", "--out", required=True, help="the tar to write")
    parser.add_argument("--image", help="column of the pictures")
    parser.add_argument("--label", help="column of the classes, or none")
    options = parser.parse_args()
    if not options.out.endswith(".tar"):
        parser.error("--out: expected a name that ends in .tar")
    label = options.label
    count, names = export(options.files, options.out, options.image, "" if label == "none" else label)
    print(f"{options.out}: {count} pictures", file=sys.stderr)
    if names:
        listed = options.out[:-4] + ".names"
        with open(listed, "w") as file:
            file.writelines(f"{i} {name}\n" for i, name in enumerate(names))
        print(f"{listed}: {len(names)} names of classes", file=sys.stderr)


if __name__ == "__main__":
    main()
