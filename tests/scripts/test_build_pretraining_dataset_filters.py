# SPDX-License-Identifier: Apache-2.0
"""The filters of a build: which documents and lines they leave out."""

import functools
import json
import random
from collections import Counter

import numpy as np
import pytest

from electra_tf.data import dataset_building, filters, record_making
from electra_tf.data.dataset_building import Plan
from electra_tf.data.filters import Filters
from electra_tf.data.record_making import BuildSettings
from electra_tf.errors import UserError
from electra_tf.text import units
from electra_tf.text.vocabulary import TokenizerConfig
from tests.helpers.building import VOCAB, WORDS, content, fail, succeed, write_corpus

GERMAN = "Die Katze sitzt auf der Matte und wartet auf den Hund, der nicht kommt. " * 3
ENGLISH = "The cat is sitting on the mat, waiting for the dog, which never comes. " * 3


def kept(tmp_path, documents, **wanted):
    """The documents that pass, each a list of lines, and what was left out."""
    folder = tmp_path / "in"
    folder.mkdir(exist_ok=True)
    for name, texts in documents.items():
        (folder / name).write_text("\n\n".join(texts))
    text = units.file_corpus(str(folder))
    chosen = Filters(**wanted)
    chosen.check()
    settings = BuildSettings(str(VOCAB), TokenizerConfig(), filters=chosen)
    verdicts_of = None
    if chosen.compare:
        portions = units.portions(text.units, 1)  # one for each unit
        firsts = tuple(portion[0].index for portion in portions)
        identity = str(random.random())
        plan = Plan(str(tmp_path), settings, 1, False, "", identity, firsts)
        for task in enumerate(portions):
            dataset_building.number_documents(plan, task, str(tmp_path))
        filters.compare(str(tmp_path), len(firsts), chosen, str(tmp_path))
        place = str(tmp_path), identity, firsts
        verdicts_of = functools.partial(filters.verdicts_of, *place)
    found, dropped = [[]], Counter()
    for unit in text.units:
        own = verdicts_of and verdicts_of(unit)
        batches = record_making._line_batches(unit, settings)
        for lines, is_blank, counts in record_making._filtered(batches, chosen, own):
            dropped += Counter(counts.dropped)
            for line, blank in zip(lines, is_blank, strict=True):
                if blank:
                    found.append([])
                else:
                    found[-1].append(line)
    return [document for document in found if document], dict(dropped)


def test_equal_documents_and_lines(tmp_path):
    documents = {"a": ["one\ntwo", "three"], "b": [" one \ntwo", "one\ntwo\nthree"]}
    found, dropped = kept(tmp_path, documents, duplicate_documents=True)
    assert found == [["one", "two"], ["three"], ["one", "two", "three"]]
    assert dropped == {"duplicate_documents": 1}
    # The first line of a document that is left out does not count as the first.
    documents = {"a": ["menu\nfirst"], "b": ["menu\nfirst", "menu\nthird\n menu"]}
    wanted = {"duplicate_documents": True, "duplicate_lines": True}
    found, dropped = kept(tmp_path, documents, **wanted)
    assert found == [["menu", "first"], ["third"]]
    assert dropped == {"duplicate_documents": 1, "duplicate_lines": 2}
    found, dropped = kept(tmp_path, documents, duplicate_lines=True)
    assert found == [["menu", "first"], ["third"]]
    assert dropped == {"duplicate_lines": 4}


def test_lines_of_near_duplicates_are_not_the_first(tmp_path):
    pytest.importorskip("rensa")
    words = random.Random(1).choices(WORDS[100:], k=300)
    text = "\n".join(" ".join(words[i : i + 10]) for i in range(0, 300, 10))
    documents = {"a": [text], "b": [f"{text}\nmore here"], "c": ["more here"]}
    wanted = {"near_duplicates": True, "duplicate_lines": True}
    found, dropped = kept(tmp_path, documents, **wanted)
    assert found == [text.split("\n"), ["more here"]]
    assert dropped == {"near_duplicates": 1}


def test_near_duplicates(tmp_path):
    """Documents with a few other words are found, those with many are not."""
    pytest.importorskip("rensa")
    rng = random.Random(7)
    found = {}
    for changed in (0, 3, 100):
        count = 0
        for _ in range(20):
            words = rng.choices(WORDS[100:], k=400)
            other = list(words)
            for place in rng.sample(range(400), changed):
                other[place] = "changed"
            documents = {"a": [" ".join(words)], "b": [" ".join(other).upper()]}
            count += len(kept(tmp_path, documents, near_duplicates=True)[0]) == 1
        found[changed] = count
    assert found[0] == 20 and found[3] >= 18 and found[100] == 0


def test_near_duplicates_without_spaces_between_words(tmp_path):
    pytest.importorskip("rensa")
    rng = random.Random(7)
    for first, last in ((0x4E00, 0x9FFF), (0x3041, 0x3096), (0xE01, 0xE2E)):
        chars = [chr(rng.randint(first, last)) for _ in range(2000)]
        other = list(chars)
        for place in rng.sample(range(2000), 5):
            other[place] = "一"
        others = rng.sample(chars, 2000)
        texts = zip("abc", (chars, other, others), strict=True)
        documents = {name: ["".join(text)] for name, text in texts}
        assert len(kept(tmp_path, documents, near_duplicates=True)[0]) == 2


def test_length_and_letters(tmp_path):
    documents = {
        "a": ["short", "long enough  ", "12345 678 90 ab", "中文字符的一些文本"]
    }
    found, dropped = kept(tmp_path, documents, min_chars=6)
    assert len(found) == 3 and dropped == {"short_documents": 1}
    found, dropped = kept(tmp_path, documents, min_letters=0.5)
    assert ["12345 678 90 ab"] not in found and dropped == {"few_letters": 1}
    # Vowel signs are parts of letters.
    documents = {"a": ["မြန်မာနိုင်ငံသည် အရှေ့တောင်အာရှတွင်ရှိသည်", "தமிழ் மொழி"]}
    assert kept(tmp_path, documents, min_letters=0.9)[1] == {}


def test_languages(tmp_path):
    pytest.importorskip("py3langid")
    documents = {"a": [ENGLISH, GERMAN]}
    found, dropped = kept(tmp_path, documents, languages=("de", "fr"))
    assert found == [[GERMAN]] and dropped == {"other_languages": 1}
    with pytest.raises(
        UserError, match="--languages xx: not known; these are:\n.* de "
    ):
        Filters(languages=("xx", "en")).check()


def test_long_documents_are_judged_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(record_making, "MAX_DOCUMENT_CHARS", 50)
    lines = [f"line {i} of many" for i in range(20)]
    documents = {"a": ["\n".join(lines), "tiny", "\n".join(lines)]}
    found, dropped = kept(tmp_path, documents, min_chars=20)
    assert found == [lines, lines] and dropped == {"short_documents": 1}
    found, dropped = kept(tmp_path, documents, duplicate_documents=True)
    assert found == [lines, ["tiny"]] and dropped["duplicate_documents"] > 3


def test_comparing_in_turns_changes_nothing(tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    whole = rng.integers(0, 300, 1000).astype(np.uint64)
    parts = np.split(whole, [10, 400, 400])
    results = []
    for limit in (7, 10_000):
        monkeypatch.setattr(filters, "_MAX_COMPARED", limit)
        verdicts = [np.zeros(len(part), np.uint8) for part in parts]
        verdicts[0][:] = 2  # left out for another reason
        filters._mark_repeated(parts.__getitem__, verdicts, 1)
        results.append(np.concatenate(verdicts))
    seen = set()
    for number, verdict in zip(whole[10:], results[0][10:], strict=True):
        assert verdict == (number in seen)
        seen.add(number)
    assert np.array_equal(*results)


# The script.

FLAGS = [
    *("--drop-duplicate-documents", "--drop-duplicate-lines", "--min-letters=0.5"),
    *("--min-document-chars=5", "--num-out-files=3"),
]


def test_filtered_output_is_independent_of_num_processes(tmp_path):
    text = write_corpus(tmp_path / "in", files=5)
    for i in range(5):
        (text / f"{i}-again.txt").write_bytes((text / f"{i}.txt").read_bytes())
    (text / "numbers.txt").write_text("1 2 3 4\n\n5 6 7 8\n")
    for processes in (1, 3):
        output = tmp_path / str(processes)
        printed = succeed(text, output, *FLAGS, f"--num-processes={processes}")
        assert "few letters left out" in printed
    assert content(tmp_path / "1") == content(tmp_path / "3")
    manifest = json.loads((tmp_path / "1" / "manifest.json").read_text())
    dropped = manifest["corpus"]["dropped"]
    assert dropped["duplicate_documents"] >= 40 and dropped["few_letters"] == 2
    assert manifest["settings"]["filters"] == {
        "duplicate_documents": True,
        "duplicate_lines": True,
        "min_chars": 5,
        "min_letters": 0.5,
    }
    assert "filters" in fail(text, tmp_path / "1")[0]
