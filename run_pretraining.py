# SPDX-License-Identifier: Apache-2.0
"""Pre-trains a model, or evaluates one: `electra-tf pretrain` in a checkout."""

from electra_tf.commands import run

if __name__ == "__main__":
    run("pretrain")
