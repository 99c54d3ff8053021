# SPDX-License-Identifier: Apache-2.0
"""Text from compressed files and archives, sound, damaged and hostile ones."""

import bz2
import gzip
import io
import lzma
import random
import struct
import tarfile
import types

import pytest

from electra_tf.errors import UserError
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


@pytest.mark.parametrize("mode", ["w:xz", "w:gz", "w"])
def test_archives_are_read_in_order(tmp_path, mode):
    path = tmp_path / "texts.xz"
    members = [(f"dir/{i}.txt", f"text {i}\n\nmore\n".encode() * i) for i in (5, 1, 3)]
    archive(path, ("dir", {"type": tarfile.DIRTYPE}), *members, mode=mode)
    texts = [
        [line for block in reader for line in block]
        for reader in archives.read_archive(path)
    ]
    assert texts == [[f"text {i}", "", "more"] * i for i in (5, 1, 3)]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("../evil.txt", b"x", "outside"),
        ("a/../../evil.txt", b"x", "outside"),
        ("/tmp/evil.txt", b"x", "outside"),
        ("C:\\evil.txt", b"x", "outside"),
        ("c:/evil.txt", b"x", "outside"),
        ("alias", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "is a link"),
        ("alias", {"type": tarfile.LNKTYPE, "linkname": "good.txt"}, "is a link"),
        ("fifo", {"type": tarfile.FIFOTYPE}, "neither"),
        ("device", {"type": tarfile.BLKTYPE}, "neither"),
    ],
)
def test_hostile_archives_are_refused(tmp_path, name, content, problem):
    path = tmp_path / "in" / "evil.xz"
    path.parent.mkdir()
    archive(path, ("good.txt", b"good\n"), (name, content))
    with pytest.raises(UserError, match=f"evil.xz: refused.*{problem}") as caught:
        list(archives.read_archive(path))
    assert caught.value.exit_code == 65
    assert [p.name for p in tmp_path.rglob("*")] == ["in", "evil.xz"]


def test_absurd_archives_are_refused(tmp_path, monkeypatch):
    """Their headers count, too: many empty members take as long as a large one."""
    small, many = tmp_path / "small.tar.xz", tmp_path / "many.tar.xz"
    archive(small, *((f"{i}.txt", random.Random(i).randbytes(400)) for i in range(20)))
    archive(many, *((f"{i}.txt", b"") for i in range(2000)))
    monkeypatch.setattr(archives, "_ALWAYS_ALLOWED_BYTES", 0)
    monkeypatch.setattr(archives, "_MAX_RATIO", 10)
    assert len(list(archives.read_archive(small))) == 20
    limit = 10 * many.stat().st_size
    with pytest.raises(UserError, match=f"limit of {limit:,} bytes") as caught:
        list(archives.read_archive(many))
    assert caught.value.exit_code == 65
    monkeypatch.setattr(archives, "_ALWAYS_ALLOWED_BYTES", 512 * 2000)
    assert len(list(archives.read_archive(many))) == 2000


def test_what_is_not_compressed_has_no_limit(tmp_path, monkeypatch):
    path = tmp_path / "texts.tar"
    archive(path, *((f"{i}.txt", b"text\n") for i in range(200)), mode="w")
    monkeypatch.setattr(archives, "_ALWAYS_ALLOWED_BYTES", 0)
    monkeypatch.setattr(archives, "_MAX_RATIO", 1)
    assert len(list(archives.read_archive(path))) == 200


def test_names_with_colons(tmp_path):
    names = ["2020-01-01T00:00.txt", "a:b/c.txt", "d/e:f.txt", "é:\\x.txt"]
    archive(tmp_path / "a.tar", *((name, b"text\n") for name in names), mode="w")
    readers = archives.read_archive(tmp_path / "a.tar")
    assert [r.name.partition("a.tar:")[2] for r in readers] == names


@pytest.mark.parametrize("start", [0x50, 0x5A, 0x5F])
def test_zstd_that_begins_with_something_to_skip(tmp_path, start):
    """As pzstd writes it."""
    zstd = pytest.importorskip("backports.zstd")
    skipped = bytes([start, 0x2A, 0x4D, 0x18]) + struct.pack("<I", 4) + bytes(4)
    path = tmp_path / "a.txt.zst"
    path.write_bytes(skipped + zstd.compress(b"one\ntwo\n"))
    assert list(archives.read_lines(path)) == ["one", "two"]
    readers = archives.read_compressed(path)
    assert [line for r in readers for b in r for line in b] == ["one", "two"]


@pytest.mark.parametrize("errors", ["strict", "replace"])
@pytest.mark.parametrize(
    "content",
    [b"\x04\x22\x4d\x18\x64\x40\xa7", b"a\xff", b"a\0b", "é".encode("utf-16")],
)
def test_what_is_compressed_by_its_name_alone(tmp_path, content, errors):
    path = tmp_path / "a.txt.zst"
    path.write_bytes(content * 999)
    for read in (archives.read_lines, archives.read_compressed):
        with pytest.raises(UserError, match="a.txt.zst is compressed by its") as caught:
            for reader in read(path, errors):
                list(reader)
        assert content[:4].hex(" ") in str(caught.value)
        assert caught.value.exit_code == 65 and "replace" not in str(caught.value)
    # Text is read all the same, also where the look at it ends within a character.
    path.write_text("é" * 600)
    assert list(archives.read_lines(path)) == ["é" * 600]
    path.write_text("aé" * 600)
    assert list(archives.read_lines(path)) == ["aé" * 600]


@pytest.mark.parametrize("mode", ["xz", "gz", "bz2"])
def test_an_archive_that_compresses_well(tmp_path, mode):
    """With tarfile's own decompression, these 40 MB took 21 s."""
    path = tmp_path / "zeros"
    with tarfile.open(path, f"w:{mode}") as f:
        member = tarfile.TarInfo("zeros.txt")
        member.size = 40 << 20
        f.addfile(member, io.BytesIO(bytes(member.size)))
    readers = archives.read_archive(path)
    assert sum(len(line) for r in readers for b in r for line in b) == 40 << 20


def test_damage_between_members_is_not_the_end(tmp_path):
    path = tmp_path / "texts.tar"
    member = 1024  # a header and a block of text
    archive(path, *((f"{i}.txt", b"text\n") for i in range(5)), mode="w")
    sound = path.read_bytes()
    third = slice(2 * member, 2 * member + 512)
    for damaged in (
        sound[: third.start] + b"?" + sound[third.start + 1 :],
        sound[: third.start] + bytes(512) + sound[third.stop :],
        sound[: third.start],
        sound[: third.start + 100],
        sound + sound,
    ):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="not a sound tar archive") as caught:
            for reader in archives.read_archive(path):
                list(reader)
        assert caught.value.exit_code == 65
    path.write_bytes(sound + bytes(5000))
    assert len(list(archives.read_archive(path))) == 5


@pytest.mark.parametrize("ending", ["bz2", "xz"])
def test_streams_one_after_the_other(tmp_path, ending):
    path = tmp_path / f"a.txt.{ending}"
    module = {"bz2": bz2, "xz": lzma}[ending]
    streams = [module.compress(f"line {i}\n".encode() * 50_000) for i in range(3)]

    def lines():
        readers = archives.read_compressed(path)
        return [line for reader in readers for block in reader for line in block]

    expected = [f"line {i}" for i in range(3) for _ in range(50_000)]
    for between, after in ((b"", b""), (bytes(8), bytes(2_000_000))):
        path.write_bytes(between.join(streams) + after)
        assert lines() == expected
    for second in (b"?" + streams[1][1:], streams[1][:-9], streams[1][:3]):
        path.write_bytes(streams[0] + second)
        with pytest.raises(UserError, match=f"{path.name}: damaged") as caught:
            lines()
        assert caught.value.exit_code == 65


def test_damaged_archives_are_named(tmp_path):
    path = tmp_path / "texts.xz"
    archive(path, *((f"{i}.txt", random.Random(i).randbytes(999)) for i in range(99)))
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    for damaged in (data[: len(data) // 2], b"no archive at all", bytes(flipped), b""):
        path.write_bytes(damaged)
        with pytest.raises(
            UserError, match="texts.xz.*(not a sound tar|damaged)"
        ) as caught:
            for reader in archives.read_archive(path, "replace"):
                list(reader)
        assert caught.value.exit_code == 65


PACKED = pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, bz2.compress, lzma.compress]
)


@PACKED
def test_lines_of_what_may_be_compressed(tmp_path, pack, monkeypatch):
    path = tmp_path / "lines"
    path.write_bytes(pack("\ufeffé\r\n\nlast".encode()))
    assert list(archives.read_lines(path)) == ["é", "", "last"]
    with open(path) as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert list(archives.read_lines(None)) == ["é", "", "last"]


@PACKED
@pytest.mark.parametrize("first", [1, 3, 5, 100])
def test_lines_of_a_pipe_that_gives_little_at_first(tmp_path, pack, first):
    lines = [f"line {i}" for i in range(1000)]
    data, pipe = pack("\n".join(lines).encode()), tmp_path / "pipe"
    with fed(pipe, data[:first], data[first:]):
        assert list(archives.read_lines(pipe)) == lines


@pytest.mark.parametrize("text", ["", "one\ntwo", "line\n" * 1000])
def test_a_terminal_is_asked_for_its_end_once(text, monkeypatch):
    class Terminal(io.BytesIO):
        ends = 0

        def read(self, size=-1):
            data = super().read(size)
            self.ends += not data
            return data

    terminal = Terminal(text.encode())
    stdin = types.SimpleNamespace(buffer=terminal)
    monkeypatch.setattr("sys.stdin", stdin)
    assert list(archives.read_lines(None)) == text.splitlines()
    assert terminal.ends == 1


def test_an_archive_is_not_lines(tmp_path):
    archive(tmp_path / "a.gz", ("a.txt", b"text\n"), mode="w:gz")
    archive(tmp_path / "a.tar", ("a.txt", b"text\n"), mode="w")
    data, pipe = (tmp_path / "a.tar").read_bytes(), tmp_path / "pipe"
    with pytest.raises(UserError, match="a.gz is a tar archive, not lines of text"):
        list(archives.read_lines(tmp_path / "a.gz"))
    with fed(pipe, data[:100], data[100:600]), pytest.raises(UserError, match="a tar"):
        list(archives.read_lines(pipe))
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"text\n" * 999)[:-9])
    with pytest.raises(UserError, match="b.gz: damaged") as caught:
        list(archives.read_lines(tmp_path / "b.gz"))
    assert caught.value.exit_code == 65
