# SPDX-License-Identifier: Apache-2.0
"""Prints the FLOPs of pre-training: `electra-tf flops` in a checkout."""

from electra_tf.commands import run

if __name__ == "__main__":
    run("flops")
