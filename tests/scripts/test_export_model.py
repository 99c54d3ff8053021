# SPDX-License-Identifier: Apache-2.0
"""export_model.py as its users run it: conversions into formats of other libraries."""

import json

import numpy as np
import pytest

from electra_tf.interop import sources
from tests.helpers.interop_models import VOCAB, heads_of, prefix_of
from tests.helpers.runs import TINY, pretrain, run_script

quiet = {"log": lambda line: None}


def export(*flags):
    return run_script("export_model.py", *map(str, flags))


def refused(run, code, *texts):
    assert run.returncode == code, run.stderr
    assert "Traceback" not in run.stderr
    message = run.stderr[f"\n{run.stderr}".rindex("\nerror: ") :]
    assert len(message.splitlines()) <= 3
    for text in texts:
        assert text in message


@pytest.fixture(scope="module")
def run_name(tiny_data):
    done = pretrain(tiny_data, "to_export", TINY | {"num_train_steps": 2})
    assert done.returncode == 0, done.stderr
    return "to_export"


@pytest.mark.thorough
def test_torchs_triton_is_not_imported_beside_tensorflow(tiny_data, run_name, tmp_path):
    """What comes with torch for CUDA would end the process."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    (tmp_path / "triton.py").write_text("import os; os.abort()")
    done = run_script(
        *("export_model.py", "--data-dir", str(tiny_data), "--model-name", run_name),
        *("--format", "huggingface", "--output-dir", str(tmp_path / "out")),
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "verified with transformers: " in done.stdout


def test_a_run_goes_out_and_comes_back(tiny_data, run_name, tmp_path):
    pytest.importorskip("safetensors")
    source = ("--data-dir", tiny_data, "--model-name", run_name)
    done = export(*source, "--format", "tf1", "--output-dir", tmp_path / "tf1")
    assert done.returncode == 0, done.stderr
    assert "verified with electra_tf: weights, max difference 0 " in done.stdout
    assert f"Written to {tmp_path / 'tf1'}" in done.stdout
    done = export(
        "--init-checkpoint",
        tmp_path / "tf1",
        "--format",
        "huggingface",
        "--output-dir",
        tmp_path / "hf",
    )
    assert done.returncode == 0, done.stderr
    assert "discriminator/hidden" in done.stdout and "generator/hidden" in done.stdout
    original = sources.read(tiny_data / "models" / run_name, **quiet)
    through_tf1 = sources.read(tmp_path / "tf1", **quiet)
    through_both = sources.read(tmp_path / "hf", **quiet)
    assert original.step == through_tf1.step == 2
    assert original.slots and original.slots.keys() == through_tf1.slots.keys()
    for name, array in original.tensors.items():
        np.testing.assert_array_equal(through_tf1.tensors[name], array)
        np.testing.assert_array_equal(through_both.tensors[name], array)
    manifest = json.loads((tmp_path / "tf1" / "manifest.json").read_text())
    assert manifest["model"] == run_name and manifest["step"] == 2
    config = through_both.config.model_config()
    assert config == original.config.model_config()


def test_an_original_checkpoint_becomes_a_preset(tmp_path):
    pytest.importorskip("keras_hub")
    shape = json.dumps({"model_hparam_overrides": heads_of("electra_tiny")})
    done = export(
        "--init_checkpoint",
        prefix_of("electra_tiny"),
        "--vocab_file",
        VOCAB,
        "--format",
        "keras_hub",
        "--what",
        "discriminator",
        "--hparams",
        shape,
        "--output_dir",
        tmp_path / "out",
    )
    assert done.returncode == 0, done.stderr
    assert "keras_hub as it is: discriminator/hidden, max difference" in done.stdout
    assert "Left out" in done.stdout
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["discriminator"]


@pytest.mark.parametrize(
    "flags, code, texts",
    [
        (["--format", "tf1"], 1, ["--output-dir"]),
        (["--format", "pytorch", "--output-dir", "OUT"], 1, ["format"]),
        (["--format", "tf1", "--output-dir", "OUT"], 2, ["--init-checkpoint"]),
        (
            ["--format", "tf1", "--output-dir", "OUT", "--init-checkpoint", "x"]
            + ["--data-dir", "d", "--model-name", "m"],
            2,
            ["--init-checkpoint", "--data-dir"],
        ),
        (
            ["--format", "tf1", "--output-dir", "OUT", "--data-dir", "/nowhere"]
            + ["--model-name", "m"],
            2,
            ["/nowhere/models/m"],
        ),
        (
            ["--format", "tf1", "--output-dir", "OUT", "--init-checkpoint", "PICKLE"],
            2,
            ["pickle", "safetensors"],
        ),
        (
            ["--format", "tf1", "--output-dir", "USED", "--init-checkpoint", "x"],
            73,
            ["in use", "nothing is overwritten"],
        ),
        (
            ["--format", "tf1", "--output-dir", "OUT", "--init-checkpoint", "x"]
            + ["--jit-compile"],
            2,
            ["--jit-compile", "--format saved_model"],
        ),
        (
            ["--format", "hub", "--output-dir", "OUT", "--init-checkpoint", "x"]
            + ["--handle", "me/tiny", "--what", "encoder"],
            2,
            ["--what", "--format hub", "saved_model"],
        ),
        (
            ["--format", "onnx", "--output-dir", "OUT", "--init-checkpoint", "x"]
            + ["--handle", "me/tiny"],
            2,
            ["--handle", "--format onnx", "hub"],
        ),
    ],
)
def test_mistakes_are_said_in_three_lines(tmp_path, flags, code, texts):
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04 torch")
    places = {
        "OUT": tmp_path / "out",
        "USED": tmp_path,
        "PICKLE": tmp_path / "pytorch_model.bin",
    }
    refused(export(*(places.get(flag, flag) for flag in flags)), code, *texts)
    assert [p.name for p in tmp_path.iterdir()] == ["pytorch_model.bin"]
