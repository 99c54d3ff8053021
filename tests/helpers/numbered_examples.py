# SPDX-License-Identifier: Apache-2.0
"""Shards of small examples that tell their number, for tests of reading."""

import json

import numpy as np
import pytest

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.data import tfrecord
from electra_tf.errors import UserError
from electra_tf.pretrain import pretrain_data
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.masked_sequences import settings_of

LENGTH = 16
VOCAB = Vocabulary(
    ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(995)))
)
NAMES = tfrecord.FEATURES


def example_arrays(numbers):
    """Examples whose second and third tokens tell their number."""
    numbers = np.asarray(numbers, int)
    ids = np.zeros((len(numbers), LENGTH), int)
    ids[:, 0], ids[:, 1], ids[:, 2] = 2, 5 + numbers // 900, 5 + numbers % 900
    sizes = 4 + numbers % (LENGTH - 3)
    position = np.arange(LENGTH)
    ids = np.where((position > 2) & (position < sizes[:, None]), 7, ids)
    ids[np.arange(len(ids)), sizes - 1] = 3
    mask = position < sizes[:, None]
    return ids, mask.astype(int), (mask & (position > 8)).astype(int)


def numbers_of(batch):
    ids = np.asarray(batch["input_ids"])
    return ((ids[:, 1] - 5) * 900 + ids[:, 2] - 5).tolist()


def write_shards(folder, counts, manifest=True):
    """Writes numbered examples as shards; returns their pattern."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    first = 0
    for shard, count in enumerate(counts):
        path = folder / f"pretrain_data.tfrecord-{shard:05d}-of-{len(counts):05d}"
        numbers = range(first, first + count)
        records = tfrecord.encode_examples(*example_arrays(numbers)) if count else []
        path.write_bytes(b"".join(map(tfrecord.frame, records)))
        size = path.stat().st_size
        files.append({"name": path.name, "examples": count, "bytes": size})
        first += count
    if manifest:
        write_manifest(folder, files)
    return f"{folder}/pretrain_data.tfrecord*"


def write_manifest(folder, files, length=LENGTH, vocab=VOCAB):
    manifest = {
        "max_seq_length": length,
        "vocab": {"sha256": vocab.sha256, "size": len(vocab)},
        "files": files,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


def opened(data, vocab=VOCAB, **hparams):
    config = PretrainingConfig().replaced(**{"max_seq_length": LENGTH} | hparams)
    return pretrain_data.DataSets(data, config, vocab)


_OF_DATA = {"vocab", "max_seq_length", "sampling_alpha"}


def dataset(pattern, **changes):
    own = {k: changes.pop(k) for k in _OF_DATA & changes.keys()}
    source = opened(pattern, **own)
    special = VOCAB.cls_id, VOCAB.sep_id, VOCAB.mask_id
    mode = changes.pop("repeated_masks", "original")
    how = settings_of(mode, 3, special_ids=special, vocab_size=len(VOCAB))
    options = {"batch_size": 6, "seed": 1} | changes
    return pretrain_data.make_dataset(source, how, **options)


def batches(pattern, count, **changes):
    return list(dataset(pattern, num_batches=count, **changes).as_numpy_iterator())


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def error_of(call, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    assert str(caught.value).count("\n") <= 2
    return str(caught.value), caught.value.exit_code
