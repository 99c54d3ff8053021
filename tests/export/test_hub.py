# SPDX-License-Identifier: Apache-2.0
"""The directory to publish, and its upload."""

import json
import shutil
import types
from pathlib import Path
from unittest import mock

import huggingface_hub
import pytest
from huggingface_hub.utils import filter_repo_objects

from electra_tf.errors import EXIT_CANNOT_WRITE, EXIT_DAMAGED, UserError
from electra_tf.export import formats
from electra_tf.interop import cards
from tests.helpers.cards import run_snippets
from tests.helpers.exporting import shared_export, tiny_source, write_run
from tests.helpers.interop_models import read_model
from tests.helpers.runs import refused

RESULTS = {"global_step": 7, "metrics": {"disc_auc_tokens": 0.8125, "loss": 20.5}}
RESULTS |= {
    "labels": {"disc_auc_tokens": "AUC of replaced-token detection, real tokens"}
}
CORPUS = {"files": 2, "bytes": 1_500_000, "names": ["a.txt", "b.txt"]}
CORPUS |= {"examples": 120, "tokens_kept": 3456, "sha256": "0123abcd"}
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


class HuggingFace:
    """What the library is asked to do, instead of the Hub.

    Attributes:
      files: repository -> {path: content}.
      private: repository -> bool.
      error: raised by an upload.
    """

    def __init__(self):
        self.files, self.private, self.error = {}, {}, None

    def create_repo(self, _, repo_id, *, private=None, exist_ok=False):
        self.private.setdefault(repo_id, bool(private))

    def model_info(self, _, repo_id):
        return types.SimpleNamespace(private=self.private[repo_id])

    def upload_folder(self, _, *, repo_id, folder_path, allow_patterns, commit_message):
        if self.error:
            raise self.error
        files = files_of(folder_path)
        names = filter_repo_objects(files, allow_patterns=allow_patterns)
        self.files[repo_id] = {name: files[name] for name in names}
        return types.SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")


@pytest.fixture
def hub(monkeypatch):
    made = HuggingFace()
    for name in ("create_repo", "model_info", "upload_folder"):
        method = getattr(huggingface_hub.HfApi, name)
        stand_in = mock.create_autospec(method, side_effect=getattr(made, name))
        monkeypatch.setattr(huggingface_hub.HfApi, name, stand_in)
    return made


def files_of(folder):
    """Path -> content."""
    files = [p for p in Path(folder).rglob("*") if p.is_file()]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def test_card_describes_the_run(directory):
    card = (directory / "README.md").read_text()
    for fact in ("for 7 steps", "3,456 tokens", "a.txt, b.txt", "0123abcd", "0.8125"):
        assert fact in card, fact
    for fact in ("- `num_train_steps`: 7", "| positions | 40 |", "sequence | 32 |"):
        assert fact in card, fact
    assert "None" not in card and "Not recorded" not in card
    data = huggingface_hub.ModelCard(card).data
    assert data.license == "apache-2.0" and data.tags[0] == "electra"


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
    refused(lambda: formats.export(request), "saved_model.pb", code=EXIT_DAMAGED)


def test_upload_to_hugging_face(directory, hub, capsys):
    formats.export(request_of(directory, dry_run=True, **HF))
    assert "encoder/saved_model.pb" in capsys.readouterr().out and not hub.private
    formats.export(request_of(directory, private=True, **HF))
    assert "https://hub/me/tiny/commit/1" in capsys.readouterr().out
    assert hub.files == {"me/tiny": files_of(directory)}
    assert hub.private == {"me/tiny": True}


@pytest.mark.parametrize(
    ("error", "words"),
    [(None, "is public already"), (OSError("no route"), "failed: no route\n.*intact")],
)
def test_failed_upload(directory, hub, error, words):
    hub.private["me/tiny"], hub.error = error is not None, error
    with pytest.raises(UserError, match=words) as caught:
        formats.export(request_of(directory, private=True, **HF))
    assert caught.value.exit_code == EXIT_CANNOT_WRITE and not hub.files


@pytest.mark.parametrize("flag", ["private", "dry_run"])
def test_flags_of_an_upload_need_one(run, tmp_path, flag):
    """Else --dry-run would export."""
    with pytest.raises(UserError, match="go with --publish"):
        formats.export(request_of(tmp_path / "out", run, **{flag: True}))
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_networks_of_transformers_are_uploaded(run, tmp_path, hub):
    """What is not of the export stays here."""
    out = tmp_path / "hf"
    formats.export(request_of(out, run, "huggingface", **HF))
    uploaded = {name: set(files) for name, files in hub.files.items()}
    assert [*uploaded] == ["me/tiny-discriminator", "me/tiny-generator"]
    names = {"config.json", "model.safetensors", "README.md"}
    assert all(names <= files for files in uploaded.values())
    (out / "discriminator" / "notes.md").write_text("mine alone")
    (out / "discriminator" / "README.md").write_text("edited")
    formats.export(request_of(out, form="huggingface", **HF))
    assert {name: set(files) for name, files in hub.files.items()} == uploaded
    assert hub.files["me/tiny-discriminator"]["README.md"] == b"edited"
    request = request_of(out, form="huggingface", **HF)
    with pytest.raises(UserError, match="leave --what out"):
        formats.export(request._replace(what="discriminator"))
    refused(lambda: formats.export(request._replace(publish="kaggle")), "Kaggle takes")


def test_upload_to_kaggle(directory, copy, monkeypatch):
    """The license is that of the card."""
    kagglehub = pytest.importorskip("kagglehub")
    sent = {}

    def keep(handle, local_model_dir, license_name=None, version_notes="", **_):
        sent[handle] = license_name, files_of(local_model_dir)

    stand_in = mock.create_autospec(kagglehub.model_upload, side_effect=keep)
    monkeypatch.setattr(kagglehub, "model_upload", stand_in)
    text = (copy / "README.md").read_text()
    (copy / "README.md").write_text(text.replace("apache-2.0", "mit"))
    for folder, license in ((directory, "Apache 2.0"), (copy, "MIT")):
        request = request_of(folder, handle="me/tiny", publish="kaggle")
        formats.export(request)
        assert sent == {
            f"me/tiny/tensorFlow2/{kind}": (license, files_of(directory / kind))
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
