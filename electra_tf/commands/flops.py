# SPDX-License-Identifier: Apache-2.0
"""Prints the floating point operations that pre-training takes, by formula.

Example:
  python3 flops_computation.py

The first table holds published models and equals the original's; the second holds the
recipes in configs/.
"""

from electra_tf.config.pretraining import PretrainingConfig, read_hparams
from electra_tf.config.run import NO_DATA, recipes
from electra_tf.pretrain.flops import MODEL_FLOPS, get_recipe_flops
from electra_tf.storage.files import line_writer


def main(argv: list[str]) -> None:
    """Prints the FLOPs of the models and of the recipes."""
    del argv
    with line_writer(None) as write:
        for name, flops in MODEL_FLOPS.items():
            write(f"{name:<32}{flops:.4g}")
        write("")
        for path in recipes().values():
            hparams = read_hparams(str(path))
            config = PretrainingConfig.from_hparams(NO_DATA, "recipe", hparams)
            write(f"{path.name:<32}{get_recipe_flops(config):.4g}")
