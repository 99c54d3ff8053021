# SPDX-License-Identifier: Apache-2.0
"""From the outputs of windows to answers, and to their official scores."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from electra_tf.finetune import qa_decoding, qa_metrics
from electra_tf.finetune.task import Scorer

WINDOWS_PER_EXAMPLE = 1000
# The score of "no answer" where there is no text that could have one.
_SURELY_NONE = 1e4


class Decoded(NamedTuple):
    """The answers to all questions of a split, by the ids of those."""

    nbest: dict[str, list[qa_decoding.Answer]]
    predictions: dict[str, str]
    null_odds: dict[str, float]  # of SQuAD 2.0


class QAScorer(Scorer):
    """Decodes windows to answers and compares them with the right ones.

    Args:
      task: a `finetune.qa.QATask`.
    """

    _KEPT = (
        "answerable_logit",
        "start_top_index",
        "start_top_log_probs",
        "end_top_index",
        "end_top_log_probs",
    )

    def __init__(self, task: Any, split: str):
        super().__init__()
        self._task, self._split = task, split
        self._outputs: dict[int, dict[str, Any]] = {}
        self._decoded: Decoded | None = None

    def __len__(self) -> int:
        return len(self._outputs)

    def update(self, outputs: dict[str, Any]) -> None:
        """Takes the head's outputs for one window."""
        kept = self._KEPT
        if not self._task.config.joint_prediction:
            kept = ("answerable_logit", "start_logits", "end_logits")
        self._outputs[int(outputs["eid"])] = {name: outputs[name] for name in kept}
        self._decoded = None

    @property
    def decoded(self) -> Decoded:
        """The answers, found when they are first asked for."""
        if self._decoded is None:
            self._decoded = self._decode()
        return self._decoded

    @property
    def nbest(self) -> dict[str, list[qa_decoding.Answer]]:
        """The best answers to each question."""
        return self.decoded.nbest

    @property
    def predictions(self) -> dict[str, str]:
        """The answer to each question."""
        return self.decoded.predictions

    @property
    def null_odds(self) -> dict[str, float]:
        """What speaks for there being no answer."""
        return self.decoded.null_odds

    def _decode(self) -> Decoded:
        config, task = self._task.config, self._task
        result = Decoded({}, {}, {})
        for example in task.read(self._split):
            windows = task.windows(example)
            first = WINDOWS_PER_EXAMPLE * example.eid
            outputs = [self._outputs[first + i] for i in range(len(windows))]
            found = qa_decoding.nbest(
                windows,
                outputs,
                task.text_of(example),
                joint=config.joint_prediction,
                n_best_size=config.n_best_size,
                max_answer_length=config.max_answer_length,
            )
            best = found[0]
            if task.is_v2:
                best = next((a for a in found if a.text), best)
                odds = self._null_odds(outputs, best)
                result.null_odds[example.question_id] = odds
            result.nbest[example.question_id] = found
            result.predictions[example.question_id] = best.text
        return result

    def _null_odds(self, outputs, best: qa_decoding.Answer) -> float:
        """The lowest score of the windows, in float32 as the original has it."""
        if not outputs:
            return _SURELY_NONE
        if self._task.config.answerable_classifier:
            return min(float(output["answerable_logit"]) for output in outputs)
        null = min(
            np.float32(o["start_logits"][0]) + np.float32(o["end_logits"][0])
            for o in outputs
        )
        return float(null - np.float32(best.start_logit) - np.float32(best.end_logit))

    def get_results(self) -> list[tuple[str, float]]:
        """The official results."""
        answers = self._task.answers(self._split)
        if self._task.is_v2:
            threshold = self._task.config.qa_na_threshold
            results = qa_metrics.evaluate_v2(
                answers, self.predictions, self.null_odds, threshold
            )
        else:
            results = qa_metrics.evaluate_v1(
                answers, self.predictions, skip_unanswered=self._task.is_mrqa
            )
        return list(results.items())

    @property
    def is_degenerate(self) -> bool:
        """Whether every question gets the same answer."""
        return len(self.predictions) > 1 and len(set(self.predictions.values())) == 1
