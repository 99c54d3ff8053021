# SPDX-License-Identifier: Apache-2.0
"""Texts that are records: of JSON Lines, Parquet, Arrow and tensorflow_datasets.

One batch of rows is in memory at a time, and only the column of text is read.
"""

import contextlib
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from electra_tf import startup
from electra_tf.errors import EXIT_DAMAGED, UserError, reason_of
from electra_tf.text.corpus import TextReader, lines_before, record

_ROWS = 256  # at a time
BUFFER_BYTES = 1 << 20
_END_OF_STREAM = bytes(4)

# JSON Lines.


def json_line(row: dict[str, Any]) -> str:
    """An object as one line without line end; text stays readable."""
    line = json.dumps(row, ensure_ascii=False)
    try:
        line.encode()
    except UnicodeEncodeError:  # half a pair of surrogates
        return json.dumps(row)
    return line


def read_json_lines(reader: TextReader, key: str) -> Iterator[TextReader]:
    """Yields a reader for the text of each line; blank lines are skipped.

    Args:
      reader: of the lines of a file, or of a piece of it.
      key: of the text. A null is an empty text.

    Raises UserError (65), naming file and line, for other lines.
    """
    number = replaced = 0
    for lines in reader:
        for line in lines:
            number += 1
            if not line.strip():
                continue
            place = functools.partial(_place, reader, number)
            data = _text_of(line, key, place)
            text = record(data, reader.name, reader.encoding_errors, place)
            # Bytes were replaced in the line, before it was parsed.
            text.num_replaced = reader.num_replaced - replaced
            replaced = reader.num_replaced
            yield text


def _place(reader: TextReader, number: int) -> str:
    """Names a line of a reader by its number in the file."""
    return f"{reader.name} line {number + lines_before(reader.name, reader.start)}"


def _text_of(line: str, key: str, place: Callable[[], str]) -> bytes:
    try:
        row: Any = json.loads(line)
    except ValueError as e:  # also of a line that was cut, beyond 16 MB
        raise _broken(place(), f"is not JSON ({e})") from None
    if not isinstance(row, dict) or not isinstance(row.get(key, row), str | None):
        raise _broken(place(), f"has no text under {key!r}: {line:.80}")
    # Half a surrogate pair cannot be encoded; decoding finds its bytes.
    return (row[key] or "").encode("utf-8", "surrogatepass")


def _broken(place: str, problem: str) -> UserError:
    return UserError(
        f"{place} {problem}.\nEach line is an object with its text under one key "
        "(--text-key).",
        EXIT_DAMAGED,
    )


# Parquet and Arrow.


def part_sizes(kind: str, path: str, key: str) -> list[int]:
    """Bytes of the parts of a table: row groups of Parquet, batches of Arrow.

    Args:
      kind: "parquet" or "arrow".
      key: the column of text.

    Raises UserError for damaged files, a missing column and a missing pyarrow.
    """
    with _parts(kind, path, key) as parts:
        return [size for size, _ in parts]


def read_table(unit: Any, reading: Any) -> Iterator[TextReader]:
    """Yields a reader for each text of a `Unit` of a table, nulls included."""
    path, errors = unit.path, reading.encoding_errors
    with _parts(unit.kind, path, reading.text_key) as parts:
        import pyarrow as pa

        own = itertools.islice(parts, unit.start, unit.end)
        number = 0
        for batch in itertools.chain.from_iterable(read() for _, read in own):
            values = batch.column(0)
            for first in range(0, len(values), _ROWS):
                # As bytes, which may be invalid UTF-8.
                texts = values.slice(first, _ROWS).cast(pa.large_binary())
                for text in texts.to_pylist():
                    where = f"{path} from part {unit.start} on row {number}"
                    number += 1
                    yield record(text, path, errors, lambda where=where: where)


# The bytes of a part, and a function that reads its batches of one column.
_Part = tuple[int, Callable[[], Iterable[Any]]]


@contextlib.contextmanager
def _parts(kind: str, path: str, key: str) -> Iterator[Iterator[_Part]]:
    """The parts of a table, one after the other."""
    with damage_named(path):
        import pyarrow as pa
        import pyarrow.parquet as pq

        if kind == "parquet":
            with pq.ParquetFile(path, buffer_size=BUFFER_BYTES) as file:
                _check_column(path, file.schema_arrow, key)
                read = functools.partial(file.iter_batches, _ROWS, columns=[key])
                yield (
                    (
                        file.metadata.row_group(i).total_byte_size,
                        functools.partial(read, row_groups=[i], use_threads=False),
                    )
                    for i in range(file.num_row_groups)
                )
            return
        with pa.memory_map(path) as f:
            f.seek(max(0, f.size() - len(_END_OF_STREAM)))
            if f.read() != _END_OF_STREAM:
                raise OSError("not a complete Arrow stream")
            f.seek(0)
            with pa.ipc.open_stream(f) as reader:
                _check_column(path, reader.schema, key)
                fields = [reader.schema.get_field_index(key)]
            options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields)
            f.seek(0)
            with pa.ipc.open_stream(f, options=options) as reader:
                yield ((batch.nbytes, lambda batch=batch: [batch]) for batch in reader)


def _check_column(path: str, schema: Any, key: str) -> None:
    """Raises UserError unless the table has this column of text."""
    import pyarrow as pa

    kind = schema.field(key).type if schema.names.count(key) == 1 else None
    texts = (pa.string(), pa.large_string(), pa.string_view())
    if kind not in (*texts, pa.binary(), pa.large_binary(), pa.binary_view()):
        columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise UserError(
            f"{path} has no column of text {key!r}.\nIts columns: {columns:.200}; "
            "--text-key names one."
        )


@contextlib.contextmanager
def damage_named(path: str) -> Iterator[None]:
    """`UserError` (65) for a table that pyarrow finds damaged, or without pyarrow."""
    with startup.optional("pyarrow", path, "data"):
        import pyarrow as pa
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as e:
        raise UserError(f"{path}: damaged ({reason_of(e)}).", EXIT_DAMAGED) from None


# tensorflow_datasets.


def open_tfds(
    spec: str, data_dir: str | os.PathLike | None = None
) -> tuple[str, int, int]:
    """Finds a prepared data set NAME:FIELD; nothing is downloaded.

    Returns: its name with the version; the documents and bytes of its split "train".

    `data_dir` defaults to that of tensorflow_datasets. Raises UserError for a spec
    without field, and for data sets without split "train" or that feature of text.
    """
    name, _, field = spec.rpartition(":")
    if not name or not field:
        raise UserError(
            f"--tfds {spec}: a data set and its text feature are needed, "
            "like wikipedia/20230601.en:text."
        )
    info = tfds_builder(name, data_dir).info
    feature = info.features[field] if field in info.features else None
    problem = None
    if "train" not in info.splits:
        problem = f"split train but {', '.join(sorted(info.splits))}"
    elif getattr(feature, "tf_dtype", None) != "string" or feature.shape != ():
        problem = f"text feature {field!r} but {', '.join(map(str, info.features))}"
    if problem:
        raise UserError(f"--tfds {spec}: {info.full_name} has no {problem}.")
    split = info.splits["train"]
    return info.full_name, split.num_examples, int(split.num_bytes or 0)


def read_tfds_documents(unit: Any, reading: Any) -> Iterator[TextReader]:
    """Yields a reader for each of the documents of a `Unit`, a part of "train"."""
    import tensorflow_datasets as tfds

    spec, errors = unit.path, reading.encoding_errors
    name, _, field = spec.rpartition(":")
    documents = tfds_builder(name, reading.tfds_data_dir).as_dataset(
        split=f"train[{unit.start}:{unit.end}]",
        shuffle_files=False,
        read_config=tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False),
        decoders=tfds.decode.PartialDecoding({field: True}),
    )
    for index, document in enumerate(documents.as_numpy_iterator(), unit.start):
        place = f"{spec}[{index}]"
        yield record(document[field], spec, errors, lambda place=place: place)


def tfds_builder(name: str, data_dir: str | os.PathLike | None):
    """A prepared data set; a `UserError` with the remedy for any other."""
    with startup.optional("tensorflow-datasets", f"The data set {name}", "tfds"):
        import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=data_dir, try_gcs=False)
        if builder.info.splits:
            return builder
        problem = f"it has not been prepared in {builder.data_dir}"
    except Exception as e:  # tensorflow_datasets has a dozen kinds of "not found"
        problem = reason_of(e)
    raise UserError(
        f"{name} of tensorflow_datasets cannot be opened: {problem}\n"
        f"Prepare it first (tfds build {name}); tfds_data_dir names its folder."
    )
