# SPDX-License-Identifier: Apache-2.0
"""Documents of a prepared data set of tensorflow_datasets, as a stream of texts."""

import os
from collections.abc import Iterator
from typing import Any

from electra_tf.errors import UserError
from electra_tf.text.corpus import TextReader, record


def open_tfds(
    spec: str, data_dir: str | os.PathLike | None = None
) -> tuple[str, int, int]:
    """Finds a prepared data set NAME:FIELD; nothing is downloaded.

    Returns: its name with the version that was found; the documents and bytes of its
      split "train".

    `data_dir` defaults to the usual place of tensorflow_datasets. Raises UserError for
    a spec without field, a data set that is not there, one without split "train", or
    without that text feature.
    """
    name, _, field = spec.rpartition(":")
    if not name or not field:
        raise UserError(
            f"--tfds {spec}: a data set and its text feature are needed, "
            "like wikipedia/20230601.en:text."
        )
    info = _tfds_builder(spec, data_dir).info
    if "train" not in info.splits:
        raise UserError(
            f"--tfds {spec}: the data set has no split train "
            f"(it has: {', '.join(sorted(info.splits))})."
        )
    if not _is_text(info.features, field.split("/")):
        raise UserError(
            f"--tfds {spec}: {info.full_name} has no text feature {field!r}.\n"
            f"Its features: {', '.join(map(str, info.features))}."
        )
    split = info.splits["train"]
    return info.full_name, split.num_examples, int(split.num_bytes or 0)


def read_tfds_documents(
    spec: str,
    data_dir: str | os.PathLike | None,
    start: int,
    end: int,
    encoding_errors: str = "strict",
) -> Iterator[TextReader]:
    """Yields a reader for each of the documents `start` to `end` of "train"."""
    import tensorflow_datasets as tfds

    field = spec.rpartition(":")[2].split("/")
    only: Any = True  # the nested dict that has tensorflow_datasets decode one feature
    for part in reversed(field):
        only = {part: only}
    documents = _tfds_builder(spec, data_dir).as_dataset(
        split=f"train[{start}:{end}]",
        shuffle_files=False,
        read_config=tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False),
        decoders=tfds.decode.PartialDecoding(only),
    )
    for index, document in enumerate(documents.as_numpy_iterator(), start):
        for part in field:
            document = document[part]
        place = f"{spec}[{index}]"
        yield record(document, spec, encoding_errors, lambda place=place: place)


def _is_text(features, path: list[str]) -> bool:
    for name in path:
        try:
            features = features[name]
        except (KeyError, TypeError):
            return False
    return getattr(features, "tf_dtype", None) == "string" and features.shape == ()


def _tfds_builder(spec: str, data_dir: str | os.PathLike | None):
    import tensorflow_datasets as tfds

    name = spec.rpartition(":")[0]
    try:
        builder = tfds.builder(name, data_dir=data_dir, try_gcs=False)
        if builder.info.splits:
            return builder
        problem = f"it has not been prepared in {builder.data_dir}"
    except Exception as e:  # tensorflow_datasets has a dozen kinds of "not found"
        problem = str(e).strip().splitlines()[0]
    raise UserError(
        f"--tfds {spec}: cannot open {name}: {problem}\n"
        f"Prepare it first (tfds build {name}); --tfds-data-dir says where it lies."
    )
