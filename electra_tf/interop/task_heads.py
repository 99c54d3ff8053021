# SPDX-License-Identifier: Apache-2.0
"""The heads of fine-tuning tasks in transformers, both ways.

A type of task that transformers can represent is a row of HEADS. `task` is a
`finetune.task.Task`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

Arrays = dict[str, np.ndarray]
PREDICTION_HEAD = "prediction_head/"  # scope of layers before a head's own, if any
SEGMENTS = "electra/embeddings/token_type_embeddings"
ONE, TWO = '"The chef ate the meal."', '"Who ate it?"'  # texts of a card's example
# For transformers' GELU to cut numbers at an end: max(x, 0) is within 0.17 / _SHARP of
# gelu(_SHARP x) / _SHARP. A power of 2 costs no accuracy.
_SHARP = 2.0**20


@dataclasses.dataclass(frozen=True)
class TransformersHead:
    """A dense layer at every token, the same here and there.

    Attributes:
      architecture: the class there.
      layers: their names there, with "/"; the first of two with GELU.
      hub_task: as the Hub names it; None if it has no name.
      problem_type: in config.json, of an architecture with several.
      settings: other keys of config.json, whose values are the only ones read.
      is_of_text: whether it is at [CLS] alone.
      has_classes: whether each output is a label.
      has_choices: whether its inputs are [B, C, L] there.
      may_repeat: whether several outputs may have one label.
    """

    architecture: str
    layers: tuple[str, ...]
    hub_task: str | None = None
    problem_type: str | None = None
    settings: ClassVar[Mapping[str, Any]] = {}
    is_of_text: ClassVar[bool] = False
    has_classes: ClassVar[bool] = False
    has_choices: ClassVar[bool] = False
    may_repeat: ClassVar[bool] = False

    def fits(self, problem: str | None, count: int) -> bool:
        """Whether a problem_type (None: unknown) with `count` outputs is this one."""
        return not self.problem_type or problem in (None, self.problem_type)

    def reason_against(self, task) -> str | None:
        """Why transformers cannot represent its head."""
        return None

    def labels(self, task) -> tuple[str, ...]:
        """The names of the outputs."""
        return tuple(task.labels)

    def write(self, task, tensors: Arrays, head: Arrays) -> Arrays:
        """The weights there.

        Args:
          tensors: of the encoder.
          head: the head's, by their names here.
        """
        before = {k: v for k, v in head.items() if k.startswith(PREDICTION_HEAD)}
        found = tensors | before
        for name, arrays in zip(self.layers, self.dense(task, head), strict=True):
            for part, array in zip(("kernel", "bias"), arrays, strict=True):
                found[f"{name}/{part}"] = np.float32(array)
        return found

    def dense(self, task, head: Arrays) -> list[tuple]:
        """(kernel, bias) of each layer there."""
        return [(head["dense/kernel"], head["dense/bias"])]

    def read(self, tensors: Arrays, scope: str) -> Arrays:
        """The weights by their names in a FinetuningModel; of the head, in `scope`.

        Of two layers the first is `hidden` (`ScoresHead.has_hidden_layer`).
        """
        found = {
            f"{scope}{name}" if name.startswith(PREDICTION_HEAD) else name: array
            for name, array in tensors.items()
        }
        names = ("hidden", "dense")[-len(self.layers) :]
        for ours, theirs in zip(names, self.layers, strict=True):
            for part in ("kernel", "bias"):
                found[f"{scope}{ours}/{part}"] = found.pop(f"{theirs}/{part}")
        return found

    def segments_and_mask(self, batch: Mapping[str, np.ndarray]):
        """(segments that the head gets here, where outputs must agree or None)."""
        return batch["segment_ids"], None

    def expected(self, task, outputs) -> np.ndarray:
        """The logits there, by the head's outputs here."""
        return outputs["logits"].numpy()

    def example(self, labels: tuple[str, ...], num_texts: int) -> dict[str, str]:
        """Python for a card: `inputs` and `options` of a pipeline.

        Or `texts` for the tokenizer and `batch`, made of its output, for the model.
        """
        return {"inputs": ONE}


class _Tags(TransformersHead):
    """Taggers are trained with segment 1 throughout; transformers gives segment 0.

    So all rows of the segment table are the one that is used.
    """

    has_classes = may_repeat = True

    def labels(self, task):
        """Pipelines join B- and I- to names, which S- and E- would split."""
        if task.is_plain:
            return tuple(task.labels)
        letters = {"S-": "B-", "E-": "I-"}
        return tuple(letters.get(tag[:2], tag[:2]) + tag[2:] for tag in task.labels)

    def write(self, task, tensors, head):
        return self._with_segment(1, super().write(task, tensors, head))

    def read(self, tensors, scope):
        return self._with_segment(0, super().read(tensors, scope))

    def _with_segment(self, row, tensors):
        """With one row throughout, if the block has the table."""
        if (table := tensors.get(SEGMENTS)) is None:
            return tensors
        return tensors | {SEGMENTS: np.repeat(table[row : row + 1], len(table), 0)}

    def segments_and_mask(self, batch):
        return batch["input_mask"], batch["input_mask"]

    def example(self, labels, num_texts):
        if not any(label.startswith("B-") for label in labels):
            return {"inputs": ONE}
        return {"inputs": ONE, "options": ', aggregation_strategy="first"'}


class _Spans(TransformersHead):
    """The start's and the end's layer side by side."""

    def reason_against(self, task):
        if task.config.joint_prediction:
            return (
                f"{self.architecture} scores start and end apart, this head the end "
                'by the start ("joint_prediction": false trains one that can)'
            )
        if task.config.answerable_classifier and task.is_v2:
            return (
                f"{self.architecture} has no logit of its own for questions without an "
                'answer ("answerable_classifier": false trains a head that can)'
            )
        return None

    def dense(self, task, head):
        both = (
            [head[f"{name}/{part}"] for name in ("dense", "dense_1")]
            for part in ("kernel", "bias")
        )
        return [tuple(np.concatenate(arrays, -1) for arrays in both)]

    def read(self, tensors, scope):
        found = super().read(tensors, scope)
        for part in ("kernel", "bias"):
            both = found[f"{scope}dense/{part}"]
            found[f"{scope}dense/{part}"] = both[..., :1]
            found[f"{scope}dense_1/{part}"] = both[..., 1:]
        return found

    def segments_and_mask(self, batch):
        """Elsewhere this head has a penalty; transformers' pipeline omits them."""
        mask = batch["input_mask"] * batch["segment_ids"]
        mask[:, 0] = 1
        return batch["segment_ids"], mask

    def expected(self, task, outputs):
        return np.stack([outputs["start_logits"], outputs["end_logits"]], -1)

    def example(self, labels, num_texts):
        return {"texts": f"{TWO}, {ONE}"}  # transformers 5 has no pipeline for it.


class _Text(TransformersHead):
    """A dense layer at [CLS] as two with GELU between, by x = gelu(x) - gelu(-x)."""

    is_of_text = has_classes = True

    def reason_against(self, task):
        width, count = task.config.model_config().hidden_size, len(task.labels)
        if 2 * count <= width or len(self.layers) == 1:
            return None
        return (
            f"{self.architecture} has a GELU between two layers {width} wide, which "
            f"carries {width // 2} labels; this task has {count}"
        )

    def dense(self, task, head):
        """Units of the first layer that are not needed are 0."""
        if len(self.layers) == 1:
            return [self.one(task, head["dense/kernel"], head["dense/bias"])]
        first, last = self.two(task, head["dense/kernel"], head["dense/bias"])
        spare = len(first[0]) - len(first[1])
        first = np.pad(first[0], ((0, 0), (0, spare))), np.pad(first[1], (0, spare))
        return [first, (np.pad(last[0], ((0, spare), (0, 0))), last[1])]

    def one(self, task, kernel, bias):
        """(kernel, bias) of the only layer."""
        return kernel, bias

    def two(self, task, kernel, bias):
        """(kernel, bias) of both layers, without spare units."""
        one = np.eye(len(bias))
        first = np.concatenate([kernel, -kernel], 1), np.concatenate([bias, -bias])
        return first, (np.concatenate([one, -one]), np.zeros(len(bias)))

    def example(self, labels, num_texts):
        text = f'{{"text": {ONE}, "text_pair": {TWO}}}' if num_texts == 2 else ONE
        found = {"inputs": f"{text}, truncation=True"}
        if self.problem_type == "multi_label_classification":
            found["options"] = ", top_k=None"  # Otherwise it shows the likeliest alone.
        return found


class _Number(_Text):
    """A share cut to 0 ... 1, on the task's scale: max(x, 0) - max(x - 1, 0).

    One layer cannot cut it: numbers may lie beyond the scale.
    """

    has_classes = False

    def fits(self, problem, count):
        return super().fits(problem, count) and count == 1

    def labels(self, task):
        return (task.name,)

    def one(self, task, kernel, bias):
        scale = task.highest - task.lowest
        return kernel * scale, bias * scale + task.lowest

    def two(self, task, kernel, bias):
        kernel, bias = kernel * _SHARP, bias * _SHARP
        first = (
            np.concatenate([kernel, kernel], 1),
            np.concatenate([bias, bias - _SHARP]),
        )
        step = (task.highest - task.lowest) / _SHARP
        return first, (np.array([[step], [-step]]), np.array([task.lowest]))

    def expected(self, task, outputs):
        share = np.asarray(outputs["predictions"])[:, None]
        share = share if len(self.layers) == 1 else np.clip(share, 0, 1)
        return task.lowest + share * (task.highest - task.lowest)


class _Choices(_Text):
    """A score for each choice."""

    settings = {"summary_type": "first", "summary_activation": "gelu"}
    has_classes, has_choices = False, True

    def expected(self, task, outputs):
        return super().expected(task, outputs)[:, None]  # of one choice each

    def example(self, labels, num_texts):
        return {
            "texts": '["The chef"] * 2, ["ate.", "sky."], padding=True',
            "batch": "{name: x[None] for name, x in inputs.items()}",
        }


_TEXT = (
    "ElectraForSequenceClassification",
    ("classifier/dense", "classifier/out_proj"),
    "text-classification",
)
# By the type of the task. Of several that fit a config.json, the first is meant.
HEADS: dict[str, TransformersHead] = {
    "regression": _Number(*_TEXT, "regression"),
    "classification": _Text(*_TEXT, "single_label_classification"),
    "multilabel": _Text(*_TEXT, "multi_label_classification"),
    "multiple_choice": _Choices(
        "ElectraForMultipleChoice", ("sequence_summary/summary", "classifier")
    ),
    "tagging": _Tags(
        "ElectraForTokenClassification", ("classifier",), "token-classification"
    ),
    "qa": _Spans("ElectraForQuestionAnswering", ("qa_outputs",), "question-answering"),
}
# First layer -> a head of that architecture, those with more layers first.
BY_LAYER = {
    head.layers[0]: head
    for head in sorted(HEADS.values(), key=lambda head: -len(head.layers))
}
