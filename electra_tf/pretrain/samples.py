# SPDX-License-Identifier: Apache-2.0
"""Samples of a training: what the discriminator says of some passages, over time."""

from __future__ import annotations

import functools
import html
import os
import re
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from electra_tf.text.vocabulary import Vocabulary
from electra_tf.train.reporting import SAMPLES, Journal

# How many passages are shown.
PASSAGES = 3
_LEGEND = (
    "**original→replacement, how likely it is replaced to the discriminator**; "
    "*a token that is as it was, and more likely replaced than not to it*"
)

# (token, probability that it was replaced[, what the generator put there]) of each.
Passage = Sequence[Sequence]


class Samples:
    """Lets the generator replace tokens of passages and asks the discriminator.

    Writes samples.jsonl, and what TensorBoard shows as text of the run "samples".

    Args:
      task: a TrainablePretrainer, whose weights are those of the step.
      batch: makes a masked batch of the passages; asked once.
      directory: of the run.
      journal: step and is_chief of `Journal`; only the chief computes anything.
    """

    def __init__(
        self,
        task,
        batch: Callable[[], dict[str, tf.Tensor]],
        vocab: Vocabulary,
        directory: str | os.PathLike,
        **journal,
    ):
        self._task, self._vocab = task, vocab
        self._batch = functools.cache(batch)
        self._journal = Journal(directory, SAMPLES, "samples", tags={}, **journal)
        self.has = self._journal.has
        self._judge = tf.function(self._judged, autograph=False)

    def _judged(self, batch):
        output = self._task.evaluated(batch)
        if output.discriminated is None:
            return None
        return output.corrupted_ids, output.discriminated.probs

    def __call__(self, step: int) -> bool:
        """Writes the passages as they are at this step; the training goes on."""
        if not self._journal.is_open:
            return False
        batch = self._batch()
        if (judged := self._judge(batch)) is None:
            return False  # two_stage has no discriminator yet
        arrays = [x.numpy() for x in (batch["input_ids"], *judged)]
        passages = [self._passage(*row) for row in zip(*arrays, strict=True)]
        self._journal.add(
            [{"step": step, "passages": passages}],
            lambda events: events.write_text(step, "samples", to_markdown(passages)),
        )
        self._journal.sync()
        return False

    def _passage(self, ids: np.ndarray, corrupted: np.ndarray, probs: np.ndarray):
        vocab, passage = self._vocab, []
        hidden = vocab.pad_id, vocab.cls_id, vocab.sep_id
        for old, new, probability in zip(ids, corrupted, probs.tolist(), strict=True):
            if old in hidden:
                continue
            replacement = [vocab.tokens[new]] if new != old else []
            passage.append([vocab.tokens[old], round(probability, 4), *replacement])
        return passage


def to_markdown(passages: Sequence[Passage]) -> str:
    """The passages for TensorBoard."""
    lines = [_LEGEND]
    for passage in passages:
        words = []
        for token, probability, *replacement in passage:
            shown = _plain(token)
            if replacement:
                shown = f"**{shown}→{_plain(replacement[0])} {probability:.0%}**"
            elif probability > 0.5:
                shown = f"*{shown} {probability:.0%}*"
            words.append(shown)
        lines.append(" ".join(words))
    return "\n\n".join(lines)


def _plain(token: str) -> str:
    """A token that means nothing in Markdown or HTML."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|~])", r"\\\1", html.escape(token))
