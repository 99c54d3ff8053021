# SPDX-License-Identifier: Apache-2.0
"""Runs whose data and directory are in a bucket of an S3 on this machine."""

import hashlib
import itertools
import json
import os
import shutil
from pathlib import Path

import pytest
import s3fs

from electra_tf import paths
from electra_tf.data.record_index import RecordIndex
from electra_tf.storage import lock, remote
from electra_tf.storage.atomic_folder import check_free
from electra_tf.storage.mirror import Mirror
from tests.helpers import memory_bucket
from tests.helpers.building import VOCAB, content, succeed, write_corpus
from tests.helpers.forked_runs import Run, digest
from tests.helpers.forked_runs import pretrain as pretrain_here
from tests.helpers.object_store import object_store
from tests.helpers.runs import check_ok, tiny, write_tiny_data
from tests.helpers.tiny_finetuning import TINY as TINY_TASK
from tests.helpers.tiny_finetuning import write_data

HPARAMS = tiny(keep_checkpoint_max=2)
STEP = 12


@pytest.fixture(scope="module")
def store():
    with object_store() as store:
        yield store


@pytest.fixture(scope="module")
def data(tmp_path_factory, store):
    """A data directory here, whose files are in the bucket as well."""
    data = write_tiny_data(tmp_path_factory.mktemp("data"))
    shards = sorted((data / "pretrain_tfrecords").iterdir())
    RecordIndex([str(path) for path in shards])
    store.files.put(f"{data}/", "bucket/data/", recursive=True)
    return data


@pytest.fixture
def pretrain(store, tmp_path):
    """Starts run_pretraining.py on the bucket's data with the cache `cache`."""

    def start(model, env=None, cache="cache", **changes):
        return Run(
            tmp_path / "logs",
            "run_pretraining.py",
            *("--data-dir", "s3://bucket/data", "--model-name", model),
            *("--hparams", json.dumps(HPARAMS | changes)),
            env=store.env | {"ELECTRA_TF_CACHE": str(tmp_path / cache)} | (env or {}),
        )

    store.gate.has_stopped.clear()
    yield start
    store.gate.is_read_only, store.gate.stops_at = False, None


def directory_of(store, tmp_path, model):
    """What is in the bucket, brought here without the program's help."""
    shutil.rmtree(tmp_path / "found", ignore_errors=True)
    store.files.get(
        f"bucket/data/models/{model}/", f"{tmp_path}/found/", recursive=True
    )
    return tmp_path / "found"


@pytest.mark.thorough
def test_a_run_killed_in_an_upload_is_resumed(store, data, pretrain, tmp_path):
    check_ok(pretrain_here(data, "straight", HPARAMS).wait())
    expected = digest(data / "models" / "straight", STEP)

    store.gate.stops_at = "model.ckpt-10.data"
    run = pretrain("killed")
    assert store.gate.has_stopped.wait(300)
    second = pretrain("killed", cache="another_machine").wait()
    assert second.returncode == 75
    assert "s3://bucket/data/models/killed is in use by process" in second.stderr
    run.process.kill()
    run.process.join()
    store.gate.stops_at = None
    names = store.names("bucket/data/models/killed")
    assert "model.ckpt-5.json" in names
    assert "model.ckpt-10.json" not in names
    # On the same machine the writer is known to be dead.
    last = check_ok(pretrain("killed").wait())
    assert "Continuing from s3://bucket/data/models/killed/model.ckpt-5." in last.stdout
    found = directory_of(store, tmp_path, "killed")
    assert digest(found, STEP) == expected
    steps = [f"model.ckpt-{s}.json" for s in (10, 12)]
    names = os.listdir(found)
    assert sorted(n for n in names if n.endswith(".json") and "ckpt" in n) == steps
    assert {"config.json", "metrics.jsonl", "loss_curves.png", "checkpoint"} < {*names}
    assert str(tmp_path) not in (found / "config.json").read_text() + last.stdout

    # On another machine.
    check_ok(pretrain("killed", cache="third", do_train=False, do_eval=True).wait())
    assert "results/unsup_results.json" in store.names("bucket/data/models/killed")


def locks_expire_at_once():
    lock.EXPIRY_SECONDS = 0.0


@pytest.mark.thorough
def test_a_killed_build_continues_on_another_machine(store, tmp_path):
    write_corpus(tmp_path / "texts", files=4, lines=60)
    flags = ("--max-seq-length=32", "--num-out-files=4", "--num-processes=1")
    succeed(tmp_path / "texts", tmp_path / "whole", *flags)

    def build(cache, before=None):
        return Run(
            tmp_path / "logs",
            "build_pretraining_dataset.py",
            *(f"--corpus-dir={tmp_path}/texts", f"--vocab-file={VOCAB}"),
            *("--output-dir=s3://bucket/built", *flags),
            env=store.env | {"ELECTRA_TF_CACHE": str(tmp_path / cache)},
            before=before,
        )

    shard = "pretrain_data.tfrecord-{:05d}-of-00004"
    store.gate.has_stopped.clear()
    store.gate.stops_at = shard.format(2)
    run = build("one")
    assert store.gate.has_stopped.wait(300)
    # A second start touches nothing of the first.
    copies = sorted((tmp_path / "one/files/s3/bucket/built").iterdir())
    second = build("one").wait()
    assert second.returncode == 75, second.stderr
    assert "s3://bucket/built is in use by process" in second.stderr
    assert sorted((tmp_path / "one/files/s3/bucket/built").iterdir()) == copies
    run.process.kill()
    run.process.join()
    store.gate.stops_at = None
    assert "manifest.json" not in store.names("bucket/built")
    store.gate.requests.clear()
    check_ok(build("another", locks_expire_at_once).wait())
    # Uploaded shards are neither made nor uploaded again.
    assert f"PUT /bucket/built/{shard.format(2)}" in store.gate.requests
    assert f"PUT /bucket/built/{shard.format(0)}" not in store.gate.requests
    built = {
        name: hashlib.sha256(store.files.cat_file(f"bucket/built/{name}")).hexdigest()
        for name in store.names("bucket/built")
        if not name.startswith("run.lock")
    }
    assert built == content(tmp_path / "whole")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("env", "code", "message"),
    [
        ({}, 73, "s3://bucket/data/models/forbidden cannot be written"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, 2, "vocab.txt cannot be read"),
    ],
    ids=["read-only", "unreachable"],
)
def test_buckets_that_refuse(store, data, pretrain, env, code, message):
    store.gate.is_read_only = not env
    ended = pretrain("forbidden", env=env).wait()
    assert ended.returncode == code and message in ended.stderr
    assert "Traceback" not in ended.stderr and "Running training" not in ended.stdout


@pytest.mark.thorough
def test_everything_in_a_bucket(store, tmp_path):
    """From text to a fine-tuned model that is exported, each step on a new machine."""
    write_corpus(tmp_path / "texts", files=3, lines=60)
    write_data(tmp_path / "tasks")
    for folder in (tmp_path / "texts", tmp_path / "tasks" / "finetuning_data"):
        place = f"bucket/all/{folder.name}/"
        store.files.put(f"{folder}/", place, recursive=True)
    caches = itertools.count()

    def run_there(script, *command, **flags):
        env = {"ELECTRA_TF_CACHE": str(tmp_path / f"cache{next(caches)}")}
        args = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        args = [*command, *args]
        ended = Run(tmp_path / "logs", script, *args, env=store.env | env).wait()
        assert ended.returncode == 0, ended.stderr
        assert str(tmp_path / "cache") not in ended.stdout
        return ended.stdout

    url = "s3://bucket/all"
    of_corpus = {"corpus_dir": f"{url}/texts", "num_processes": 1}
    vocab = f"{url}/vocab.txt"
    run_there("build_vocab.py", **of_corpus, output_file=vocab, vocab_size=1000)
    of_corpus |= {"vocab_file": vocab, "output_dir": f"{url}/pretrain_tfrecords"}
    build = ("build_pretraining_dataset.py", "--max-seq-length=32", "--num-out-files=3")
    run_there(*build, **of_corpus)
    names = store.names("bucket/all/pretrain_tfrecords")
    assert sum("tfrecord" in name for name in names) == 3
    assert {"manifest.json", "token_counts.txt"} < {*names}
    assert "complete already" in run_there(*build, **of_corpus)

    def train(script, model, **hparams):
        flags = {"data_dir": url, "model_name": model, "hparams": json.dumps(hparams)}
        return run_there(script, **flags)

    hparams = tiny(num_train_steps=1, generator="unigram")
    train("run_pretraining.py", "tiny", **hparams)
    init = {"init_checkpoint": f"{url}/models/tiny"}
    out = train("run_pretraining.py", "begun", **(hparams | init))
    assert f"Weights initialised from {url}/models/tiny/model.ckpt-1;" in out
    saved = json.loads(store.files.cat_file("bucket/all/models/begun/config.json"))
    assert saved["init_checkpoint"] == f"{url}/models/tiny"
    task = {"task_names": ["cola"], "num_train_epochs": 1.0, "num_trials": 1}
    out = train("run_finetuning.py", "tiny", **(TINY_TASK | init | task))
    assert f"Written to {url}/models/tiny/results/cola_results.txt" in out

    for form, what in (("saved_model", {"what": "cola"}), ("tf1", {})):
        flags = {"data_dir": url, "model_name": "tiny", "format": form} | what
        run_there("export_model.py", **flags, output_dir=f"{url}/exported/{form}")
    for command, model in (
        (["predict"], "saved_model/cola"),
        (["score", "--method=discriminator"], "tf1"),
    ):
        flags = {"model": f"{url}/exported/{model}", "input": f"{url}/texts/0.txt"}
        flags["output"] = f"{url}/{command[0]}.jsonl"
        run_there("run_inference.py", *command, **flags)
        lines = store.files.cat_file(f"bucket/all/{command[0]}.jsonl").count(b"\n")
        assert lines == 60


@pytest.mark.thorough
def test_folders_made_in_the_console_are_not_files(store, tmp_path, monkeypatch):
    memory_bucket.empty(tmp_path, monkeypatch)
    for name, value in store.env.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    for folder in ("console", "console/corpus/empty", "console/none", "console/run"):
        store.make_folder(folder)
    store.files.pipe_file("bucket/console/corpus/a.txt", b"a")
    store.files.pipe_file("bucket/console/corpus/below/b.txt", b"b")
    there = paths.local_of("s3://bucket/console")
    corpus = f"{there}/corpus"
    assert set(remote.listing(corpus)) == {"a.txt", "below/b.txt"}
    assert remote.names_in(there) == ["corpus"]
    assert remote.expand(f"{corpus}/*") == [f"{corpus}/a.txt"]
    for _ in range(2):  # the second time onto the copies
        memory_bucket.forget_answers()
        remote.fetch(there)
        assert Path(corpus, "a.txt").read_bytes() == b"a"
        assert Path(corpus, "below/b.txt").read_bytes() == b"b"
    assert not os.path.exists(remote.fetch(f"{there}/none"))
    check_free(f"{there}/none")  # as an empty directory here
    with Mirror(f"{there}/run") as folder:
        folder.check()
    s3fs.S3FileSystem.clear_instance_cache()
