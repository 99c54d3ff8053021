#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What should generator and discriminator share? They are of one size here.

  python experiments/sharing.py --scale pocket --seeds 3 --output-dir O

Repeats section 3.2 (weight sharing) of the ELECTRA paper (docs/experiments.md).
"""

from comparison import main
from report import Comparison, Variant

_EQUAL = {"generator_hidden_size": 1.0}

COMPARISON = Comparison(
    "sharing",
    "Weights that generator and discriminator share",
    "ELECTRA paper, section 3.2 (GLUE, dev)",
    [
        Variant("Embeddings", _EQUAL, paper=84.3),
        Variant("None", {**_EQUAL, "untied_generator_embeddings": True}, paper=83.6),
        Variant("All", {"untied_generator": False}, paper=84.4),
    ],
)

if __name__ == "__main__":
    main(COMPARISON)
