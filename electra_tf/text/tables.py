# SPDX-License-Identifier: Apache-2.0
"""Parquet and Arrow files as streams: a column of text, or whole rows.

Arrow is what the package datasets saves to disk. One batch of rows is in memory at a
time; of a column's neighbours nothing is read.
"""

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

from electra_tf.errors import EXIT_DAMAGED, JSON_ERRORS, UserError
from electra_tf.text.corpus import TextReader, missing_package, record

_ROWS = 256  # at a time
_BUFFER_BYTES = 1 << 20
_FILE_MAGIC = b"ARROW1"
_END_OF_STREAM = bytes(4)


def open_table(kind: str, path: str, key: str) -> "_Parquet | _Arrow":
    """A table.

    Its `part_sizes()` are the bytes of its parts, `read(start, end, encoding_errors)`
    yields a reader for each text in some of them, a null being no text.

    Args:
      kind: "parquet" or "arrow".
      key: the column; "a/b" is the field b of the column a.

    Raises UserError for a file that is damaged or has no such column of text, and
    where the package pyarrow is missing.
    """
    _require_pyarrow(path)
    with _damage_named(path):
        return (_Parquet if kind == "parquet" else _Arrow)(path, key)


def _require_pyarrow(path: str) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise missing_package(path, "pyarrow") from None


class Rows:
    """The rows of a Parquet file, each with its cells by column.

    Attributes:
      columns: their names.
      classes: column -> the names of the classes that its numbers stand for, where
        the file says so as those of Hugging Face do.

    Raises UserError (65) for a damaged file, here or while it is read.
    """

    def __init__(self, path: str):
        _require_pyarrow(path)
        import pyarrow.parquet as pq

        self._path = path
        with _damage_named(path):
            self._file = pq.ParquetFile(path, buffer_size=_BUFFER_BYTES)
        schema = self._file.schema_arrow
        self.columns: list[str] = schema.names
        self.classes = _classes((schema.metadata or {}).get(b"huggingface", b"{}"))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = self._file.iter_batches(_ROWS, use_threads=False)
        first = 0
        while True:
            with _damage_named(self._path):
                batch = next(batches, None)
            if batch is None:
                return
            try:
                rows = batch.to_pylist()
            except UnicodeDecodeError:
                where = f"{self._path}, one of the {_ROWS} rows from {first} on"
                raise UserError(f"{where}: not UTF-8.", EXIT_DAMAGED) from None
            first += len(rows)
            yield from rows


def _classes(metadata: bytes) -> dict[str, list[str]]:
    """Column -> names of classes; {} for what Hugging Face has not written."""
    try:
        features = json.loads(metadata)["info"]["features"]
        inner = {name: _element(feature) for name, feature in features.items()}
        is_class = {k: one.get("_type") == "ClassLabel" for k, one in inner.items()}
        return {k: one["names"] for k, one in inner.items() if is_class[k]}
    except JSON_ERRORS:
        return {}


def _element(feature: Any) -> dict[str, Any]:
    """What a list, in either of the forms that these are written in, is a list of."""
    while isinstance(feature, list) or "feature" in feature:
        feature = feature[0] if isinstance(feature, list) else feature["feature"]
    return feature


@contextlib.contextmanager
def _damage_named(path: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as e:
        reason = str(e).splitlines()[0]
        raise UserError(f"{path}: damaged ({reason:.200}).", EXIT_DAMAGED) from None


class _Parquet:
    def __init__(self, path: str, key: str):
        import pyarrow.parquet as pq

        self._path = path
        self._file = pq.ParquetFile(path, buffer_size=_BUFFER_BYTES)
        self._column = _find(path, self._file.schema_arrow, key)

    def part_sizes(self) -> list[int]:
        metadata = self._file.metadata
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        return [group.total_byte_size for group in groups]

    def read(
        self, start: int, end: int, encoding_errors: str = "strict"
    ) -> Iterator[TextReader]:
        for group in range(start, end):
            batches = self._file.iter_batches(
                _ROWS,
                row_groups=[group],
                columns=[".".join(self._column)],
                use_threads=False,
            )
            place = f"{self._path} row group {group}"
            yield from _texts(self._path, place, batches, self._column, encoding_errors)


class _Arrow:
    def __init__(self, path: str, key: str):
        self._path = path
        with self._open() as reader:
            self._column = _find(path, reader.schema, key)

    @contextlib.contextmanager
    def _open(self, column: str | None = None) -> Iterator[Any]:
        """The file's stream of batches, of one column if that is named."""
        import pyarrow as pa

        with pa.memory_map(self._path) as f:
            is_file = f.read(len(_FILE_MAGIC)) == _FILE_MAGIC
            f.seek(max(0, f.size() - len(_END_OF_STREAM)))
            if not is_file and f.read() != _END_OF_STREAM:
                raise OSError("its end is missing")
            f.seek(0)
            opened = pa.ipc.open_file if is_file else pa.ipc.open_stream
            options = pa.ipc.IpcReadOptions(use_threads=False)
            if column:
                with opened(f) as reader:
                    options.included_fields = [reader.schema.get_field_index(column)]
                f.seek(0)
            with opened(f, options=options) as reader:
                yield reader

    def _batches(self, reader: Any, start: int, end: int | None) -> Iterator[Any]:
        """Some of the batches; passing over the others reads nothing of them."""
        if hasattr(reader, "num_record_batches"):
            last = reader.num_record_batches if end is None else end
            return map(reader.get_batch, range(start, last))
        return itertools.islice(reader, start, end)

    def part_sizes(self) -> list[int]:
        with _damage_named(self._path), self._open(self._column[0]) as reader:
            return [batch.nbytes for batch in self._batches(reader, 0, None)]

    def read(
        self, start: int, end: int, encoding_errors: str = "strict"
    ) -> Iterator[TextReader]:
        with self._open(self._column[0]) as reader:
            batches = self._batches(reader, start, end)
            small = (
                batch.slice(row, _ROWS)
                for batch in batches
                for row in range(0, batch.num_rows, _ROWS)
            )
            place = f"{self._path} from batch {start} on"
            yield from _texts(self._path, place, small, self._column, encoding_errors)


def _find(path: str, schema: Any, key: str) -> list[str]:
    """The names that lead to a column of text."""
    import pyarrow as pa

    names = [key] if key in schema.names else key.split("/")
    kind: Any = schema
    try:
        for name in names:
            kind = kind.field(name).type
    except (AttributeError, KeyError, TypeError):  # none, several, or not a struct
        kind = None
    if kind is not None and pa.types.is_dictionary(kind):
        kind = kind.value_type
    texts = (pa.string(), pa.large_string(), pa.string_view())
    if kind not in (*texts, pa.binary(), pa.large_binary(), pa.binary_view()):
        columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise UserError(
            f"{path} has no column of text {key!r}.\nIts columns: {columns:.200}; "
            "--text-key names one."
        )
    return names


def _texts(
    path: str,
    place: str,
    batches: Iterator[Any],
    column: list[str],
    encoding_errors: str,
) -> Iterator[TextReader]:
    import pyarrow as pa
    import pyarrow.compute as pc

    row = 0
    batches = iter(batches)
    while True:
        with _damage_named(path):
            batch = next(batches, None)
            if batch is None:
                return
            values = batch.column(0)
            for name in column[1:]:
                values = pc.struct_field(values, name)
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            # As bytes, because it is not yet checked that they are UTF-8.
            texts = values.cast(pa.large_binary()).to_pylist()
        for text in texts:
            where = f"{place} row {row}"
            row += 1
            yield record(text, path, encoding_errors, lambda where=where: where)
