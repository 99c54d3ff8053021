# SPDX-License-Identifier: Apache-2.0
"""Uses a model: `electra-tf infer` in a checkout."""

from electra_tf.commands import run

if __name__ == "__main__":
    run("infer")
