# SPDX-License-Identifier: Apache-2.0
"""Runs whose data and directory are in a bucket of an S3 on this machine."""

import hashlib
import itertools
import json
import os
import shutil

import pytest

from electra_tf.data.record_index import RecordIndex
from tests.helpers.building import VOCAB, content, succeed, write_corpus
from tests.helpers.forked_runs import Run, digest
from tests.helpers.forked_runs import pretrain as pretrain_here
from tests.helpers.object_store import object_store
from tests.helpers.runs import tiny, write_tiny_data
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


def error_of(ended):
    """The lines of the error, which is the last that is said."""
    return ended.stderr.rpartition("error: ")[2].strip().splitlines()


@pytest.mark.thorough
def test_killed_in_an_upload_and_continued(store, data, pretrain, tmp_path):
    straight = pretrain_here(data, "straight", HPARAMS).wait()
    assert straight.returncode == 0, straight.stderr
    expected = digest(data / "models" / "straight", STEP)

    store.gate.stops_at = "model.ckpt-10.data"
    run = pretrain("killed", {"ELECTRA_TF_COPY_GB": "0"})
    assert store.gate.has_stopped.wait(300)
    run.process.kill()
    run.process.join()
    store.gate.stops_at = None
    # The shards were read by ranges.
    assert not list(tmp_path.rglob("pretrain_data.tfrecord*"))
    names = store.names("bucket/data/models/killed")
    assert "model.ckpt-5.json" in names
    assert "model.ckpt-10.partial" in names and "model.ckpt-10.json" not in names
    # On the machine it ran on the dead writer is known to be dead.
    store.gate.requests.clear()
    last = pretrain("killed").wait()
    assert last.returncode == 0, last.stderr
    assert "Continuing from s3://bucket/data/models/killed/model.ckpt-5." in last.stdout
    assert "Cleared step 10" in last.stdout
    copies = (tmp_path / "cache" / "files").rglob("pretrain_data.tfrecord*")
    assert len(list(copies)) == 2
    found = directory_of(store, tmp_path, "killed")
    assert digest(found, STEP) == expected
    steps = [f"model.ckpt-{s}.json" for s in (10, 12)]
    names = os.listdir(found)
    assert sorted(n for n in names if n.endswith(".json") and "ckpt" in n) == steps
    assert not [name for name in names if name.endswith(".partial")]
    assert {"config.json", "metrics.jsonl", "loss_curves.png", "checkpoint"} < {*names}
    assert str(tmp_path) not in (found / "config.json").read_text() + last.stdout

    # Nothing is left to do, on a machine that has not seen the run.
    again = pretrain("killed", cache="another").wait()
    assert again.returncode == 0 and "nothing to do" in again.stdout, again.stderr
    evaluated = pretrain(
        "killed", cache="third", do_train=False, do_eval=True, num_eval_steps=2
    ).wait()
    assert evaluated.returncode == 0, evaluated.stderr
    assert "results/unsup_results.json" in store.names("bucket/data/models/killed")


def test_a_build_that_failed_at_once_is_begun_again(store, pretrain, tmp_path):
    """What its lock has left in the bucket was taken for something of another's."""
    write_corpus(tmp_path / "texts", files=1, lines=60)
    with open(tmp_path / "texts/0.txt", "ab") as f:
        f.write(b"\xff\n")

    def build(*flags):
        return Run(
            tmp_path / "logs",
            "build_pretraining_dataset.py",
            *(f"--corpus-dir={tmp_path}/texts", f"--vocab-file={VOCAB}"),
            *("--output-dir=s3://bucket/begun", "--num-processes=1", *flags),
            env=store.env | {"ELECTRA_TF_CACHE": str(tmp_path / "cache")},
        ).wait()

    failed = build()
    assert failed.returncode == 65 and "is not UTF-8" in failed.stderr
    again = build("--encoding-errors=replace")
    assert again.returncode == 0, again.stderr


def test_a_build_that_was_killed_goes_on_elsewhere(store, pretrain, tmp_path):
    write_corpus(tmp_path / "texts", files=4, lines=60)
    flags = ("--max-seq-length=32", "--num-out-files=4", "--num-processes=1")
    succeed(tmp_path / "texts", tmp_path / "whole", *flags)

    def build(cache):
        return Run(
            tmp_path / "logs",
            "build_pretraining_dataset.py",
            *(f"--corpus-dir={tmp_path}/texts", f"--vocab-file={VOCAB}"),
            *("--output-dir=s3://bucket/built", *flags),
            env=store.env | {"ELECTRA_TF_CACHE": str(tmp_path / cache)},
        )

    shard = "pretrain_data.tfrecord-{:05d}-of-00004"
    store.gate.has_stopped.clear()
    store.gate.stops_at = shard.format(2)
    run = build("one")
    assert store.gate.has_stopped.wait(300)
    # A second start by mistake touches nothing of the first's, here or in the bucket.
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
    ended = build("another").wait()
    assert ended.returncode == 0, ended.stderr
    # What was up already is neither made nor sent again.
    assert f"PUT /bucket/built/{shard.format(2)}" in store.gate.requests
    assert f"PUT /bucket/built/{shard.format(0)}" not in store.gate.requests
    built = {
        name: hashlib.sha256(store.files.cat_file(f"bucket/built/{name}")).hexdigest()
        for name in store.names("bucket/built")
        if not name.startswith("run.lock")
    }
    assert built == content(tmp_path / "whole")


def test_a_read_only_bucket(store, data, pretrain):
    store.gate.is_read_only = True
    ended = pretrain("forbidden").wait()
    assert ended.returncode == 73
    said = error_of(ended)
    assert said[0].startswith("s3://bucket/data/models/forbidden cannot be written")
    assert "do not allow it" in said[1] and len(said) == 3
    assert "Running training" not in ended.stdout


def test_a_second_writer(store, data, pretrain):
    store.gate.has_stopped.clear()
    store.gate.stops_at = "model.ckpt-5.data"
    first = pretrain("shared")
    assert store.gate.has_stopped.wait(300)
    second = pretrain("shared", cache="another_machine").wait()
    first.process.kill()
    assert second.returncode == 75
    assert "s3://bucket/data/models/shared is in use by process" in second.stderr


@pytest.mark.parametrize(
    ("env", "what"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "Could not connect"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "No key was found"),
    ],
)
def test_a_store_that_cannot_be_reached(data, pretrain, env, what):
    env |= {"AWS_EC2_METADATA_DISABLED": "true"}
    ended = pretrain("nowhere", env=env).wait()
    assert ended.returncode == 2
    said = error_of(ended)
    assert said[0].startswith("s3://bucket/data/vocab.txt cannot be read")
    assert what in " ".join(said) and len(said) == 3


@pytest.mark.thorough
def test_everything_in_a_bucket(store, tmp_path):
    """From text to a fine-tuned model that is exported, each step on a machine anew."""
    write_corpus(tmp_path / "texts", files=3, lines=60)
    write_data(tmp_path / "tasks")
    store.files.put(f"{tmp_path}/texts/", "bucket/all/texts/", recursive=True)
    finetuning = "bucket/all/finetuning_data/"
    store.files.put(f"{tmp_path}/tasks/finetuning_data/", finetuning, recursive=True)
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
    vocab = {"corpus_dir": f"{url}/texts", "output_file": f"{url}/vocab.txt"}
    run_there("build_vocab.py", **vocab, vocab_size=1000, num_processes=1)
    build = {
        "corpus_dir": f"{url}/texts",
        "vocab_file": f"{url}/vocab.txt",
        "output_dir": f"{url}/pretrain_tfrecords",
        "max_seq_length": 32,
        "num_out_files": 3,
        "num_processes": 1,
    }
    run_there("build_pretraining_dataset.py", **build)
    names = store.names("bucket/all/pretrain_tfrecords")
    assert sum("tfrecord" in name for name in names) == 3
    assert {"manifest.json", "token_counts.txt"} < {*names}
    assert not [name for name in names if name.startswith((".token", "build"))]
    assert "complete already" in run_there("build_pretraining_dataset.py", **build)

    run = {"data_dir": url, "model_name": "tiny"}
    hparams = tiny(num_train_steps=2, generator="unigram")
    run_there("run_pretraining.py", **run, hparams=json.dumps(hparams))
    hparams |= {"init_checkpoint": f"{url}/models/tiny", "num_train_steps": 1}
    begun = {"data_dir": url, "model_name": "begun", "hparams": json.dumps(hparams)}
    out = run_there("run_pretraining.py", **begun)
    assert f"Weights initialised from {url}/models/tiny/model.ckpt-2;" in out
    saved = json.loads(store.files.cat_file("bucket/all/models/begun/config.json"))
    assert saved["init_checkpoint"] == f"{url}/models/tiny"
    assert "nothing to do" in run_there("run_pretraining.py", **begun)
    hparams = TINY_TASK | {
        "init_checkpoint": f"{url}/models/tiny",
        "task_names": ["cola"],
        "num_train_epochs": 1.0,
        "num_trials": 1,
    }
    out = run_there("run_finetuning.py", **run, hparams=json.dumps(hparams))
    assert f"Written to {url}/models/tiny/results/cola_results.txt" in out
    out = run_there("run_finetuning.py", **run, hparams=json.dumps(hparams))
    assert "Trial 1 is finished" in out
    for what, form in (("cola", "saved_model"), ("all", "tf1")):
        flags = {} if what == "all" else {"what": what}
        output = f"{url}/exported/{form}"
        run_there("export_model.py", **run, format=form, output_dir=output, **flags)
    names = store.names("bucket/all/exported")
    assert "saved_model/cola/1/manifest.json" in names
    model, files = f"{url}/exported/saved_model/cola", {"input": f"{url}/texts/0.txt"}
    files["output"] = f"{url}/predictions.jsonl"
    run_there("run_inference.py", "predict", model=model, **files)
    assert store.files.cat_file("bucket/all/predictions.jsonl").count(b"\n") == 60
    model = f"{url}/exported/tf1"
    files = {"input": f"{url}/texts/0.txt", "output": f"{url}/scores.jsonl"}
    run_there("run_inference.py", "score", model=model, method="discriminator", **files)
    assert store.files.cat_file("bucket/all/scores.jsonl").count(b"\n") == 60
