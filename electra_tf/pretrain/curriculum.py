# SPDX-License-Identifier: Apache-2.0
"""From easy to hard replacements, as a function of the step.

The generator's temperature falls to its final value (Fast-ELECTRA, Dong et al., ICLR
2024), and fewer and fewer samples are drawn from word frequencies instead of the
generator. Both are decided in the input pipeline, so a step stays a function of
(weights, batch, step).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig

# An exponential decay has fallen to exp(-10) of its start at the end.
_EXPONENTIAL_RATE = 10.0


@dataclasses.dataclass(frozen=True, eq=False)
class Curriculum:
    """The schedules of one phase.

    Attributes:
      first, steps: of the phase.
      decay: "linear" or "exponential".
      temperature: at the start and at the end; None: constant.
      unigram_share: of the samples, those from word frequencies at the start.
      token_counts: [V], how often each token is in the data.
      disallow_correct: whether a word frequency's sample may not be the original token.
    """

    first: int
    steps: int
    decay: str
    temperature: tuple[float, float] | None = None
    unigram_share: float = 0.0
    token_counts: np.ndarray | None = None
    disallow_correct: bool = False

    @classmethod
    def of(
        cls,
        config: PretrainingConfig,
        first: int,
        token_counts: Callable[[], np.ndarray],
    ) -> Curriculum | None:
        """Of a phase that begins at step `first`; None if it has no schedule."""
        start, share = config.temperature_start, config.unigram_share
        if start is None and not share:
            return None
        return cls(
            first,
            config.num_train_steps,
            config.curriculum_decay,
            None if start is None else (start, config.temperature),
            share,
            token_counts() if share else None,
            config.disallow_correct,
        )

    def remaining(self, step: int | tf.Tensor) -> tf.Tensor:
        """What is left of the start's excess over the end at a step: 1 falls to 0."""
        progress = tf.cast(step - self.first, tf.float32) / self.steps
        progress = tf.clip_by_value(progress, 0.0, 1.0)
        if self.decay == "linear":
            return 1.0 - progress
        return tf.exp(-_EXPONENTIAL_RATE * progress)

    def apply(
        self, batch: dict[str, tf.Tensor], step: int | tf.Tensor, uniform: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Adds what the step's samples are drawn by to a masked batch.

        Args:
          uniform: float32 [B, N], decides which samples come from word frequencies.

        Returns `batch` with temperature float32 [B, 1], and given_ids int32 [B, N]: the
        samples from word frequencies, -1 where the generator's are used.
        """
        remaining, added = self.remaining(step), {}
        if self.temperature is not None:
            start, end = self.temperature
            value = end + (start - end) * remaining
            added["temperature"] = tf.fill([tf.shape(uniform)[0], 1], value)
        if self.unigram_share:
            ids = self._drawn(batch["sample_uniform"])
            used = uniform < self.unigram_share * remaining
            if self.disallow_correct:
                used &= ids != batch["masked_lm_ids"]
            added["given_ids"] = tf.where(used, ids, -1)
        return batch | added

    def _drawn(self, uniform: tf.Tensor) -> tf.Tensor:
        """A token in proportion to its count for each uniform [B, N]: int32 [B, N]."""
        mass = np.cumsum(self.token_counts, dtype=np.float64)
        target = tf.reshape(tf.cast(uniform, tf.float64) * mass[-1], [-1])
        ids = tf.searchsorted(mass, target, side="right", out_type=tf.int32)
        return tf.reshape(ids, tf.shape(uniform))
