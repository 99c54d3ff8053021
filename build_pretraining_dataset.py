# SPDX-License-Identifier: Apache-2.0
"""Builds pre-training data: `electra-tf build-data` in a checkout."""

from electra_tf.commands import run

if __name__ == "__main__":
    run("build-data")
