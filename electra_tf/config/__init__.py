# SPDX-License-Identifier: Apache-2.0
"""The hparams of a model, of a run of pre-training and of fine-tuning.

Checked before TensorFlow is imported; saved beside what they made.
"""
