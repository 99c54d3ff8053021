# SPDX-License-Identifier: Apache-2.0
"""Text from files, and files that are not text."""

import bz2
import functools
import gzip
import io
import lzma
import random
import struct
import tarfile

import pytest

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.text import corpus
from tests.helpers.pipes import fed


def read(path, *args):
    with corpus.open_text(path) as stream:
        reader = corpus.TextReader(stream, str(path), *args)
        return [line for block in reader for line in block]


def test_list_files_goes_into_folders_and_leaves_out_hidden_ones(tmp_path):
    for name in ("b.txt", "a/z.txt", "a/y", ".hidden", ".git/config", "a/.DS_Store"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text\n")
    found = [p.removeprefix(f"{tmp_path}/") for p in corpus.list_files(tmp_path)]
    assert found == ["a/y", "a/z.txt", "b.txt"]
    assert corpus.list_files(tmp_path / "b.txt") == [str(tmp_path / "b.txt")]


def test_links_are_followed(tmp_path):
    corpus_dir, elsewhere = tmp_path / "corpus", tmp_path / "elsewhere"
    for folder in (corpus_dir, elsewhere):
        folder.mkdir()
        (folder / "a.txt").write_text("text\n")
    (corpus_dir / "linked").symlink_to(elsewhere)
    (corpus_dir / "b.txt").symlink_to(elsewhere / "a.txt")
    found = [p.removeprefix(f"{corpus_dir}/") for p in corpus.list_files(corpus_dir)]
    assert found == ["a.txt", "b.txt", "linked/a.txt"]
    for name, target, problem in (
        ("broken", "nowhere", "broken is a broken link"),
        ("above", "..", "one directory twice"),
    ):
        (corpus_dir / name).symlink_to(target)
        with pytest.raises(UserError, match=problem):
            corpus.list_files(corpus_dir)
        (corpus_dir / name).unlink()


def test_lines_end_with_lf_or_crlf_only(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(
        b"\xef\xbb\xbffirst\r\n\r\nthird\x0b\x85".replace(b"\x85", "\x85".encode())
        + "\u2028still third\nno end".encode()
    )
    assert read(path) == ["first", "", "third\x0b\x85\u2028still third", "no end"]
    path.write_bytes(b"")
    assert read(path) == []
    path.write_bytes(b"\n\n")
    assert read(path) == ["", ""]


def random_text(rng, length=3000):
    return "".join(rng.choices("abc é\u4e2d\U0001f600\n", k=length))


def test_text_is_independent_of_block_size(tmp_path, monkeypatch):
    path = tmp_path / "text"
    rng = random.Random(1)
    for block in (1, 2, 7, 64, 5000):
        monkeypatch.setattr(corpus, "BLOCK_BYTES", block)
        text = random_text(rng)
        path.write_text(text)
        assert "\n".join(read(path)) == text.removesuffix("\n")


@pytest.mark.parametrize("longest", [20, 16 << 20])
def test_pieces_add_up_to_the_whole(tmp_path, monkeypatch, longest):
    """Also where a line is cut, or reaches over several pieces."""
    monkeypatch.setattr(corpus, "_MAX_LINE_BYTES", longest)
    path = tmp_path / "text"
    rng = random.Random(2)
    for block in (3, 100):
        monkeypatch.setattr(corpus, "BLOCK_BYTES", block)
        for _ in range(20):
            path.write_text(random_text(rng, rng.randrange(1, 300)))
            size = path.stat().st_size
            cuts = sorted(rng.sample(range(size + 1), min(size, rng.randrange(4))))
            pieces = []
            for start, end in zip([0, *cuts], [*cuts, size], strict=True):
                with open(path, "rb") as stream:
                    reader = corpus.TextReader(stream, "text", "strict", start, end)
                    pieces += [line for block in reader for line in block]
            if longest > 300:
                assert pieces == read(path)
            assert "".join(pieces) == path.read_text().replace("\n", "")


def test_long_lines_are_cut_between_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "_MAX_LINE_BYTES", 100)
    monkeypatch.setattr(corpus, "BLOCK_BYTES", 50)
    path = tmp_path / "text"
    for text in ("\u4e2d" * 500, "é" * 501, "\U0001f600" * 300, "x" * 999, "ab " * 400):
        path.write_text(f"a\n{text}\nb\n")
        lines = read(path)
        assert (lines[0], lines[-1]) == ("a", "b")
        assert "".join(lines[1:-1]) == text
        assert max(len(line.encode()) for line in lines) <= 200


@pytest.mark.parametrize("before", [0, 10, 3 << 20])
def test_bytes_that_are_not_utf8(tmp_path, before):
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"x\n" * (before // 2) + b"caf\xe9 au lait\nna\xefve \xff\xfe\n")
    with pytest.raises(UserError) as caught:
        read(path)
    assert caught.value.exit_code == 65
    assert f"{path}: byte 0xe9 at offset {before + 3}" in str(caught.value)
    with open(path, "rb") as stream:
        reader = corpus.TextReader(stream, "latin1.txt", "replace")
        lines = [line for block in reader for line in block]
    assert lines[-2:] == ["caf\ufffd au lait", "na\ufffdve \ufffd\ufffd"]
    assert reader.num_replaced == 4


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
    for reader in corpus.read_packed(path):
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
    assert lines_of(corpus.read_packed(path)) == ["good"]
    assert [p.name for p in tmp_path.rglob("*")] == ["in", "odd.xz"]


def test_zstd_with_a_skippable_frame(tmp_path):
    """As pzstd writes it."""
    zstd = pytest.importorskip("backports.zstd")
    skipped = bytes([0x5F, 0x2A, 0x4D, 0x18]) + struct.pack("<I", 4) + bytes(4)
    path = tmp_path / "a.txt.zst"
    path.write_bytes(skipped + zstd.compress(b"one\ntwo\n"))
    assert list(corpus.read_lines(path)) == ["one", "two"]
    assert lines_of(corpus.read_packed(path)) == ["one", "two"]


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
        damaged(path, corpus.read_packed, "not a sound tar archive")
    path.write_bytes(sound + bytes(5000))
    assert len(list(corpus.read_packed(path))) == 5
    path.write_bytes(b"no archive at all")
    must = functools.partial(corpus.read_packed, must_be=True)
    damaged(path, must, "not a sound tar")


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
    assert lines_of(corpus.read_packed(outer)) == expected
    archive(outer, ("a.xz", members[0][1][:-20]), mode="w")
    damaged(outer, corpus.read_packed, "openwebtext.tar:a.xz: not a sound tar")
    archive(outer, ("a.tar", b"no archive at all"), mode="w")
    damaged(outer, corpus.read_packed, "openwebtext.tar:a.tar: not a sound tar")


@pytest.mark.parametrize("ending", ["bz2", "xz"])
def test_concatenated_streams(tmp_path, ending):
    path = tmp_path / f"a.txt.{ending}"
    module = {"bz2": bz2, "xz": lzma}[ending]
    streams = [module.compress(f"line {i}\n".encode() * 50_000) for i in range(3)]
    expected = [f"line {i}" for i in range(3) for _ in range(50_000)]
    for between, after in ((b"", b""), (bytes(8), bytes(2_000_000))):
        path.write_bytes(between.join(streams) + after)
        assert lines_of(corpus.read_packed(path)) == expected
    for second in (b"?" + streams[1][1:], streams[1][:-9], streams[1][:3]):
        path.write_bytes(streams[0] + second)
        damaged(path, corpus.read_packed, "damaged")


PACKED = pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, bz2.compress, lzma.compress]
)


@PACKED
def test_lines_of_files_and_stdin(tmp_path, pack, monkeypatch):
    path = tmp_path / "lines"
    path.write_bytes(pack("\ufeffé\r\n\nlast".encode()))
    assert list(corpus.read_lines(path)) == ["é", "", "last"]
    with open(path) as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert list(corpus.read_lines(None)) == ["é", "", "last"]


@PACKED
@pytest.mark.parametrize("first", [1, 5])
def test_lines_of_a_pipe_whose_first_read_is_short(tmp_path, pack, first):
    lines = [f"line {i}" for i in range(1000)]
    data, pipe = pack("\n".join(lines).encode()), tmp_path / "pipe"
    with fed(pipe, data[:first], data[first:]):
        assert list(corpus.read_lines(pipe)) == lines


def test_archives_and_damaged_files_are_not_lines(tmp_path):
    archive(tmp_path / "a.gz", ("a.txt", b"text\n"), mode="w:gz")
    archive(tmp_path / "a.tar", ("a.txt", b"text\n"), mode="w")
    data, pipe = (tmp_path / "a.tar").read_bytes(), tmp_path / "pipe"
    with pytest.raises(UserError, match="a.gz is a tar archive, not lines of text"):
        list(corpus.read_lines(tmp_path / "a.gz"))
    with fed(pipe, data[:100], data[100:600]), pytest.raises(UserError, match="a tar"):
        list(corpus.read_lines(pipe))
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"text\n" * 999)[:-9])
    damaged(tmp_path / "b.gz", corpus.read_lines, "damaged")
