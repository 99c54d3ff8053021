# SPDX-License-Identifier: Apache-2.0
"""The directory to publish, filled from a run; its upload to stand-ins of the hubs."""

import contextlib
import hashlib
import importlib.machinery
import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import types

import pytest
import tensorflow as tf

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.export import formats, hub_archives, hub_card, hub_directory
from electra_tf.storage.checkpoints import Checkpoints
from tests.helpers import model_hubs as hubs
from tests.helpers import tiny_trials
from tests.helpers.cards import run_snippets
from tests.helpers.exporting import shared_export, tiny_source, write_run
from tests.helpers.runs import run_script

RESULTS = {"global_step": 7, "metrics": {"disc_auc_tokens": 0.8125, "loss": 20.5}}
DATA = {
    "max_seq_length": 32,
    "corpus": {
        "files": 2,
        "bytes": 1_500_000,
        "names": ["a.txt", "b.txt"],
        "examples": 120,
        "tokens_kept": 3456,
        "sha256": "0123abcd",
    },
}
# What tensorflow_hub 0.16 wants of it, gone from setuptools 82.
PKG_RESOURCES = """
import sys, types
from packaging import version

found = sys.modules["pkg_resources"] = types.ModuleType("pkg_resources")
found.parse_version = version.parse
"""
SECRET = "5ecre7-5ecre7"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A data directory with a run of 7 steps, evaluated."""
    data = tmp_path_factory.mktemp("published")
    model_dir = write_run(data, tiny_source(), num_train_steps=7)
    (model_dir / "results").mkdir()
    (model_dir / "results" / "unsup_results.json").write_text(json.dumps(RESULTS))
    (data / "pretrain_tfrecords").mkdir()
    (data / "pretrain_tfrecords" / "manifest.json").write_text(json.dumps(DATA))
    return data


def export(run, output, *flags, env=None, named=True, form="hub"):
    model = (f"--data-dir={run}", "--model-name=tiny") if named else ()
    return run_script(
        "export_model.py",
        *model,
        f"--format={form}",
        f"--output-dir={output}",
        *flags,
        env={"HOME": str(run), "HF_HOME": str(run / "hf")} | (env or {}),
    )


@pytest.fixture(scope="module")
def directory(run, tmp_path_factory):
    """What --format hub wrote."""
    output = tmp_path_factory.mktemp("hub") / "out"
    done = export(run, output, "--handle=me/tiny")
    assert done.returncode == 0, done.stderr
    assert f"Written to {output}" in done.stdout
    return output


KINDS = ("encoder", "preprocessor", "detector")


class TestDirectory:
    def test_files(self, directory):
        found = {p.relative_to(directory).as_posix() for p in directory.rglob("*.*")}
        archives = {f"{kind}.tar.gz" for kind in KINDS}
        assert found == archives | {f"docs/{kind}.md" for kind in KINDS} | {"README.md"}
        done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=directory)
        assert done.returncode == 0

    def test_archives_are_saved_models(self, directory):
        for kind in KINDS:
            with tarfile.open(directory / f"{kind}.tar.gz") as tar:
                names = tar.getnames()
                owners = {(m.uid, m.uname, m.mtime) for m in tar.getmembers()}
            assert {"saved_model.pb", "variables", "manifest.json"} <= set(names)
            assert owners == {(0, "", 0)}

    def test_pages_have_the_hubs_metadata(self, directory):
        for kind in KINDS:
            page = (directory / "docs" / f"{kind}.md").read_text()
            first, second = page.splitlines()[0], page.splitlines()[2]
            assert first == f"# Module me/tiny-{kind}"
            assert second.endswith(".") and len(second) > 20
            comments = dict(re.findall(r"^<!-- ([\w-]+): (.+) -->$", page, re.M))
            assert comments["format"] == "saved_model_2"
            assert comments["fine-tunable"] == str(kind == "encoder").lower()
            assert {"asset-path", "task", "license"} <= set(comments)
            # Of the newest version, whatever number Kaggle gives an upload.
            assert comments["asset-path"].endswith(f"/me/tiny/tensorFlow2/{kind}")

    def test_card_says_what_the_run_says(self, directory):
        card = (directory / "README.md").read_text()
        front = card.split("---")[1]
        assert "license: apache-2.0" in front and "- electra" in front
        for fact in ("7 steps", "3,456 tokens", "a.txt, b.txt", "0123abcd", "0.8125"):
            assert fact in card, fact
        assert "| num_train_steps | 7 |" in card
        assert "at most 40 tokens" in card and "sequences of 32" in card
        assert "None" not in card

    @pytest.mark.parametrize("path", ["models/tiny", "models/tiny/model.ckpt-7"])
    def test_card_of_a_run_that_is_given_by_its_path(self, run, tmp_path, path):
        """It is that run's, however it is named."""
        out = tmp_path / "out"
        formats.export(
            formats.ExportRequest(
                *("hub", str(out)), init_checkpoint=str(run / path), handle="me/tiny"
            )
        )
        card = (out / "README.md").read_text()
        for fact in ("for 7 steps", "3,456 tokens", "0.8125", "| num_train_steps | 7"):
            assert fact in card, fact
        assert "Not recorded" not in card and "sequences of 32" in card

    def test_the_snippets_run(self, directory, tmp_path):
        for kind in KINDS:
            (tmp_path / kind).mkdir()
            hub_archives.unpack(directory / f"{kind}.tar.gz", tmp_path / kind)
        facts = hub_directory.facts_of(tiny_source())
        for variant, kind in (("electra", "generator"), ("electric", "scorer")):
            (tmp_path / kind).symlink_to(shared_export(variant, kind))
            page = hub_card.hub_page(kind, "me/tiny", facts, "mit")
            (tmp_path / f"{kind}.md").write_text(page)
        for page in (directory / "README.md", *(directory / "docs").iterdir()):
            shutil.copy(page, tmp_path)
        pages = sorted(tmp_path.glob("*.md"))
        assert len(pages) == 6
        run_snippets(tmp_path, pages, PKG_RESOURCES)

    def test_mistakes(self, run, directory):
        done = export(run, directory, "--handle=me/tiny")
        assert done.returncode == 2 and "is not empty" in done.stderr
        done = export(run, directory / "new", "--handle=tiny")
        assert done.returncode == 2 and "owner/model" in done.stderr


@pytest.mark.parametrize(
    "damaged", ["models/tiny/config.json", "pretrain_tfrecords/manifest.json"]
)
def test_damaged_files_of_the_run_are_named(run, tmp_path, damaged):
    """The card would say that they were not there."""
    data = shutil.copytree(run, tmp_path / "D")
    (data / damaged).write_text("{")
    with pytest.raises(UserError, match=damaged) as caught:
        hub_directory.facts_of(tiny_source(), data / "models" / "tiny")
    assert caught.value.exit_code == EXIT_DAMAGED


def test_damaged_archives_are_not_published(directory, tmp_path):
    for path in directory.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    archive = tmp_path / "encoder.tar.gz"
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 8
    archive.write_bytes(content)
    with pytest.raises(UserError, match="encoder.tar.gz is not what") as caught:
        hub_archives.archives_of(tmp_path)
    assert caught.value.exit_code == EXIT_DAMAGED
    archive.unlink()
    with pytest.raises(UserError, match="encoder.tar.gz is missing"):
        hub_archives.archives_of(tmp_path)
    with pytest.raises(UserError, match="not what --format hub writes"):
        hub_archives.archives_of(tmp_path / "other")


def test_archives_that_reach_outside_are_refused(tmp_path):
    archive = tmp_path / "evil.tar.gz"
    (tmp_path / "x").write_text("x")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "x", "../outside")
    (tmp_path / "into").mkdir()
    with pytest.raises(UserError, match="is damaged"):
        hub_archives.unpack(archive, tmp_path / "into")
    assert not (tmp_path / "outside").exists()


def archived(directory, kind):
    """The files of an archive: path -> content."""
    with tarfile.open(directory / f"{kind}.tar.gz") as tar:
        files = [m for m in tar.getmembers() if m.isfile()]
        return {m.name: tar.extractfile(m).read() for m in files}


def keeps_the_secret(run, directory, done):
    assert SECRET not in done.stdout + done.stderr
    for folder in (run, directory):
        for path in folder.rglob("*"):
            if path.is_file():
                assert SECRET.encode() not in path.read_bytes(), path


class TestUpload:
    def test_kaggle(self, run, directory):
        with contextlib.ExitStack() as stack:
            try:
                stand_in = hubs.running(hubs.Kaggle(), port=7777)
                kaggle = stack.enter_context(stand_in)
            except OSError as error:
                pytest.skip(f"7777, where kagglehub expects a test server: {error}")
            env = {
                "KAGGLE_API_ENVIRONMENT": "TEST",  # localhost:7777
                "KAGGLE_USERNAME": "me",
                "KAGGLE_KEY": SECRET,
            }
            flags = ("--handle=me/tiny", "--publish=kaggle")
            for _ in range(2):
                done = export(run, directory, *flags, env=env)
                assert done.returncode == 0, done.stderr
        assert "Uploaded: me/tiny/tensorFlow2/detector" in done.stdout
        assert kaggle.models == {"me/tiny"} and kaggle.licence == "Apache 2.0"
        assert set(kaggle.variations) == {f"me/tiny/{kind}" for kind in KINDS}
        for name, versions in kaggle.variations.items():
            files = archived(directory, name.rpartition("/")[2])
            assert versions == [files, files]
        assert all(a and a.startswith("Basic ") for a in kaggle.authorizations)
        keeps_the_secret(run, directory, done)

    def test_huggingface(self, run, directory):
        with hubs.running(hubs.HuggingFace()) as hub:
            env = {"HF_ENDPOINT": hub.address, "HF_TOKEN": SECRET}
            flags = ("--handle=me/tiny", "--publish=huggingface")
            done = export(run, directory, *flags, env=env)
        assert done.returncode == 0, done.stderr
        assert f"/me/tiny/commit/{'a' * 40}" in done.stdout
        expected = {
            f"{kind}/{path}": content
            for kind in KINDS
            for path, content in archived(directory, kind).items()
        }
        for path in ("README.md", *(f"docs/{kind}.md" for kind in KINDS)):
            expected[path] = (directory / path).read_bytes()
        assert {k: digest(v) for k, v in hub.files.items()} == {
            k: digest(v) for k, v in expected.items()
        }
        assert hub.authorizations == {f"Bearer {SECRET}"}
        keeps_the_secret(run, directory, done)

    def test_what_is_there_is_uploaded_without_a_model(self, run, directory):
        with hubs.running(hubs.HuggingFace()) as hub:
            env = {"HF_ENDPOINT": hub.address, "HF_TOKEN": SECRET}
            flags = ("--handle=me/tiny", "--publish=huggingface")
            dry = export(run, directory, *flags, "--dry-run", env=env, named=False)
            assert hub.repositories == []
            done = export(run, directory, *flags, "--private", env=env, named=False)
            assert hub.private == {"me/tiny": True} and hub.files
            hub.private["me/tiny"], hub.files = False, {}
            late = export(run, directory, *flags, "--private", env=env, named=False)
            assert hub.files == {}
        assert dry.returncode == done.returncode == 0, dry.stderr + done.stderr
        assert "Would upload to me/tiny" in dry.stdout
        assert f"Uploaded as it is: {directory}" in done.stdout
        assert "encoder/saved_model.pb" in dry.stdout
        assert late.returncode == 73 and "is public already" in late.stderr

    def test_another_model_is_not_uploaded(self, run, directory):
        flags = ("--handle=me/tiny", "--publish=huggingface", "--model-name=other")
        done = export(run, directory, f"--data-dir={run}", *flags, named=False)
        assert done.returncode == 2, done.stderr
        assert "holds the model 'tiny'" in done.stderr and "'other'" in done.stderr

    @pytest.mark.parametrize("form", ["hub", "huggingface"])
    def test_an_older_step_is_not_uploaded(self, run, directory, tmp_path, form):
        """What is named and written just before is; without a name, anything."""
        data = tmp_path / "data"
        shutil.copytree(run, data)
        output = directory
        if form == "huggingface":
            pytest.importorskip("safetensors")
            output = tmp_path / "hf"
            assert export(data, output, form=form).returncode == 0
        request = formats.ExportRequest(
            *(form, str(output), str(data), "tiny"),
            handle="me/tiny",
            publish="huggingface",
            dry_run=True,
        )
        assert formats.export(request) == str(output)
        checkpoints = Checkpoints(data / "models" / "tiny", log=lambda line: None)
        checkpoints.save(8, {"global_step": tf.Variable(8, dtype=tf.int64)})
        with pytest.raises(UserError, match="holds step 7, the newest of .* is 8"):
            formats.export(request)
        formats.export(request._replace(data_dir=None, model_name=None))
        with pytest.raises(UserError, match="which model"):
            formats.export(request._replace(data_dir=None))

    def test_a_task_is_uploaded_by_the_name_of_its_run(self, tmp_path):
        pytest.importorskip("safetensors")
        data = tiny_trials.write_data(tmp_path / "data")
        tiny_trials.write_run(data, {"task_names": ["cola"]})
        request = formats.ExportRequest(
            *("huggingface", str(tmp_path / "hf"), str(data), "m"),
            what="cola",
            handle="me/tiny",
            publish="huggingface",
            dry_run=True,
        )
        formats.export(request)
        again = request._replace(what=None)
        formats.export(again)
        with pytest.raises(UserError, match="holds the model 'm'"):
            formats.export(again._replace(model_name="other"))

    def test_the_licence_is_that_of_the_card(self, directory, tmp_path, monkeypatch):
        there = tmp_path / "there"
        shutil.copytree(directory, there)
        text = (there / "README.md").read_text()
        (there / "README.md").write_text(text.replace("apache-2.0", "mit"))
        sent = []

        def model_upload(target, folder, license_name, version_notes):
            sent.append(license_name)

        kaggle = types.ModuleType("kagglehub")
        kaggle.__spec__ = importlib.machinery.ModuleSpec("kagglehub", None)
        kaggle.model_upload = model_upload
        monkeypatch.setitem(sys.modules, "kagglehub", kaggle)
        request = formats.ExportRequest(
            "hub", str(there), handle="me/tiny", publish="kaggle"
        )
        formats.export(request)
        assert sent == ["MIT"] * len(KINDS)
        with pytest.raises(UserError, match="says license: mit, --license is cc"):
            formats.export(request._replace(license="cc-by-4.0"))
        (there / "README.md").write_text(text.partition("# ")[2])
        with pytest.raises(UserError, match="names no licence"):
            formats.export(request)

    @pytest.mark.parametrize("hub", ["kaggle", "huggingface"])
    def test_another_name_than_that_of_the_pages_is_refused(
        self, directory, tmp_path, hub
    ):
        """They say where the weights are; another model may lie there."""
        there = tmp_path / "there"
        shutil.copytree(directory, there)
        request = formats.ExportRequest(
            *("hub", str(there)), handle="me/tiny", publish=hub, dry_run=True
        )
        formats.export(request)
        other = request._replace(handle="you/tiny")
        with pytest.raises(UserError, match="README.md says .*me/tiny.* is you/tiny"):
            formats.export(other)
        card, pages = there / "README.md", sorted((there / "docs").iterdir())
        both = card.read_text().replace("`me/tiny`", "`me/tiny` and `you/tiny`")
        card.write_text(both)
        formats.export(request)
        if hub == "kaggle":
            with pytest.raises(UserError, match="docs/detector.md says .*me/tiny"):
                formats.export(other)
            for page in pages:
                page.write_text(page.read_text().replace("me/tiny", "you/tiny"))
        formats.export(other)
        card.write_text("---\nlicense: mit\n---\n# Mine\n")
        shutil.rmtree(there / "docs")
        formats.export(request._replace(handle="someone/else"))

    def test_pages_may_go_and_the_card_may_not(self, directory, tmp_path, capsys):
        there = tmp_path / "there"
        shutil.copytree(directory, there)
        shutil.rmtree(there / "docs")
        request = formats.ExportRequest(
            *("hub", str(there)),
            handle="me/tiny",
            publish="huggingface",
            dry_run=True,
        )
        formats.export(request)
        said = capsys.readouterr().out
        assert f"Would be uploaded as it is: {there}" in said
        assert "Written to" not in said and "docs/" not in said
        (there / "README.md").unlink()
        with pytest.raises(UserError, match="README.md cannot be read .*model card"):
            formats.export(request)

    def test_what_cannot_be_uploaded_is_not_exported(self, run, tmp_path, monkeypatch):
        request = formats.ExportRequest(
            *("hub", str(tmp_path / "out"), str(run), "tiny"),
            handle="me/tiny",
            publish="kaggle",
        )
        with pytest.raises(UserError, match="on Kaggle a new model is private"):
            formats.export(request._replace(private=True))
        monkeypatch.setitem(sys.modules, "kagglehub", None)
        with pytest.raises(UserError, match="pip install kagglehub"):
            formats.export(request)
        assert not (tmp_path / "out").exists()

    def test_a_part_of_what_is_there_is_not_uploaded(self, run, tmp_path):
        pytest.importorskip("safetensors")
        out = tmp_path / "hf"
        assert export(run, out, form="huggingface").returncode == 0
        flags = ("--handle=me/tiny", "--publish=huggingface", "--what=discriminator")
        done = export(run, out, *flags, form="huggingface", named=False)
        assert done.returncode == 2 and "leave --what out" in done.stderr, done.stderr

    def test_networks_of_transformers(self, run, tmp_path):
        pytest.importorskip("safetensors")
        flags = ("--handle=me/tiny", "--publish=huggingface")
        with hubs.running(hubs.HuggingFace()) as hub:
            env = {"HF_ENDPOINT": hub.address, "HF_TOKEN": SECRET}
            out = tmp_path / "hf"
            done = export(run, out, *flags, env=env, form="huggingface")
            assert done.returncode == 0, done.stderr
            uploaded = set(hub.files)
            (out / "discriminator" / "notes.md").write_text("mine alone")
            (out / "discriminator" / ".cache").mkdir()
            (out / "discriminator" / ".cache" / "x.json").write_text("{}")
            (out / "discriminator" / "README.md").write_text("edited")
            as_it_is = {"env": env, "form": "huggingface", "named": False}
            done = export(run, out, *flags, **as_it_is)
            dry = export(run, out, *flags, "--dry-run", **as_it_is)
        assert done.returncode == 0, done.stderr
        assert set(hub.files) == uploaded
        note = "left out, since no export wrote it: .cache/x.json, notes.md"
        assert note in done.stdout and note in dry.stdout
        assert "  notes.md" not in dry.stdout and "  manifest.json" in dry.stdout
        assert hub.repositories[:2] == ["me/tiny-discriminator", "me/tiny-generator"]
        assert {"config.json", "model.safetensors", "README.md"} <= set(hub.files)
        done = export(
            run, out, "--handle=me/tiny", "--publish=kaggle", form="huggingface"
        )
        assert done.returncode == 2 and "Kaggle takes hub" in done.stderr

    def test_no_server(self, run, directory):
        env = {"HF_ENDPOINT": "http://localhost:9", "HF_TOKEN": SECRET}
        flags = ("--handle=me/tiny", "--publish=huggingface")
        done = export(run, directory, *flags, env=env)
        assert done.returncode == 73 and "Traceback" not in done.stderr
        assert "upload of me/tiny to Hugging Face failed" in done.stderr
        command = done.stderr.rpartition("upload it as it is: python3 ")[2]
        assert "--data-dir" not in command
        done = run_script(*shlex.split(command), env={"HOME": str(run)} | env)
        assert done.returncode == 73, done.stderr  # as far as before
        keeps_the_secret(run, directory, done)


def digest(content):
    return hashlib.sha256(content).hexdigest()
