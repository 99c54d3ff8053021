# SPDX-License-Identifier: Apache-2.0
"""Exports to a full disk end with an error and leave nothing."""

import resource
import signal

import pytest

from tests.helpers.forked_runs import Run

# The limit of the size of a file, in bytes.
LIMIT = 20_000


def limit_files():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["tf1", "saved_model"])
def test_a_full_disk_leaves_nothing_behind(tmp_path, pretrained, form):
    place = tmp_path / "place"
    output = place / "exported"
    place.mkdir()
    (place / "other").write_text("what was there before")
    flags = ("--data-dir", pretrained("electra"), "--model-name", "electra")
    flags += ("--format", form, "--output-dir", output)
    flags += ("--what", "encoder") if form == "saved_model" else ()
    args = ("export_model.py", *map(str, flags))
    run = Run(tmp_path / "logs", *args, before=limit_files).wait()
    assert run.returncode == 73, run.stderr
    message = run.stderr[f"\n{run.stderr}".rindex("\nerror: ") :]
    assert f"cannot write {output}" in message and "Traceback" not in run.stderr
    assert len(message.splitlines()) <= 3
    found = sorted(p.relative_to(place).as_posix() for p in place.rglob("*"))
    assert found in (["other"], ["exported", "exported/encoder", "other"])
    assert (place / "other").read_text() == "what was there before"
    run = Run(tmp_path / "logs", *args).wait()
    assert run.returncode == 0, run.stderr
