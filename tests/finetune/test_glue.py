# SPDX-License-Identifier: Apache-2.0
"""The archive to submit to GLUE."""

import json
import zipfile

from electra_tf.finetune import glue


def test_archive_of_all_eleven_files(tmp_path):
    log = []
    for name in glue.NAMES[:-1]:
        folder = tmp_path / f"{name.lower()}_test_predictions" / "trial_1"
        folder.mkdir(parents=True)
        (folder / f"{name}.tsv").write_text(f"index\tprediction\n0\t{name}\n")
    last = glue.NAMES[-1]
    assert glue.write_archive(tmp_path, 1, log.append) is None
    assert log == [f"No GLUE.zip of trial 1 yet: {last} is missing."]
    (folder / f"{last}.tsv").write_text("index\tprediction\n0\tx\n")
    path = glue.write_archive(tmp_path, 1, log.append)
    with zipfile.ZipFile(path) as archive:
        names = "AX CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST-2 STS-B WNLI"
        assert sorted(archive.namelist()) == [f"{name}.tsv" for name in names.split()]
        assert archive.read("CoLA.tsv") == b"index\tprediction\n0\tCoLA\n"
        rows = archive.read("WNLI.tsv").decode().splitlines()
    assert rows[0] == "index\tprediction" and len(rows) == 147
    assert {row.split("\t")[1] for row in rows[1:]} == {"0"}
    assert glue.write_archive(tmp_path, 2, log.append) is None
    # Of a task in two runs, the newest by their records counts, not by the files.
    for run, year in (("cola", 2026), ("cola,rte", 2025)):
        folder = tmp_path / f"{run}_test_predictions" / "trial_1"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "CoLA.tsv").write_text(run)
        created = {"created": f"{year}-01-01T12:00:00+01:00"}
        (folder / "manifest.json").write_text(json.dumps(created))
    path = glue.write_archive(tmp_path, 1, log.append)
    with zipfile.ZipFile(path) as archive:
        assert archive.read("CoLA.tsv") == b"cola"
