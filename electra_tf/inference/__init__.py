# SPDX-License-Identifier: Apache-2.0
"""Uses of models: detect, score, re-rank, predict, report."""
