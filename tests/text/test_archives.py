# SPDX-License-Identifier: Apache-2.0
"""Text from compressed files and archives: intact and damaged ones."""

import bz2
import gzip
import io
import lzma
import random
import struct
import tarfile

import pytest

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.text import archives
from tests.helpers.pipes import fed


def archive(path, *members, mode="w:xz"):
    """A tar archive of (name, content or TarInfo fields)."""
    with tarfile.open(path, mode) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                for field, value in content.items():
                    setattr(info, field, value)
                tar.addfile(info)


def lines_of(readers):
    return [line for reader in readers for block in reader for line in block]


def damaged(path, read, *texts):
    """Asserts that a file is refused as damaged input."""
    with pytest.raises(UserError) as caught:
        for reader in read(path):
            list(reader)
    assert caught.value.exit_code == EXIT_DAMAGED
    assert path.name in str(caught.value)
    assert any(text in str(caught.value) for text in texts), caught.value


def test_members_are_read_in_order(tmp_path):
    path = tmp_path / "texts.xz"
    members = [(f"dir/{i}.txt", f"text {i}\n\nmore\n".encode() * i) for i in (5, 1, 3)]
    members += [(name, b"x\n") for name in ("2020-01-01T00:00.txt", "a:b/c", "é:\\x")]
    archive(path, ("dir", {"type": tarfile.DIRTYPE}), *members)
    names, texts = [], []
    for reader in archives.read_packed(path):
        names.append(reader.name.partition("texts.xz:")[2])
        texts.append([line for block in reader for line in block])
    assert names == [name for name, _ in members]
    assert texts == [[f"text {i}", "", "more"] * i for i in (5, 1, 3)] + [["x"]] * 3


def test_members_that_are_no_files_are_passed_over(tmp_path):
    path = tmp_path / "in" / "odd.xz"
    path.parent.mkdir()
    link = {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}
    members = ("alias", link), ("fifo", {"type": tarfile.FIFOTYPE})
    archive(path, ("../good.txt", b"good\n"), *members)
    assert lines_of(archives.read_packed(path)) == ["good"]
    assert [p.name for p in tmp_path.rglob("*")] == ["in", "odd.xz"]


def test_zstd_with_a_skippable_frame(tmp_path):
    """As pzstd writes it."""
    zstd = pytest.importorskip("backports.zstd")
    skipped = bytes([0x5F, 0x2A, 0x4D, 0x18]) + struct.pack("<I", 4) + bytes(4)
    path = tmp_path / "a.txt.zst"
    path.write_bytes(skipped + zstd.compress(b"one\ntwo\n"))
    assert list(archives.read_lines(path)) == ["one", "two"]
    assert lines_of(archives.read_packed(path)) == ["one", "two"]


def test_damage_between_members_does_not_end_the_archive(tmp_path):
    path = tmp_path / "texts.tar"
    member = 1024  # a header and a block of text
    archive(path, *((f"{i}.txt", b"text\n") for i in range(5)), mode="w")
    sound = path.read_bytes()
    third = slice(2 * member, 2 * member + 512)
    for data in (
        sound[: third.start] + b"?" + sound[third.start + 1 :],
        sound[: third.start] + bytes(512) + sound[third.stop :],
        sound[: third.start],
        sound[: third.start + 100],
        sound + sound,
    ):
        path.write_bytes(data)
        damaged(path, archives.read_packed, "not a sound tar archive")
    path.write_bytes(sound + bytes(5000))
    assert len(list(archives.read_packed(path))) == 5


def test_archives_in_archives(tmp_path):
    """As OpenWebText is handed out: a tar of .xz files, each of them a tar."""
    inner = tmp_path / "inner.xz"
    members = []
    for i in range(3):
        archive(inner, *((f"{i}-{k}.txt", f"{i} {k}\n".encode()) for k in range(4)))
        members.append((f"openwebtext/urlsf_subset{i:02}.xz", inner.read_bytes()))
    members.append(("notes.txt.gz", gzip.compress(b"notes\n")))
    outer = tmp_path / "openwebtext.tar"
    archive(outer, *members, mode="w")
    expected = [f"{i} {k}" for i in range(3) for k in range(4)] + ["notes"]
    assert lines_of(archives.read_packed(outer)) == expected
    archive(outer, ("a.xz", members[0][1][:-20]), mode="w")
    damaged(outer, archives.read_packed, "openwebtext.tar:a.xz: not a sound tar")
    archive(outer, ("a.tar", b"no archive at all"), mode="w")
    damaged(outer, archives.read_packed, "openwebtext.tar:a.tar: not a sound tar")


@pytest.mark.parametrize("ending", ["bz2", "xz"])
def test_concatenated_streams(tmp_path, ending):
    path = tmp_path / f"a.txt.{ending}"
    module = {"bz2": bz2, "xz": lzma}[ending]
    streams = [module.compress(f"line {i}\n".encode() * 50_000) for i in range(3)]
    expected = [f"line {i}" for i in range(3) for _ in range(50_000)]
    for between, after in ((b"", b""), (bytes(8), bytes(2_000_000))):
        path.write_bytes(between.join(streams) + after)
        assert lines_of(archives.read_packed(path)) == expected
    for second in (b"?" + streams[1][1:], streams[1][:-9], streams[1][:3]):
        path.write_bytes(streams[0] + second)
        damaged(path, archives.read_packed, "damaged")


def read_replacing(path):
    return archives.read_packed(path, "replace", must_be=True)


def test_damaged_archives_are_named(tmp_path):
    path = tmp_path / "texts.xz"
    archive(path, *((f"{i}.txt", random.Random(i).randbytes(999)) for i in range(99)))
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    for broken in (data[: len(data) // 2], b"no archive at all", bytes(flipped), b""):
        path.write_bytes(broken)
        damaged(path, read_replacing, "not a sound tar", "damaged")


PACKED = pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, bz2.compress, lzma.compress]
)


@PACKED
def test_lines_of_files_and_stdin(tmp_path, pack, monkeypatch):
    path = tmp_path / "lines"
    path.write_bytes(pack("\ufeffé\r\n\nlast".encode()))
    assert list(archives.read_lines(path)) == ["é", "", "last"]
    with open(path) as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert list(archives.read_lines(None)) == ["é", "", "last"]


@PACKED
@pytest.mark.parametrize("first", [1, 5])
def test_lines_of_a_pipe_whose_first_read_is_short(tmp_path, pack, first):
    lines = [f"line {i}" for i in range(1000)]
    data, pipe = pack("\n".join(lines).encode()), tmp_path / "pipe"
    with fed(pipe, data[:first], data[first:]):
        assert list(archives.read_lines(pipe)) == lines


def test_archives_and_damaged_files_are_not_lines(tmp_path):
    archive(tmp_path / "a.gz", ("a.txt", b"text\n"), mode="w:gz")
    archive(tmp_path / "a.tar", ("a.txt", b"text\n"), mode="w")
    data, pipe = (tmp_path / "a.tar").read_bytes(), tmp_path / "pipe"
    with pytest.raises(UserError, match="a.gz is a tar archive, not lines of text"):
        list(archives.read_lines(tmp_path / "a.gz"))
    with fed(pipe, data[:100], data[100:600]), pytest.raises(UserError, match="a tar"):
        list(archives.read_lines(pipe))
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"text\n" * 999)[:-9])
    damaged(tmp_path / "b.gz", archives.read_lines, "damaged")
