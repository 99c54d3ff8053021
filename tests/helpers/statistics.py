# SPDX-License-Identifier: Apache-2.0
"""Statistical checks of random choices."""

import numpy as np


def assert_like(counts, expected, spread=1.0):
    """Chi-square of `counts` against `expected` within 5 standard deviations.

    Cells are joined until each expects at least 10.  `spread` is the variance of the
    counts relative to independent draws.
    """
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    assert counts[expected == 0].sum() == 0
    joined, c, e = [], 0.0, 0.0
    for count, expectation in zip(counts, expected, strict=True):
        c, e = c + count, e + expectation
        if e >= 10:
            joined.append((c, e))
            c = e = 0.0
    if joined:
        joined[-1] = joined[-1][0] + c, joined[-1][1] + e
    c, e = np.array(joined).T
    freedom = len(c) - 1
    assert freedom >= 3
    chi_square = ((c - e) ** 2 / e).sum() / spread
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom), (chi_square, freedom)
