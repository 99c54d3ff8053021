# SPDX-License-Identifier: Apache-2.0
"""Text from files, and files that are not text."""

import random

import pytest

from electra_tf.text import corpus
from electra_tf.text.corpus import UserError


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
