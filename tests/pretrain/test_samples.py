# SPDX-License-Identifier: Apache-2.0
"""Samples of a run: they are what the model computes."""

import json

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.util.event_pb2 import Event

from electra_tf.inference import html_report
from electra_tf.pretrain import run
from electra_tf.pretrain.objectives import objective_of
from electra_tf.text.vocabulary import Vocabulary
from electra_tf.train.reporting import SAMPLES, Journal
from tests.helpers.forked_runs import metrics_of, pretrain
from tests.helpers.runs import tiny
from tests.helpers.tiny_pretraining import (
    CLS,
    MASK,
    SEP,
    VOCAB_SIZE,
    shared_model,
    shared_output,
    tiny_batch,
    tiny_model,
)


@pytest.fixture
def vocab(tmp_path):
    tokens = [f"w{i}" for i in range(VOCAB_SIZE)]
    tokens[0], tokens[CLS], tokens[SEP] = "[PAD]", "[CLS]", "[SEP]"
    tokens[MASK], tokens[1] = "[MASK]", "[UNK]"
    (tmp_path / "vocab.txt").write_text("".join(f"{t}\n" for t in tokens))
    return Vocabulary.load(str(tmp_path / "vocab.txt"))


def texts_of(folder):
    """(step, tag, text) of TensorBoard's events."""
    for path in (folder / "tensorboard" / "samples").iterdir():
        for record in tf.data.TFRecordDataset(str(path)):
            event = Event.FromString(record.numpy())
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "text"
                text = tf.make_ndarray(value.tensor)[0].decode()
                yield event.step, value.tag, text


def sampler(model, vocab, folder, batch=tiny_batch, objective=None, is_chief=True):
    journal = Journal(folder, SAMPLES, "samples", 0, is_chief)
    return run.Samples(model, objective, batch, vocab, journal)


def test_samples_are_what_the_model_computes(vocab, tmp_path):
    model, batch = shared_model(), tiny_batch()
    once = iter([batch])
    look = sampler(model, vocab, tmp_path, lambda: next(once))
    assert not look(5) and not look(10)
    first, second = (json.loads(line) for line in (tmp_path / SAMPLES).open())
    assert (first["step"], second["step"]) == (5, 10)
    assert first["passages"] == second["passages"]
    output = shared_output()
    replaced = []
    for row, passage in enumerate(first["passages"]):
        ids, probs = batch["input_ids"][row].numpy(), output.discriminated.probs[row]
        shown = np.flatnonzero(~np.isin(ids, [0, CLS, SEP]))
        assert [token[0] for token in passage] == [vocab.tokens[i] for i in ids[shown]]
        for place, (_, probability, *replacement) in zip(shown, passage, strict=True):
            assert probability == pytest.approx(float(probs[place]), abs=1e-4)
            assert bool(replacement) == bool(output.is_replaced[row, place])
            if replacement:
                replaced.append((vocab.tokens[ids[place]], probability, *replacement))
                number = int(output.corrupted_ids[row, place])
                assert replacement == [vocab.tokens[number]]
    (step, tag, text), _ = texts_of(tmp_path)
    assert (step, tag) == (5, "samples")
    assert replaced
    for token, probability, replacement in replaced:
        assert f" [{token}→{replacement} {probability:.0%}]" in text
    assert look.journal.has(5) and not look.journal.has(6)
    # Samples after the checkpoint that a run is resumed from are cut off.
    assert not Journal(tmp_path, SAMPLES, "samples", 9, True).has(10)


def test_the_first_of_two_stages_has_no_discriminator(vocab, tmp_path):
    model = tiny_model("two_stage")
    first = objective_of("mlm", model.hparams)
    look = sampler(model, vocab, tmp_path, objective=first)
    assert not look(5) and not look.journal.has(5)
    look = sampler(model, vocab, tmp_path)
    assert not look(10) and look.journal.has(10)
    # Only the chief writes.
    look = sampler(model, vocab, tmp_path / "other", is_chief=False)
    assert not look(5) and not (tmp_path / "other").exists()


@pytest.mark.thorough
def test_samples_do_not_change_a_run_and_are_in_the_report(tiny_data):
    hparams = tiny(num_train_steps=8)
    for name, more in (("unseen", {}), ("seen", {"sample_steps": 4})):
        run = pretrain(tiny_data, name, hparams | more).wait()
        assert run.returncode == 0, run.stderr
    unseen, seen = (tiny_data / "models" / name for name in ("unseen", "seen"))
    assert metrics_of(unseen) == metrics_of(seen)
    html_report.write_report(seen, [], seen / "report.html")
    page = (seen / "report.html").read_text()
    assert page.count('class="passage"') == 2
    assert '<p class="summary">Step 4</p>' in page and "Step 8" in page
    assert sorted(step for step, _, _ in texts_of(seen)) == [4, 8]
