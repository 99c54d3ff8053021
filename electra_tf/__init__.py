# SPDX-License-Identifier: Apache-2.0
"""ELECTRA and Electric in TensorFlow 2."""

__version__ = "0.1.0"
