# SPDX-License-Identifier: Apache-2.0
"""Fine-tuned models of transformers predict the same here."""

import functools
import json
import shutil

import pytest

import electra_tf
from electra_tf.errors import UserError
from tests.helpers.runs import SPECIAL, refused

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.numpy import load_file, save_file  # noqa: E402

WORDS = ["the", "dog", "cat", "ran", "sat", "##s", "who", "?"]
TEXTS = ["the dog ran", "the cats sat", ("the dog sat", "the cat ran")]
PROBLEM = "multi_label_classification"


def write(folder, kind, **settings):
    """A model with random weights, large enough to matter; returns it."""
    config = transformers.ElectraConfig(
        embedding_size=8,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
        **{"vocab_size": len(SPECIAL) + len(WORDS)} | settings,
    )
    torch.manual_seed(5)
    model = getattr(transformers, f"ElectraFor{kind}")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(f"{t}\n" for t in [*SPECIAL, *WORDS]))
    tokenizer = {"tokenizer_class": "ElectraTokenizer", "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return model


def logits(model, first, second=None):
    """The output of transformers for a text or a pair."""
    vocab = {token: i for i, token in enumerate([*SPECIAL, *WORDS])}
    parts = [text.replace("cats", "cat ##s") for text in (first, second) if text]
    ids, types = [vocab["[CLS]"]], [0]
    for segment, part in enumerate(parts):
        row = [vocab[token] for token in [*part.split(), "[SEP]"]]
        ids, types = ids + row, types + [segment] * len(row)
    given = {"input_ids": torch.tensor([ids])}
    given["token_type_ids"] = torch.tensor([types])
    with torch.no_grad():
        return model(**given)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"num_labels": 2, "vocab_size": 16}, "label"),  # rows beyond the vocabulary
        ({"id2label": {0: "bad", 1: "good", 2: "so"}}, "label"),
        ({"num_labels": 3, "problem_type": PROBLEM}, "labels"),
        ({"num_labels": 1}, "value"),
    ],
)
def test_texts_and_pairs(tmp_path, settings, key):
    theirs = write(tmp_path, "SequenceClassification", **settings)
    found = electra_tf.load(tmp_path).predict(TEXTS)
    for text, row in zip(TEXTS, found, strict=True):
        scores = logits(theirs, *([text] if isinstance(text, str) else text)).logits[0]
        if key == "value":
            assert row["value"] == pytest.approx(scores.item(), abs=1e-5)
            continue
        names = theirs.config.id2label.values()
        shares = scores.softmax(-1) if key == "label" else scores.sigmoid()
        expected = dict(zip(names, shares.tolist(), strict=True))
        assert row["probabilities"] == pytest.approx(expected, abs=1e-5)
        best = max(expected, key=expected.get)
        above = [name for name, share in expected.items() if share > 0.5]
        assert row[key] == (best if key == "label" else above)
    assert len({str(row.get("probabilities", row.get("value"))) for row in found}) == 3


def test_questions(tmp_path):
    theirs = write(tmp_path, "QuestionAnswering")
    question, context = "who ran ?", "the dog ran the cat sat"
    [row] = electra_tf.load(tmp_path).predict([(question, context)])
    output = logits(theirs, question, context)
    start, end = (output[f"{x}_logits"][0].numpy() for x in ("start", "end"))
    first = 2 + len(question.split())
    places = range(first, first + len(context.split()))
    best = max(start[i] + end[j] for i in places for j in places if i <= j)
    assert row["score"] == pytest.approx(best, abs=1e-5)
    assert row["answer"] == context[row["start"] : row["end"]] != ""
    null = start[0] + end[0] - best
    assert row["null_odds"] == pytest.approx(null, abs=1e-5)
    assert row["has_answer"] == (null <= 0)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """A function: kind -> a model's directory with 2 outputs."""

    @functools.cache
    def make(kind):
        folder = tmp_path_factory.mktemp(kind)
        more = {} if kind == "QuestionAnswering" else {"num_labels": 2}
        write(folder, kind, **more)
        return folder

    return make


@pytest.fixture
def changed(folder_of, tmp_path):
    """A function: copies a model, changes a JSON file; returns the copy."""

    def change(kind, file="config.json", **values):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder_of(kind), copy)
        content = json.loads((copy / file).read_text()) | values
        (copy / file).write_text(json.dumps(content))
        return copy

    return change


TEXT, TAGS = "SequenceClassification", "TokenClassification"


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        (TEXT, {"problem_type": "regression"}, "'regression' with 2 outputs"),
        (TEXT, {"architectures": [f"ElectraFor{TAGS}"]}, "the weights are those"),
        (TEXT, {"id2label": {"0": "a"}}, "id2label is .* 2 outputs"),
        (TAGS, {"id2label": {"0": "a", "n": "a"}}, "id2label is .* 2 outputs"),
        (TEXT, {"id2label": {"n": "a", "y": "b"}}, "id2label is .* 2 outputs"),
        (TEXT, {"id2label": ["a", "b"]}, "id2label is .* 2 outputs"),
    ],
)
def test_config_that_does_not_fit_is_refused(changed, kind, values, words):
    with pytest.raises(UserError, match=words):
        electra_tf.load(changed(kind, **values))


def test_incomplete_model_is_refused(changed):
    folder = changed(TEXT)
    tensors = load_file(folder / "model.safetensors")
    del tensors["classifier.out_proj.bias"]
    save_file(tensors, folder / "model.safetensors")
    refused(lambda: electra_tf.load(folder), "those of ElectraModel", code=65)
    folder = changed(TEXT)
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer_config.json").unlink()
    refused(lambda: electra_tf.load(folder), "without the files of its tokenizer")


@pytest.mark.parametrize(
    ("length", "expected"), [(12, 12), (1e30, 24), (7, 24), (-1, 24)]
)
def test_windows_are_as_long_as_the_tokenizer_says(changed, length, expected):
    file = "tokenizer_config.json"
    folder = changed("QuestionAnswering", file, model_max_length=length)
    model = electra_tf.load(folder)
    assert model.facts["max_seq_length"] == expected
    [row] = model.predict([("who ran ?", "the dog ran the cat sat")])
    assert row["answer"]
    for wrong in (None, float("nan"), 5):
        with pytest.raises(UserError, match="input 0"):
            model.predict([(wrong, "the dog")])
