# SPDX-License-Identifier: Apache-2.0
"""Builds data from OpenWebText: `electra-tf build-openwebtext` in a checkout."""

from electra_tf.commands import run

if __name__ == "__main__":
    run("build-openwebtext")
