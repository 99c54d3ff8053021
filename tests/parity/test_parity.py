# SPDX-License-Identifier: Apache-2.0
"""Our numbers against the original's recordings, and that a wrong one is noticed."""

import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.helpers.runs import GOLDEN, ROOT, by_default
from tests.parity import finetune_data, helper_functions, parity, pretraining

RECORDINGS = list(parity.recordings([str(GOLDEN)]))


def name_of(value: str) -> str:
    return os.path.relpath(value, GOLDEN) if os.path.isabs(value) else value


@pytest.mark.parametrize(("directory", "module"), RECORDINGS, ids=name_of)
def test_recording(directory, module):
    rows = list(importlib.import_module(f"tests.parity.{module}").replay(directory))
    assert rows
    beyond = [row for row in rows if not parity.within(row)]
    assert not beyond, "\n".join(
        f"{row.quantity}: {row.deviation:.3g} / {row.tolerance:.3g}" for row in beyond
    )


def test_every_kind_of_recording_is_here():
    found = {name_of(directory).split(os.sep)[0] for directory, _ in RECORDINGS}
    assert found >= {"pretrain", "tokenization", "examples", "misc"}
    replayed = {module for _, module in RECORDINGS}
    assert replayed == {m for modules in parity.REPLAYERS.values() for m in modules}
    objectives = {path.name for path in (GOLDEN / "pretrain").iterdir()}
    assert objectives == {
        "disallow_correct_temperature",
        "electra_same_emb",
        "electra_tied_all",
        "electra_tiny",
        "electra_untied_embeddings",
        "electric",
        "mlm",
        "uniform",
    }


def quantities(directory) -> dict[str, int]:
    """Number of quantities compared per group of golden/pretrain or golden/misc."""
    groups: dict[str, int] = {}
    for found, module in parity.recordings([str(directory)]):
        for row in importlib.import_module(f"tests.parity.{module}").replay(found):
            group = row.quantity.partition("/")[0]
            groups[group] = groups.get(group, 0) + 1
    return groups


def test_electric_compares_everything_that_was_recorded():
    golden = np.load(GOLDEN / "pretrain" / "electric" / "forward.npz")
    metrics = sum(key.startswith("metric_") for key in golden.files)
    variables = len(np.load(GOLDEN / "pretrain" / "electric" / "grads.npz").files)
    groups = quantities(GOLDEN / "pretrain" / "electric")
    assert groups["gradient"] == variables + 1  # and the global norm
    assert groups["metrics"] == metrics == 8
    assert groups["generator_ltr"] == groups["generator_rtl"] == 3
    assert groups["steps"] > 2 * variables


def test_misc_compares_everything_that_can_be():
    with open(GOLDEN / "misc" / "schedules.json", encoding="utf-8") as file:
        schedules = len(json.load(file))
    groups = quantities(GOLDEN / "misc")
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


def run_parity(*args, cwd=None):
    return subprocess.run(
        [sys.executable, str(ROOT / "tests" / "parity" / "parity.py"), *map(str, args)],
        capture_output=True,
        text=True,
        cwd=cwd,
    )


def test_a_recording_alone_anywhere_is_enough(tmp_path):
    """parity.py reads the directory given and nothing beside it."""
    shutil.copytree(GOLDEN / "pretrain" / "uniform", tmp_path / "elsewhere")
    run = run_parity("elsewhere", cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "0 beyond their tolerance" in run.stdout
    assert "BEYOND" not in run.stdout


def test_a_changed_number_is_reported(tmp_path):
    copy = tmp_path / "uniform"
    shutil.copytree(GOLDEN / "pretrain" / "uniform", copy)
    perturb(copy / "forward.npz", "disc_logits", 1e-3)
    run = run_parity(tmp_path)
    assert run.returncode == 1
    reported = [line for line in run.stdout.splitlines() if "BEYOND" in line]
    assert len(reported) == 1
    assert reported[0].split()[0] == "discriminator/logits"
    assert "1 beyond their tolerance" in run.stdout


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\n \n"])
@pytest.mark.parametrize("split", ["train", "dev"])
def test_the_original_loses_a_sentence_that_no_blank_line_ends(tmp_path, split, end):
    source = GOLDEN / "finetune"
    for name in ("chunk", "raw/chunk"):
        shutil.copytree(source / name, tmp_path / name)
    shutil.copy(GOLDEN / "vocab_tiny.txt", tmp_path)
    text = tmp_path / "raw" / "chunk" / f"{split}.txt"
    text.write_text("a DT B-NP\ncat NN I-NP\n\nit PRP B-NP" + end)
    recording = tmp_path / "chunk" / "featurize.json"
    recorded = json.loads(recording.read_text())

    def sentences_beyond_those_recorded(count):
        recorded[split] = recorded[split][:1] * count
        recording.write_text(json.dumps(recorded))
        rows = {
            row.quantity: row for row in finetune_data.replay(str(tmp_path / "chunk"))
        }
        return rows[f"examples/{split}"].deviation

    lost = end in ("", "\n")
    assert sentences_beyond_those_recorded(2 - lost) == 0
    assert sentences_beyond_those_recorded(1 + lost) != 0


# Recording, file, array, what is added, the quantity that is then beyond.
PERTURBED = [
    ("mlm", "forward.npz", "mlm_loss", 1e-3, "loss/mlm"),
    ("mlm", "forward.npz", "masked_input_ids", 1, "masking/masked_input_ids"),
    ("mlm", "grads.npz", "generator_predictions/output_bias", 1e-3, "gradient/"),
    ("mlm", "steps.npz", "slots/generator_predictions/dense/bias/adam_m", 1e-3, ""),
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
# Each computes forward, backward and steps again.
MORE_PERTURBED = [
    ("mlm", "forward.npz", "gen_sequence_output", 1e-3, "generator/"),
    ("mlm", "forward.npz", "masked_lm_weights", 1, "masking/masked_lm_weights"),
    ("mlm", "forward.npz", "metric_masked_lm_loss", 1e-3, "metrics/"),
    ("mlm", "steps.npz", "values/electra/embeddings/word_embeddings", 1e-3, ""),
    ("mlm", "steps.npz", "steps/learning_rate", 1e-8, "steps/2/learning_rate"),
]


@pytest.mark.parametrize(
    "perturbed",
    by_default([*PERTURBED, *MORE_PERTURBED], PERTURBED),
    ids=lambda perturbed: perturbed[2],
)
def test_each_kind_of_quantity_can_fail(tmp_path, perturbed):
    """Perturbs what was recorded; exactly what belongs to it is then beyond."""
    recording, file, key, amount, quantity = perturbed
    source = GOLDEN / ("misc" if recording == "misc" else f"pretrain/{recording}")
    copy = tmp_path / recording
    shutil.copytree(source, copy)
    perturb(copy / file, key, amount)
    module = "helper_functions" if recording == "misc" else "pretraining"
    rows = importlib.import_module(f"tests.parity.{module}").replay(str(copy))
    beyond = [row.quantity for row in rows if not parity.within(row)]
    expected = [name for name in beyond if name.startswith(quantity or "steps/")]
    assert expected
    # What the model reads changes what it computes, too.
    assert key.startswith("masked_") or expected == beyond


def test_masking_frequencies_can_fail(tmp_path):
    copy = tmp_path / "misc"
    shutil.copytree(GOLDEN / "misc", copy)
    path = copy / "masking_statistics.json"
    recorded = json.loads(path.read_text(encoding="utf-8"))
    recorded["stats"]["row0"]["position_selection_rate"][3] *= 1.25
    recorded["stats"]["row1"]["mean_distinct_positions"] = 3.0
    recorded["stats"]["row1"]["mean_number_of_MASK_added"] *= 0.97
    path.write_text(json.dumps(recorded), encoding="utf-8")
    rows = helper_functions.replay(str(copy))
    assert [row.quantity for row in rows if not parity.within(row)] == [
        "masking_statistics/row0/position_3",
        "masking_statistics/row1/distinct_positions",
        "masking_statistics/row1/mask_tokens",
    ]


def test_a_number_that_is_not_one_is_beyond():
    compare = pretraining.compare
    for ours, golden in ((np.nan, 1.0), (1.0, np.nan), (np.inf, 1.0)):
        assert not parity.within(compare("x", [ours], [golden], atol=1e9))
    assert not parity.within(compare("x", [1.0, 1.0], [1.0], atol=1e9))


def test_a_directory_that_does_not_exist_is_an_error(tmp_path):
    run = run_parity(tmp_path / "nowhere")
    assert run.returncode != 0
    assert run.stderr.strip() == f"{tmp_path / 'nowhere'} is not a directory"


def test_a_directory_without_recordings_is_an_error(tmp_path, capsys):
    assert parity.main([str(tmp_path)]) == 1
    assert "no recording found" in capsys.readouterr().out


def test_report_shows_every_quantity_on_request(capsys):
    directory = str(GOLDEN / "misc")
    assert parity.main([directory]) == 0
    short = capsys.readouterr().out
    assert parity.main(["--all", directory]) == 0
    full = capsys.readouterr().out
    assert "gelu/derivative" in full
    assert len(full.splitlines()) > len(short.splitlines())
    assert "gelu/derivative" in short or "gelu/value" in short
