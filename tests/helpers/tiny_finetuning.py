# SPDX-License-Identifier: Apache-2.0
"""Task data in the formats of GLUE, CoNLL-2000 and users, learnable; tiny runs."""

import json
from pathlib import Path

import numpy as np

from tests.helpers import forked_runs
from tests.helpers.runs import SPECIAL, run_script

WORDS = [f"w{chr(97 + i)}{chr(97 + j)}" for i in range(5) for j in range(11)]
EARLY = WORDS[24]

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
    lines = ["index\tsentence"] if split == "test" else []
    for number in range(count):
        words = _sentence(rng)
        cells = (number,) if split == "test" else ("x", int(words[0] < EARLY), "")
        lines.append("\t".join(map(str, (*cells, " ".join(words)))))
    _write(folder / f"{split}.tsv", lines)


def _write_sts(folder, split, count, rng):
    names = "index genre filename year old_index source1 source2 sentence1 sentence2"
    score = ["score"] * (split != "test")
    lines = ["\t".join(names.split() + score)]
    for number in range(count):
        first, second = _sentence(rng), _sentence(rng)
        cells = [str(number), "g", "f", "2012", "1", "none", "none"]
        cells += [" ".join(first), " ".join(second)]
        cells += [f"{5.0 * (first[0] < EARLY):.3f}" for _ in score]
        lines.append("\t".join(cells))
    _write(folder / f"{split}.tsv", lines)


def _write_chunk(folder, split, count, rng):
    lines = []
    for _ in range(count):
        for word in _sentence(rng):
            tag = "B-NP" if word < WORDS[16] else "B-VP" if word < WORDS[32] else "O"
            lines.append(f"{word} X {tag}")
        lines.append("")
    _write(folder / f"{split}.txt", lines)


OWN_TASKS = {
    "reviews": {"type": "classification", "text_a": "text", "label": "kind"},
    "topics": {
        **{"type": "multilabel", "text_a": "text", "label": "topics"},
        "class_weights": "balanced",
    },
    "scores": {"type": "regression", "text_a": "text", "label": "score"},
    "names": {"type": "tagging"},
    "faq": {"type": "qa"},
}
for _task, _end in zip(OWN_TASKS, ("tsv", "tsv", "tsv", "txt", "json"), strict=True):
    OWN_TASKS[_task] |= {s: f"own/{s}.{_end}" for s in ("train", "dev", "test")}


def own_sentences(count: int) -> list[list[str]]:
    """Five words each; the same ones in every split."""
    return [[WORDS[(7 * i + j) % len(WORDS)] for j in range(5)] for i in range(count)]


def write_own_data(folder: Path) -> None:
    """Files of OWN_TASKS: reviews (tsv), names (CoNLL, IOB1) and questions (SQuAD)."""
    for split, count in (("train", 24), ("dev", 12), ("test", 6)):
        rows, lines, paragraphs = [], [], []
        for n, words in enumerate(own_sentences(count)):
            text, (first, last) = " ".join(words), (w < EARLY for w in words[::4])
            topics = ", ".join(["begin"] * first + ["end"] * last)
            row = text, "good" if first else "awful", topics, str(n)
            tagged = [f"{w} {'I-PER' if w < EARLY else 'O'}" for w in words]
            asked = {"id": f"{split}{n}", "question": WORDS[n % 9]}
            answer = {"text": words[1], "answer_start": len(words[0]) + 1}
            if split == "test":
                row, tagged = (f"r{n}", text), words
            else:
                asked["answers"] = [answer]
            rows.append("\t".join(row))
            lines += [*tagged, ""]
            paragraphs.append({"context": text, "qas": [asked]})
        header = "id\ttext" if split == "test" else "text\tkind\ttopics\tscore"
        _write(folder / f"{split}.tsv", [header, *rows])
        _write(folder / f"{split}.txt", lines)
        content = {"data": [{"title": split, "paragraphs": paragraphs}]}
        _write(folder / f"{split}.json", [json.dumps(content)])


def _arguments(data: Path, model: str, hparams: dict, *flags: str) -> list[str]:
    values = json.dumps(TINY | hparams)
    found = ["run_finetuning.py", "--data-dir", str(data), "--model-name", model]
    return [*found, "--hparams", values, *flags]


def finetune(*args, **kwargs):
    """Runs run_finetuning.py as a user would: (data, model, hparams, *flags)."""
    return run_script(*_arguments(*args), **kwargs)


def fork(data: Path, model: str, hparams: dict, *flags: str, before=None):
    """The same with a fault that `before` prepares, and logs below the data."""
    args = _arguments(data, model, hparams, *flags)
    return forked_runs.Run(data / "logs" / model, *args, before=before).wait()
