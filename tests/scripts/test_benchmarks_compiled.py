# SPDX-License-Identifier: Apache-2.0
"""A step compiled elsewhere: what the compilers make of it; that it trains alike."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.benchmarks import BENCHMARKS, PYTHON, compilers, ok, refused, run
from tests.helpers.runs import TINY, pretrain, tiny

STEPS = 50
HPARAMS = tiny(num_train_steps=STEPS + 5, save_checkpoints_steps=STEPS)

pytestmark = pytest.mark.accelerators


def run_step(folder: Path, *flags) -> subprocess.CompletedProcess:
    flags = (f"--step-dir={folder}", *flags)
    return run(PYTHON, "run_compiled_step.py", *flags, JAX_PLATFORMS="cpu")


@pytest.fixture(scope="module")
def step(tiny_data, tmp_path_factory) -> Path:
    """The step of a run that has its first checkpoint and no step."""
    begun = pretrain(tiny_data, "compiled", HPARAMS, "--max-wall-time=0")
    assert begun.returncode == 42, begun.stderr
    folder = tmp_path_factory.mktemp("compiled") / "step"
    flags = (f"--data-dir={tiny_data}", "--model-name=compiled")
    ok(sys.executable, "aot_compile.py", *flags, f"--output-dir={folder}")
    return folder


def metrics_of(run_directory: Path) -> list[dict]:
    lines = (run_directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def tensors_of(run_directory: Path, step: int) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(run_directory / f"model.ckpt-{step}"))
    return {
        name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()
    }


@compilers
@pytest.mark.parametrize("python", [Path(sys.executable), PYTHON], ids=["cpu", "tpu"])
@pytest.mark.parametrize("platform", ["tpu-v5e", "h200"])
def test_the_compilers_take_the_whole_step(platform, python, tmp_path):
    hparams = json.dumps(TINY | {"precision": "mixed_bfloat16", "vocab_size": 300})
    flags = (f"--platform={platform}", f"--hparams={hparams}")
    flags += (f"--output-dir={tmp_path / 'step'}", f"--json={tmp_path / 'found.json'}")
    printed = ok(python, "aot_compile.py", *flags, f"--compiler-python={PYTHON}")
    assert "Compiled, not run" in printed and "Roofline" in printed
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["kernels"] == ("TPU" if python == PYTHON else "CPU")
    assert found["aliased"] == found["variables"] > 100
    none = ("while", "conditional", "infeed", "outfeed", "send", "recv")
    assert {name: found["ops"][name] for name in none} == dict.fromkeys(none, 0)
    assert not [name for name in found["custom_calls"] if "callback" in name]
    assert found["ops"]["fusion"] > 50
    assert found["state_bytes"] < found["peak_bytes"] < 1e9
    assert found["flops"] > 1e6 and found["bytes"] > found["state_bytes"]
    assert sum(found["parts"].values()) == pytest.approx(1)
    assert "optimizer" in found["parts"]


def array(*sizes: int) -> bytes:
    """The sizes of an array, as an HLO module in a file has them (protobuf)."""
    varints = b""
    for size in sizes:
        while size > 127:
            varints += bytes([size & 127 | 128])
            size >>= 7
        varints += bytes([size])
    return bytes([3 << 3 | 2, len(varints)]) + varints


@pytest.mark.parametrize(
    ("target", "rows"),
    [(None, 512), pytest.param("cpu", 128, marks=pytest.mark.thorough)],
)
def test_a_step_that_travels_has_the_form_of_its_target(target, rows, tmp_path):
    """A GPU's by default: the softmax of Electric has more rows at a time."""
    electric = {"electra_objective": False, "electric_objective": True}
    hparams = json.dumps(tiny(vocab_size=300, train_batch_size=16, **electric))
    flags = (f"--hparams={hparams}", f"--output-dir={tmp_path / 'step'}")
    flags += (f"--target={target}",) * bool(target)
    # Makes nothing of what was lowered, and says what it and TensorFlow may use.
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES" > {tmp_path}/gpus\n')
    compiler.chmod(0o755)
    flags += (f"--compiler-python={compiler}",)
    printed = ok(sys.executable, "aot_compile.py", *flags, CUDA_VISIBLE_DEVICES="0,1")
    assert (tmp_path / "gpus").read_text() == "-1\n"
    spec = json.loads((tmp_path / "step" / "step.json").read_text())
    assert spec["target"] == (target or "gpu")
    assert f"in the form for {spec['target']}" in printed
    hlo = (tmp_path / "step" / "step.hlo").read_bytes()
    assert [n for n in (128, 512) if array(n, 300) in hlo] == [rows]  # scores at once


@compilers
def test_several_chips_share_the_batch(tmp_path):
    hparams = json.dumps(TINY | {"vocab_size": 300})
    flags = ("--platform=tpu-v5e", "--chips=4", f"--hparams={hparams}")
    flags += (f"--json={tmp_path / 'found.json'}",)
    printed = ok(sys.executable, "aot_compile.py", *flags)
    assert "4 x tpu-v5e" in printed and "Memory of each chip" in printed
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["ops"]["all-reduce"] + found["ops"]["all-reduce-start"]
    assert found["aliased"] == found["variables"]


LOOPS = """
import sys
import jax
import numpy as np
from jax.experimental import topologies
import aot_program

def seven_times(x):
    return jax.lax.scan(lambda x, _: (jax.numpy.tanh(x @ x), None), x, length=7)[0]

def until_large(x):
    return jax.lax.while_loop(lambda x: x[0, 0] < 9, lambda x: jax.numpy.tanh(x @ x), x)

device = jax.devices()[0]
if sys.argv[1] == "tpu":
    device = topologies.get_topology_desc("v5e:2x2", "tpu").devices[0]
place = jax.sharding.NamedSharding(
    jax.sharding.Mesh(np.array([device]), "x"), jax.sharding.PartitionSpec()
)
x = jax.ShapeDtypeStruct((256, 256), np.float32, sharding=place)
for function in (seven_times, until_large):
    program = jax.jit(function).lower(x).compile().as_text()
    lines, unknown = aot_program._executed(program)
    print(*{times for line, times in lines if "tanh" in line}, unknown)
"""


@compilers
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_a_loop_is_counted_as_often_as_it_runs(platform):
    done = subprocess.run(
        [str(PYTHON), "-c", LOOPS, platform],
        cwd=BENCHMARKS,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == "7 0\n1 1\n", done.stdout + done.stderr


@compilers
def test_it_trains_as_run_pretraining_does_and_gives_the_run_back(step, tiny_data):
    trained = pretrain(tiny_data, "at_home", HPARAMS)
    assert trained.returncode == 0, trained.stderr
    half = run_step(step, "--until=20", "--log-steps=7")
    assert half.returncode == 0, half.stderr
    assert half.stderr.count("lowered for gpu, the device is a cpu") == 1
    rest = run_step(step, f"--until={STEPS}")  # goes on from what the first has saved
    assert rest.returncode == 0, rest.stderr
    names = (f"--data-dir={tiny_data}", "--model-name=compiled")
    taken = (sys.executable, "take_back_state.py", f"--step-dir={step}", *names)
    # What cannot be written is written by the next call; nothing is left out.
    curves = tiny_data / "models" / "compiled" / "metrics.jsonl"
    curves.unlink(missing_ok=True)
    curves.mkdir()
    refused(run(*taken), 73, "metrics.jsonl")
    curves.rmdir()
    ok(*taken)

    runs = tiny_data / "models"
    rows = [metrics_of(runs / name)[:STEPS] for name in ("at_home", "compiled")]
    assert len(rows[1]) == STEPS
    for ours, theirs in zip(*rows, strict=True):
        assert set(ours) - {"time"} == set(theirs)
        for name, value in theirs.items():
            assert ours[name] == pytest.approx(value, rel=1e-5, abs=1e-5), name
    states = [tensors_of(runs / name, STEPS) for name in ("at_home", "compiled")]
    assert set(states[0]) == set(states[1])
    for name, value in states[0].items():
        np.testing.assert_allclose(states[1][name], value, atol=1e-5, err_msg=name)

    again = run(*taken)
    assert again.returncode == 2 and "nothing to take back" in again.stderr
    weights_alone_are_a_model(taken, tiny_data)
    gone_on = pretrain(tiny_data, "compiled", HPARAMS)
    assert gone_on.returncode == 0, gone_on.stderr
    assert f"Continuing from {runs}/compiled/model.ckpt-{STEPS}" in gone_on.stdout
    last = [metrics_of(runs / name)[-1] for name in ("at_home", "compiled")]
    assert last[0]["loss"] == pytest.approx(last[1]["loss"], rel=1e-4)
    only = HPARAMS | {"do_train": False, "do_eval": True}
    evaluated = pretrain(tiny_data, "compiled", only)
    assert evaluated.returncode == 0, evaluated.stderr
    assert "disc_auc = " in evaluated.stdout


def weights_alone_are_a_model(taken, data: Path) -> None:
    """They are evaluated like the run that they are of, and not trained on."""
    said = ok(*taken, "--weights-as=alone")
    assert "without the optimizer's state" in said
    runs = data / "models"
    alone, whole = (tensors_of(runs / name, STEPS) for name in ("alone", "compiled"))
    slots = {name for name in whole if name.endswith(("/adam_m", "/adam_v"))}
    assert slots and set(alone) == set(whole) - slots
    for name, value in alone.items():
        np.testing.assert_array_equal(value, whole[name])
    refused(run(*taken, "--weights-as=alone"), 2, "is there already", "--weights-as")
    refused(pretrain(data, "alone", HPARAMS), 2, "no Adam slots", "init_checkpoint")
    only = HPARAMS | {"do_train": False, "do_eval": True}
    found = [pretrain(data, name, only).stdout for name in ("alone", "compiled")]
    losses = [re.search(r"^.*disc_loss = .*$", text, re.M)[0] for text in found]
    assert losses[0] == losses[1]


@compilers
def test_only_its_own_run_gets_a_state_back(step, tiny_data, tmp_path):
    for path in step.iterdir():
        if path.name != "run.lock":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    state = dict(np.load(step / "initial_state.npz"))
    np.savez(tmp_path / "state.npz", **state | {"global_step": np.int64(99)})
    take = (sys.executable, "take_back_state.py", f"--step-dir={tmp_path}")
    data = f"--data-dir={tiny_data}"
    refused(run(*take, data, "--model-name=other"), 2, "is of compiled", "other")
    assert not (tiny_data / "models" / "other").exists()
    refused(run(*take, f"--data-dir={tmp_path}", "--model-name=compiled"), 2, "no ")
    assert not (tmp_path / "models").exists()
    spec = json.loads((tmp_path / "step.json").read_text())
    assert spec["of_run"]["seed"] == spec["settings"]["seed"]
    another = spec | {"of_run": spec["of_run"] | {"seed": 7}}
    (tmp_path / "step.json").write_text(json.dumps(another))
    compiled = (data, "--model-name=compiled")
    refused(run(*take, *compiled), 2, "another run", "seed is 42 here, 7 there")
    (tmp_path / "step.json").write_text(json.dumps(spec))
    name = next(name for name in state if name.endswith("/adam_m"))
    np.savez(tmp_path / "state.npz", **{k: v for k, v in state.items() if k != name})
    for done in (run(*take, *compiled), run_step(tmp_path)):
        refused(done, 65, f"{name} is missing")
    (tmp_path / "state.npz").write_bytes(b"")
    for done in (run(*take, *compiled), run_step(tmp_path)):
        refused(done, 65, "state.npz is damaged")
    (tmp_path / "step.json").write_text("[]")
    refused(run_step(tmp_path), 2, "has format None")


@compilers
def test_a_signal_saves_and_the_same_command_goes_on(step, tmp_path):
    folder = tmp_path / "step"
    folder.mkdir()
    for path in step.iterdir():
        if path.name not in ("state.npz", "metrics.jsonl", "run.lock"):
            (folder / path.name).write_bytes(path.read_bytes())
    spec = json.loads((folder / "step.json").read_text())
    text = json.dumps(spec | {"num_train_steps": 10**6})
    (folder / "step.json").write_text(text)
    command = [str(PYTHON), str(BENCHMARKS / "run_compiled_step.py"), "--log-steps=5"]
    command.append(f"--step-dir={folder}")
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        for line in process.stdout:
            if line.startswith(b"step 10/"):
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
    assert process.returncode == 42
    saved = int(np.load(folder / "state.npz")["global_step"])
    assert saved == len(metrics_of(folder)) >= 10
    done = run_step(folder, f"--until={saved + 3}")
    assert f"saved at step {saved + 3}" in done.stdout, done.stderr


@compilers
def test_measuring_needs_no_run_and_writes_nothing(tmp_path):
    folder = tmp_path / "step"
    hparams = json.dumps(TINY | {"vocab_size": 300, "precision": "mixed_float16"})
    flags = (f"--hparams={hparams}", f"--output-dir={folder}")
    ok(sys.executable, "aot_compile.py", "--target=cpu", *flags)
    before = sorted(path.name for path in folder.iterdir())
    measured = run_step(folder, "--measure", "--steps=2")
    assert "lowered for" not in measured.stderr
    found = json.loads(measured.stdout)
    assert found["device"] == found["target"] == "cpu" and len(found["step_ms"]) == 5
    assert np.isfinite(found["loss"]).all() and found["sequences_per_s_with_input"] > 0
    assert sorted(path.name for path in folder.iterdir()) == before
    refused = run_step(folder)
    assert refused.returncode == 2
    assert "written without a run" in refused.stderr
    assert "Traceback" not in refused.stderr


@compilers
def test_a_damaged_state_is_refused(step, tmp_path):
    for name in ("step.json", "step.jax", "tokens.npz"):
        (tmp_path / name).write_bytes((step / name).read_bytes())
    whole = (step / "initial_state.npz").read_bytes()
    middle = len(whole) // 2
    for damaged in (whole[:middle], whole[:middle] + bytes(64) + whole[middle + 64 :]):
        (tmp_path / "initial_state.npz").write_bytes(damaged)
        done = run_step(tmp_path)
        assert done.returncode == 65 and "is damaged" in done.stderr
        assert "Traceback" not in done.stderr
    (tmp_path / "initial_state.npz").write_bytes(whole)
    program = (step / "step.jax").read_bytes()
    assert program.startswith(b"\x1f\x8b")  # a quarter of the room
    flipped = bytearray(program)
    flipped[len(program) // 2] ^= 1
    for damaged in (flipped, program[:-9], gzip.compress(b"another"), b""):
        (tmp_path / "step.jax").write_bytes(damaged)
        done = run_step(tmp_path)
        assert done.returncode == 65 and "step.jax is damaged" in done.stderr
        assert "Traceback" not in done.stderr
    (tmp_path / "step.jax").write_bytes(gzip.decompress(program))
    done = run_step(tmp_path, "--until=1")
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_compiled_is_said(tiny_data, tmp_path):
    flags = {
        "name a run together": [f"--data-dir={tiny_data}", "--platform=h100"],
        "nothing to do": [],
        "holds no run": [
            f"--data-dir={tmp_path}",
            "--model-name=none",
            "--platform=h100",
        ],
        "gradient_accumulation_steps is 2": [
            '--hparams={"gradient_accumulation_steps": 2}',
            "--platform=h100",
        ],
        "leave out phases, random_token_share, rare_mask_power, word_list": [
            '--hparams={"random_token_share": 0.1}',
            "--platform=h100",
        ],
        "there is no /nowhere/python": [
            "--compiler-python=/nowhere/python",
            f"--output-dir={tmp_path / 'step'}",
        ],
        "--chips is 5: tpu-v5e (v5e:2x2) has 4.": ["--platform=tpu-v5e", "--chips=5"],
    }
    for message, given in flags.items():
        done = run(sys.executable, "aot_compile.py", *given)
        assert done.returncode in (1, 2) and message in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
    python = f"--compiler-python={sys.executable}"
    done = run(sys.executable, "aot_compile.py", f"--output-dir={tiny_data}", python)
    refused(done, 73, "is in use already")


def test_a_step_that_does_not_fit_is_told_as_one(tmp_path):
    """Nothing is wrong with the compilers then."""
    compiler = tmp_path / "compiler"
    said = "JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory on HBM, 16.51G."
    compiler.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    compiler.chmod(0o755)
    flags = ("--platform=tpu-v5e", f"--compiler-python={compiler}")
    done = run(
        sys.executable, "aot_compile.py", *flags, f"--hparams={json.dumps(TINY)}"
    )
    refused(done, 2, "does not fit on tpu-v5e: Ran out of memory on HBM, 16.51G.")
    assert "train_batch_size" in done.stderr and "--accelerators" not in done.stderr
