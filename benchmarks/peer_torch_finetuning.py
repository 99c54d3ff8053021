# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning and prediction in plain PyTorch with transformers, for comparison.

Started by `finetuning_command.py`. A script as people write it: a fast tokenizer,
batches padded to max_length or to their longest text, AdamW over all tensors at a
time, clipping, evaluation, saving. `predict` is transformers' pipeline.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from pathlib import Path

import torch
import transformers


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("train", "predict"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", help="a folder with train.tsv and dev.tsv")
    parser.add_argument("--texts", help="a file with a text a line")
    parser.add_argument("--output", required=True, help="a folder")
    parser.add_argument("--padding", choices=("longest", "max_length"))
    parser.add_argument("--batch-size", type=int, default=32)
    flags = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    {"train": train, "predict": predict}[flags.what](flags)


def train(flags) -> None:
    """One epoch over train.tsv, the accuracy on dev.tsv, and the model saved."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(flags.model)
    model = transformers.ElectraForSequenceClassification.from_pretrained(flags.model)
    model.train()
    batches = {
        split: read_batches(Path(flags.data, f"{split}.tsv"), tokenizer, flags, split)
        for split in ("train", "dev")
    }
    vectors = [p for p in model.parameters() if p.ndim < 2]
    matrices = [p for p in model.parameters() if p.ndim > 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, weight_decay=0.01, foreach=True)
    seconds = []
    for batch in batches["train"]:
        started = time.perf_counter()
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - started)
    model.eval()
    with torch.inference_mode():
        right = [
            (model(**batch).logits.argmax(-1) == batch["labels"]).sum().item()
            for batch in batches["dev"]
        ]
    model.save_pretrained(flags.output)
    count = sum(len(batch["labels"]) for batch in batches["dev"])
    print(
        f"accuracy {sum(right) / count:.3f}; step {sorted(seconds)[len(seconds) // 2]}"
    )


def read_batches(path: Path, tokenizer, flags, split: str) -> list[dict]:
    """The file's examples, those of the training set shuffled."""
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    if split == "train":
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))
        rows = [rows[i] for i in order.tolist()]
    classes = sorted({row["label"] for row in rows})
    found = []
    for first in range(0, len(rows), flags.batch_size):
        part = rows[first : first + flags.batch_size]
        batch = tokenizer(
            [row["sentence1"] for row in part],
            [row["sentence2"] for row in part],
            padding=flags.padding,
            max_length=128,
            truncation=True,
            return_tensors="pt",
        )
        batch["labels"] = torch.tensor([classes.index(row["label"]) for row in part])
        found.append(batch)
    return found


def predict(flags) -> None:
    """A class and its probability for each line, by a pipeline."""
    pipeline = transformers.pipeline(
        "text-classification", model=flags.model, batch_size=flags.batch_size
    )
    texts = Path(flags.texts).read_text(encoding="utf-8").splitlines()
    os.makedirs(flags.output)
    with open(f"{flags.output}/labels.tsv", "w", encoding="utf-8") as file:
        for answer in pipeline(texts, truncation=True, max_length=128):
            print(answer["label"], answer["score"], sep="\t", file=file)


if __name__ == "__main__":
    main()
