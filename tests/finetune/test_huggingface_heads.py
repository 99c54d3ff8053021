# SPDX-License-Identifier: Apache-2.0
"""Models that transformers has made, with the heads of tasks, predict here as there."""

import json

import numpy as np
import pytest

import electra_tf
from electra_tf.errors import UserError
from tests.helpers.runs import SPECIAL, run_script

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")
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
    """What transformers says of a text or a pair."""
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
        ({"num_labels": 2}, "label"),
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
    assert len({json.dumps(row["probabilities"]) for row in found} if key != "value"
               else {row["value"] for row in found}) == 3  # fmt: skip


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


def test_predict_reads_a_table_of_either(tmp_path):
    write(tmp_path / "model", "SequenceClassification", num_labels=2)
    (tmp_path / "in.jsonl").write_text(
        '{"text": "the dog"}\n{"text": "the dog", "text_b": "the cat"}\n'
    )
    done = run_script(
        *("run_inference.py", "predict", "--model", str(tmp_path / "model")),
        *("--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out")),
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in open(tmp_path / "out")]
    assert [len(row) for row in rows] == [3, 4]
    assert {row["label"] for row in rows} <= {"LABEL_0", "LABEL_1"}
    assert np.isclose(sum(rows[0]["probabilities"].values()), 1.0)


def test_what_cannot_be_read_is_said(tmp_path):
    write(tmp_path, "SequenceClassification", num_labels=2)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"problem_type": "regression"}))
    with pytest.raises(UserError, match="'regression' with 2 outputs"):
        electra_tf.load(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match="without the files of its tokenizer"):
        electra_tf.load(tmp_path)


@pytest.mark.parametrize("said", [12, "12", None, 1e30])
def test_windows_as_long_as_the_tokenizer_says(tmp_path, said):
    """If it says a number; however short, answers are found."""
    write(tmp_path, "QuestionAnswering")
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"model_max_length": said}
    path.write_text(json.dumps(settings))
    model = electra_tf.load(tmp_path)
    assert model.facts["max_seq_length"] == (12 if said == 12 else 24)
    [row] = model.predict([("who ran ?", "the dog ran the cat sat")])
    assert row["answer"]


@pytest.mark.parametrize("said", [0, -1, 7, float("nan")])
def test_windows_that_hold_nothing_are_refused(tmp_path, said):
    write(tmp_path, "SequenceClassification")
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"model_max_length": said}
    path.write_text(json.dumps(settings))
    with pytest.raises(UserError, match=f"model_max_length is {said}; it is 8 or more"):
        electra_tf.load(tmp_path)


@pytest.mark.parametrize("kind", ["SequenceClassification", "TokenClassification"])
def test_what_is_no_text_is_named(tmp_path, kind):
    write(tmp_path, kind)
    model = electra_tf.load(tmp_path)
    for wrong in (None, float("nan"), 5, b"the dog"):
        with pytest.raises(UserError, match="input 1 is "):
            model.predict(["the dog", wrong])


def test_embeddings_may_have_rows_beyond_the_vocabulary(tmp_path):
    """As those have that were widened to a multiple of 8."""
    theirs = write(tmp_path, "SequenceClassification", vocab_size=16)
    [row] = electra_tf.load(tmp_path).predict(TEXTS[:1])
    shares = logits(theirs, TEXTS[0]).logits[0].softmax(-1).tolist()
    assert list(row["probabilities"].values()) == pytest.approx(shares, abs=1e-5)


@pytest.mark.parametrize(
    "names",
    [{"0": "a"}, {"0": "a", "1": "a"}, {"no": "a", "yes": "b"}, ["a", "b"]],
)
@pytest.mark.parametrize("kind", ["SequenceClassification", "TokenClassification"])
def test_names_that_do_not_fit_the_outputs(tmp_path, kind, names):
    write(tmp_path, kind, num_labels=2)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"id2label": names}))
    with pytest.raises(UserError, match="id2label is .* of 2 outputs") as caught:
        electra_tf.load(tmp_path)
    assert caught.value.exit_code == 65


def test_half_a_head(tmp_path):
    write(tmp_path, "SequenceClassification", num_labels=2)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["classifier.out_proj.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(
        UserError, match="beside it are those of ElectraModel"
    ) as caught:
        electra_tf.load(tmp_path)
    assert caught.value.exit_code == 65
