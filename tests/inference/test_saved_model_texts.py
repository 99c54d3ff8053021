# SPDX-License-Identifier: Apache-2.0
"""A corpus is scored by an exported SavedModel, wherever that is."""

import json
from pathlib import Path

from electra_tf.inference import saved_model_texts
from electra_tf.inference.saved_model_texts import SavedModelTexts
from tests.helpers import memory_bucket
from tests.helpers.exporting import shared_export


def test_an_exported_model_in_a_bucket(tmp_path, monkeypatch):
    """Also at first, and one that is exported anew is another one."""
    memory = memory_bucket.empty(tmp_path, monkeypatch)
    exported = shared_export("electric", "scorer")
    memory.put(f"{exported.parent}/", "bucket/scorer/", recursive=True)
    options = {"encoding_errors": "strict", "text_key": "text", "method": None}
    options |= {"overlap": 0, "tokens": False, "model": memory_bucket.place("scorer")}
    first = saved_model_texts.scores(options)
    assert isinstance(first, SavedModelTexts)
    manifest = json.loads(Path(exported, "manifest.json").read_text())
    manifest["created"] = "later"
    key = f"bucket/scorer/{exported.name}/manifest.json"
    memory.pipe_file(key, json.dumps(manifest).encode())
    memory_bucket.forget_answers()
    assert saved_model_texts.scores(options).model["sha256"] != first.model["sha256"]
