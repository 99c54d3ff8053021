# SPDX-License-Identifier: Apache-2.0
"""Task data in the layout of GLUE and CoNLL-2000, small and learnable; tiny runs."""

import json
from pathlib import Path

import numpy as np

from tests.helpers import forked_runs
from tests.helpers.runs import SPECIAL, run_script

WORDS = [f"w{chr(97 + i)}{chr(97 + j)}" for i in range(5) for j in range(11)]

# A model and a run that take a second, apart from building the graph.
TINY = {
    "max_seq_length": 24,
    "train_batch_size": 8,
    "eval_batch_size": 8,
    "num_train_epochs": 6.0,
    "learning_rate": 3e-3,
    "layerwise_lr_decay": 0.95,
    "embedding_size": 16,
    "jit_compile": False,
    "init_checkpoint": None,
    "model_hparam_overrides": {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
    },
}


def write_data(directory: Path) -> Path:
    """cola (acceptable when it begins with an early word), sts, chunk, a vocabulary."""
    rng = np.random.default_rng(3)
    directory.mkdir(parents=True, exist_ok=True)
    vocab = [*SPECIAL, *WORDS]
    (directory / "vocab.txt").write_text("".join(f"{t}\n" for t in vocab))
    for split, count in (("train", 192), ("dev", 32), ("test", 20)):
        _write_cola(directory / "finetuning_data" / "cola", split, count, rng)
        _write_sts(directory / "finetuning_data" / "sts", split, count, rng)
    for split, count in (("train", 40), ("dev", 12)):
        _write_chunk(directory / "finetuning_data" / "chunk", split, count, rng)
    return directory


def _sentence(rng) -> list[str]:
    return [WORDS[i] for i in rng.integers(0, len(WORDS), rng.integers(3, 9))]


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def _write_cola(folder, split, count, rng):
    lines = []
    for number in range(count):
        words = _sentence(rng)
        label = int(words[0] < WORDS[24])
        text = " ".join(words)
        lines.append(
            f"{number}\t{text}" if split == "test" else f"x\t{label}\t\t{text}"
        )
    header = ["index\tsentence"] if split == "test" else []
    _write(folder / f"{split}.tsv", header + lines)


def _write_sts(folder, split, count, rng):
    names = "index genre filename year old_index source1 source2 sentence1 sentence2"
    names = names.split() + (["score"] if split != "test" else [])
    lines = ["\t".join(names)]
    for number in range(count):
        first, second = _sentence(rng), _sentence(rng)
        score = 5.0 * (first[0] < WORDS[24])
        cells = [str(number), "g", "f", "2012", "1", "none", "none"]
        cells += [" ".join(first), " ".join(second)]
        lines.append("\t".join(cells + ([f"{score:.3f}"] if split != "test" else [])))
    _write(folder / f"{split}.tsv", lines)


def _write_chunk(folder, split, count, rng):
    lines = []
    for _ in range(count):
        for word in _sentence(rng):
            tag = "B-NP" if word < WORDS[16] else "B-VP" if word < WORDS[32] else "O"
            lines.append(f"{word} X {tag}")
        lines.append("")
    _write(folder / f"{split}.txt", lines)


def finetune(data: Path, model: str, hparams: dict, *flags: str, **kwargs):
    """Runs run_finetuning.py as a user would."""
    return run_script(
        "run_finetuning.py",
        "--data-dir",
        str(data),
        "--model-name",
        model,
        "--hparams",
        json.dumps(TINY | hparams),
        *flags,
        **kwargs,
    )


def fork(data: Path, model: str, hparams: dict, *flags: str, before=None):
    """The same in a process that has TensorFlow imported already: sooner there."""
    return forked_runs.Run(
        data / "logs" / model,
        "run_finetuning.py",
        *("--data-dir", str(data), "--model-name", model),
        *("--hparams", json.dumps(TINY | hparams), *flags),
        before=before,
    ).wait()
