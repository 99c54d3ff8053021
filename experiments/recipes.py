#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Recipes younger than the paper: optimizers, schedules, ...; a line of VARIANTS each.

python experiments/recipes.py --scale pocket --seeds 3 --output-dir O
"""

from comparison import main
from report import Comparison, Variant

VARIANTS = [
    ("ELECTRA", {}),
    ("AdamW", {"optimizer": "adamw"}),
    ("LAMB", {"optimizer": "lamb"}),
    ("Linear schedule", {"schedule": "linear"}),
    ("WSD schedule", {"schedule": "wsd"}),
    ("Constant rate", {"schedule": "constant"}),
]

COMPARISON = Comparison(
    "recipes",
    "Optimizers and schedules",
    "no table of the papers",
    [Variant(name, hparams) for name, hparams in VARIANTS],
)

if __name__ == "__main__":
    main(COMPARISON)
