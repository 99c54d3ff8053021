# SPDX-License-Identifier: Apache-2.0
"""Builds a vocabulary: `electra-tf build-vocab` in a checkout."""

from electra_tf.commands import run

if __name__ == "__main__":
    run("build-vocab")
