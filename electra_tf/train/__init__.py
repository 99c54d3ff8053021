# SPDX-License-Identifier: Apache-2.0
"""One loop, one step, optimizers, strategies, stopping and metrics files.

Independent of ELECTRA: the model and its losses are arguments.
"""
