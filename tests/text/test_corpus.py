# SPDX-License-Identifier: Apache-2.0
"""Text from files and archives; what is no text."""

import bz2
import gzip
import io
import lzma
import os
import random
import tarfile

import pytest

from electra_tf.text import corpus
from electra_tf.text.corpus import UserError


def read(path, *args):
    return list(corpus.read_lines(path, *args))


def test_list_files_goes_into_folders_and_leaves_out_hidden_ones(tmp_path):
    for name in ("b.txt", "a/z.txt", "a/y", ".hidden", ".git/config", "a/.DS_Store"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text\n")
    found = [p.removeprefix(f"{tmp_path}/") for p in corpus.list_files(tmp_path)]
    assert found == ["a/y", "a/z.txt", "b.txt"]
    assert corpus.list_files(tmp_path / "b.txt") == [str(tmp_path / "b.txt")]


def test_list_files_without_files(tmp_path):
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    for name, problem in (("empty", "holds no files"), ("nothing", "does not exist")):
        with pytest.raises(UserError, match=f"{name} {problem}"):
            corpus.list_files(tmp_path / name)


def test_links_are_followed(tmp_path):
    corpus_dir, elsewhere = tmp_path / "corpus", tmp_path / "elsewhere"
    for folder in (corpus_dir, elsewhere):
        folder.mkdir()
        (folder / "a.txt").write_text("text\n")
    (corpus_dir / "linked").symlink_to(elsewhere)
    (corpus_dir / "b.txt").symlink_to(elsewhere / "a.txt")
    found = [p.removeprefix(f"{corpus_dir}/") for p in corpus.list_files(corpus_dir)]
    assert found == ["a.txt", "b.txt", "linked/a.txt"]


@pytest.mark.parametrize(
    "name, target, problem",
    [
        ("broken", "nowhere", "broken .a link to nowhere.: No such file"),
        ("loop", "loop", "loop .a link to loop.: Too many levels"),
        ("above", "..", "one directory twice"),
        ("again", "sub", "one directory twice, as .*sub and as .*again"),
        ("pipe", None, "pipe is not a file"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, name, target, problem):
    folder = tmp_path / "corpus"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.txt").write_text("text\n")
    if target is None:
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to(target)
    with pytest.raises(UserError, match=problem):
        corpus.list_files(folder)


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


def test_blocks_do_not_show(tmp_path, monkeypatch):
    path = tmp_path / "text"
    rng = random.Random(1)
    for block in (1, 2, 7, 64, 5000):
        monkeypatch.setattr(corpus, "_BLOCK_BYTES", block)
        text = random_text(rng)
        path.write_text(text)
        assert "\n".join(read(path)) == text.removesuffix("\n")


@pytest.mark.parametrize("longest", [20, 16 << 20])
def test_pieces_are_the_whole(tmp_path, monkeypatch, longest):
    """Also where a line is cut, or reaches over several pieces."""
    monkeypatch.setattr(corpus, "_MAX_LINE_BYTES", longest)
    path = tmp_path / "text"
    rng = random.Random(2)
    for block in (3, 100):
        monkeypatch.setattr(corpus, "_BLOCK_BYTES", block)
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


def test_a_line_of_10_mb_stays_whole(tmp_path):
    path = tmp_path / "text"
    line = "word " * (2 << 20)
    path.write_text(f"before\n{line}\nafter\n")
    assert read(path) == ["before", line, "after"]


def test_longer_lines_are_cut_between_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "_MAX_LINE_BYTES", 100)
    monkeypatch.setattr(corpus, "_BLOCK_BYTES", 50)
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


@pytest.mark.parametrize("mode", ["w:xz", "w:gz", "w"])
def test_archives_are_read_in_order(tmp_path, mode):
    path = tmp_path / "texts.xz"
    members = [(f"dir/{i}.txt", f"text {i}\n\nmore\n".encode() * i) for i in (5, 1, 3)]
    archive(path, ("dir", {"type": tarfile.DIRTYPE}), *members, mode=mode)
    texts = [
        [line for block in reader for line in block]
        for reader in corpus.read_archive(path)
    ]
    assert texts == [[f"text {i}", "", "more"] * i for i in (5, 1, 3)]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("../evil.txt", b"x", "outside"),
        ("a/../../evil.txt", b"x", "outside"),
        ("/tmp/evil.txt", b"x", "outside"),
        ("C:\\evil.txt", b"x", "outside"),
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
        list(corpus.read_archive(path))
    assert caught.value.exit_code == 65
    assert [p.name for p in tmp_path.rglob("*")] == ["in", "evil.xz"]


def test_absurd_archives_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "many.xz"
    archive(path, *((f"{i}.txt", b"0123456789") for i in range(20)))
    monkeypatch.setattr(corpus, "_MAX_ARCHIVE_MEMBERS", 19)
    with pytest.raises(UserError, match="19 members"):
        list(corpus.read_archive(path))
    monkeypatch.setattr(corpus, "_MAX_ARCHIVE_MEMBERS", 20)
    assert len(list(corpus.read_archive(path))) == 20
    monkeypatch.setattr(corpus, "_MAX_ARCHIVE_BYTES", 199)
    with pytest.raises(UserError, match="199 bytes"):
        list(corpus.read_archive(path))


@pytest.mark.parametrize("mode", ["xz", "gz", "bz2"])
def test_an_archive_that_compresses_well(tmp_path, mode):
    """With tarfile's own decompression, these 40 MB took 21 s."""
    path = tmp_path / "zeros"
    with tarfile.open(path, f"w:{mode}") as f:
        member = tarfile.TarInfo("zeros.txt")
        member.size = 40 << 20
        f.addfile(member, io.BytesIO(bytes(member.size)))
    readers = corpus.read_archive(path)
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
            for reader in corpus.read_archive(path):
                list(reader)
        assert caught.value.exit_code == 65
    path.write_bytes(sound + bytes(5000))
    assert len(list(corpus.read_archive(path))) == 5


@pytest.mark.parametrize("ending", ["bz2", "xz"])
def test_streams_one_after_the_other(tmp_path, ending):
    path = tmp_path / f"a.txt.{ending}"
    module = {"bz2": bz2, "xz": lzma}[ending]
    streams = [module.compress(f"line {i}\n".encode() * 50_000) for i in range(3)]

    def lines():
        readers = corpus.read_compressed(path)
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


@pytest.mark.parametrize("errors", ["strict", "replace"])
@pytest.mark.parametrize(
    ("content", "what"),
    [
        (gzip.compress(b"text\n"), "compressed by gzip"),
        (lzma.compress(b"text\n"), "compressed by xz"),
        (bz2.compress(b"text\n"), "compressed by bzip2"),
        (b"PK\x03\x04\xff", "a zip archive"),
        ("текст\n".encode("utf-16"), "text in UTF-16"),
    ],
)
def test_what_is_no_text_at_all_is_named(tmp_path, content, what, errors):
    path = tmp_path / "part-0001"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"part-0001 is {what}") as caught:
        read(path, errors)
    assert caught.value.exit_code == 65 and "replace" not in str(caught.value)


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
            for reader in corpus.read_archive(path, "replace"):
                list(reader)
        assert caught.value.exit_code == 65
