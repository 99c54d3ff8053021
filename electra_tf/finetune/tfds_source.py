# SPDX-License-Identifier: Apache-2.0
"""GLUE and SQuAD out of tensorflow_datasets, where they are prepared; no download."""

from __future__ import annotations

import functools
import hashlib
import os
from typing import Any

from electra_tf.errors import UserError
from electra_tf.finetune import question_inputs
from electra_tf.finetune.glue import CONFIGS, GlueRowsTask, place_of
from electra_tf.finetune.qa import SQUAD, QATask

_SQUAD = {"squad": "squad/v2.0", "squadv1": "squad/v1.1"}
NAMES = (*CONFIGS, *_SQUAD)


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
        name, directory = _SQUAD.get(self.name), self.config.tfds_data_dir
        if name is None:
            theirs, split = place_of(self.name, split)
            name = f"glue/{theirs}"
        split = split.replace("dev", "validation")
        try:
            builder = tfds.builder(name, data_dir=directory, try_gcs=False)
            if split in builder.info.splits:
                return builder, split
            problem = f"no split {split} in {builder.data_dir}"
        except Exception as error:  # tensorflow_datasets has many kinds of it
            problem = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{self.name} cannot be read from tensorflow_datasets: {problem}\n"
            f'Prepare it (tfds build {name}), or say where it is by "tfds_data_dir".'
        )

    def prepared(self, split: str) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
        """(full name, features by name, rows as they lie on disk)."""
        import tensorflow_datasets as tfds

        builder, name = self.tfds_split(split)
        options = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        rows = builder.as_dataset(name, shuffle_files=False, read_config=options)
        where = f"{builder.info.full_name}, {name}"
        return where, builder.info.features, list(rows.as_numpy_iterator())

    def is_there(self, split: str) -> bool:
        """Whether a split is prepared."""
        try:
            return bool(self.tfds_split(split))
        except UserError:
            return False

    def data_hash(self, split: str) -> str:
        """Of the files of the split."""
        builder, name = self.tfds_split(split)
        found = hashlib.sha256(builder.info.full_name.encode())
        for path in builder.info.splits[name].filepaths:
            with open(os.fspath(path), "rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
        return found.hexdigest()


class TfdsGlueTask(_Prepared, GlueRowsTask):
    """A task of GLUE."""

    def splits(self, kind: str) -> list[str]:
        """mnli has two dev sets and three test sets."""
        mismatched = ["dev_mismatched"] if self.name == "mnli" else []
        return super().splits(kind) if kind == "test" else ["dev", *mismatched]

    def table(self, split):
        """Sorted by their index."""
        where, features, rows = self.prepared(split)
        rows.sort(key=lambda row: int(row["idx"]))
        places = (f"{where}, index {int(row['idx'])}" for row in rows)
        names = getattr(features["label"], "names", ())
        return names, zip(places, rows, strict=True)


class TfdsQATask(_Prepared, QATask):
    """SQuAD 1.1 or 2.0."""

    def splits(self, kind: str) -> list[str]:
        """SQuAD's test set is not public."""
        return ["dev"] if kind == "dev" else []

    def paragraphs(self, split: str):
        """All texts with their questions."""
        where, _, rows = self.prepared(split)
        found: dict[bytes, list[dict[str, Any]]] = {}
        for row in rows:
            texts = [text.decode("utf-8") for text in row["answers"]["text"]]
            starts = row["answers"]["answer_start"].tolist()
            question = {
                "id": row["id"].decode("utf-8"),
                "question": row["question"].decode("utf-8"),
                "is_impossible": bool(row.get("is_impossible", False)),
                "answers": {"text": texts, "answer_start": starts},
            }
            found.setdefault(row["context"], []).append(question)
        bad = functools.partial(self.bad, split)
        for context, questions in found.items():
            entry = {"context": context.decode("utf-8"), "qas": questions}
            place = f"{where}, question {questions[0]['id']}"
            yield question_inputs.paragraph(place, entry, bad)
