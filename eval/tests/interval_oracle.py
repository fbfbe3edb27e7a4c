"""Prints the expected values of the test in src/interval.rs: method 10 of Newcombe (1998), with Wilson's limits
computed by bisection of their defining equation instead of the closed form.

Counts are (both right, only the first right, only the second right, neither); limits are of first minus second.
Run with any Python 3; no packages are needed.
"""

from math import sqrt
from statistics import NormalDist

Z = NormalDist().inv_cdf(0.975)


def bisect(f, a, b):
    for _ in range(200):
        middle = (a + b) / 2
        if (f(a) > 0) == (f(middle) > 0):
            a = middle
        else:
            b = middle
    return middle


def wilson(right, n):
    p = right / n

    def f(t):
        return (p - t) ** 2 - Z * Z * t * (1 - t) / n

    return (bisect(f, 0, p) if right > 0 else 0.0), (bisect(f, p, 1) if right < n else 1.0)


def newcombe(both, first, second, neither):
    n = both + first + second + neither
    p1, p2 = (both + first) / n, (both + second) / n
    (l1, u1), (l2, u2) = wilson(both + first, n), wilson(both + second, n)
    margins = (both + first) * (second + neither) * (both + second) * (first + neither)
    cross = both * neither - first * second
    if cross > 0:
        cross = max(cross - n / 2, 0)
    phi = cross / sqrt(margins) if margins else 0
    below, above = p1 - l1, u2 - p2
    low = sqrt(below**2 - 2 * phi * below * above + above**2)
    below, above = p2 - l2, u1 - p1
    high = sqrt(below**2 - 2 * phi * below * above + above**2)
    return p1 - p2 - low, p1 - p2 + high


CASES = [
    (36, 12, 2, 0),
    (20, 12, 2, 16),
    (0, 0, 0, 50),
    (50, 0, 0, 0),
    (19, 16, 1, 14),
    (800, 25, 40, 135),
    (38000, 1200, 950, 9850),
]
for case in CASES:
    low, high = newcombe(*case)
    print(f"({list(case)}, [{low:.10f}, {high:.10f}]),")
