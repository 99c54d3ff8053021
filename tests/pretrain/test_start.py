# SPDX-License-Identifier: Apache-2.0
"""Continued pre-training: which weights come from another model."""

import numpy as np
import pytest

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import UserError
from electra_tf.interop import huggingface, readers, tf1
from electra_tf.interop.checkpoint import WARM_START
from electra_tf.pretrain import start
from electra_tf.pretrain.pretraining import build_pretrainer
from electra_tf.text.vocabulary import Vocabulary, write_tokens
from tests.config.test_phases import LONG, SHORT, make
from tests.helpers.interop_models import VOCAB, config_of, golden, prefix_of, quiet
from tests.helpers.runs import by_default, refused

WORDS = "electra/embeddings/word_embeddings"
POSITIONS = "electra/embeddings/position_embeddings"
BIAS = "generator_predictions/output_bias"


class Started:
    """A new run's model after its weights were initialised."""

    def __init__(
        self, path, run="electra_tiny", vocab=VOCAB, overrides=None, **changes
    ):
        hparams = config_of(run)
        shape = hparams["model_hparam_overrides"] | (overrides or {})
        vocab = Vocabulary.load(vocab)
        hparams |= {"vocab_size": len(vocab), "model_hparam_overrides": shape} | changes
        config = PretrainingConfig.from_hparams("/nowhere", "new", hparams)
        model = build_pretrainer(config, (vocab.cls_id, vocab.sep_id, vocab.mask_id))
        variables = {v.path: v.value for v in model.variables}
        self.before = {k: v.numpy() for k, v in variables.items()}
        self.log = []
        found = readers.find(path, self.log.append)
        found.check(config, vocab, WARM_START)
        self.report = start.load_initial(
            found, config, vocab, variables, self.log.append
        )
        self.after = {k: v.numpy() for k, v in variables.items()}

    def equal(self, tensors, names):
        for name in names:
            np.testing.assert_array_equal(self.after[name], tensors[name], err_msg=name)

    def fresh(self, names):
        for name in names:
            np.testing.assert_array_equal(self.after[name], self.before[name])


def under(names, *prefixes):
    return {name for name in names if name.startswith(prefixes)}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A recorded model with its vocabulary and settings beside it."""
    out = tmp_path_factory.mktemp("exported") / "o"
    return tf1.write_tf1(golden("electra_tiny"), "all", out, **quiet)


@pytest.mark.parametrize(
    "form", by_default(["prefix", "tf1", "huggingface"], ["prefix", "tf1"])
)
def test_all_weights_are_loaded_from_every_format(exported, tmp_path, form):
    stored = golden("electra_tiny")
    path = prefix_of("electra_tiny")
    if form == "tf1":
        path = exported
    elif form == "huggingface":
        path = huggingface.write_huggingface(stored, "all", tmp_path / "o", **quiet)
    started = Started(path)
    started.equal(stored.tensors, stored.tensors)
    report = started.report
    assert set(report.loaded) == set(stored.tensors)
    assert not (report.changed or report.initialised or report.left_out)
    text = "\n".join(started.log)
    assert "Loaded: electra/" in text and "generator_predictions/ 5" in text
    assert ("No vocabulary lies beside" in text) == (form == "prefix")


def test_electric_from_electra_keeps_encoder_and_head():
    stored = golden("electra_tiny")
    started = Started(
        prefix_of("electra_tiny"), electric_objective=True, electra_objective=False
    )
    kept = under(stored.tensors, "electra/", "discriminator_predictions/")
    started.equal(stored.tensors, kept)
    assert set(started.report.loaded) == kept
    new = under(started.after, "generator_ltr/", "generator_rtl/", "cloze_predictions/")
    assert new and set(started.report.initialised) == new
    started.fresh(new)
    gone = under(stored.tensors, "generator/", "generator_predictions/")
    assert set(started.report.left_out) == gone
    assert any(line.startswith("Initialised: generator_ltr/") for line in started.log)


@pytest.mark.parametrize("rows", by_default([200, 50], [200]))
def test_position_table_grows_by_repetition(rows):
    stored = golden("electra_tiny")
    table = stored.tensors[POSITIONS]
    assert len(table) == 80
    started = Started(
        prefix_of("electra_tiny"),
        max_seq_length=min(rows, 128),
        overrides={"max_position_embeddings": rows},
    )
    found = started.after[POSITIONS]
    assert len(found) == rows
    for i in range(rows):
        np.testing.assert_array_equal(found[i], table[i % 80])
    assert list(started.report.changed) == [POSITIONS]
    assert f"80 rows there, {rows} here" in started.report.changed[POSITIONS]
    rest = set(stored.tensors) - {POSITIONS}
    started.equal(stored.tensors, rest)


def test_rows_of_another_vocabulary_are_matched_by_token(exported, tmp_path):
    stored = golden("electra_tiny")
    old = list(stored.vocab.tokens)
    new = [*old[:5], "brandnew", *reversed(old[7:]), "brandnewer"]
    (tmp_path / "vocab.txt").write_text("".join(f"{t}\n" for t in new))
    started = Started(exported, vocab=str(tmp_path / "vocab.txt"))
    for name in (WORDS, BIAS):
        for i, token in enumerate(new):
            theirs = (
                stored.tensors[name][old.index(token)]
                if token in old
                else started.before[name][i]
            )
            np.testing.assert_array_equal(started.after[name][i], theirs)
        how = started.report.changed[name]
        assert "998 rows matched by token, 2 new ones initialised, 2 left out" in how
    assert set(started.report.changed) == {WORDS, BIAS}


def test_without_the_other_vocabulary_sizes_must_agree(tmp_path):
    other = write_tokens(tmp_path / "vocab.txt", golden("mlm").vocab.tokens[:900]).path
    with pytest.raises(UserError, match="1000 word embeddings.* 900 tokens"):
        Started(prefix_of("electra_tiny"), vocab=other)


def test_incomplete_parts_are_refused(tmp_path):
    stored = golden("electra_tiny")
    for gone in ("electra/embeddings_project/bias", "generator_predictions/dense/bias"):
        tensors = {k: v for k, v in stored.tensors.items() if k != gone}
        prefix = tmp_path / gone.replace("/", "_")
        tf1.save_tensors(prefix, stored._replace(tensors=tensors))
        with pytest.raises(UserError, match=f"has no {gone}"):
            Started(prefix)
    tensors = under(stored.tensors, "electra/")
    encoder = stored._replace(tensors={k: stored.tensors[k] for k in tensors})
    tf1.save_tensors(tmp_path / "encoder", encoder)
    started = Started(tmp_path / "encoder")
    assert set(started.report.loaded) == tensors
    started.equal(stored.tensors, tensors)
    started.fresh(set(started.after) - tensors)


@pytest.mark.parametrize(
    ("scope", "overrides", "changes"),
    [
        ("electra", {"num_hidden_layers": 1}, {}),
        ("generator", {}, {"generator_layers": 0.5}),
    ],
)
def test_fewer_layers_than_the_source_are_refused(scope, overrides, changes):
    with pytest.raises(UserError, match=f"{scope}/encoder/layer_[12]/") as error:
        Started(prefix_of("electra_tiny"), overrides=overrides, **changes)
    message = str(error.value)
    assert "num_hidden_layers" in message and "generator_layers" in message
    assert len(message.splitlines()) <= 3


MORE = LONG | {"num_train_steps": 300}
WHOLE = make(num_train_steps=900, max_seq_length=64, train_batch_size=16)


@pytest.mark.parametrize(
    "begun, step, parts, words",
    [
        # Later phases and the end of the current one may change.
        (make(SHORT, LONG), 500, [SHORT, MORE], None),
        (make(SHORT, LONG), 500, [SHORT | {"learning_rate": 1e-5}], None),
        (make(SHORT, LONG), 500, [SHORT | {"num_train_steps": 500}, LONG], None),
        (make(SHORT, LONG), 900, [SHORT | {"num_train_steps": 950}, LONG], None),
        (make(SHORT, LONG), 901, [SHORT, MORE], None),
        (make(SHORT, LONG), 901, [SHORT, LONG, SHORT], None),
        (make(SHORT, LONG), 901, [SHORT, LONG | {"train_batch_size": 4}], None),
        (make(SHORT, LONG), 1000, [SHORT, MORE], None),
        # A run without phases is one phase.
        (WHOLE, 5, [SHORT, LONG], None),
        (WHOLE, 900, [SHORT, LONG], None),
        (WHOLE, 900, [SHORT | {"learning_rate": 0.9}, LONG], "learning_rate 0.0005"),
        # Finished phases cannot be changed.
        (make(SHORT, LONG), 500, [SHORT | {"num_train_steps": 400}, LONG], "400"),
        (make(SHORT, LONG), 901, [SHORT | {"num_train_steps": 950}, LONG], "950"),
        (make(SHORT, LONG), 901, [SHORT | {"max_seq_length": 128}, LONG], "128"),
        (make(SHORT, LONG), 901, [LONG | {"num_train_steps": 900}, LONG], "256"),
        (make(SHORT, LONG), 900, [SHORT | {"train_batch_size": 4}, LONG], "size 16"),
        (
            make(SHORT, LONG),
            500,
            [SHORT | {"num_train_steps": 500, "train_batch_size": 4}, LONG],
            "train_batch_size 16",
        ),
    ],
)
def test_changes_of_a_begun_run(begun, step, parts, words):
    stored, config = begun.settings(), make(*parts)
    if words is None:
        start.check_passed(stored, config, step)
    else:
        words = f"phase 1 of this run, which is at step {step}", words
        refused(lambda: start.check_passed(stored, config, step), *words)
