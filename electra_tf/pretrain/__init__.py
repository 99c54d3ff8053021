# SPDX-License-Identifier: Apache-2.0
"""The papers: masking, generators, objectives, the discriminator.

`pretraining.ElectraPretrainer.call` is Figure 2 of the ELECTRA paper.
"""
