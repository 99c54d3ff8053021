# SPDX-License-Identifier: Apache-2.0
"""Exports that cannot be written to their end: said in words, and nothing is left."""

import resource
import signal

import pytest

from tests.helpers.forked_runs import Run, pretrain
from tests.helpers.runs import TINY, by_default

# No file may be longer than so many bytes.
LIMIT = 20_000
FLAGS = {
    "tf1": (),
    "saved_model": ("--what", "encoder"),
    "hub": ("--handle", "me/tiny"),
    "huggingface": (),
    "keras_hub": (),
}
NEEDS = {"huggingface": "transformers", "keras_hub": "keras_hub"}


def limit_files():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


@pytest.fixture(scope="module")
def model(tiny_data):
    hparams = TINY | {"num_train_steps": 1, "num_warmup_steps": 0}
    run = pretrain(tiny_data, "to_export", hparams).wait()
    assert run.returncode == 0, run.stderr
    return "--data-dir", str(tiny_data), "--model-name", "to_export"


def export(logs, model, what, output, **kwargs):
    flags = ("--format", what, "--output-dir", str(output), *FLAGS[what])
    return Run(logs, "export_model.py", *model, *flags, **kwargs).wait()


def content(directory):
    """Everything below a directory."""
    return sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*"))


@pytest.mark.parametrize("what", by_default(FLAGS, ["saved_model", "huggingface"]))
def test_no_room_left(tmp_path, model, what):
    if what in NEEDS:
        pytest.importorskip(NEEDS[what])
    place = tmp_path / "place"
    output = place / "exported"
    place.mkdir()
    (place / "other").write_text("what was there before")
    run = export(tmp_path / "logs", model, what, output, before=limit_files)
    assert run.returncode == 73, run.stderr
    message = run.stderr[f"\n{run.stderr}".rindex("\nerror: ") :]
    assert f"cannot write {output}" in message and "Traceback" not in run.stderr
    assert len(message.splitlines()) <= 3
    assert content(place) in (["other"], ["exported", "exported/encoder", "other"])
    assert (place / "other").read_text() == "what was there before"
    if what != "hub":  # its archives are made of SavedModels, and take long
        run = export(tmp_path / "logs", model, what, output)
        assert run.returncode == 0, run.stderr
