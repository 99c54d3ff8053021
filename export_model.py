# SPDX-License-Identifier: Apache-2.0
"""Exports a model: `electra-tf export` in a checkout."""

from electra_tf.commands import run

if __name__ == "__main__":
    run("export")
