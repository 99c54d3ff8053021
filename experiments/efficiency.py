#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What does compute bring? ELECTRA and BERT with ever fewer FLOPs.

  python experiments/efficiency.py --scale pocket --seeds 3 --output-dir O

Repeats Figure 2 of the ELECTRA paper, and the lower part of its Table 1 (ELECTRA-Small
trained for less; docs/experiments.md).
"""

from comparison import main
from report import Comparison, Variant

# Part of the FLOPs -> the paper's score of ELECTRA-Small
_PARTS = {"": (1.0, 79.9), " 1/2": (0.5, 79.0), " 1/4": (0.25, 77.7)}
_PARTS |= {" 1/8": (0.125, 76.0), " 1/16": (0.0625, 74.1)}

COMPARISON = Comparison(
    "efficiency",
    "Score against compute",
    "ELECTRA paper, Figure 2 and Table 1 (small size; GLUE, dev)",
    [
        *(
            Variant(f"ELECTRA{name}", {}, part, line="ELECTRA", paper=score)
            for name, (part, score) in _PARTS.items()
        ),
        *(
            Variant(f"BERT{name}", {"objective": "mlm"}, part, line="BERT")._replace(
                paper=None if name else 75.1
            )
            for name, (part, _) in _PARTS.items()
        ),
    ],
    x_label="FLOPs",
)

if __name__ == "__main__":
    main(COMPARISON)
