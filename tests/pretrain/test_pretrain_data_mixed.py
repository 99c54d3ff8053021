# SPDX-License-Identifier: Apache-2.0
"""Data sets that are mixed: as a user gives them, and as batches have them."""

import functools
import json
import signal

import numpy as np
import pytest

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.data import token_counts
from electra_tf.data.permutation import batch_indices
from electra_tf.errors import UserError
from electra_tf.pretrain import pretrain_data
from electra_tf.storage.stored_tensors import of_checkpoint
from tests.helpers import forked_runs
from tests.helpers.numbered_examples import (
    LENGTH,
    VOCAB,
    batches,
    dataset,
    error_of,
    numbers_of,
    same,
    write_shards,
)
from tests.helpers.runs import pretrain, tiny, write_tiny_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The patterns of data sets of 30, 300 and 80 examples."""
    folder = tmp_path_factory.mktemp("data")
    counts = {"a": [30], "b": [100, 0, 200], "c": [80]}
    return [write_shards(folder / name, of) for name, of in counts.items()]


def numbers(data, count, **options):
    return [n for batch in batches(data, count, **options) for n in numbers_of(batch)]


def test_one_data_set_is_read_as_ever(data):
    """As a list of one, or by its pattern: batch for batch, by the same permutation."""
    plain = batches(data[1], 20)
    assert all(map(same, plain, batches([data[1]], 20)))
    assert all(map(same, plain, batches({data[1]: 0.5}, 20)))
    expected = [n for k in range(20) for n in batch_indices(k, 6, 300, 1).tolist()]
    assert [n for batch in plain for n in numbers_of(batch)] == expected


def shares(data, alpha=1.0):
    return pretrain_data.open_data(data, LENGTH, VOCAB, alpha=alpha).shares()


@pytest.mark.parametrize("alpha", [1.0, 0.7, 0.3, 0.0])
def test_shares_by_size(data, alpha):
    expected = np.array([30, 300, 80]) ** alpha
    np.testing.assert_allclose(
        shares(data, alpha), expected / expected.sum(), atol=2e-5
    )


def test_shares_by_weight(data):
    given = dict(zip(data, [1, 2.5, 0.5], strict=True))
    np.testing.assert_allclose(shares(given), np.array([1, 2.5, 0.5]) / 4, atol=2e-5)
    # Of the largest alone are numbers of 80 and more.
    found = np.array(numbers(given, 700, batch_size=100))
    assert abs((found >= 80).mean() - 2.5 / 4 * 220 / 300) < 0.01


def test_any_batch_by_itself_and_any_part_of_it(data):
    options = {"sampling_alpha": 0.5}
    straight = batches(data, 40, **options)
    for start in (1, 39):
        again = batches(data, 1, start_step=start, **options)[0]
        assert same(again, straight[start])
    parts = batches(data, 2, start_step=5, num_replicas=6, **options)
    own = dataset(
        data,
        num_batches=2,
        start_step=5,
        num_replicas=6,
        replica_slice=(1, 2),
        **options,
    )
    for one, other in zip(own.as_numpy_iterator(), parts[3:6] + parts[9:], strict=True):
        assert same(one, other)


def test_epochs_are_those_of_each_data_set(data):
    source = pretrain_data.open_data({data[0]: 1, data[1]: 3}, LENGTH, VOCAB)
    assert source.epochs() == [30 / 0.25, 300 / 0.75]
    first, second = source.describe(60, 1200)
    assert (
        first == f"{data[0]}: 25.00% of the batches, 30 examples; 0.50 of 10.00 "
        "epochs done"
    )
    assert "75.00%" in second and "0.15 of 3.00 epochs" in second


def test_a_damaged_record_is_named(tmp_path, data):
    pattern = write_shards(tmp_path, [50])
    [path] = tmp_path.glob("pretrain_data*")
    content = bytearray(path.read_bytes())
    content[-30] ^= 1
    path.write_bytes(content)
    text, code = error_of(dataset, [data[0], f"{tmp_path}/nothing*"])
    assert f"{tmp_path}/nothing*" in text and code == 2
    source = pretrain_data.open_data([data[0], pattern], LENGTH, VOCAB, True)
    assert source.num_skipped == 1 and len(source) == 79


def test_how_often_each_token_is_seen(tmp_path):
    """What a unigram generator starts from follows the shares."""
    patterns = []
    for name, size in (("a", 10), ("b", 1000)):
        patterns.append(write_shards(tmp_path / name, [size]))
        counts = np.zeros(len(VOCAB), int)
        counts[5 if name == "a" else 6] = 7 * size
        token_counts.write(str(tmp_path / name / token_counts.FILE), counts)
    found = pretrain_data.open_data(patterns, LENGTH, VOCAB, alpha=0.0).token_counts(
        len(VOCAB)
    )
    assert found[5] == found[6] == 7 * 505
    plain = pretrain_data.open_data(",".join(patterns), LENGTH, VOCAB).token_counts(
        len(VOCAB)
    )
    assert (plain[5], plain[6]) == (70, 7000)


# The hparams.


def make(hparams, config=None):
    return PretrainingConfig.from_hparams("/nowhere", "m", hparams, config)


@pytest.mark.parametrize(
    "hparams, words",
    [
        ({"pretrain_tfrecords": []}, ["pretrain_tfrecords []", "empty"]),
        ({"pretrain_tfrecords": {}}, ["pretrain_tfrecords {}", "empty"]),
        ({"pretrain_tfrecords": 3}, ["text or a list or an object"]),
        ({"pretrain_tfrecords": ["a", 3]}, ["pretrain_tfrecords", "text"]),
        ({"pretrain_tfrecords": ["a", ["b"]]}, ["pretrain_tfrecords", "text"]),
        ({"pretrain_tfrecords": ["a", "a"]}, ["twice", "{pattern: weight}"]),
        ({"pretrain_tfrecords": {"a": 0, "b": 1}}, ["weight", "above 0"]),
        ({"pretrain_tfrecords": {"a": "1"}}, ["weight", "above 0"]),
        ({"pretrain_tfrecords": {"a": True}}, ["weight", "above 0"]),
        ({"eval_tfrecords": {"a": -1}}, ["eval_tfrecords", "above 0"]),
        ({"pretrain_tfrecords": ["ftp://a"]}, ["ftp://"]),
        ({"sampling_alpha": 0.3}, ["sampling_alpha is 0.3", "one data set"]),
        (
            {"sampling_alpha": 0.3, "pretrain_tfrecords": ["a"]},
            ["sampling_alpha is 0.3", "one data set"],
        ),
        (
            {"sampling_alpha": 0.3, "pretrain_tfrecords": {"a": 1, "b": 2}},
            ["sampling_alpha is 0.3", "weights"],
        ),
        ({"sampling_alpha": 1.5, "pretrain_tfrecords": ["a", "b"]}, ["<= 1"]),
    ],
)
def test_what_cannot_be_mixed(hparams, words):
    with pytest.raises(UserError) as caught:
        make(hparams)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert len(message.splitlines()) <= 3


def test_a_later_data_set_takes_the_place_of_an_earlier_one(tmp_path):
    config = {"pretrain_tfrecords": {"a": 1.0, "b": 2.0}}
    assert make({}, config).eval_tfrecords == {"a": 1.0, "b": 2.0}
    later = make({"pretrain_tfrecords": {"c": 1.0}}, config)
    assert later.pretrain_tfrecords == {"c": 1.0}
    assert make({"pretrain_tfrecords": "d"}, config).pretrain_tfrecords == "d"
    assert (
        make(config, {"pretrain_tfrecords": "d"}).pretrain_tfrecords
        == config["pretrain_tfrecords"]
    )
    path = tmp_path / "config.json"
    bucket = make({"pretrain_tfrecords": ["s3://bucket/a*", "b"]})
    bucket.save(str(path))
    saved = json.loads(path.read_text())
    assert saved["pretrain_tfrecords"] == ["s3://bucket/a*", "b"]
    assert make({}, saved).pretrain_tfrecords == bucket.pretrain_tfrecords


def test_each_phase_may_mix():
    """`sampling_alpha` is the run's; of phases with one data set it says nothing."""
    phases = [
        {"num_train_steps": 10, "pretrain_tfrecords": ["a", "b"]},
        {"num_train_steps": 5, "pretrain_tfrecords": "c"},
        {"num_train_steps": 5, "pretrain_tfrecords": {"a": 1, "c": 3}},
    ]
    parts = make({"phases": phases, "sampling_alpha": 0.3}).run_phases()
    assert [part.config.sampling_alpha for part in parts] == [0.3, 1.0, 1.0]
    for one, part in zip(phases, parts, strict=True):
        assert part.config.pretrain_tfrecords == one["pretrain_tfrecords"]
    with pytest.raises(UserError, match="sampling_alpha is 0.3"):
        make({"phases": phases[1:], "sampling_alpha": 0.3})


@pytest.mark.thorough
def test_the_script(tmp_path):
    """Dry run, a run in two parts that ends like one, evaluation."""
    home = write_tiny_data(tmp_path / "home")
    other = write_tiny_data(tmp_path / "other", examples=40)
    patterns = [f"{d}/pretrain_tfrecords/pretrain_data*" for d in (home, other)]
    hparams = tiny(pretrain_tfrecords=patterns, sampling_alpha=0.5)
    dry = pretrain(home, "mixed", hparams, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert f"Data: {patterns[0]}: 61.26% of the batches, 100 examples" in dry.stdout
    assert f"Data: {patterns[1]}: 38.74% of the batches, 40 examples" in dry.stdout
    assert "0.00 of 0.93 epochs done" in dry.stdout
    straight = pretrain(home, "straight", hparams)
    assert straight.returncode == 0, straight.stderr
    before = functools.partial(forked_runs.signal_at, 4, signal.SIGTERM)
    short = hparams | {"iterations_per_loop": 1}
    half = forked_runs.pretrain(home, "cut", short, before=before).wait()
    assert half.returncode == 42, half.stderr
    rest = pretrain(home, "cut", hparams)
    assert rest.returncode == 0, rest.stderr
    assert "Continuing from" in rest.stdout
    one, two = (
        of_checkpoint(str(home / "models" / name / "model.ckpt-12"))
        for name in ("straight", "cut")
    )
    assert one.shapes == two.shapes
    for name in one.shapes:
        np.testing.assert_array_equal(one.get(name), two.get(name), err_msg=name)
    evaluated = pretrain(home, "cut", hparams | {"do_train": False, "do_eval": True})
    assert evaluated.returncode == 0, evaluated.stderr
