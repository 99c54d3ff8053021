#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Recipes younger than the paper, such as optimizers; a line of VARIANTS each.

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
    # Whole words are always distinct; this is what to compare them with.
    ("Distinct positions", {"repeated_masks": "fixed"}),
    ("Whole words masked", {"mask_unit": "word"}),
    ("Untied embeddings", {"embedding_sharing": "untied"}),
    ("Disentangled embeddings", {"embedding_sharing": "disentangled"}),
]

COMPARISON = Comparison(
    "recipes",
    "Recipes",
    "no table of the papers",
    [Variant(name, hparams) for name, hparams in VARIANTS],
)

if __name__ == "__main__":
    main(COMPARISON)
