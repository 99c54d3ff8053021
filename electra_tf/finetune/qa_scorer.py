# SPDX-License-Identifier: Apache-2.0
"""From the outputs of windows to answers, and to their official scores."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from electra_tf.finetune import qa_decoding, qa_metrics
from electra_tf.finetune.task import Scorer

WINDOWS_PER_EXAMPLE = 1000
# The score of "no answer" where no text could have an answer.
_SURELY_NONE = 1e4


class Answers(NamedTuple):
    """What is answered to a question."""

    nbest: list[qa_decoding.Answer]
    best: qa_decoding.Answer
    null_odds: float | None  # of SQuAD 2.0: what speaks for there being no answer


def decode(task: Any, example: Any, outputs: list[dict[str, Any]]) -> Answers:
    """The answers to a question, from the head's outputs for its windows.

    Args:
      task: a `finetune.qa.QATask`.
    """
    config = task.config
    found = qa_decoding.nbest(
        task.windows(example),
        outputs,
        task.text_of(example),
        joint=config.joint_prediction,
        n_best_size=config.n_best_size,
        max_answer_length=config.max_answer_length,
    )
    if not task.is_v2:
        return Answers(found, found[0], None)
    best = next((a for a in found if a.text), found[0])
    return Answers(found, best, null_odds(config, outputs, best))


def null_odds(config, outputs, best: qa_decoding.Answer) -> float:
    """The lowest score of the windows, in float32 as the original has it."""
    if not outputs:
        return _SURELY_NONE
    if config.answerable_classifier:
        return min(float(output["answerable_logit"]) for output in outputs)
    null = min(
        np.float32(o["start_logits"][0]) + np.float32(o["end_logits"][0])
        for o in outputs
    )
    return float(null - np.float32(best.start_logit) - np.float32(best.end_logit))


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
        self._decoded: dict[str, Answers] | None = None

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
    def decoded(self) -> dict[str, Answers]:
        """The answers by the questions' ids, found when they are first asked for."""
        if self._decoded is None:
            self._decoded = {}
            for example in self._task.read(self._split):
                first = WINDOWS_PER_EXAMPLE * example.eid
                numbers = itertools.takewhile(
                    self._outputs.__contains__, itertools.count(first)
                )
                outputs = [self._outputs[number] for number in numbers]
                found = decode(self._task, example, outputs)
                self._decoded[example.question_id] = found
        return self._decoded

    @property
    def nbest(self) -> dict[str, list[qa_decoding.Answer]]:
        """The best answers to each question."""
        return {name: found.nbest for name, found in self.decoded.items()}

    @property
    def predictions(self) -> dict[str, str]:
        """The answer to each question."""
        return {name: found.best.text for name, found in self.decoded.items()}

    @property
    def null_odds(self) -> dict[str, float]:
        """What speaks for there being no answer."""
        if not self._task.is_v2:
            return {}
        return {name: found.null_odds for name, found in self.decoded.items()}

    @property
    def submitted(self) -> dict[str, str]:
        """The answers that count: of 2.0 "" where the null odds are above the limit.

        As the official script decides it, which is not asked to by default.
        """
        limit, odds = self._task.config.qa_na_threshold, self.null_odds
        return {
            name: "" if odds.get(name, limit) > limit else answer
            for name, answer in self.predictions.items()
        }

    @property
    def remark(self) -> str | None:
        """That no question is answered, and so nothing is in the file to submit."""
        if not self.null_odds or any(self.submitted.values()):
            return None
        return (
            f"none of the {len(self.null_odds):,} questions is answered: the null "
            "odds of all are above qa_na_threshold "
            f"({self._task.config.qa_na_threshold:g}); the lowest are "
            f"{min(self.null_odds.values()):.2f}."
        )

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
