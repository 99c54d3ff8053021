# SPDX-License-Identifier: Apache-2.0
"""Models written for others: SavedModels, ONNX, hub folders, other libraries.

A folder appears when its files have been read again and compared.
"""
