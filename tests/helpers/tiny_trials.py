# SPDX-License-Identifier: Apache-2.0
"""Fine-tuned models with weights that nothing trained, to export."""

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.export import finetuned_task
from electra_tf.export.signatures import NAMES
from electra_tf.finetune import registry
from electra_tf.finetune.model import build_finetuning_model
from electra_tf.finetune.task import write_tasks
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers import tiny_finetuning

WORDS = tiny_finetuning.WORDS
JOINT = {"task_names": ["squad"], "beam_size": 5}
PLAIN = {
    "task_names": ["squad"],
    "joint_prediction": False,
    "answerable_classifier": False,
    "n_best_size": 6,
    "model_dir": "other",
}
SQUAD = {"doc_stride": 7, "max_query_length": 5, "max_answer_length": 4}


AT_CLS = SQUAD | PLAIN | {"answerable_classifier": True, "model_dir": "at_cls"}
NO_START = AT_CLS | {"model_dir": "no_start", "answerable_uses_start_logits": False}
TOPICS = ("art", "law", "sea")


def write_data(folder):
    """`tiny_finetuning.write_data`, an empty SQuAD, texts with any number of topics."""
    data = tiny_finetuning.write_data(folder)
    for name in ("squad", "squadv1"):
        squad = data / "finetuning_data" / name
        squad.mkdir()
        for split in ("train", "dev"):
            (squad / f"{split}.json").write_text('{"data": []}')
    rows = [{"text": w, "topics": TOPICS[: i % 4]} for i, w in enumerate(WORDS)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (data / "topics.jsonl").write_text(lines)
    return data


def topics_task(data):
    """hparams of a task with several labels a text."""
    file = str(data / "topics.jsonl")
    description = {"type": "multilabel", "text_a": "text", "label": "topics"}
    return {"tasks": {"topics": description | {"train": file, "dev": file}}}


def write_run(data, hparams):
    """A fine-tuned model with weights that nothing trained, as a trial leaves it."""
    values = tiny_finetuning.TINY | hparams
    if "model_dir" in values:
        folder = data / "models/m/finetuning_models" / values["model_dir"]
        values["model_dir"] = str(folder)
    config = FinetuningConfig.from_hparams(str(data), "m", values)
    vocab = Vocabulary.load(config.vocab_file)
    tasks = registry.make_tasks(config, vocab)
    model = build_finetuning_model(
        config, {t.name: t.head for t in tasks}, dtype="float32"
    )
    rng = np.random.default_rng(7)
    for v in model.variables:
        size = 0.1 if "bias" in v.path or "beta" in v.path else 1.0
        size *= 0.3 if "kernel" in v.path else 1.0
        v.assign(rng.normal(0, size, v.shape) + ("gamma" in v.path))
    folder = config.trial_dir(1)
    weights = {v.path: v.value for v in model.variables}
    weights["global_step"] = tf.Variable(9, dtype=tf.int64)
    Checkpoints(folder, log=lambda line: None).save(9, weights)
    config.save(f"{folder}/config.json")
    write_tasks(folder, tasks)
    return config, tasks, model


def write_trials(data):
    """Name -> (directory of a fine-tuned model, its task)."""
    names = ["cola", "sts", "chunk", "topics"]
    texts, _, _ = write_run(data, {"task_names": names} | topics_task(data))
    found = {name: (Path(texts.trial_dir(1)), name) for name in names}
    heads = {"joint": SQUAD | JOINT, "plain": SQUAD | PLAIN, "at_cls": AT_CLS}
    for name, hparams in (heads | {"no_start": NO_START}).items():
        config, _, _ = write_run(data, hparams)
        found[name] = Path(config.trial_dir(1)), *config.task_names
    return found


def batch_of(task, seed=0, rows=5):
    """Packed pairs as a tokenizer gives them, of several lengths."""
    rng = np.random.default_rng(seed)
    length = task.config.max_seq_length
    ids = rng.integers(5, 5 + len(WORDS), (rows, length)).astype(np.int32)
    real = np.sort(rng.integers(length // 2 + 3, length + 1, (rows, 1)))[::-1]
    mask = (np.arange(length) < real).astype(np.int32)
    first = rng.integers(2, length // 2, (rows, 1))
    types = ((np.arange(length) >= first) * mask).astype(np.int32)
    return dict(zip(NAMES, (ids * mask, mask, types), strict=True))


def answers(task, batch):
    """What the SavedModel's signature `ids` says."""
    served = finetuned_task.servable(task)
    found = served.signatures["ids"](**{k: tf.constant(v) for k, v in batch.items()})
    return {name: value.numpy() for name, value in found.items()}
