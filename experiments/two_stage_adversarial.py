#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Other ways to train the generator: before the discriminator, or against it.

  python experiments/two_stage_adversarial.py --scale pocket --seeds 3 --output-dir O

Repeats Figure 3, right, of the ELECTRA paper (docs/experiments.md).
"""

from comparison import main
from report import Comparison, Variant

# Adversarial training needs distinct positions; so all have them.
_DISTINCT = {"repeated_masks": "fixed"}
_STAGES = {
    **_DISTINCT,
    "objective": "two_stage",
    "generator_hidden_size": 1.0,
    "untied_generator_embeddings": True,
    "embedding_size": None,
}
_KINDS = {
    "ELECTRA": _DISTINCT,
    "Adversarial": {**_DISTINCT, "objective": "adversarial"},
    "Two-stage": _STAGES,
    "Two-stage from random": {**_STAGES, "init_discriminator": False},
    "BERT": {**_DISTINCT, "objective": "mlm"},
}
_BUDGETS = {"": 1.0, " 1/2": 0.5, " 1/4": 0.25}

COMPARISON = Comparison(
    "two_stage_adversarial",
    "Ways to train the generator",
    "ELECTRA paper, Figure 3, right",
    [
        Variant(name + part, hparams, budget, line=name)
        for part, budget in _BUDGETS.items()
        for name, hparams in _KINDS.items()
    ],
    x_label="FLOPs",
)

if __name__ == "__main__":
    main(COMPARISON)
