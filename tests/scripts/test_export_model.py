# SPDX-License-Identifier: Apache-2.0
"""export_model.py as its users run it: conversions into formats of other libraries."""

import functools
import json

import numpy as np
import pytest

from tests.helpers import without_tensorflow
from tests.helpers.interop_models import read_model
from tests.helpers.runs import check_ok, check_refused, run_script


def export(*flags, **kwargs):
    return check_ok(run_script("export_model.py", *map(str, flags), **kwargs))


def check_same(run, exported):
    """Returns the sources after comparing tensors and settings."""
    read = functools.partial(read_model, log=str, slots=True)
    original, again = read(run), read(exported)
    for name, array in original.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], array)
    assert again.config.model_config() == original.config.model_config()
    return original, again


def test_a_run_is_exported_and_read_again(pretrained, tmp_path):
    data, output = pretrained("electra"), tmp_path / "tf1"
    flags = ("--data-dir", data, "--model-name", "electra", "--format", "tf1")
    done = export(*flags, "--output-dir", output)
    assert (
        "verified with electra_tf: weights, slots and step, max difference 0 "
        in done.stdout
    )
    assert f"Written to {output}" in done.stdout
    original, again = check_same(data / "models" / "electra", output)
    assert original.step == again.step == 12
    assert original.slots and original.slots.keys() == again.slots.keys()
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["model"] == "electra" and manifest["step"] == 12


@pytest.mark.parametrize(
    ("flags", "code", "texts"),
    [
        ("", 2, ["--init-checkpoint"]),
        ("--init-checkpoint x --data-dir d --model-name m", 2, ["--data-dir"]),
        ("--format litert", 1, ["left in version 0.2: tf.lite is leaving TensorFlow"]),
        ("--format=tflite", 1, ["--format tflite left in version 0.2"]),
        ("--init-checkpoint PICKLE", 2, ["pickle", "safetensors"]),
        ("--init-checkpoint x --output-dir USED", 73, ["in use"]),
        ("--init-checkpoint x --precision mixed_bfloat16", 2, ["--format saved_model"]),
        ("--init-checkpoint x --handle me/tiny", 2, ["--format tf1", "hub"]),
    ],
)
def test_mistakes_are_reported_in_three_lines(tmp_path, flags, code, texts):
    pickle = tmp_path / "pytorch_model.bin"
    pickle.write_bytes(b"PK\x03\x04 torch")
    places = {"USED": tmp_path, "PICKLE": pickle}
    flags = [places.get(flag, flag) for flag in flags.split()]
    output = "--format", "tf1", "--output-dir", tmp_path / "out"
    done = run_script("export_model.py", *map(str, (*output, *flags)))
    check_refused(done, code, *texts)
    assert [p.name for p in tmp_path.iterdir()] == ["pytorch_model.bin"]


@pytest.mark.parametrize(
    ("flags", "place"),
    [
        (("--data-dir", "/no", "--model-name", "m", "--what", "cola"), "/no/models/m"),
        (("--init-checkpoint", "/no/model.ckpt-1"), "/no/model.ckpt-1"),
    ],
)
def test_a_missing_model_is_reported_without_tensorflow(tmp_path, flags, place):
    flags = *flags, "--format", "huggingface", "--output-dir", tmp_path / "out"
    env = without_tensorflow.environment(tmp_path / "env")
    done = run_script("export_model.py", *map(str, flags), env=env)
    check_refused(done, 2, f"{place} is neither a directory nor the prefix")
