# SPDX-License-Identifier: Apache-2.0
"""Multiple choice: which of several texts goes with a text?

    "tasks": {"swag": {"type": "multiple_choice", "train": "train.csv", "dev":
              "dev.csv", "text_a": "sent1", "choices": ["ending0", "ending1"],
              "label": "label"}}

`choices` are columns, or one column with a list; rows may have different numbers of
them. `label` is the number of the right one from 0, or its text. Each choice is read
with the text as a pair; a linear layer on [CLS] scores it (Radford et al., 2018).

Shapes: B examples, C choices of the longest list, L length.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from electra_tf.errors import UserError
from electra_tf.finetune import inputs, task
from electra_tf.finetune.classification import ClassificationScorer, ScoresHead
from electra_tf.finetune.inputs import Columns, Input, Row, refuse, shown

_ABSENT = -1e9  # the score of a choice that is not there


class ChoiceExample(NamedTuple):
    """A text and what may go with it."""

    eid: int
    text: str
    choices: list[str]
    label: int = 0
    id: Any = None  # the user's own


def _columns(settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """The columns of the text and of the first choice, or of all."""
    choices = settings["choices"]
    return settings["text"], choices[0] if isinstance(choices, list) else choices


def _fields(row: Row, columns: Columns, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row; ValueError where choices are missing.

    Args:
      columns: of the text and of the first choice, or of all.
    """
    choices, listed = row[columns[1]], settings["choices"]
    if isinstance(listed, list) and columns[1] == listed[0]:
        choices = [row.get(column) for column in listed]
        while choices and choices[-1] in (None, ""):
            choices.pop()  # of rows with fewer
    if not isinstance(choices, list) or len(choices) < 2:
        raise ValueError(f"the choices are {shown(choices)}, not a list of two or more")
    if wrong := [x for x in choices if not isinstance(x, str | int | float) or x == ""]:
        raise ValueError(f"a choice is {shown(wrong[0])}, not a text")
    fields = inputs.text_fields(row, columns[:1], tuple(settings["identity"]))
    return fields | {"choices": [*map(str, choices)]}


@dataclasses.dataclass(frozen=True)
class ChoiceHead(ScoresHead):
    """A score for each choice, from its state at [CLS]; dropout before it."""

    kind = "multiple_choice"
    reads = "records"
    fields = ("text", "choices")

    @staticmethod
    def read_inputs(source, settings):
        """A text and its choices."""
        source = source._replace(delimiter=settings.get("delimiter"))
        choices = _columns(settings), ("text", "choices")
        for where, row, columns in inputs.whole_rows(source, choices, refuse, 1):
            try:
                yield Input(where, _fields(row, columns, settings))
            except ValueError as error:
                refuse(where, str(error))

    def outputs(self, dense, hidden, features, training, seed):
        """logits [B, C] and predictions [B]; logits [B] of single sequences."""
        import tensorflow as tf

        logits = self.scores(dense, hidden, seed)[..., 0]
        is_there = tf.reduce_max(features["input_mask"], axis=-1) > 0
        logits = tf.where(is_there, logits, _ABSENT)
        return {"logits": logits, "predictions": tf.argmax(logits, axis=-1)}

    def loss(self, outputs, features, training):
        """Needs label_ids, int32 [B]."""
        return task.cross_entropy(features["label_ids"], outputs["logits"])

    def answer(self, task, outputs):
        """label int32 [B] and probabilities float32 [B, C]."""
        import tensorflow as tf

        logits = outputs["logits"]
        best = tf.argmax(logits, axis=-1, output_type=tf.int32)
        return {"label": best, "probabilities": tf.nn.softmax(logits)}

    def text_shapes(self, task):
        """text, and choices filled up with ""."""
        return {"text": [None], "choices": [None, None]}

    def answer_texts(self, task, tokenizer, compute, text, choices):
        """label int32 and choice string [B], probabilities float32 [B, C]."""
        import tensorflow as tf

        from electra_tf.text import tf_tokenization

        text, choices = tf_tokenization.of_same_rows("text and choices", text, choices)
        rows, count = tf.unstack(tf.shape(choices))
        texts = tf.repeat(text, count), tf.reshape(choices, [-1])
        logits = self.logits_of(task, tokenizer, compute, *texts)
        logits = tf.reshape(logits, [rows, count])
        logits = tf.where(choices == "", _ABSENT, logits)
        found = self.answer(task, {"logits": logits})
        return found | {"choice": tf.gather(choices, found["label"], batch_dims=1)}

    def answer_ids(self, task, compute, inputs):
        """logits [B], a score of each sequence."""
        return {"logits": compute(inputs)["logits"]}

    def probes(self, task, texts):
        """Each text with the others; the last has one less."""
        texts = [text for text in texts if text]
        choices = [[x for x in texts if x != text] for text in texts]
        choices[-1][-1] = ""
        return {"text": texts, "choices": choices}

    @staticmethod
    def prediction(fields, row):
        """The number of the best choice, its text, and the probability of each."""
        label, choices = row["label"], fields["choices"]
        shares = [*map(task.rounded, row["probabilities"][: len(choices)])]
        return {"label": label, "choice": choices[label], "probabilities": shares}


class MultipleChoiceTask(task.Task):
    """A text and several choices, one of which is right."""

    main_metric = "accuracy"

    def check(self) -> None:
        """Batches with others would need as many sequences for each example."""
        if len(self.config.task_names) > 1:
            raise UserError(
                f"task_names: {self.name} has several sequences for each example; "
                "fine-tune it alone."
            )

    @property
    def head(self) -> ChoiceHead:
        """One score for each sequence."""
        return ChoiceHead()

    def settings(self) -> dict[str, Any]:
        """Also where a table has the texts."""
        given = self.description.get
        places = {"text": given("text_a", "text")}
        places["choices"] = given("choices", "choices")
        return super().settings() | places

    def examples(self, split: str) -> list[ChoiceExample]:
        """All rows whose label is one of the choices."""
        settings, label = self.settings(), self.description["label"]
        is_test, found = split == "test", []
        wanted = (*_columns(settings), *[label] * (not is_test))
        bad = functools.partial(self.bad, split)
        source = self.source(split)
        for where, row, columns in inputs.whole_rows(source, [wanted], bad, 1):
            try:
                fields = _fields(row, columns, settings)
                right = 0 if is_test else _number(row[label], fields["choices"])
                found.append(self.input_example(len(found), fields, right))
            except ValueError as error:
                bad(where, str(error))
        return found

    def input_example(
        self, number: int, fields: dict[str, Any], label: int = 0
    ) -> ChoiceExample:
        """With any label if there is none."""
        text, choices = fields["text"], fields["choices"]
        return ChoiceExample(number, text, choices, label, fields.get("id"))

    def feature_specs(self) -> tuple[task.FeatureSpec, ...]:
        """label_ids and eid."""
        names = "label_ids", "eid"
        return tuple(task.FeatureSpec(name, (), "int32") for name in names)

    def featurize(self, example: ChoiceExample, is_training: bool) -> Iterator[dict]:
        """[CLS] text [SEP] choice [SEP] for each choice, the longer one cut first."""
        text = self.tokenizer.encode(example.text)
        choices = map(self.tokenizer.encode, example.choices)
        rows = [self.packed(text, choice) for choice in choices]
        yield {
            "input_ids": [row.input_ids for row in rows],
            "segment_ids": [row.segment_ids for row in rows],
            "label_ids": example.label,
            "eid": example.eid,
        }

    def scorer(self, split: str) -> task.Scorer:
        """By accuracy."""
        return ClassificationScorer("accuracy")

    def fields_of(self, example) -> dict[str, Any]:
        """The id, the text and its choices."""
        found = super().fields_of(example)
        return found | {"text": example.text, "choices": example.choices}


def _number(label: Any, choices: list[str]) -> int:
    """The right choice, by its number or its text; ValueError unless it is one."""
    label = str(label).strip()
    named = {number for number, text in enumerate(choices) if label == text}
    if label.isdecimal() and int(label) < len(choices):
        named.add(int(label))
    if len(named) != 1:
        what = "the number, from 0, or the text of one choice"
        raise ValueError(f"the label is {shown(label)}, not {what}")
    return named.pop()


_CHOICES = task.of_types("a list of columns, or a column with a list", list, str).needed
_KEYS = dict.fromkeys(("text_a", "label"), task.COLUMN.needed) | {"choices": _CHOICES}
_KEYS |= {"id": task.COLUMN, "delimiter": task.DELIMITER}
TYPES = {"multiple_choice": task.TaskType(MultipleChoiceTask, ChoiceHead, _KEYS)}
