# SPDX-License-Identifier: Apache-2.0
"""Served models and what clients send them: a right answer or a clear error."""

import numpy as np
import pytest

from tests.helpers.exporting import (
    NAMES,
    Failed,
    fresh_process,
    shared_export,
    shared_source,
)

pytestmark = pytest.mark.thorough

LONG = "the doctor opened the good book and read it . " * 1000  # 10,000 tokens
BAD_UTF8 = b"a \xff good\xfe \xc3\x28 film \xe4\xb8\xad".decode(
    "utf-8", "surrogateescape"
)
TEXTS = [
    "The doctor opened the giraffe and read it.",
    "",
    " \t\n",
    "e\u0301\u0301 CAF\u00c9, \u4e2d\u4e2d \U0001f680 a\x00b",
    "z" * 300,
    LONG[:500],
    BAD_UTF8,
]


def ids_of(rows, mask=None, types=None, dtype="int32"):
    ones = [[1] * len(row) for row in rows]
    zeros = [[0] * len(row) for row in rows]
    values = (rows, mask or ones, types or zeros)
    return {name: (dtype, v) for name, v in zip(NAMES, values, strict=True)}


EMPTY_IDS = {name: ("int32", [], [0, 4]) for name in NAMES}
GOOD = ids_of([[2, 7, 8, 3]])

# What is sent to a signature for ids, and a part of the error.
REFUSED = [
    (ids_of([[2, -1, 3]]), "from 0 to] [96]"),
    (ids_of([[2, 97, 3]]), "from 0 to] [96]"),
    (ids_of([[2, 7, 3]], mask=[[1, 2, 1]]), "input_mask must be"),
    (ids_of([[2, 7, 3]], types=[[0, 2, 0]]), "input_type_ids must be"),
    (ids_of([[2, 7, 3]], mask=[[1, 1]]), "shape of input_word_ids"),
    (ids_of([[2, 3]] * 2, types=[[0, 0]]), "shape of input_word_ids"),
    (ids_of([[], []]), "from 1 to 40 tokens"),
    (ids_of([[2] + [7] * 39 + [3]]), "from 1 to 40 tokens"),
    (ids_of([[2, 7, 3]], dtype="int64"), "int32"),
    ({name: ("int32", [2, 7, 3]) for name in NAMES}, "Shape of tensor"),
]

KINDS = ["encoder", "detector", "generator"]
MASKED = ["the [MASK] read [MASK]", "no mask", "", "[MASK] " * 100]


@pytest.fixture(scope="module")
def sources():
    return {variant: shared_source(variant) for variant in ("electra", "electric")}


def of_text(*values):
    return ("serving_default", {"text": ("string", *values)})


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """(variant, what) -> the outputs of one SavedModel for a list of calls."""
    text_calls = [of_text(texts) for texts in (TEXTS, [""], [LONG])]
    text_calls += [of_text([text]) for text in TEXTS]
    text_calls += [of_text([], [0]), of_text([["two"], ["texts"]])]
    text_calls += [("serving_default", {"text": ("int32", [1, 2])})]
    exported = {}
    for variant, what in (
        *(("electra", what) for what in KINDS),
        *(("electric", what) for what in ("detector", "scorer")),
    ):
        exported[variant, what] = shared_export(variant, what)
    jobs = {}
    for (variant, what), model in exported.items():
        ids = "serving_default" if what == "encoder" else "ids"
        positions = {"masked_lm_positions": ("int32", [[1]])}
        none = {"masked_lm_positions": ("int32", [], [0, 2])}
        if what != "generator":
            positions = none = {}
        calls = [] if what == "encoder" else list(text_calls)
        calls += [(ids, inputs | positions) for inputs, _ in REFUSED]
        calls += [(ids, GOOD | positions), (ids, EMPTY_IDS | none)]
        jobs[variant, what] = {"model": model, "calls": calls}
    at = [GOOD | {"masked_lm_positions": ("int32", p)} for p in ([[4]], [[1], [1]])]
    masks = [of_text(MASKED), *(("ids", inputs) for inputs in at)]
    jobs["masks"] = {"model": exported["electra", "generator"], "calls": masks}
    folder = tmp_path_factory.mktemp("robust")
    found = fresh_process(folder, *(("serve", job) for job in jobs.values()))
    for answer in found:
        assert not isinstance(answer, Failed), answer.traceback
    return dict(zip(jobs, found, strict=True))


@pytest.mark.parametrize("what", KINDS)
def test_ids(answers, what):
    found = answers["electra", what][-2 - len(REFUSED) : -2]
    for answer, (_, message) in zip(found, REFUSED, strict=True):
        assert answer.get("error") == "InvalidArgumentError", answer
        assert message in answer["message"]
    good, empty = answers["electra", what][-2:]
    for name, value in good["ok"].items():
        assert np.isfinite(value).all() and len(value) == 1
        assert empty["ok"][name] == []


@pytest.mark.parametrize("variant", ["electra", "electric"])
def test_detector_detects_as_the_model(answers, sources, variant):
    """Texts alone and in a batch, long ones in windows, invalid UTF-8."""
    model = sources[variant]
    found = answers[variant, "detector"][: 6 + len(TEXTS)]
    together, empty, long, *alone, none, matrix, numbers = found
    assert none["ok"]["tokens"] == [] and none["ok"]["num_tokens"] == []
    assert empty["ok"]["tokens"] == [[]] and empty["ok"]["num_tokens"] == [0]
    for answer, words in ((numbers, "string"), (matrix, "with expected shape")):
        assert answer["error"] == "InvalidArgumentError"
        assert words in answer["message"]
    assert long["ok"]["num_tokens"] == [10_000]
    texts = [
        t.encode("utf-8", "surrogateescape").decode("utf-8", "ignore")
        for t in (*TEXTS, LONG)
    ]
    places = [*enumerate([together] * len(TEXTS)), (0, long)]
    for row, text in enumerate(texts):
        (tokens,) = model.detect([text])
        for place, answer in (places[row], (0, [*alone, long][row])):
            answer, count = answer["ok"], len(tokens)
            assert answer["num_tokens"][place] == count
            assert answer["tokens"][place][:count] == [t.text for t in tokens]
            assert answer["starts"][place][:count] == [t.start for t in tokens]
            assert answer["ends"][place][:count] == [t.end for t in tokens]
            assert set(answer["starts"][place][count:]) <= {-1}
            assert answer["probabilities"][place][:count] == pytest.approx(
                [t.probability for t in tokens], abs=1e-5
            )


def test_scorer_scores_as_score_texts(answers, sources):
    scorer = sources["electric"]
    _, empty, long, *alone = answers["electric", "scorer"][: 2 + len(TEXTS)]
    none = answers["electric", "scorer"][3 + len(TEXTS)]
    assert none["ok"]["score"] == [] and empty["ok"]["score"] == [0.0]
    found = [answer["ok"]["score"][0] for answer in (long, *alone)]
    expected = scorer.score_texts([LONG, *TEXTS[:-1]])  # the last is not UTF-8
    assert found == pytest.approx([e.score for e in expected], rel=1e-4, abs=1e-4)


def test_generator_fills_masks(sources, answers):
    source, answers = sources["electra"], answers["masks"]
    found = answers[0]["ok"]
    assert found["num_masks"] == [2, 0, 0, source.max_seq_length - 2]
    vocab, network = source.vocab, source.pretrainer.generator
    the, read, mask = vocab.ids["the"], vocab.ids["read"], vocab.mask_id
    ids = np.array([[2, the, mask, read, mask, 3]])
    encoded = network.encoder(ids, np.ones_like(ids), np.zeros_like(ids))
    table = network.encoder.embeddings.word_embeddings.value
    logits = network.head.logits(network.head(encoded.sequence_output), table)
    for number, place in enumerate((2, 4)):
        best = np.argsort(-np.asarray(logits)[0, place])[:5]
        assert found["tokens"][0][number] == [vocab.tokens[i] for i in best]
        probabilities = found["probabilities"][0][number]
        assert probabilities == sorted(probabilities, reverse=True)
    assert found["tokens"][1] == [[""] * 5] * (source.max_seq_length - 2)
    assert "from 0 to] [3]" in answers[1]["message"]
    assert answers[2]["error"] == "InvalidArgumentError"
