# SPDX-License-Identifier: Apache-2.0
"""Shards of a corpus run are of one text and one model.

Runs that are killed: tests/jobs/test_job.py.
"""

import pytest

from electra_tf.errors import UserError
from electra_tf.inference import corpus_run
from electra_tf.text import units
from tests.helpers.corpus_runs import write_texts


@pytest.mark.thorough
def test_workers_notice_other_text_and_another_model(pretrained, tmp_path, monkeypatch):
    model = pretrained("electric") / "models" / "electric"
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")  # which a run would leave set
    source, folder = tmp_path / "in", tmp_path / "out"
    write_texts(source)
    folder.mkdir()
    options = {"model": str(model), "method": None, "overlap": 0, "tokens": False}
    options |= {"encoding_errors": "strict", "text_key": "text"}
    scores = corpus_run.Scores(options)
    shards = units.portions(scores.corpus(str(source), 4000).units, 4000)
    settings = {"options": scores.options, "model": scores.model}
    plan = corpus_run.Plan(str(folder), corpus_run.Scores, len(shards), settings)
    record = corpus_run.write_shard(plan, (1, shards[1]), str(folder))
    assert record["counts"]["texts"] > 5
    records = [None, record, *[None] * (len(shards) - 2)]
    corpus_run._check_same_text(str(folder), records, shards)
    # Changed text behind the end of the shard's range, in the same line, is noticed.
    end = shards[1][-1]
    text = (source / end.name).read_bytes()
    assert text[end.end - 1 : end.end] != b"\n"
    at = text.index(b"\n", end.end) - 1
    (source / end.name).write_bytes(text[:at] + b"?" + text[at + 1 :])
    with pytest.raises(UserError, match="part-00001.*made from another text"):
        corpus_run._check_same_text(str(folder), records, shards)
    # A model that has changed since the plan is refused.
    corpus_run._models.clear()
    other = plan._replace(settings=settings | {"model": {"sha256": "0" * 64}})
    with pytest.raises(UserError, match="another model than"):
        corpus_run.write_shard(other, (1, shards[1]), str(folder))
