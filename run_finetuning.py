# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a pre-trained model on tasks: `electra-tf finetune` in a checkout."""

from electra_tf.commands import run

if __name__ == "__main__":
    run("finetune")
