# SPDX-License-Identifier: Apache-2.0
"""Exports to a full disk end with an error and leave nothing."""

import resource
import signal

import pytest

from tests.helpers.forked_runs import Run
from tests.helpers.runs import check_ok, check_refused

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
    check_refused(run, 73, f"cannot write {output}")
    found = sorted(p.relative_to(place).as_posix() for p in place.rglob("*"))
    assert found in (["other"], ["exported", "exported/encoder", "other"])
    assert (place / "other").read_text() == "what was there before"
    check_ok(Run(tmp_path / "logs", *args).wait())
