# SPDX-License-Identifier: Apache-2.0
"""export_model.py as its users run it: conversions into formats of other libraries."""

import json

import numpy as np
import pytest

from electra_tf.interop import sources
from tests.helpers.runs import run_script

quiet = {"log": lambda line: None}


def export(*flags, code=0, **kwargs):
    done = run_script("export_model.py", *map(str, flags), **kwargs)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.mark.thorough
def test_torchs_triton_is_not_imported_beside_tensorflow(pretrained, tmp_path):
    """The Triton of torch for CUDA would end the process."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    (tmp_path / "triton.py").write_text("import os; os.abort()")
    done = export(
        *("--data-dir", pretrained("electra"), "--model-name", "electra"),
        *("--format", "huggingface", "--output-dir", tmp_path / "out"),
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert "verified with transformers: " in done.stdout


def test_a_run_is_exported_and_read_again(pretrained, tmp_path):
    pytest.importorskip("safetensors")
    data = pretrained("electra")
    flags = ("--data-dir", data, "--model-name", "electra", "--format", "tf1")
    done = export(*flags, "--output-dir", tmp_path / "tf1")
    assert "verified with electra_tf: weights, max difference 0 " in done.stdout
    assert f"Written to {tmp_path / 'tf1'}" in done.stdout
    flags = ("--init-checkpoint", tmp_path / "tf1", "--format", "huggingface")
    done = export(*flags, "--output-dir", tmp_path / "hf")
    assert "discriminator/hidden" in done.stdout and "generator/hidden" in done.stdout
    original, through_tf1, through_both = (
        sources.read(path, **quiet)
        for path in (data / "models/electra", tmp_path / "tf1", tmp_path / "hf")
    )
    assert original.step == through_tf1.step == 12
    assert original.slots and original.slots.keys() == through_tf1.slots.keys()
    for name, array in original.tensors.items():
        np.testing.assert_array_equal(through_tf1.tensors[name], array)
        np.testing.assert_array_equal(through_both.tensors[name], array)
    manifest = json.loads((tmp_path / "tf1" / "manifest.json").read_text())
    assert manifest["model"] == "electra" and manifest["step"] == 12
    config = through_both.config.model_config()
    assert config == original.config.model_config()


@pytest.mark.parametrize(
    ("flags", "code", "texts"),
    [
        ("", 2, ["--init-checkpoint"]),
        ("--init-checkpoint x --data-dir d --model-name m", 2, ["--data-dir"]),
        ("--data-dir /no --model-name m", 2, ["/no/models/m"]),
        ("--init-checkpoint PICKLE", 2, ["pickle", "safetensors"]),
        ("--init-checkpoint x --output-dir USED", 73, ["in use"]),
        ("--init-checkpoint x --jit-compile", 2, ["--format saved_model"]),
        ("--init-checkpoint x --handle me/tiny", 2, ["--format tf1", "hub"]),
    ],
)
def test_mistakes_are_reported_in_three_lines(tmp_path, flags, code, texts):
    pickle = tmp_path / "pytorch_model.bin"
    pickle.write_bytes(b"PK\x03\x04 torch")
    places = {"USED": tmp_path, "PICKLE": pickle}
    flags = [places.get(flag, flag) for flag in flags.split()]
    output = "--format", "tf1", "--output-dir", tmp_path / "out"
    done = export(*output, *flags, code=code)
    assert "Traceback" not in done.stderr
    message = done.stderr[f"\n{done.stderr}".rindex("\nerror: ") :]
    assert len(message.splitlines()) <= 3 and all(text in message for text in texts)
    assert [p.name for p in tmp_path.iterdir()] == ["pytorch_model.bin"]
