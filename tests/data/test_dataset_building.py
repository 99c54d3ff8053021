# SPDX-License-Identifier: Apache-2.0
"""Records are dealt to the shards of a group in turn."""

import tracemalloc
from types import SimpleNamespace

import numpy as np

from electra_tf.data import dataset_building, tfrecord
from electra_tf.data.record_index import RecordIndex
from electra_tf.data.record_making import BuildSettings, Counts
from electra_tf.text.units import Unit
from electra_tf.text.vocabulary import TokenizerConfig


def test_memory_is_independent_of_the_size_of_a_group(tmp_path, monkeypatch):
    """A compressed file is a single unit, however large it is."""
    blocks = [range(i, i + 71) for i in range(0, 7100, 71)]

    def records(units):
        for block in blocks:
            found = [tfrecord.frame(str(i).encode() * 200) for i in block]
            yield found, Counts(examples=len(found))

    maker = SimpleNamespace(records=records, token_counts=np.zeros(9, np.int64))
    monkeypatch.setattr(dataset_building, "_maker", lambda plan: maker)
    settings = BuildSettings("", TokenizerConfig())
    plan = dataset_building.Plan(str(tmp_path), settings, 3, False, "")
    task = [Unit("text", "", "", 0, 1, 1)], [0, 1, 2]
    tracemalloc.start()
    record = dataset_building.write_shards(plan, task, str(tmp_path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    shards = sorted(tmp_path.glob("pretrain*"))
    assert peak < sum(path.stat().st_size for path in shards) / 4
    for i, path in enumerate(shards):
        expected = [str(number).encode() * 200 for number in range(7100)[i::3]]
        index = RecordIndex([str(path)])
        assert index.read(np.arange(len(index))) == expected
        assert record["examples"][i] == len(expected)
