# SPDX-License-Identifier: Apache-2.0
"""Served models and what people send them: a right answer or an error in words."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.export import saved_models
from electra_tf.inference.pretrained_model import PretrainedModel
from electra_tf.inference.scoring import TextScorer
from tests.helpers.exporting import (
    NAMES,
    Failed,
    fresh_process,
    shared_export,
    shared_source,
)

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

# What is sent to a signature for ids, and what the refusal must say.
REFUSED = {
    "id -1": (ids_of([[2, -1, 3]]), "from 0 to] [96]"),
    "id beyond the vocabulary": (ids_of([[2, 97, 3]]), "from 0 to] [96]"),
    "mask of 2": (ids_of([[2, 7, 3]], mask=[[1, 2, 1]]), "input_mask must be"),
    "type 2": (ids_of([[2, 7, 3]], types=[[0, 2, 0]]), "input_type_ids must be"),
    "shorter mask": (ids_of([[2, 7, 3]], mask=[[1, 1]]), "shape of input_word_ids"),
    "mask of one": (ids_of([[2, 7, 3]], mask=[[1]]), "shape of input_word_ids"),
    "fewer rows": (ids_of([[2, 3]] * 2, types=[[0, 0]]), "shape of input_word_ids"),
    "no tokens": (ids_of([[], []]), "from 1 to 40 tokens"),
    "too many tokens": (ids_of([[2] + [7] * 39 + [3]]), "from 1 to 40 tokens"),
    "int64": (ids_of([[2, 7, 3]], dtype="int64"), "int32"),
    "float": (ids_of([[2, 7, 3]], dtype="float32"), "int32"),
    "rank 3": ({name: ("int32", [[[1, 1]]]) for name in NAMES}, "Shape of tensor"),
    "rank 1": ({name: ("int32", [2, 7, 3]) for name in NAMES}, "Shape of tensor"),
}

KINDS = ["encoder", "detector", "generator"]
MASKED = ["the [MASK] read [MASK]", "no mask", "", "[MASK] " * 100]
MASK_CALLS = [
    ("serving_default", {"text": ("string", MASKED)}),
    ("ids", GOOD | {"masked_lm_positions": ("int32", [[4]])}),
    ("ids", GOOD | {"masked_lm_positions": ("int32", [[1], [1]])}),
]


@pytest.fixture(scope="module")
def sources():
    return {variant: shared_source(variant) for variant in ("electra", "electric")}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What -> a SavedModel whose signatures for ids XLA compiles."""
    source = shared_source("electra")._replace(jit_compile=True)
    folder = tmp_path_factory.mktemp("compiled")
    return {what: saved_models.write_part(source, what, folder) for what in KINDS}


@pytest.fixture(scope="module")
def answers(compiled, tmp_path_factory):
    """Name -> the answers of one SavedModel to a list of calls."""
    folder = tmp_path_factory.mktemp("robust")
    text_calls = [
        ("serving_default", {"text": ("string", texts)})
        for texts in (TEXTS, [""], [LONG], *[[text] for text in TEXTS])
    ]
    text_calls += [
        ("serving_default", {"text": text})
        for text in (
            ("string", [], [0]),
            ("int32", [1, 2]),
            ("string", "one text"),
            ("string", [["two"], ["texts"]]),
        )
    ]
    ids_calls = [inputs for inputs, _ in REFUSED.values()]
    jobs = {}
    for variant, what in (
        ("electra", "encoder"),
        ("electra", "detector"),
        ("electra", "generator"),
        ("electric", "detector"),
        ("electric", "scorer"),
        *(("compiled", what) for what in KINDS),
    ):
        is_compiled = variant == "compiled"
        model = compiled[what] if is_compiled else shared_export(variant, what)
        calls = [] if is_compiled or what == "encoder" else list(text_calls)
        ids = "serving_default" if what == "encoder" else "ids"
        more = {}
        if what == "generator":
            more = {"masked_lm_positions": ("int32", [[1]])}
        calls += [(ids, inputs | more) for inputs in ids_calls]
        empty = {"masked_lm_positions": ("int32", [], [0, 2])}
        calls += [(ids, GOOD | more), (ids, EMPTY_IDS | (empty if more else {}))]
        jobs[variant, what] = {"model": model, "calls": calls}
        if what == "generator" and not is_compiled:
            jobs["masks"] = {"model": model, "calls": MASK_CALLS}
    found = fresh_process(
        folder, *(("serve", arguments) for arguments in jobs.values())
    )
    for answer in found:
        assert not isinstance(answer, Failed), answer.traceback
    return dict(zip(jobs, found, strict=True))


@pytest.mark.parametrize("what", KINDS)
@pytest.mark.parametrize("variant", ["electra", "compiled"])
def test_ids_that_make_no_sense_are_refused_in_words(answers, variant, what):
    found = answers[variant, what][-2 - len(REFUSED) : -2]
    for answer, (name, (_, message)) in zip(found, REFUSED.items(), strict=True):
        assert answer.get("error") == "InvalidArgumentError", (name, answer)
        assert message in answer["message"], (name, answer["message"])


@pytest.mark.parametrize("what", KINDS)
def test_the_compiled_model_is_the_same(answers, compiled, what):
    (ours, _), (theirs, _) = (answers[v, what][-2:] for v in ("compiled", "electra"))
    for name, values in theirs["ok"].items():
        assert np.allclose(ours["ok"][name], values, atol=1e-5)
    ids = "serving_default" if what == "encoder" else "ids"
    graph = tf.saved_model.load(str(compiled[what])).signatures[ids].graph
    functions = graph.as_graph_def().library.function
    assert any(function.attr["_XlaMustCompile"].b for function in functions)


@pytest.mark.parametrize("what", KINDS)
@pytest.mark.parametrize("variant", ["electra", "compiled"])
def test_good_ids_and_no_ids(answers, sources, variant, what):
    good, empty = answers[variant, what][-2:]
    assert "ok" in good, good
    assert "ok" in empty, empty
    for name, value in good["ok"].items():
        assert np.isfinite(value).all() and len(value) == 1
        assert empty["ok"][name] == []
    if what == "detector":
        model = sources["electra"].pretrainer
        encoded = model.electra(
            np.array([[2, 7, 8, 3]]), np.ones([1, 4]), np.zeros([1, 4], int)
        )
        logits = model.discriminator_predictions(encoded.sequence_output)
        assert np.allclose(good["ok"]["logits"], logits, atol=1e-5)


@pytest.mark.parametrize("variant", ["electra", "electric"])
def test_detector_says_what_the_model_does(answers, sources, variant):
    """Texts with and without neighbours, long ones in windows, invalid UTF-8."""
    source = sources[variant]
    config = PretrainingConfig(vocab_size=97, max_seq_length=source.max_seq_length)
    model = PretrainedModel(config, source.vocab, source.pretrainer)
    found = answers[variant, "detector"][: 7 + len(TEXTS)]
    together, empty, long, *alone, none, not_text, one, matrix = found
    assert none["ok"]["tokens"] == [] and none["ok"]["num_tokens"] == []
    assert empty["ok"]["tokens"] == [[]] and empty["ok"]["num_tokens"] == [0]
    assert not_text["error"] == "InvalidArgumentError"
    assert "string" in not_text["message"]
    for shape in (one, matrix):
        assert shape["error"] == "InvalidArgumentError"
        assert "compatible with expected shape" in shape["message"]
    assert long["ok"]["num_tokens"] == [10_000]
    texts = [
        t.encode("utf-8", "surrogateescape").decode("utf-8", "ignore") for t in TEXTS
    ]
    for row, text in enumerate(texts):
        (tokens,) = model.detect([text])
        for answer, place in ((together, row), (alone[row], 0)):
            answer, count = answer["ok"], len(tokens)
            assert answer["num_tokens"][place] == count
            assert answer["tokens"][place][:count] == [t.text for t in tokens]
            assert answer["starts"][place][:count] == [t.start for t in tokens]
            assert answer["ends"][place][:count] == [t.end for t in tokens]
            assert set(answer["starts"][place][count:]) <= {-1}
            assert answer["probabilities"][place][:count] == pytest.approx(
                [t.probability for t in tokens], abs=1e-5
            )
    (tokens,) = model.detect([LONG])
    assert long["ok"]["probabilities"][0] == pytest.approx(
        [t.probability for t in tokens], abs=1e-5
    )


def test_score_is_the_sum_of_negative_energies(answers, sources):
    source = sources["electric"]
    together, empty, long = answers["electric", "scorer"][:3]
    none = answers["electric", "scorer"][3 + len(TEXTS)]
    assert none["ok"]["score"] == [] and empty["ok"]["score"] == [0.0]
    ids = source.tokenizer().encode(TEXTS[0])
    row = np.array([[source.vocab.cls_id, *ids, source.vocab.sep_id]])
    encoded = source.pretrainer.electra(row, np.ones_like(row), np.zeros_like(row))
    energy = source.pretrainer.discriminator_predictions(encoded.sequence_output)
    energy = np.asarray(energy)[0, 1:-1]
    answer = together["ok"]
    assert np.allclose(answer["token_scores"][0][: len(ids)], -energy, atol=1e-5)
    assert answer["score"][0] == pytest.approx(-energy.sum(), abs=1e-4)
    assert set(answer["token_scores"][0][len(ids) :]) == {0.0}
    assert np.isfinite(long["ok"]["score"]).all()
    assert long["ok"]["score"][0] == pytest.approx(
        sum(long["ok"]["token_scores"][0]), rel=1e-4
    )


def test_scores_are_those_of_score_texts(answers, sources):
    source = sources["electric"]
    scorer = TextScorer(
        source.pretrainer, source.vocab, source.tokenizer(), source.max_seq_length
    )
    _, _, long, *alone = answers["electric", "scorer"][: 2 + len(TEXTS)]
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
        assert found["probabilities"][0][number] == sorted(
            found["probabilities"][0][number], reverse=True
        )
    assert found["tokens"][1] == [[""] * 5] * (source.max_seq_length - 2)
    assert "from 0 to] [3]" in answers[1]["message"]
    assert answers[2]["error"] == "InvalidArgumentError"
