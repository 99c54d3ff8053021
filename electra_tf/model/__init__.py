# SPDX-License-Identifier: Apache-2.0
"""The network: dropout, transformer layers, the text encoder.

Knows nothing of data, objectives or training.
"""
