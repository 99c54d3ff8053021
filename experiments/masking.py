#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What should stand at a masked position: [MASK], another token, the token itself?

  python experiments/masking.py --scale pocket --seeds 3 --output-dir O

Repeats Table 8 of the BERT paper with masked language modeling (docs/experiments.md).
"""

from comparison import main
from report import Comparison, Variant

# (share of [MASK], of random tokens; the rest stays) -> the paper's score on MNLI
_SHARES = {
    (0.8, 0.1): 84.2,
    (1.0, 0.0): 84.3,
    (0.8, 0.2): 84.1,
    (0.8, 0.0): 84.4,
    (0.0, 0.8): 83.7,
    (0.0, 1.0): 83.6,
}


def _variant(mask: float, random: float, paper: float) -> Variant:
    kept = abs(round(1 - mask - random, 2))  # not -0
    name = f"{mask:.0%} [MASK] {random:.0%} random {kept:.0%} kept"
    shares = {"mask_token_share": mask, "random_token_share": random}
    return Variant(name.replace("%", " %"), {"objective": "mlm", **shares}, paper=paper)


COMPARISON = Comparison(
    "masking",
    "What stands at masked positions",
    "BERT paper, Table 8 (MNLI, fine-tuned)",
    [_variant(*shares, paper) for shares, paper in _SHARES.items()],
)

if __name__ == "__main__":
    main(COMPARISON)
