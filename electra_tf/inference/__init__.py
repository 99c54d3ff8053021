# SPDX-License-Identifier: Apache-2.0
"""A pre-trained model at work: detect, score, re-rank, report.

Models are loaded by `interop.readers`, whatever their format.
"""
