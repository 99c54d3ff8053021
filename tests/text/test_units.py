# SPDX-License-Identifier: Apache-2.0
"""Corpora in every kind of file: the same texts; damaged files are refused."""

import bz2
import gzip
import json
import lzma
import random

import pytest

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.text import units
from electra_tf.text.units import Reading
from tests.text.test_corpus import archive

DOCUMENTS = [f"Page {i}.\n\nA café in {i}\r\nand 中 {i}" for i in range(700)]
PLAIN = Reading()
LINES = [doc.replace("\r\n", "\n").split("\n") for doc in DOCUMENTS]


def texts(path, reading=PLAIN):
    """The lines of each text of a corpus."""
    found = units.file_corpus(str(path), reading.text_key)
    return [
        [line for block in reader for line in block]
        for unit in found.units
        for reader in units.read_unit(unit, reading)
    ]


def json_lines(documents, **more):
    return "".join(f"{json.dumps({'text': d, **more})}\n" for d in documents).encode()


def table(documents, **columns):
    pa = pytest.importorskip("pyarrow")
    numbers = pa.array(range(len(documents)), pa.int64())
    return pa.table({"id": numbers, "text": pa.array(documents), **columns})


def write_parquet(path, documents, **columns):
    import pyarrow.parquet as pq

    pq.write_table(table(documents, **columns), path, row_group_size=100)


def write_arrow(path, documents, **columns):
    content = table(documents, **columns)
    import pyarrow as pa

    with pa.ipc.new_stream(str(path), content.schema) as writer:
        writer.write_table(content, max_chunksize=100)


WRITERS = {"parquet": write_parquet, "arrow": write_arrow}
KINDS = pytest.mark.parametrize("kind", WRITERS)


def compress_zstd(data):
    zstd = pytest.importorskip("backports.zstd")
    checked = {zstd.CompressionParameter.checksum_flag: 1}  # as the command zstd does
    # In two frames, as programs that use several threads write it.
    parts = (data[:1000], data[1000:])
    return b"".join(zstd.compress(part, options=checked) for part in parts)


COMPRESSORS = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zst": compress_zstd,
}


@pytest.mark.parametrize("piece", [1000, 32 << 20])
@pytest.mark.parametrize("name", ["a.jsonl", "A.NDJSON", "wiki_00", "a.txt"])
def test_json_lines(tmp_path, monkeypatch, name, piece):
    monkeypatch.setattr(units, "PIECE_BYTES", piece)
    (tmp_path / name).write_bytes(b"\n" + json_lines(DOCUMENTS, id=1) + b" \n")
    assert texts(tmp_path) == LINES
    assert (len(units.file_corpus(str(tmp_path)).units) > 1) == (piece == 1000)


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_compressed_files(tmp_path, ending):
    compress = COMPRESSORS[ending]
    (tmp_path / f"a.jsonl.{ending}").write_bytes(compress(json_lines(DOCUMENTS)))
    text = "\n".join(DOCUMENTS[:3]).encode()
    (tmp_path / f"b.txt.{ending}").write_bytes(compress(text))
    # Not compressed in spite of its name, or compressed in spite of it.
    (tmp_path / f"c.{ending}").write_bytes(text)
    (tmp_path / "d.txt").write_bytes(compress(json_lines(DOCUMENTS[:2])))
    lines = [line for document in LINES[:3] for line in document]
    assert texts(tmp_path) == [*LINES, lines, lines, *LINES[:2]]


@pytest.mark.parametrize("name", ["a.tar", "a.tgz", "a.gz", "a.tar.xz", "a"])
def test_archives_are_recognised_by_name_or_content(tmp_path, name):
    mode = "w:xz" if "xz" in name else "w:gz" if "gz" in name else "w"
    members = ((f"{i}.txt", text.encode()) for i, text in enumerate(DOCUMENTS[:5]))
    archive(tmp_path / name, *members, mode=mode)
    assert texts(tmp_path) == LINES[:5]


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.jsonl.tar.gz"])
def test_json_lines_in_archives(tmp_path, name):
    """By the names of the members, beside text, without hidden ones."""
    members = {
        "./._notes.txt": b"\xff",
        "d/a.jsonl": json_lines(DOCUMENTS[:3]),
        "d/b.txt": DOCUMENTS[3].encode(),
        ".git/config": b"\xff",
    }
    mode = "w:gz" if "gz" in name else "w"
    archive(tmp_path / name, *members.items(), mode=mode)
    assert texts(tmp_path) == LINES[:4]
    found = units.file_corpus(str(tmp_path))
    [unit] = found.units
    records = [reader.is_record for reader in read_all(unit)]
    assert records == [True] * 3 + [False]
    archive(tmp_path / name, ("a.parquet", b""), mode="w")
    assert f"{name}:a.parquet is parquet, which cannot be read" in refused(tmp_path)


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("<html><head>", "extract the text"),
        ('<doc id="0" title="T 0">', "WikiExtractor: --json"),
        ("{\\rtf1\\ansi", "Convert it to plain text"),
        ("id,text,label", "--text-key"),
        ('"id"\t"text"', "--text-key"),
        ('{"text"', None),  # a text that begins so
        ("Well, text, label", None),
        ("Word", None),
    ],
)
def test_warning_of_markup_and_tables(tmp_path, capsys, line, remedy):
    for name in ("a.txt", "b.csv"):
        (tmp_path / name).write_text(f"\n{line}\nand more text\n")
    assert len(texts(tmp_path)) == 2  # as text, all the same
    out = capsys.readouterr().out
    if remedy is None:
        assert not out
    else:
        assert out.count("\n") == 3 and f"{tmp_path}/a.txt" in out and line in out
        assert remedy in out and "(1 more files are like it)" in out


def read_all(unit):
    for reader in units.read_unit(unit, PLAIN):
        yield reader
        list(reader)


@pytest.mark.parametrize("piece", [1000, 32 << 20])
@pytest.mark.parametrize(
    ("kind", "name"), [("parquet", "a.parquet"), ("arrow", "a.arrow")]
)
def test_tables(tmp_path, monkeypatch, kind, name, piece):
    monkeypatch.setattr(units, "PIECE_BYTES", piece)
    WRITERS[kind](tmp_path / name, [*DOCUMENTS, None])
    assert texts(tmp_path) == [*LINES, []]
    assert (len(units.file_corpus(str(tmp_path)).units) > 1) == (piece == 1000)


def test_keys_of_json_lines(tmp_path):
    lines = [{"body": "a"}, {"body": None}]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in lines))
    assert texts(tmp_path, Reading(text_key="body")) == [["a"], []]


def test_data_sets_of_the_package_datasets(tmp_path):
    """A folder of Arrow streams, beside JSON that is not text."""
    write_arrow(tmp_path / "data-00000-of-00001.arrow", DOCUMENTS[:5])
    (tmp_path / "state.json").write_text("{}")
    assert texts(tmp_path / "*.arrow") == LINES[:5]


# Files that are refused.


def refused(path, reading=PLAIN, exit_code=EXIT_DAMAGED):
    with pytest.raises(UserError) as caught:
        texts(path, reading)
    assert caught.value.exit_code == exit_code
    assert str(caught.value).count("\n") <= 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "is not JSON"),
        ("1" * 10_000, "is not JSON"),
        *((line, "has no text") for line in ('"text"', '{"title": 1}', '{"text": 3}')),
    ],
)
@pytest.mark.parametrize(("piece", "ending"), [(500, ""), (32 << 20, ".gz")])
def test_broken_line_of_json(tmp_path, monkeypatch, line, problem, piece, ending):
    monkeypatch.setattr(units, "PIECE_BYTES", piece)
    data = json_lines(DOCUMENTS[:100]) + f"{line}\n".encode()
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(gzip.compress(data) if ending else data)
    assert f"{path} line 101 {problem}" in refused(tmp_path)


def test_characters_that_are_not_utf8(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": "a\\ud800b"}\n')
    assert "a.jsonl line 2: byte 0xed at offset 1 is not UTF-8" in refused(tmp_path)
    assert texts(tmp_path, Reading("replace")) == [["fine"], ["a\ufffd\ufffd\ufffdb"]]
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "fine"}\n{"text": "caf\xe9"}\n')
    assert "a.jsonl: byte 0xe9 at offset" in refused(tmp_path)
    (unit,) = units.file_corpus(str(tmp_path)).units
    counted = 0
    for reader in units.read_unit(unit, Reading("replace")):
        list(reader)
        counted += reader.num_replaced
    assert counted == 1


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_compressed_files_that_are_damaged(tmp_path, ending):
    text = random.Random(1).randbytes(100_000).hex()
    path = tmp_path / f"a.jsonl.{ending}"
    data = COMPRESSORS[ending](json_lines([text]))
    for damaged in (data[:-9], data[: len(data) // 2], data[:12]):
        path.write_bytes(damaged)
        assert f"{path}: damaged" in refused(tmp_path)
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    path.write_bytes(flipped)
    refused(tmp_path)


@KINDS
def test_tables_that_are_damaged(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    WRITERS[kind](path, DOCUMENTS)
    data = path.read_bytes()
    for damaged in (data[:-8], data[: len(data) // 2], data[:9], b"no table at all"):
        path.write_bytes(damaged)
        assert f"{path}: damaged" in refused(tmp_path)


@KINDS
def test_tables_without_the_column(tmp_path, kind):
    WRITERS[kind](tmp_path / f"a.{kind}", DOCUMENTS)
    for key in ("body", "id"):
        error = refused(tmp_path, Reading(text_key=key), exit_code=2)
        assert f"a.{kind} has no column of text '{key}'" in error
        assert "id (int64), text (string)" in error and "--text-key" in error


@KINDS
def test_tables_whose_text_is_not_utf8(tmp_path, kind):
    pa = pytest.importorskip("pyarrow")
    broken = pa.array([*(d.encode() for d in DOCUMENTS[:299]), b"caf\xe9"])
    WRITERS[kind](tmp_path / f"a.{kind}", DOCUMENTS[:300], bytes=broken)
    error = refused(tmp_path, Reading(text_key="bytes"))
    assert "from part 0 on row 299: byte 0xe9 at offset 3 is not UTF-8" in error
