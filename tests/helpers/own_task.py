# SPDX-License-Identifier: Apache-2.0
"""A task of one's own on files that a test writes, without training anything."""

import json
from pathlib import Path

import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.finetune.registry import TYPES, make_tasks
from electra_tf.text.vocabulary import Vocabulary, write_settings, write_tokens
from tests.helpers.runs import SPECIAL

WORDS = ("the", "dog", "cat", "ran", "who", "?", ".")


def write_files(folder: Path, files: dict, words=WORDS, text=None) -> None:
    """Writes texts, bytes, objects (as JSON) or rows, and a vocabulary of the words.

    Args:
      text: the TokenizerConfig that stands beside the vocabulary.
    """
    vocab = write_tokens(folder / "vocab.txt", [*SPECIAL, *words])
    if text:
        write_settings(vocab, text)
    for name, content in files.items():
        if name.endswith(".jsonl") and isinstance(content, (list, tuple)):
            content = "".join(json.dumps(row) + "\n" for row in content)
        if not isinstance(content, (str, bytes)):
            content = json.dumps(content)
        if isinstance(content, str):
            content = content.encode()
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def own_tasks(
    folder: Path,
    files: dict,
    kind="classification",
    words=WORDS,
    trained=None,
    text=None,
    keys=None,
    **more,
) -> list:
    """The task "mine" on files named train, dev and, perhaps, test, or `task_names`.

    Args:
      keys: of the description.
      more: more of them, and hparams (those that a config has).
    """
    write_files(folder, files, words, text)
    description = {"type": kind}
    if kind in ("classification", "multilabel", "regression"):
        description |= {"text_a": "a", "label": "b"}
    for name in files:
        description[Path(name).name.partition(".")[0]] = name
    description.setdefault("dev", description.setdefault("train", "none"))
    described = TYPES[kind].keys.keys()
    fields = set(FinetuningConfig.__dataclass_fields__) - described
    description |= {k: v for k, v in more.items() if k not in fields}
    description |= keys or {}
    hparams = {"task_names": ["mine"], "tasks": {"mine": description}}
    hparams |= {"max_seq_length": 16, "max_query_length": 4, "beam_size": 5}
    hparams |= {k: v for k, v in more.items() if k in fields}
    config = FinetuningConfig.from_hparams(str(folder), "m", hparams)
    return make_tasks(config, Vocabulary.load(folder / "vocab.txt"), trained)


def with_answer(task, row):
    """An example's outputs with the answer that the graph gives for its logits."""
    logits = tf.constant([row["logits"]], tf.float32)
    answer = task.head.answer(task, {"logits": logits})
    return row | {name: value[0].numpy() for name, value in answer.items()}
