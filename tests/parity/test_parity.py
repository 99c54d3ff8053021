# SPDX-License-Identifier: Apache-2.0
"""Our numbers against the original's recordings; wrong numbers are noticed."""

import collections
import functools
import importlib
import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from tests.helpers.runs import GOLDEN
from tests.parity import parity
from tests.parity.rows import compare

BIAS = "generator_predictions/dense/bias"
WORDS = "electra/embeddings/word_embeddings"
RECORDINGS = list(parity.recordings([str(GOLDEN)]))


def name_of(value: str) -> str:
    return os.path.relpath(value, GOLDEN) if os.path.isabs(value) else value


@functools.cache
def replay(directory, module) -> list:
    rows = importlib.import_module(f"tests.parity.{module}").replay(str(directory))
    return list(rows)


@pytest.mark.parametrize(("directory", "module"), RECORDINGS, ids=name_of)
def test_recording(directory, module):
    rows = replay(directory, module)
    assert rows
    beyond = [row for row in rows if not parity.within(row)]
    assert not beyond, "\n".join(
        f"{row.quantity}: {row.deviation:.3g} / {row.tolerance:.3g}" for row in beyond
    )


def test_every_kind_of_recording_is_replayed():
    found = {name_of(directory).split(os.sep)[0] for directory, _ in RECORDINGS}
    assert found >= {"pretrain", "tokenization", "examples", "misc"}
    replayed = {module for _, module in RECORDINGS}
    assert replayed == {m for modules in parity.REPLAYERS.values() for m in modules}
    recorded = [name for name, _ in RECORDINGS if "/pretrain/" in name]
    assert len(recorded) == 8


def quantities(name) -> collections.Counter:
    """Number of quantities compared per group of golden/pretrain or golden/misc."""
    return collections.Counter(
        row.quantity.partition("/")[0]
        for directory, module in RECORDINGS
        if name_of(directory) == name
        for row in replay(directory, module)
    )


def test_electric_compares_everything_that_was_recorded():
    golden = np.load(GOLDEN / "pretrain" / "electric" / "forward.npz")
    metrics = sum(key.startswith("metric_") for key in golden.files)
    variables = len(np.load(GOLDEN / "pretrain" / "electric" / "grads.npz").files)
    groups = quantities("pretrain/electric")
    assert groups["gradient"] == variables + 1  # and the global norm
    assert groups["metrics"] == metrics == 8
    assert groups["generator_ltr"] == groups["generator_rtl"] == 3
    assert groups["steps"] > 2 * variables


def test_misc_compares_everything_that_can_be():
    with open(GOLDEN / "misc" / "schedules.json", encoding="utf-8") as file:
        schedules = len(json.load(file))
    groups = quantities("misc")
    assert groups["schedule"] == schedules == 18
    assert groups["num_to_predict"] == 5
    assert groups["masking_statistics"] >= 2 * (32 + 2)
    assert {"scatter_update", "gather_positions", "gelu", "layer_norm", "roll"} < set(
        groups
    )


def perturb(path: pathlib.Path, key: str, amount: float):
    """Changes one number of an .npz by `amount`."""
    arrays = dict(np.load(path))
    changed = arrays[key].copy()
    # Changes the last number: the first ones often stand for padding or step 0.
    changed.flat[-1] += np.asarray(amount, changed.dtype)
    arrays[key] = changed
    np.savez(path, **arrays)


# Recording, file, array, what is added, start of the quantity that is then beyond.
PERTURBED = [
    ("pretrain/mlm", "forward.npz", "mlm_loss", 1e-3, "loss/mlm"),
    ("pretrain/mlm", "forward.npz", "gen_sequence_output", 1e-3, "generator/sequence"),
    ("pretrain/mlm", "forward.npz", "metric_masked_lm_loss", 1e-3, "metrics/"),
    ("pretrain/mlm", "grads.npz", "generator_predictions/output_bias", 1e-3, "grad"),
    ("pretrain/mlm", "steps.npz", f"slots/{BIAS}/adam_m", 1e-3, f"steps/{BIAS}/adam_m"),
    ("pretrain/mlm", "steps.npz", f"values/{WORDS}", 1e-3, f"steps/{WORDS}"),
    ("pretrain/mlm", "steps.npz", "steps/learning_rate", 1e-8, "steps/2/learning_rate"),
    ("misc", "helpers.npz", "scatter/int_out", 1, "scatter_update/ids"),
    ("misc", "helpers.npz", "gelu/dy_dx", 1e-3, "gelu/derivative"),
    ("misc", "helpers.npz", "layer_norm/y", 1e-3, "layer_norm/value"),
    ("misc", "helpers.npz", "layer_norm/d_sumsq_dgamma", 1e-3, "layer_norm/dgamma"),
    ("misc", "helpers.npz", "roll/minus1", 1e-3, "roll/before"),
    ("misc", "helpers.npz", "attention_mask/out", 1, "attention_bias/"),
    ("misc", "helpers.npz", "num_to_predict/p0.15_L512", 1, "num_to_predict/"),
    ("misc", "schedules.npz", "power2/lr", 1e-8, "schedule/power2"),
    ("misc", "schedules.npz", "layerwise_n3_d0.8/lr", 1e-8, "schedule/layerwise"),
]


def beyond_of(folder, module) -> list[str]:
    rows = replay(folder, module)
    return sorted(row.quantity for row in rows if not parity.within(row))


@pytest.mark.parametrize("recording", ["pretrain/mlm", "misc"])
def test_each_kind_of_quantity_can_fail(tmp_path, recording):
    """Exactly the quantities whose recorded numbers were changed are then beyond."""
    copy = tmp_path / "copy"
    shutil.copytree(GOLDEN / recording, copy)
    expected = []
    for where, file, key, amount, quantity in PERTURBED:
        if where == recording:
            perturb(copy / file, key, amount)
            expected.append(quantity)
    module = "pretraining"
    if recording == "misc":
        module = "helper_functions"
        path = copy / "masking_statistics.json"
        recorded = json.loads(path.read_text(encoding="utf-8"))
        recorded["stats"]["row0"]["position_selection_rate"][3] *= 1.25
        recorded["stats"]["row1"]["mean_distinct_positions"] = 3.0
        recorded["stats"]["row1"]["mean_number_of_MASK_added"] *= 0.97
        path.write_text(json.dumps(recorded), encoding="utf-8")
        changed = ("row0/position_3", "row1/distinct_positions", "row1/mask_tokens")
        expected += [f"masking_statistics/{name}" for name in changed]
    beyond = beyond_of(copy, module)
    assert len(beyond) == len(expected), beyond
    for name, prefix in zip(beyond, sorted(expected), strict=True):
        assert name.startswith(prefix)


def test_changed_inputs_of_the_model_are_beyond_and_reported(tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(GOLDEN / "pretrain" / "uniform", copy)
    perturb(copy / "forward.npz", "masked_input_ids", 1)
    perturb(copy / "forward.npz", "masked_lm_weights", 1)
    assert parity.main([str(copy)]) == 1
    printed = capsys.readouterr().out
    reported = [x.split()[0] for x in printed.splitlines() if "BEYOND" in x]
    assert {"masking/masked_input_ids", "masking/masked_lm_weights"} < {*reported}
    assert f"{len(reported)} beyond their tolerance" in printed


def test_nan_and_other_shapes_are_beyond():
    for ours, golden in ((np.nan, 1.0), (1.0, np.nan), (np.inf, 1.0)):
        assert not parity.within(compare("x", [ours], [golden], atol=1e9))
    assert not parity.within(compare("x", [1.0, 1.0], [1.0], atol=1e9))


def test_directories_without_recordings_are_errors(tmp_path, capsys):
    with pytest.raises(SystemExit, match="nowhere is not a directory"):
        parity.main([str(tmp_path / "nowhere")])
    assert parity.main([str(tmp_path)]) == 1
    assert "no recording found" in capsys.readouterr().out
