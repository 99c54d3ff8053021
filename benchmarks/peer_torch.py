# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks measure, in plain PyTorch, for comparison.

`pretraining_step.py --peer torch` has it make the same training step: networks, losses,
metrics and optimizer, written for speed: fused attention or plain; vocabulary scores at
the masked positions only, multinomial sampling, optimizer and clipping over all tensors
at a time.

`finetuning_command.py` has it fine-tune and predict with transformers, as people write
that: a fast tokenizer, batches padded to max_length or to their longest text, AdamW
over all tensors at a time, clipping, evaluation, saving; for predictions, a pipeline.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from measurement import Device, measure_steps, step_flops
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

if TYPE_CHECKING:
    from electra_tf.config.model import ModelConfig
    from electra_tf.config.pretraining import PretrainingConfig

TYPES = {"float32": torch.float32, "mixed_bfloat16": torch.bfloat16}
LAYER_NORM_EPSILON = 1e-12


def layer_norm(width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, eps=LAYER_NORM_EPSILON)


class Embeddings(nn.Module):
    """Word, segment and position embeddings, shared by both networks."""

    def __init__(self, config: PretrainingConfig):
        super().__init__()
        shape, width = config.model_config(), config.embedding_size
        self.word = nn.Embedding(config.vocab_size, width)
        self.segment = nn.Embedding(2, width)
        self.position = nn.Embedding(shape.max_position_embeddings, width)
        self.norm = layer_norm(width)
        self.dropout = nn.Dropout(shape.hidden_dropout_prob)

    def forward(self, ids: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        position = self.position.weight[: ids.shape[1]]
        return self.dropout(
            self.norm(self.word(ids) + self.segment(segments) + position)
        )


class Network(nn.Module):
    """Projection of the embeddings and a stack of layers."""

    def __init__(self, shape: ModelConfig, embedding: int):
        super().__init__()
        h = shape.hidden_size
        self.project = nn.Identity() if embedding == h else nn.Linear(embedding, h)
        layer = nn.TransformerEncoderLayer(
            *(h, shape.num_attention_heads, shape.intermediate_size),
            *(shape.hidden_dropout_prob, "gelu"),
            layer_norm_eps=LAYER_NORM_EPSILON,
            batch_first=True,
        )
        layer.dropout = nn.Identity()  # between the dense layers, BERT has none
        self.layers = nn.TransformerEncoder(
            layer, shape.num_hidden_layers, enable_nested_tensor=False
        )

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return self.layers(self.project(x), src_key_padding_mask=bias)


class Electra(nn.Module):
    """Generator and discriminator: forward gives loss and metrics."""

    def __init__(self, config: PretrainingConfig):
        super().__init__()
        self.embeddings = Embeddings(config)
        width, small = config.embedding_size, config.generator_config()
        self.generator = Network(small, width)
        self.discriminator = Network(config.model_config(), width)
        self.transform = nn.Linear(small.hidden_size, width)
        self.transform_norm = layer_norm(width)
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size))
        h = config.model_config().hidden_size
        self.replaced = nn.Sequential(nn.Linear(h, h), nn.GELU(), nn.Linear(h, 1))
        for name, weights in self.named_parameters():
            if weights.ndim > 1:
                nn.init.trunc_normal_(weights, std=0.02, a=-0.04, b=0.04)
            elif name.endswith("bias"):
                nn.init.zeros_(weights)

    def forward(self, ids, mask, segments, masked_ids, positions):
        bias = (1.0 - mask.float()) * -10000.0
        embedded = self.embeddings(masked_ids, segments)
        hidden = self.generator(embedded, bias)
        rows = torch.arange(len(ids), device=ids.device)[:, None]
        targets = ids[rows, positions].flatten()
        hidden = self.transform(hidden[rows, positions]).flatten(0, 1)
        hidden = self.transform_norm(F.gelu(hidden))
        logits = F.linear(hidden, self.embeddings.word.weight).float()
        logits = logits + self.output_bias  # [B * N, V]
        generator_loss = F.cross_entropy(logits, targets)

        with torch.no_grad():
            probs = torch.softmax(logits, -1)
            sampled = torch.multinomial(probs, 1)[:, 0]
            corrupted = ids.scatter(1, positions, sampled.view_as(positions))
            replaced = corrupted != ids
        hidden = self.discriminator(self.embeddings(corrupted, segments), bias)
        logits_replaced = self.replaced(hidden)[..., 0].float()
        losses = F.binary_cross_entropy_with_logits(
            logits_replaced, replaced.float(), reduction="none"
        )
        loss = generator_loss + 50.0 * (losses * mask).sum() / mask.sum()

        with torch.no_grad():
            predicted = logits_replaced > 0
            metrics = torch.stack(
                [
                    loss.float(),
                    generator_loss,
                    (logits.argmax(-1) == targets).float().mean(),
                    (sampled == targets).float().mean(),
                    (predicted == replaced).float().mean(),
                    (predicted & replaced).float().sum() / predicted.sum(),
                    (predicted & replaced).float().sum() / replaced.sum(),
                ]
            )
        return loss, metrics


def make_optimizer(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """AdamW over all tensors at a time; biases and layer norms are not decayed."""
    vectors = [p for p in model.parameters() if p.ndim < 2]
    matrices = [p for p in model.parameters() if p.ndim > 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, weight_decay=0.01, foreach=True)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, loss) -> torch.Tensor:
    """Clips and applies the gradients; returns their norm."""
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    return norm


def random_batch(config: PretrainingConfig, device: str) -> list[torch.Tensor]:
    """[CLS] tokens [SEP] without padding, some of them masked."""
    batch, length = config.train_batch_size, config.max_seq_length
    ids = torch.randint(5, config.vocab_size, (batch, length))
    ids[:, 0], ids[:, -1] = 2, 3
    count = config.max_predictions_per_seq
    positions = torch.randint(1, length - 1, (batch, count))
    masked = ids.clone()
    as_mask = torch.rand(positions.shape) < 0.85
    rows = torch.arange(batch)[:, None].expand_as(positions)
    masked[rows[as_mask], positions[as_mask]] = 4
    mask, segments = torch.ones_like(ids), torch.zeros_like(ids)
    return [t.to(device) for t in (ids, mask, segments, masked, positions)]


def measure(job: dict, config: PretrainingConfig) -> dict:
    """The measurements of pretraining_step.py, for PyTorch."""
    gpu = torch.cuda.is_available()
    device, dtype = "cuda" if gpu else "cpu", TYPES[job["precision"]]
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    if gpu:
        torch.set_float32_matmul_precision("high")  # as TensorFlow has it by default
    torch.manual_seed(42)
    model = Electra(config).to(device)
    optimizer = make_optimizer(model, 1e-5)
    plain = contextlib.nullcontext() if job["fused"] else sdpa_kernel(SDPBackend.MATH)

    def run(count):
        for _ in range(count):
            with torch.autocast(device, dtype, enabled=dtype is not torch.float32):
                loss, metrics = model(*random_batch(config, device))
            norm = update(model, optimizer, loss)
            metrics = torch.cat([metrics, norm[None]])
        return metrics.tolist()[0]  # waits for the device

    def make_matmul():
        rows, inner, columns = (8192,) * 3 if gpu else (4096, 1024, 1024)
        a = torch.randn(rows, inner, device=device).to(dtype)
        b = torch.randn(inner, columns, device=device).to(dtype)
        return lambda: (a @ b)[0, 0].item(), 2.0 * rows * inner * columns

    def gpu_peak():
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return peak

    name = torch.cuda.get_device_name() if gpu else "CPU"
    version, peak = f"PyTorch {torch.__version__}", gpu_peak if gpu else None
    place = Device(name, version, make_matmul, peak)
    with plain:
        return measure_steps(run, place, step_flops(config), job)


def run_command() -> None:
    """What the command line names; its flags are finetuning_command.py's."""
    import transformers

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
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(flags.model)
    model = transformers.ElectraForSequenceClassification.from_pretrained(flags.model)
    model.train()
    batches = {
        split: read_batches(Path(flags.data, f"{split}.tsv"), tokenizer, flags, split)
        for split in ("train", "dev")
    }
    optimizer = make_optimizer(model, 3e-4)
    seconds = []
    for batch in batches["train"]:
        started = time.perf_counter()
        loss = model(**batch).loss
        update(model, optimizer, loss)
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
    import transformers

    pipeline = transformers.pipeline(
        "text-classification", model=flags.model, batch_size=flags.batch_size
    )
    texts = Path(flags.texts).read_text(encoding="utf-8").splitlines()
    os.makedirs(flags.output)
    with open(f"{flags.output}/labels.tsv", "w", encoding="utf-8") as file:
        for answer in pipeline(texts, truncation=True, max_length=128):
            print(answer["label"], answer["score"], sep="\t", file=file)


if __name__ == "__main__":
    run_command()
