#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Can a measure tell models apart? Its spread against what pre-training brings.

  python experiments/measure.py --scale pocket --seeds 3 --output-dir O

A measure is fit if the spread over seeds is below a third of that difference; others
are not reported by the experiments.
"""

from comparison import main
from report import Comparison, Variant

COMPARISON = Comparison(
    "measure",
    "Fitness of the measures",
    "pre-trained against random weights",
    [Variant("ELECTRA")],
    candidates=True,
)

if __name__ == "__main__":
    main(COMPARISON)
