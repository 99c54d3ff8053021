# SPDX-License-Identifier: Apache-2.0
"""Models in and out: the original's checkpoints, Hugging Face, KerasHub.

`sources.read` and `sources.read_run` give a StoredModel; `tf1.write`,
`huggingface.write` and `keras_hub.write` put one into a directory, read it back and
compare. Nothing is skipped: a name that is missing or left over is an error.
"""
