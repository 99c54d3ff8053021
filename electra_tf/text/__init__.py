# SPDX-License-Identifier: Apache-2.0
"""Vocabulary, tokenization and corpora: from characters to ids and back.

Token for token the original's, in Python and as TensorFlow ops.
"""
