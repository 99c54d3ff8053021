#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What makes ELECTRA better than BERT? Objectives between the two, with equal compute.

  python experiments/objectives.py --scale pocket --seeds 3 --output-dir O

Repeats Table 5 of the ELECTRA paper (docs/experiments.md).
"""

from comparison import main
from report import Comparison, Variant

# Where the main network predicts tokens, both losses count once.
_ONCE = {"disc_weight": 1.0}

COMPARISON = Comparison(
    "objectives",
    "Objectives between BERT and ELECTRA",
    "ELECTRA paper, Table 5 (GLUE, dev)",
    [
        Variant("ELECTRA", paper=85.0),
        Variant("All-Tokens MLM", {"objective": "all_tokens_mlm", **_ONCE}, paper=84.3),
        Variant("Replace MLM", {"objective": "replace_mlm", **_ONCE}, paper=82.4),
        Variant("ELECTRA 15 %", {"objective": "electra_15"}, paper=82.4),
        Variant("BERT", {"objective": "mlm"}, paper=82.2),
    ],
)

if __name__ == "__main__":
    main(COMPARISON)
