# SPDX-License-Identifier: MIT
"""The table of test_average.c: combinations of power functions by numpy, checked by quadrature over time."""
import numpy as np


def exponent(sigma_rel):
    t = sigma_rel ** -2.0  # (g + 2)^2 (g + 3) = t (g + 1)
    roots = np.roots([1, 7, 16 - t, 12 - t])
    return max(roots[np.isreal(roots)].real)


def product(ta, ga, tb, gb):
    ratio = (ta / tb) ** np.where(ta < tb, gb, -ga)
    return (ga + 1) * (gb + 1) * ratio / ((ga + gb + 1) * np.maximum(ta, tb))


steps = np.repeat([100.0, 250.0, 400.0, 1000.0], 2)
exponents = np.tile([exponent(0.05), exponent(0.1)], 4)
u = (np.arange(200000) + 0.5) / 200
for sigma_rel, step in (0.15, 1000.0), (0.03, 1000.0), (0.2, 400.0):
    g = exponent(sigma_rel)
    a = product(steps[:, None], exponents[:, None], steps[None], exponents[None])
    b = product(steps, exponents, step, g)
    x = np.linalg.solve(a, b)
    x /= x.sum()
    whole = product(step, g, step, g)
    error = np.sqrt((x @ a @ x - 2 * x @ b + whole) / whole)
    profile = lambda n, e: np.where(u <= n, (e + 1) * (u / n) ** e / n, 0)
    difference = x @ np.array([profile(n, e) for n, e in zip(steps, exponents)]) - profile(step, g)
    direct = np.sqrt((difference ** 2).sum() / (profile(step, g) ** 2).sum())
    assert abs(direct - error) < 1e-5, (direct, error)
    numbers = ', '.join(f'{v:.9g}' for v in x)
    print(f'{{{sigma_rel}, {step:.0f}, {g:.10g}, {{{numbers}}}, {error:.9g}}},')
