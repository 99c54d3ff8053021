# SPDX-License-Identifier: Apache-2.0
"""The list of what to measure first on a GPU, with TensorFlow and with JAX alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import without_tensorflow
from tests.helpers.benchmarks import BENCHMARKS, PYTHON, compilers, ok, refused, run
from tests.helpers.runs import pretrain, tiny

pytestmark = pytest.mark.accelerators

SHORT_LIST = (
    "--only=electra_small-128x128-(mixed_bfloat16|float32)$",
    "--steps=1",
    "--hparams="
    + json.dumps(
        {
            "max_seq_length": 16,
            "train_batch_size": 2,
            "vocab_size": 300,
            "embedding_size": 8,
            "generator_hidden_size": 0.5,
            "model_hparam_overrides": {
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
            },
        }
    ),
)


NAMES = ["electra_small-128x128-mixed_bfloat16", "electra_small-128x128-float32"]


def rows_of(printed: str) -> list[list[str]]:
    """The cells of the rows of the list that were measured."""
    lines = [line for line in printed.splitlines() if line.startswith("| electra_")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


@pytest.mark.thorough
def test_the_first_hour_with_tensorflow(tmp_path):
    flags = (*SHORT_LIST, f"--profile={tmp_path / 'profile'}")
    no_gpu = {"CUDA_VISIBLE_DEVICES": "-1"}
    printed = ok(sys.executable, "gpu_first_hour.py", *flags, **no_gpu)
    rows = rows_of(printed)
    assert [row[0] for row in rows] == NAMES
    for row in rows:
        assert float(row[2]) > 0 and float(row[3].replace(",", "")) > 0
    assert rows[0][4] == "10,000"  # the goal
    assert printed.count("| TensorFlow finds no GPU") == 1
    is_profiled(printed, tmp_path / "profile")


def is_profiled(printed: str, folder: Path) -> None:
    """The steps of the first row are, and no others."""
    last = f"Five steps of {NAMES[0]}: {folder}, without kernels of a GPU."
    assert printed.splitlines()[-1] == last
    [profile] = folder.rglob("*.xplane.pb")
    assert profile.stat().st_size > 1000


@pytest.mark.thorough
def test_a_profiler_that_fails_costs_no_row(tmp_path):
    (tmp_path / "plugins").touch()  # would be a folder of the profile
    (tmp_path / "old.xplane.pb").touch()  # of another day
    os.utime(tmp_path / "old.xplane.pb", (0, 0))
    flags = (*SHORT_LIST, f"--profile={tmp_path}")
    printed = ok(sys.executable, "gpu_first_hour.py", *flags, CUDA_VISIBLE_DEVICES="-1")
    assert [float(row[2]) > 0 for row in rows_of(printed)] == [True, True]
    assert printed.splitlines()[-1].startswith("No profile: ")


def test_a_profile_that_nothing_would_make_is_refused(tmp_path):
    profile = f"--profile={tmp_path / 'profile'}"
    prepare = (*SHORT_LIST, f"--prepare={tmp_path / 'steps'}", profile)
    done = run(sys.executable, "gpu_first_hour.py", *prepare)
    refused(done, 1, "--prepare measures nothing", "--steps-dir")
    done = run(
        sys.executable, "run_compiled_step.py", f"--step-dir={tmp_path}", profile
    )
    refused(done, 1, "--profile", "--measure")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    below = (*SHORT_LIST, f"--profile={tmp_path / 'file' / 'profile'}")
    refused(run(sys.executable, "gpu_first_hour.py", *below), 73, "cannot write")


@compilers
def test_the_first_hour_with_jax_alone(tmp_path):
    first_hour = (sys.executable, "gpu_first_hour.py", *SHORT_LIST)
    prepare = (*first_hour, f"--prepare={tmp_path / 'steps'}")
    assert ok(*prepare).count(" MB") == 2
    assert ok(*prepare).count("is there.") == 2
    assert "of other --hparams" in run(*prepare, "--hparams={}").stderr
    path = tmp_path / "steps" / NAMES[0] / "step.json"
    spec = json.loads(path.read_text())
    assert spec["target"] == "gpu"
    for stale in ({"target": "cpu"}, {"format": 2}):
        path.write_text(json.dumps(spec | stale))
        refused(run(*prepare), 2, "name another --prepare")
    path.write_text(json.dumps(spec))
    (broken := tmp_path / "steps" / NAMES[1]).rename(tmp_path / "elsewhere")
    found, profile = tmp_path / "found.json", tmp_path / "profile"
    flags = (*SHORT_LIST, f"--steps-dir={tmp_path / 'steps'}", f"--json={found}")
    flags += (f"--profile={profile}",)
    alone = without_tensorflow.environment(tmp_path / "blocked")
    alone["JAX_PLATFORMS"] = "cpu"
    printed = ok(PYTHON, "gpu_first_hour.py", *flags, **alone)
    rows = rows_of(printed)
    assert float(rows[0][1]) > 0 and float(rows[0][2]) > 0
    # A row that cannot be measured says why, and is not the end of the list.
    assert rows[1][0] == broken.name and "aot_compile.py" in rows[1][1]
    assert len(json.loads(found.read_text())) == 2
    before = json.loads(found.read_text())[NAMES[0]]
    conditions = before["conditions"]
    assert conditions["device"] == "cpu" and conditions["version"].startswith("JAX ")
    assert conditions["step_sha256"] == spec["step_sha256"]
    assert printed.count("lowered for gpu, the device is a cpu") == 1
    is_profiled(printed, profile)
    # What was measured is kept; what failed is tried again.
    (tmp_path / "elsewhere").rename(broken)
    again = rows_of(ok(PYTHON, "gpu_first_hour.py", *flags[:-1], **alone))
    assert [row[0] for row in again] == NAMES and float(again[1][1]) > 0
    after = json.loads(found.read_text())
    assert after[NAMES[0]] == before and "step_ms" in after[NAMES[1]]


LOSSES = """
import json, sys
from electra_tf import startup
startup.import_tensorflow()
import preparation
from electra_tf.config.pretraining import PretrainingConfig

data, hparams = sys.argv[1:]
config = PretrainingConfig.from_hparams(data, "alike", json.loads(hparams))
vocab = preparation.write_data(config, 64)
loop, _ = preparation.make_loop(config, vocab=vocab)
print(json.dumps([loop(1) for _ in range(3)]))
"""


@pytest.mark.thorough
def test_rows_of_tensorflow_read_what_run_pretraining_reads(tmp_path):
    hparams = tiny(vocab_size=300, num_train_steps=3)
    done = subprocess.run(
        [sys.executable, "-c", LOSSES, str(tmp_path), json.dumps(hparams)],
        env=os.environ | {"PYTHONPATH": str(BENCHMARKS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    trained = pretrain(tmp_path, "alike", hparams)
    assert trained.returncode == 0, trained.stderr
    lines = (tmp_path / "models/alike/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == pytest.approx(losses, rel=1e-4)


# The script with a stand-in for the device and for the processes that measure.
LIST = """
import json, sys
import gpu_first_hour as script
from electra_tf.errors import UserError

device, failing, cut, *flags = sys.argv[1:]
measured = []

def in_process(row, seconds, profile):
    measured.append(row.name)
    if row.name == cut:
        script.time.monotonic = lambda: 1e12
    if row.name in (failing, cut):
        return {"failed": "no room", "notes": []}
    times = {"step_ms": [1.0], "step_with_input_ms": [2.0], "compile_s": 3.0}
    rate = {"sequences_per_s_with_input": 4.0, "peak_bytes": None}
    return times | rate | {"notes": ["a note"]}

script.in_process = in_process
script.device_here = lambda: {"device": device, "version": "1"}
script.FLAGS(["script", *flags])
code = script.main(None)
print(json.dumps(measured))
sys.exit(code)
"""
FIRST, SECOND, THIRD = "electra_small", "electra_base", "electric_small"


def listed(tmp_path, *flags, device="H100", failing="", cut="") -> tuple[list, str]:
    """The models of the rows that were measured, in this order; what was printed."""
    names = [name and f"{name}-128x128-mixed_bfloat16" for name in (failing, cut)]
    only = "--only=(electra_small|electra_base|electric_small)-128x128-mixed_bfloat16$"
    done = subprocess.run(
        [sys.executable, "-c", LIST, device, *names, only, *flags],
        env=os.environ | without_tensorflow.environment(tmp_path / "blocked"),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return [], done.stderr
    *printed, measured = done.stdout.splitlines()
    models = [name.partition("-")[0] for name in json.loads(measured)]
    return models, "\n".join(printed)


def test_the_list_goes_on_where_its_file_ends(tmp_path):
    found = f"--json={tmp_path / 'found.json'}"
    # A row that only the end of the list has cut short is none that failed.
    assert listed(tmp_path, found, cut=SECOND)[0] == [FIRST, SECOND]
    assert len(json.loads((tmp_path / "found.json").read_text())) == 1
    models, printed = listed(tmp_path, found, failing=SECOND)
    assert models == [SECOND, THIRD]
    assert printed.count("| 4 |") == 2 and printed.count("| a note |") == 1
    # One that failed is tried again, but keeps none of the others waiting.
    new = json.loads((tmp_path / "found.json").read_text())
    del new["electric_small-128x128-mixed_bfloat16"]
    (tmp_path / "found.json").write_text(json.dumps(new))
    assert listed(tmp_path, found)[0] == [THIRD, SECOND]
    models, printed = listed(tmp_path, found)
    assert models == [] and printed.count("| 4 |") == 3


def test_a_file_of_other_numbers_is_not_gone_on_with(tmp_path):
    path = tmp_path / "found.json"
    found = f"--json={path}"
    listed(tmp_path, found)
    before = path.read_bytes()
    others = {
        "device is 'H100' there, 'H200' here": {"device": "H200"},
        "steps is 30 there, 5 here": {"flags": ["--steps=5"]},
        "learning_rate is 0.0005 there, 0.1 here": {
            "flags": ['--hparams={"learning_rate": 0.1}']
        },
    }
    for text, changes in others.items():
        flags = changes.pop("flags", [])
        _, said = listed(tmp_path, found, *flags, **changes)
        assert text in said and "another --json" in said
    # Its own rows are others, but the file would have rows of both.
    _, said = listed(tmp_path, found, "--only=electra_large", device="H200")
    assert "'H200' here" in said
    assert path.read_bytes() == before
    path.write_text("[]")
    assert "cannot be read" in listed(tmp_path, found)[1]
