# SPDX-License-Identifier: Apache-2.0
"""Text -> examples -> TFRecord shards, and random access to them.

The result of a build depends on corpus and settings, not on the number of processes.
"""
