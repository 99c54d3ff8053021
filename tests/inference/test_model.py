# SPDX-License-Identifier: Apache-2.0
"""Methods of loaded models of every kind."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import electra_tf
from electra_tf.inference.model import MissingPartError
from electra_tf.interop import huggingface
from tests.helpers.exporting import shared_export, shared_source
from tests.helpers.interop_models import read_model

TEXTS = ["w1 W2, w3 w4", "", "w5", " ".join(f"w{i % 50}" for i in range(70))]


@pytest.fixture(scope="module")
def run(pretrained):
    return pretrained("electra") / "models" / "electra"


@pytest.fixture(scope="module")
def model(run):
    return electra_tf.load(run)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    """What `save` writes for transformers, with the encoder alone beside it."""
    folder = tmp_path_factory.mktemp("saved") / "hf"
    model.save(folder)
    stored, alone = read_model(model.name, log=lambda line: None), folder / "alone"
    huggingface.write_huggingface(stored, "encoder", alone, lambda line: None)
    return folder


def test_states_and_their_poolings(model):
    states = model.encode(TEXTS, pooling=None)
    assert [len(rows) for rows in states] == [7, 2, 3, 72]
    [ids, mask, segments] = model.tokenizer(TEXTS[:3]).values()
    expected = np.asarray(model.encoder(ids, mask, segments).sequence_output)
    for row, found in zip(expected, states[:3], strict=True):
        np.testing.assert_allclose(found, row[: len(found)], atol=1e-5)
    np.testing.assert_allclose(
        model.encode(TEXTS), [rows.mean(0) for rows in states], atol=1e-6
    )
    np.testing.assert_allclose(
        model.encode(TEXTS, pooling="cls"), [rows[0] for rows in states], atol=1e-6
    )
    # max_seq_length is 32: the third window holds ten tokens.
    [window] = model.encode(" ".join(TEXTS[3].split()[60:]), pooling=None)
    np.testing.assert_allclose(states[3][-11:], window[1:], atol=1e-5)
    assert model.encode([]).shape == (0, 32)


def test_texts_may_be_bytes_or_tensors(model):
    expected = model.encode(TEXTS), model.detect(TEXTS), model.score(TEXTS)
    as_bytes = [text.encode() for text in TEXTS]
    for given in (as_bytes, tf.constant(TEXTS), np.array(TEXTS)):
        found = model.encode(given), model.detect(given), model.score(given)
        np.testing.assert_array_equal(found[0], expected[0])
        assert found[1:] == expected[1:]
        assert model.tokenizer(given)["input_ids"].shape == (4, 72)
    assert model.tokenizer(TEXTS, max_seq_length=8)["input_mask"].sum() == 7 + 2 + 3 + 8
    with pytest.raises(electra_tf.UserError, match="text 1 is 5, which is not a str"):
        model.encode(["w1", 5])


class DataFrame:
    """Yields the names of its columns, as that of pandas."""

    ndim, columns = 2, ["text", "label"]

    def __iter__(self):
        return iter(self.columns)


@pytest.mark.parametrize("make", [dict, collections.UserDict, lambda _: DataFrame()])
def test_a_table_is_not_a_list_of_texts(model, make):
    table = make({"text": ["w1 w2", "w3"], "label": ["a", "b"]})
    for method in (model.encode, model.detect, model.score, model.fill_mask):
        with pytest.raises(electra_tf.UserError, match="give one column"):
            method(table)


def test_transformers_computes_the_same(model, saved):
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    folder = saved / "discriminator"
    theirs = transformers.AutoModel.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(TEXTS[:3], padding=True, return_tensors="pt")
    with torch.no_grad():
        states = theirs(**inputs).last_hidden_state.numpy()
    mask = inputs["attention_mask"].numpy()[..., None]
    means = (states * mask).sum(1) / mask.sum(1)
    np.testing.assert_allclose(model.encode(TEXTS[:3]), means, atol=1e-5)

    text = "w1 [MASK] w3 [MASK]"
    filled = transformers.pipeline("fill-mask", str(saved / "generator"), top_k=3)(text)
    [found] = model.fill_mask(text, top_k=3)
    for ours, theirs in zip(found, filled, strict=True):
        assert [guess.text for guess in ours] == [row["token_str"] for row in theirs]
        shares = [guess.probability for guess in ours]
        assert shares == pytest.approx([row["score"] for row in theirs], abs=1e-6)


def test_what_is_saved_is_loaded_again(model, saved):
    alone = electra_tf.load(saved / "alone")
    for other in (alone, electra_tf.load(saved)):
        np.testing.assert_allclose(other.encode(TEXTS), model.encode(TEXTS), atol=1e-6)
    generator = electra_tf.load(saved / "generator")
    assert generator.fill_mask("w1 [MASK]", 2) == model.fill_mask("w1 [MASK]", 2)
    # The weights are those of now.
    alone.encoder.embeddings.layer_norm.beta.assign_add(np.ones(16))
    alone.save(saved / "changed", format="tf1")
    changed = electra_tf.load(saved / "changed")
    np.testing.assert_allclose(changed.encode(TEXTS), alone.encode(TEXTS), atol=1e-6)
    assert np.abs(changed.encode(TEXTS) - model.encode(TEXTS)).max() > 0.01


def test_fill_mask_reads_one_window(model):
    assert model.fill_mask(["w1 w2", "[MASK]"], top_k=1)[0] == []
    with pytest.raises(electra_tf.UserError, match="text 1 has 71 tokens; .* 30"):
        model.fill_mask(["w1", f"{TEXTS[3]} [MASK]"])


def assert_close(ours, theirs):
    """Nested rows with the same texts and, up to rounding, the same numbers."""
    if isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for pair in zip(ours, theirs, strict=True):
            assert_close(*pair)
    elif isinstance(theirs, str | None):
        assert ours == theirs
    else:
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize(
    ("variant", "what", "method", "given"),
    [
        ("electra", "encoder", "encode", TEXTS),
        ("electra", "detector", "detect", TEXTS),
        pytest.param(
            *("electra", "generator", "fill_mask"),
            ["the [MASK] a[MASK]", "", "[MASK]"],
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            *("electric", "scorer", "score", TEXTS), marks=pytest.mark.thorough
        ),
    ],
)
def test_saved_model_of_a_part_computes_as_its_model(variant, what, method, given):
    model, exported = shared_source(variant), shared_export(variant, what)
    part = electra_tf.load(exported)
    ours, theirs = (getattr(m, method)(given) for m in (part, model))
    assert_close(ours, theirs)
    assert part.tokenizer.encode("the good book") == model.tokenizer.encode(
        "the good book"
    )
    lacking = "detect" if method != "detect" else "score"
    for name, args in ((lacking, TEXTS), ("corrupt", TEXTS), ("predict", ["a"])):
        with pytest.raises(MissingPartError, match=f"SavedModel of a .*{what}: {name}"):
            getattr(part, name)(args)
    assert repr(part) == f"<the SavedModel of a model's {what} from {exported}>"
