# SPDX-License-Identifier: Apache-2.0
"""Programs that XLA compiled: taken by the next start, and only if they are intact."""

import os
import time

import pytest

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.train import compilation_cache
from tests.helpers.forked_runs import metrics_of
from tests.helpers.runs import pretrain, tiny

MODEL = "compilation_cache"
HPARAMS = tiny(
    objective="mlm",  # which XLA compiles soonest
    jit_compile=True,
    num_train_steps=6,
    save_checkpoints_steps=2,
)


@pytest.fixture
def start(tiny_data, tmp_path):
    """Starts the run from its newest checkpoint: (how it ended, did XLA compile)."""
    dump = tmp_path / "dump"

    def start(cache=tmp_path / "a cache"):
        for path in dump.glob("*"):
            path.unlink()
        flags = f"--xla_dump_to={dump} --xla_dump_hlo_module_re=.*traced.*"
        env = {"ELECTRA_TF_CACHE": str(cache), "XLA_FLAGS": flags}
        done = pretrain(tiny_data, MODEL, HPARAMS, env=env)
        assert done.returncode == 0, done.stderr
        for notice in ("XlaSerializedCacheEntry", "prefer-no-"):
            assert notice not in done.stderr
        return done, any(dump.glob("*buffer-assignment*"))

    return start


def take_back(run, step):
    """Makes a later checkpoint the one before."""
    for path in run.glob(f"model.ckpt-{step}*"):
        path.unlink()


@pytest.mark.thorough
def test_a_resumed_run_takes_the_program(start, tiny_data, tmp_path):
    run, programs = tiny_data / "models" / MODEL, tmp_path / "a cache" / "programs"
    _, compiled = start()
    assert compiled
    rows = metrics_of(run)
    (program,) = programs.glob("*/*")
    assert program.suffix == ".program"

    take_back(run, 6)
    done, compiled = start()
    assert "Continuing from" in done.stdout and not compiled
    assert metrics_of(run) == rows
    assert [*programs.glob("*/*")] == [program]

    content = bytearray(program.read_bytes())
    content[len(content) // 2] ^= 1
    program.write_bytes(content)
    take_back(run, 6)
    _, compiled = start()
    assert compiled and metrics_of(run) == rows
    (new,) = programs.glob("*/*")
    assert new.name != program.name  # which begins with the checksum
    assert new.name.split(".")[1] == program.name.split(".")[1]

    (tmp_path / "file").touch()
    take_back(run, 6)
    _, compiled = start(tmp_path / "file")
    assert compiled and metrics_of(run) == rows


@pytest.fixture
def used(tmp_path, monkeypatch):
    """Hparams, flags -> the directory given to TensorFlow, if one is."""
    monkeypatch.setattr(compilation_cache, "_own", None)

    def used(flags="", **hparams):
        monkeypatch.setenv("ELECTRA_TF_CACHE", str(tmp_path))
        monkeypatch.setenv("TF_XLA_FLAGS", flags)
        config = PretrainingConfig.from_hparams("data", "model", hparams)
        compilation_cache.use(config)
        found = os.environ["TF_XLA_FLAGS"].removeprefix(flags).strip()
        return found.split("'")[1] if found else None

    return used


def test_each_program_has_its_place(used):
    places = {
        os.path.dirname(used(flags, **hparams))
        for flags in ("", "--tf_xla_cpu_global_jit")
        for hparams in ({}, {"train_batch_size": 8}, {"seed": 1})
    }
    assert len(places) == 6
    assert os.path.dirname(used()) in places
    assert used() != used()  # for processes at the same time


@pytest.mark.parametrize(
    ("flags", "hparams"),
    [
        ("", {"compilation_cache": False}),
        ("", {"jit_compile": False}),
        ("", {"use_tpu": True}),
        ("--tf_xla_persistent_cache_directory=/mine", {}),
        ("a_file_of_flags", {}),
    ],
)
def test_no_cache_where_it_is_not_wanted(used, flags, hparams):
    assert used(flags, **hparams) is None


def test_a_place_that_the_variable_cannot_say(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation_cache, "_own", None)
    monkeypatch.setenv("ELECTRA_TF_CACHE", str(tmp_path / "o'b"))
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    compilation_cache.use(PretrainingConfig.from_hparams("data", "model", {}))
    assert os.environ["TF_XLA_FLAGS"] == "" and not (tmp_path / "o'b").exists()


def test_what_is_old_goes(used, tmp_path):
    place = tmp_path / "programs" / "other"
    ages = {"process-1": 2, "process-2": 0, "a.b.program": 31, "c.d.program": 29}
    for name, days in ages.items():
        path = place / name
        path.mkdir(parents=True) if "process" in name else path.touch()
        then = time.time() - days * 24 * 3600
        os.utime(path, (then, then))
    gone = tmp_path / "programs" / "gone"
    gone.mkdir()
    assert used()
    assert not gone.exists()
    assert {path.name for path in place.iterdir()} == {"c.d.program", "process-2"}
