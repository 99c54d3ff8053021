#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How large should the generator be? From word frequencies to the main network's width.

  python experiments/generator_size.py --scale pocket --seeds 3 --output-dir O

Repeats Figure 3, left, of the ELECTRA paper (docs/experiments.md), with equal compute.
"""

from comparison import main
from report import Comparison, Variant

_SIZES = {"1/8": 0.125, "1/4": 0.25, "1/2": 0.5, "3/4": 0.75, "1": 1.0}

COMPARISON = Comparison(
    "generator_size",
    "Size of the generator",
    "ELECTRA paper, Figure 3, left",
    [
        *(
            Variant(name, {"generator_hidden_size": size}, line="generator", x=size)
            for name, size in _SIZES.items()
        ),
        Variant("Unigram", {"generator": "unigram"}, line="unigram", x=0.0),
    ],
    x_label="width of the generator / of the discriminator (0: word frequencies)",
)

if __name__ == "__main__":
    main(COMPARISON)
