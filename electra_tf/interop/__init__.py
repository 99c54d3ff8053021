# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of every format: described, read, written; the start of a run.

Nothing is skipped: a name that is missing or left over is an error.
"""
