# SPDX-License-Identifier: Apache-2.0
"""One archive with all that GLUE takes."""

import errno
import zipfile

import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.finetune import glue_zip
from electra_tf.finetune.task_names import make_tasks
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.own_task import write_files


def test_an_archive_of_all_eleven_files(tmp_path):
    said = []
    for name in glue_zip.NAMES[:-1]:
        folder = tmp_path / f"{name.lower()}_test_predictions" / "trial_1"
        folder.mkdir(parents=True)
        (folder / f"{name}.tsv").write_text(f"index\tprediction\n0\t{name}\n")
    last = glue_zip.NAMES[-1]
    assert glue_zip.write(tmp_path, 1, said.append) is None
    assert said == [f"No GLUE.zip of trial 1 yet: {last} missing."]
    (folder / f"{last}.tsv").write_text("index\tprediction\n0\tx\n")
    path = glue_zip.write(tmp_path, 1, said.append)
    with zipfile.ZipFile(path) as archive:
        names = "AX CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST-2 STS-B WNLI"
        assert sorted(archive.namelist()) == [f"{name}.tsv" for name in names.split()]
        assert archive.read("CoLA.tsv") == b"index\tprediction\n0\tCoLA\n"
        rows = archive.read("WNLI.tsv").decode().splitlines()
    assert rows[0] == "index\tprediction" and len(rows) == 147
    assert {row.split("\t")[1] for row in rows[1:]} == {"0"}
    assert glue_zip.write(tmp_path, 2, said.append) is None


def test_an_archive_stays_whole_when_it_cannot_be_written_again(tmp_path, monkeypatch):
    test = "index\tsentence1\tsentence2\n0\tdog\tcat\n"
    write_files(tmp_path, {"finetuning_data/rte/test.tsv": test})
    config = FinetuningConfig.from_hparams(str(tmp_path), "m", {"task_names": ["rte"]})
    [task] = make_tasks(config, Vocabulary.load(tmp_path / "vocab.txt"))
    scorer = task.scorer("test")
    scorer.update({"eid": 0, "predictions": 1, "logits": [0.25, 0.5]})
    place = "test", scorer, str(tmp_path / "out"), 1
    *_, archive = task.write_predictions(*place)
    before = open(archive, "rb").read()

    def full(*_):
        raise OSError(errno.ENOSPC, "no space")

    for name in ("write", "writestr"):
        monkeypatch.setattr(zipfile.ZipFile, name, full)
    with pytest.raises(OSError, match="no space"):
        task.write_predictions(*place)
    assert open(archive, "rb").read() == before
