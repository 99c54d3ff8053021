# SPDX-License-Identifier: Apache-2.0
"""Runs the script that builds data, and looks at what it built."""

import hashlib
import json
import random
from pathlib import Path

import numpy as np

from electra_tf.data import tfrecord
from tests.helpers import runs
from tests.helpers.runs import run_script

GOLDEN = runs.GOLDEN / "examples"
VOCAB = GOLDEN.parent / "vocab_tiny.txt"
SCRIPT = "build_pretraining_dataset.py"


def build(corpus_dir, output, *flags, **kwargs):
    return run_script(
        SCRIPT,
        f"--corpus-dir={corpus_dir}",
        f"--vocab-file={VOCAB}",
        f"--output-dir={output}",
        *flags,
        **kwargs,
    )


def succeed(*args, **kwargs):
    result = build(*args, **kwargs)
    assert result.returncode == 0, result.stderr
    return result.stdout


def fail(*args, **kwargs):
    """Runs a build that ends with a UserError; returns its message and exit code."""
    result = build(*args, **kwargs)
    error = result.stderr[result.stderr.find("error: ") :]
    assert error.startswith("error: "), result.stderr
    assert error.count("\n") <= 3 and "Traceback" not in result.stderr
    return error, result.returncode


def content(folder):
    """Name -> sha256 of the files in a folder, hidden ones included."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in Path(folder).iterdir()
    }


def examples_in(folder):
    """input_ids, input_mask, segment_ids of all shards, read by TensorFlow."""
    import tensorflow as tf

    manifest = json.loads((Path(folder) / "manifest.json").read_text())
    paths = [str(Path(folder) / file["name"]) for file in manifest["files"]]
    spec = tf.io.FixedLenFeature([manifest["max_seq_length"]], tf.int64)
    records = tf.data.TFRecordDataset(paths)
    parsed = records.map(
        lambda r: tf.io.parse_single_example(r, dict.fromkeys(tfrecord.FEATURES, spec))
    )
    rows = list(parsed.as_numpy_iterator())
    return [np.array([row[name] for row in rows]) for name in tfrecord.FEATURES]


WORDS = Path(VOCAB).read_text().split()


def write_corpus(folder, files=6, lines=300, seed=0):
    """Random sentences of the vocabulary's words, with blank lines here and there."""
    rng = random.Random(seed)
    words = [*filter(str.isalpha, WORDS)]
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(files):
        text = [
            " ".join(rng.choices(words, k=rng.randrange(0, 30))) for _ in range(lines)
        ]
        (folder / f"{i}.txt").write_text("\n".join(text) + "\n")
    return folder
