# SPDX-License-Identifier: Apache-2.0
"""The directory to publish, and its upload to a stand-in of the hub."""

import contextlib
import json
import shutil
from pathlib import Path
from unittest import mock

import huggingface_hub
import pytest

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.export import formats
from electra_tf.interop import cards
from tests.helpers import forked_runs, model_hubs
from tests.helpers.cards import run_snippets
from tests.helpers.exporting import shared_export, tiny_source, write_run
from tests.helpers.interop_models import read_model

RESULTS = {"global_step": 7, "metrics": {"disc_auc_tokens": 0.8125, "loss": 20.5}}
RESULTS |= {
    "labels": {"disc_auc_tokens": "AUC of replaced-token detection, real tokens"}
}
CORPUS = {"files": 2, "bytes": 1_500_000, "names": ["a.txt", "b.txt"]}
CORPUS |= {"examples": 120, "tokens_kept": 3456, "sha256": "0123abcd"}
SECRET = "5ecre7-5ecre7"
KINDS = ("encoder", "preprocessor", "detector")
HF = {"handle": "me/tiny", "publish": "huggingface"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A data directory with a run of 7 steps, evaluated."""
    data = tmp_path_factory.mktemp("published")
    model_dir = write_run(data, tiny_source(), num_train_steps=7)
    for path, content in (
        (model_dir / "results" / "unsup_results.json", RESULTS),
        (
            data / "pretrain_tfrecords" / "manifest.json",
            {"max_seq_length": 32, "corpus": CORPUS, "files": {}, "vocab": {}},
        ),
    ):
        path.parent.mkdir()
        path.write_text(json.dumps(content))
    return data


def request_of(output, data=None, form="hub", **more):
    """An export of the run, or of what is in `output` already."""
    name = data and "tiny"
    return formats.ExportRequest(form, str(output), data and str(data), name, **more)


@pytest.fixture(scope="module")
def directory(run, tmp_path_factory):
    """The output of --format hub."""
    output = tmp_path_factory.mktemp("hub") / "out"
    formats.export(request_of(output, run))
    return output


@pytest.fixture
def copy(directory, tmp_path):
    return shutil.copytree(directory, tmp_path / "there")


def script(run, *flags, env):
    """export_model.py in a process of its own, with another home directory."""
    env = {"HOME": str(run), "HF_HOME": str(run / "hf")} | env
    return forked_runs.Run(run / "logs", "export_model.py", *flags, env=env).wait()


def upload(run, output, *flags, env, named=False, form="hub"):
    model = (f"--data-dir={run}", "--model-name=tiny") if named else ()
    flags = (f"--format={form}", f"--output-dir={output}", "--handle=me/tiny", *flags)
    return script(run, *model, *flags, env=env)


@contextlib.contextmanager
def hugging_face():
    """The stand-in, and the environment to use it."""
    with model_hubs.running(model_hubs.HuggingFace()) as hub:
        yield hub, {"HF_ENDPOINT": hub.address, "HF_TOKEN": SECRET}


def files_of(directory, kind):
    """The files of a SavedModel: path -> content."""
    files = [p for p in (directory / kind).rglob("*") if p.is_file()]
    return {str(p.relative_to(directory / kind)): p.read_bytes() for p in files}


def assert_secret_is_kept(run, directory, done):
    assert SECRET not in done.stdout + done.stderr
    for folder in (run, directory):
        for path in folder.rglob("*"):
            if path.is_file():
                assert SECRET.encode() not in path.read_bytes(), path


def assert_card_describes_run(card):
    for fact in ("for 7 steps", "3,456 tokens", "a.txt, b.txt", "0123abcd", "0.8125"):
        assert fact in card, fact
    for fact in ("- `num_train_steps`: 7", "| positions | 40 |", "sequence | 32 |"):
        assert fact in card, fact
    assert "None" not in card and "Not recorded" not in card
    data = huggingface_hub.ModelCard(card).data
    assert data.license == "apache-2.0" and data.tags[0] == "electra"


def test_card_describes_the_run(directory):
    assert_card_describes_run((directory / "README.md").read_text())


@pytest.mark.thorough
def test_card_of_a_checkpoint_describes_its_run(run, tmp_path):
    path = str(run / "models/tiny/model.ckpt-7")
    formats.export(request_of(tmp_path / "out", init_checkpoint=path))
    assert_card_describes_run((tmp_path / "out" / "README.md").read_text())


@pytest.mark.thorough
def test_snippets_run(run, directory, tmp_path):
    for kind in KINDS:
        (tmp_path / kind).symlink_to(directory / kind)
    for variant, kind in (("electra", "generator"), ("electric", "scorer")):
        (tmp_path / kind).symlink_to(shared_export(variant, kind))
        (tmp_path / f"{kind}.md").write_text(cards.fill(f"hub: {kind}", gap=0))
    shutil.copy(directory / "README.md", tmp_path)
    pages = sorted(tmp_path.glob("*.md"))
    assert len(pages) == 3
    run_snippets(tmp_path, pages)


def test_damaged_saved_model_is_not_published(copy):
    request = request_of(copy, dry_run=True, **HF)
    damaged = copy / "encoder" / "saved_model.pb"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(UserError, match="saved_model.pb") as caught:
        formats.export(request)
    assert caught.value.exit_code == EXIT_DAMAGED


def test_upload_to_hugging_face(run, directory):
    with hugging_face() as (hub, env):
        done = upload(run, directory, "--publish=huggingface", env=env)
    assert done.returncode == 0, done.stderr
    assert f"/me/tiny/commit/{'a' * 40}" in done.stdout
    expected = {
        f"{kind}/{path}": content
        for kind in KINDS
        for path, content in files_of(directory, kind).items()
    }
    expected["README.md"] = (directory / "README.md").read_bytes()
    assert hub.files.keys() == expected.keys()
    assert all(hub.files[path] == content for path, content in expected.items())
    assert hub.authorizations == {f"Bearer {SECRET}"}
    assert_secret_is_kept(run, directory, done)


@pytest.mark.thorough
def test_written_directory_is_uploaded_without_a_model(run, directory):
    with hugging_face() as (hub, env):
        options = {"env": env}
        flags = (run, directory, "--publish=huggingface")
        dry = upload(*flags, "--dry-run", **options)
        assert hub.repositories == []
        done = upload(*flags, "--private", **options)
        assert hub.private == {"me/tiny": True} and hub.files
        hub.private["me/tiny"], hub.files = False, {}
        late = upload(*flags, "--private", **options)
        assert hub.files == {}
    assert dry.returncode == done.returncode == 0, dry.stderr + done.stderr
    assert "encoder/saved_model.pb" in dry.stdout
    assert f"Uploaded unchanged: {directory}" in done.stdout
    assert late.returncode == 73 and "is public already" in late.stderr


@pytest.mark.thorough
def test_networks_of_transformers_are_uploaded(run, tmp_path):
    out, form, publish = tmp_path / "hf", "huggingface", ["--publish=huggingface"]
    with hugging_face() as (hub, env):
        done = upload(run, out, *publish, env=env, named=True, form=form)
        assert done.returncode == 0, done.stderr
        uploaded = set(hub.files)
        (out / "discriminator" / "notes.md").write_text("mine alone")
        (out / "discriminator" / "README.md").write_text("edited")
        done = upload(run, out, *publish, env=env, form=form)
    assert done.returncode == 0, done.stderr
    assert set(hub.files) == uploaded
    assert hub.repositories[:2] == ["me/tiny-discriminator", "me/tiny-generator"]
    assert {"config.json", "model.safetensors", "README.md"} <= set(hub.files)
    request = request_of(out, form=form, **HF)
    with pytest.raises(UserError, match="leave --what out"):
        formats.export(request._replace(what="discriminator"))
    with pytest.raises(UserError, match="Kaggle takes"):
        formats.export(request._replace(publish="kaggle"))


@pytest.mark.thorough
def test_failed_upload_leaves_the_directory(run, directory):
    env = {"HF_ENDPOINT": "http://localhost:9", "HF_TOKEN": SECRET}
    done = upload(run, directory, "--publish=huggingface", env=env)
    assert done.returncode == 73 and "Traceback" not in done.stderr
    assert "upload of me/tiny failed" in done.stderr
    assert "--output-dir, --handle and --publish" in done.stderr
    assert_secret_is_kept(run, directory, done)


def test_upload_to_kaggle(directory, copy, monkeypatch):
    """The license is that of the card."""
    kagglehub = pytest.importorskip("kagglehub")
    sent = {}

    def keep(handle, local_model_dir, license_name=None, version_notes="", **_):
        files = [p for p in Path(local_model_dir).rglob("*") if p.is_file()]
        content = {str(p.relative_to(local_model_dir)): p.read_bytes() for p in files}
        sent[handle] = license_name, content

    stand_in = mock.create_autospec(kagglehub.model_upload, side_effect=keep)
    monkeypatch.setattr(kagglehub, "model_upload", stand_in)
    text = (copy / "README.md").read_text()
    (copy / "README.md").write_text(text.replace("apache-2.0", "mit"))
    for folder, license in ((directory, "Apache 2.0"), (copy, "MIT")):
        request = request_of(folder, handle="me/tiny", publish="kaggle")
        formats.export(request)
        assert sent == {
            f"me/tiny/tensorFlow2/{kind}": (license, files_of(directory, kind))
            for kind in KINDS
        }
    for card, words in (
        (text.partition("# ")[2], "has no license"),
        (text.replace("license: ", "license: ["), "upload of me/tiny"),
        (None, "upload of me/tiny"),
    ):
        (copy / "README.md").unlink()
        if card:
            (copy / "README.md").write_text(card)
        with pytest.raises(UserError, match=words):
            formats.export(request)


def card_of(folder, origin=None, publication=cards.UNSTATED):
    """The card of the run in a data directory, as of a model read at `origin`."""
    stored = read_model(folder / "models" / "tiny", log=lambda line: None)
    stored = stored._replace(origin=str(origin or stored.origin))
    cards.write(folder, stored, publication, {}, use="")
    return (folder / "README.md").read_text()


def test_card_marks_missing_facts(tmp_path):
    """Such as of a checkpoint of the original, and a model that was fine-tuned."""
    write_run(tmp_path, tiny_source("electric"))
    tuned = tmp_path / "tuned"
    tuned.mkdir()
    (tuned / "config.json").write_text('{"task_names": ["cola"]}')
    for origin, missing in ((tmp_path / "nothing", 3), (tuned, 2)):
        card = card_of(tmp_path, origin)
        assert card.count("Not recorded") == missing and "None" not in card
        # Its steps may be another program's, or those of fine-tuning.
        assert "Exported with electra_tf" in card and " steps " not in card
    assert "cola" in card


@pytest.mark.parametrize("form", ["huggingface", "hub"])
def test_publisher_states_license_languages_and_title(run, tmp_path, form):
    out = tmp_path / "out"
    stated = {"license": "mit", "language": "de,fr", "handle": "me/small-german"}
    formats.export(request_of(out, run, form, **stated))
    card = next(out.rglob("README.md")).read_text()
    data = huggingface_hub.ModelCard(card).data
    assert data.license == "mit" and data.language == ["de", "fr"]
    assert "\n# small-german" in card and "| license of the weights | mit |" in card


def test_card_describes_phases_and_initial_weights(tmp_path):
    model_dir = write_run(tmp_path, tiny_source())
    parts = [
        {"num_train_steps": 4, "max_seq_length": 16, "pretrain_tfrecords": "a/*.tf"},
        {"num_train_steps": 5, "max_seq_length": 32, "pretrain_tfrecords": "b/*.tf"},
    ]
    for part in parts:
        folder = tmp_path / part["pretrain_tfrecords"][0]
        folder.mkdir()
        (folder / "x.tf").touch()
        part["pretrain_tfrecords"] = str(folder / "*.tf")
        content = {"corpus": CORPUS, "max_seq_length": part["max_seq_length"]}
        content |= {"files": {}, "vocab": {}}
        (folder / "manifest.json").write_text(json.dumps(content))
    hparams = {
        "phases": parts,
        "gen_weight": 1,
        "init_checkpoint": "/home/me/old/model.ckpt-5",
    }
    (model_dir / "run").mkdir()
    (model_dir / "run" / "config.json").write_text(json.dumps(hparams))
    card = card_of(tmp_path, model_dir / "run")
    assert "for 7 steps with electra_tf, from the weights of old/model.c" in card
    assert "/home/me" not in card and '"max_seq_length": 16' in card
    assert "examples of up to 16 tokens" in card and "up to 32 tokens" in card
    assert "\n\n\n" not in card
