# SPDX-License-Identifier: Apache-2.0
"""Records are dealt to the shards of a group in turn."""

import tracemalloc

from electra_tf.data import shard_writing, tfrecord
from electra_tf.data.record_making import BuildSettings
from electra_tf.text import units
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary
from tests.helpers.building import VOCAB, write_corpus


def test_memory_is_independent_of_the_size_of_a_group(tmp_path, monkeypatch):
    """A compressed file is a single unit, however large it is."""
    monkeypatch.setattr(shard_writing, "_HELD_BYTES", 100_000)
    text = write_corpus(tmp_path / "in", files=3, lines=12_000)
    settings = BuildSettings(str(VOCAB), TokenizerConfig())
    sha256 = Vocabulary.load(VOCAB).sha256
    written = {}
    for count in (1, 3):
        (folder := tmp_path / str(count)).mkdir()
        plan = shard_writing.Plan(str(folder), settings, count, False, sha256, "")
        task = units.file_corpus(str(text)).units, list(range(count))
        tracemalloc.start()
        record = shard_writing.write_shards(plan, task, str(folder))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        shards = sorted(folder.glob("pretrain*"))
        assert peak < 2 * sum(path.stat().st_size for path in shards)
        written[count] = [list(tfrecord.read_records(str(path))) for path in shards]
        assert record["examples"] == [*map(len, written[count])]
    [whole] = written[1]
    assert written[3] == [whole[i::3] for i in range(3)]
