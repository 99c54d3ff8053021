# SPDX-License-Identifier: Apache-2.0
"""A tiny corpus and model on disk, and scripts run as a user would run them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from electra_tf.errors import UserError
from tests.helpers import forked_runs
from tests.helpers.forked_runs import ROOT

GOLDEN = ROOT / "tests" / "golden"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# A model and a run that take a second, apart from building the graph.
TINY = {
    "max_seq_length": 32,
    "train_batch_size": 8,
    "eval_batch_size": 8,
    "num_train_steps": 12,
    "num_eval_steps": 3,
    "num_warmup_steps": 4,
    "learning_rate": 2e-3,
    "save_checkpoints_steps": 5,
    "embedding_size": 16,
    "generator_hidden_size": 0.5,
    "jit_compile": False,
    "model_hparam_overrides": {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
    },
}


# The shape of a step that benchmarks time and count.
TINY_STEP = {
    "max_seq_length": 16,
    "vocab_size": 300,
    "embedding_size": 8,
    "generator_hidden_size": 0.5,
    "model_hparam_overrides": {"hidden_size": 16, "num_attention_heads": 2},
}


def tiny(**changes) -> dict:
    """TINY with changes; those of model_hparam_overrides are merged."""
    overrides = TINY["model_hparam_overrides"] | changes.pop("overrides", {})
    return TINY | {"model_hparam_overrides": overrides} | changes


# What objectives need beside TINY, and draws of their own; the others need nothing.
OF_OBJECTIVE = {
    "two_stage": {"embedding_size": 32, "generator_hidden_size": 1.0},
    "two_tower": {"generator_hidden_size": 1.0},
    "electra_15": {"mask_token_share": 0.8, "random_token_share": 0.1},
    "all_tokens_mlm": {"random_token_share": 0.1},
    "corrective_lm": {"token_weight": 2.0},
    "multi_choice": {"num_candidates": 3},
}


def by_default(names: Iterable[str], those: Iterable[str]) -> list:
    """Parameters of a test that takes seconds; all but `those` are thorough."""
    names, those = list(names), set(those)
    assert those & set(names), f"none of {names} by default"
    marks = {True: (), False: pytest.mark.thorough}
    return [pytest.param(name, marks=marks[name in those]) for name in names]


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def write_tiny_data(directory: Path, examples: int = 100, length: int = 32) -> Path:
    """A vocabulary of 60 tokens and TFRecords as the original writes them.

    Sentences count upwards, so that there is something to learn.
    """
    import tensorflow as tf

    tokens = [*SPECIAL, *(f"w{i}" for i in range(55))]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "vocab.txt").write_text("".join(f"{t}\n" for t in tokens))
    folder = directory / "pretrain_tfrecords"
    folder.mkdir()
    random = np.random.default_rng(5)

    def feature(values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    for shard in range(2):
        path = folder / f"pretrain_data.tfrecord-{shard}-of-2"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for _ in range(examples // 2):
                size = int(random.integers(8, length + 1))
                words = 5 + (random.integers(55) + np.arange(size - 2)) % 55
                ids = [2, *words.tolist(), 3] + [0] * (length - size)
                mask = [1] * size + [0] * (length - size)
                features = {
                    "input_ids": feature(ids),
                    "input_mask": feature(mask),
                    "segment_ids": feature([0] * length),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
    return directory


def run_script(
    script: str,
    *args: str,
    env: dict | None = None,
    text: str | bytes = "",
    timeout: int = 300,
):
    """Runs a script of the repository; returns how it ended and what it printed.

    Args:
      text: its standard input; bytes for a forked process only.
      env: environment variables to add; a new Python is started, as by a user. None:
        the process is forked from one that has imported TensorFlow already, which
        halves the time of a run.
    """
    if env is None:
        return forked_runs.run(script, *args, text=text, timeout=timeout)
    return subprocess.run(
        [sys.executable, str(ROOT / script), *args],
        input=text,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **env},
        check=False,
    )


def python(*args, **env: str) -> subprocess.CompletedProcess:
    """Runs a new Python with `args`; returns how it ended and what it printed."""
    return subprocess.run(
        [sys.executable, *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def pretrain(data: Path, model: str, hparams: dict, *flags: str, **kwargs):
    """Runs run_pretraining.py as a user would."""
    return run_script(
        "run_pretraining.py",
        "--data-dir",
        str(data),
        "--model-name",
        model,
        "--hparams",
        json.dumps(hparams),
        *flags,
        **kwargs,
    )


def start_here(data: Path, model: str, hparams: dict) -> int:
    """Starts a run in this process as run_pretraining.py does: to see it refused."""
    from electra_tf.config.pretraining import PretrainingConfig
    from electra_tf.pretrain import launch

    config = PretrainingConfig.from_hparams(str(data), model, hparams)
    return launch.main(config, time.monotonic())


def check_ok(done, *texts: str):
    """Checks that a run went well and printed these texts; returns how it ended."""
    assert done.returncode == 0, done.stdout + done.stderr
    for text in texts:
        assert text in done.stdout
    return done


def refused(function, *texts: str, code: int | None = None) -> str:
    """Checks that a call is refused, in at most three lines; returns its message."""
    with pytest.raises(UserError) as caught:
        function()
    message = str(caught.value)
    for text in texts:
        assert text in message, message
    assert len(message.splitlines()) <= 3 and "KeyError" not in message, message
    assert code in (None, caught.value.exit_code), message
    return message


def check_refused(done, code: int, *texts: str) -> str:
    """Checks that a run ended as a mistake of the user's should; returns its message.

    That is in at most three lines, without a traceback.
    """
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    message = done.stderr[f"\n{done.stderr}".rindex("\nerror: ") :]
    assert len(message.splitlines()) <= 3
    for text in texts:
        assert text in message
    return message
