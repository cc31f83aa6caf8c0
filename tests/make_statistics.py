#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the file that test_statistics compares with: random features and what numpy and scipy make of them.

    make_statistics.py OUT.safetensors
"""
import json
import struct
import sys

import numpy as np
import scipy.linalg

rng = np.random.default_rng(0)
SIZE, A, B = 64, 2300, 1700


def features(count, shift, scale):
    mixing = np.random.default_rng(7).normal(size=(SIZE, SIZE)) / np.sqrt(SIZE)
    x = (rng.normal(size=(count, SIZE)) * scale) @ mixing + shift
    return np.maximum(x, 0).astype(np.float32)  # positive, as the features of a ReLU


def frechet(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    s1, s2 = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = scipy.linalg.sqrtm(s1 @ s2)
    d = a.mean(0) - b.mean(0)
    return d @ d + np.trace(s1 + s2 - 2 * np.real(root))


def kid(a, b):
    a, b, m = a.astype(np.float64), b.astype(np.float64), len(a)

    def kernel(x, y):
        return (x @ y.T / SIZE + 1) ** 3

    aa, bb = kernel(a, a), kernel(b, b)
    off = aa.sum() - np.trace(aa) + bb.sum() - np.trace(bb)
    return off / (m * (m - 1)) - 2 * kernel(a, b).mean()


def squared_distances(x, y):
    x, y = x.astype(np.float64), y.astype(np.float64)
    return np.maximum((x * x).sum(1)[:, None] - 2 * x @ y.T + (y * y).sum(1)[None], 0)


def precision_recall(reference, samples, k=3, distances=squared_distances):
    radius_r = np.sort(distances(reference, reference), axis=1)[:, k]
    radius_s = np.sort(distances(samples, samples), axis=1)[:, k]
    d = distances(reference, samples)
    return (d <= radius_r[:, None]).any(0).mean(), (d <= radius_s[None]).any(1).mean()


def half_distances(x, y):
    """Every step rounded to fp16, sums in more, as a GPU does it."""
    half, wide = np.float16, np.float64
    x, y = x.astype(half), y.astype(half)
    xx, yy = ((z * z).astype(wide).sum(1).astype(half) for z in (x, y))
    products = (x.astype(wide) @ y.astype(wide).T).astype(half)
    return np.maximum(((xx[:, None] - half(2) * products) + yy[None]).astype(np.float32), 0)


def inception_score(logits, split):
    scores = []
    for i in range(0, len(logits), split):
        x = logits[i:i + split].astype(np.float64)
        p = np.exp(x - x.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        scores.append(np.exp((p * (np.log(p) - np.log(p.mean(0, keepdims=True)))).sum(1).mean()))
    return np.mean(scores), np.std(scores)


def save(path, arrays):
    header, data = {}, b""
    for name, x in arrays.items():
        raw = x.tobytes()
        header[name] = {"dtype": {"f4": "F32", "f8": "F64"}[x.dtype.str[1:]], "shape": list(x.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def main():
    a, b = features(A, 0.2, 1.0), features(B, 0.3, 0.9)
    logits = (2 * rng.normal(size=(1234, 20))).astype(np.float32)
    least = min(A, B)
    arrays = {"a": a, "b": b, "logits": logits}
    arrays["precision"], arrays["recall"] = precision_recall(a, b)
    arrays["precision_half"], arrays["recall_half"] = precision_recall(
        a + np.float32(4), b + np.float32(4), distances=half_distances)
    arrays["is"], arrays["is_deviation"] = inception_score(logits, 500)
    arrays["frechet"], arrays["kid"] = frechet(a, b), kid(a[:least], b[:least])
    save(sys.argv[1], {k: np.asarray(v) for k, v in arrays.items()})


if __name__ == "__main__":
    sys.exit(main())
