# SPDX-License-Identifier: Apache-2.0
"""The network: dropout, transformer layers, the text encoder.

Independent of data, objectives and training.
"""
