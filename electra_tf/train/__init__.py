# SPDX-License-Identifier: Apache-2.0
"""One loop, one step, optimizers, strategies, stopping and metrics files.

Knows nothing of ELECTRA: what is trained is handed in.
"""
