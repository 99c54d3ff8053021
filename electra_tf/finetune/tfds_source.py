# SPDX-License-Identifier: Apache-2.0
"""GLUE and SQuAD out of tensorflow_datasets, where they are prepared; no download.

Examples come in the order of GLUE's files and with their ids, so features and what is
submitted are the same from either source.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

from electra_tf.errors import UserError
from electra_tf.finetune.classification import GLUE, GlueTask, InputExample
from electra_tf.finetune.qa import SQUAD, QATask

NAMES = {name: f"glue/{name}" for name in GLUE}
NAMES |= {"sst": "glue/sst2", "sts": "glue/stsb"}
NAMES |= {"squad": "squad/v2.0", "squadv1": "squad/v1.1"}


def make_tfds_task(name: str, config, tokenizer):
    """The task of this name.

    Raises `UserError` for a task that tensorflow_datasets does not have.
    """
    if name not in NAMES:
        raise UserError(
            f"{name} does not come from tensorflow_datasets; these do: "
            f"{', '.join(NAMES)}.\nLeave out data_source to read it from files."
        )
    kind = TfdsQATask if name in SQUAD else TfdsGlueTask
    return kind(name, config, tokenizer)


class _Prepared:
    """A data set on disk; mixed into tasks."""

    def tfds_split(self, split: str) -> tuple[Any, str]:
        """(builder, its name of the split); a `UserError` if that is not there."""
        import absl.logging
        import tensorflow_datasets as tfds

        # It tells of every file that it opens.
        absl.logging.set_verbosity(absl.logging.WARNING)
        name, directory = NAMES[self.name], self.config.tfds_data_dir
        if split == "diagnostic":
            name, split = "glue/ax", "test"
        elif self.name == "mnli" and split == "dev":
            split = "validation_matched"
        split = split.replace("dev", "validation")
        try:
            builder = tfds.builder(name, data_dir=directory, try_gcs=False)
            if split in builder.info.splits:
                return builder, split
            problem = f"there is no split {split} in {builder.data_dir}"
        except Exception as error:  # tensorflow_datasets has many kinds of it
            problem = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{self.name} cannot be read from tensorflow_datasets: {problem}\n"
            f'Prepare it (tfds build {name}), or say where it is by "tfds_data_dir".'
        )

    def rows(self, split: str) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
        """(full name, features by name, rows as they lie on disk)."""
        import tensorflow_datasets as tfds

        builder, name = self.tfds_split(split)
        options = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        dataset = builder.as_dataset(
            split=name, shuffle_files=False, read_config=options
        )
        where = f"{builder.info.full_name}, {name}"
        return where, builder.info.features, list(dataset.as_numpy_iterator())

    def data_hash(self, split: str) -> str:
        """Of the files of the split."""
        builder, name = self.tfds_split(split)
        found = hashlib.sha256(builder.info.full_name.encode())
        for path in builder.info.splits[name].filepaths:
            with open(os.fspath(path), "rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
        return found.hexdigest()


class TfdsGlueTask(_Prepared, GlueTask):
    """A task of GLUE."""

    def splits(self, kind: str) -> list[str]:
        """mnli has two dev sets and three test sets."""
        mismatched = ["dev_mismatched"] if self.name == "mnli" else []
        return super().splits(kind) if kind == "test" else ["dev", *mismatched]

    def examples(self, split: str) -> list[InputExample]:
        """All rows by their index; in training both orders of pairs without one."""
        where, features, rows = self.rows(split)
        is_test = split in self.glue.submission
        names = GLUE[self.name].columns[-1]
        found = []
        for row in sorted(rows, key=lambda row: int(row["idx"])):
            texts = [row[name].decode("utf-8") for name in names]
            label = self.unknown_label()
            if not is_test:
                label = self._label(row["label"], features["label"])
            wrong = self.wrong_label(label)
            if wrong:
                self.bad(split, f"{where}, index {int(row['idx'])}", wrong)
                continue
            texts.append(None)
            found.append(InputExample(int(row["idx"]), texts[0], texts[1], label))
        return self.in_both_orders(found) if split == "train" else found

    def _label(self, value, feature) -> str:
        """As GLUE's files have it: its name, or the number of a class or a score."""
        if self.labels and set(feature.names) == set(self.labels) and value >= 0:
            return feature.int2str(int(value))
        return str(int(value)) if self.labels else str(float(value))


class TfdsQATask(_Prepared, QATask):
    """SQuAD 1.1 or 2.0."""

    def splits(self, kind: str) -> list[str]:
        """SQuAD's test set is not public."""
        return ["dev"] if kind == "dev" else []

    def paragraphs(self, split: str):
        """(where it stands, paragraph) for each text with questions."""
        where, _, rows = self.rows(split)
        found: dict[bytes, list[dict[str, Any]]] = {}
        for row in rows:
            answers = row["answers"]
            pairs = zip(answers["text"], answers["answer_start"], strict=True)
            question = {
                "id": row["id"].decode("utf-8"),
                "question": row["question"].decode("utf-8"),
                "is_impossible": bool(row.get("is_impossible", False)),
                "answers": [
                    {"text": text.decode("utf-8"), "answer_start": int(start)}
                    for text, start in pairs
                ],
            }
            found.setdefault(row["context"], []).append(question)
        for context, questions in found.items():
            paragraph = {"context": context.decode("utf-8"), "qas": questions}
            yield f"{where}, question {questions[0]['id']}", paragraph
