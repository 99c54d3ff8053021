# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning: tasks, their data and scores, heads, trials.

A task is one class; the loop is that of `train`.
"""
