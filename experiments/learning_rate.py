#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which learning rate? On other data than those that results are measured on.

  python experiments/learning_rate.py --scale pocket --seeds 1 --output-dir O

The rate is one for all objectives: choose that which is best for ELECTRA and BERT
together, on the mean of the tuning sets.
"""

from comparison import main
from report import Comparison, Variant

_RATES = (2.5e-4, 5e-4, 1e-3)
_OBJECTIVES = {"ELECTRA": {}, "BERT": {"objective": "mlm"}}

COMPARISON = Comparison(
    "learning_rate",
    "Learning rates",
    "no table of the papers; tuning sets",
    [
        Variant(
            f"{name} {rate:g}", {**hparams, "learning_rate": rate}, line=name, x=rate
        )
        for name, hparams in _OBJECTIVES.items()
        for rate in _RATES
    ],
    x_label="learning rate",
    tuning=True,
)

if __name__ == "__main__":
    main(COMPARISON)
