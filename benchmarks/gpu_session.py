# SPDX-License-Identifier: Apache-2.0
"""All that is to be measured on a GPU, the most important first, in a given time.

    python benchmarks/gpu_session.py --output-dir O --corpus C --pairs blimp.jsonl
    python benchmarks/gpu_session.py --output-dir O --rehearse

First the steps of pre-training (pretraining_step.py), the first of each shape with two
lines of its profile; then, with --corpus and --pairs, experiments/run.py blimp --scale
gpu. O/session.md has what was printed. Repeated, the command goes on where its time was
over. --rehearse makes tiny steps, on any device.
"""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from absl import flags
from measurement import ROOT, in_process

from electra_tf import cli, startup

FLAGS = flags.FLAGS
cli.define_path("output_dir", None, "What was measured.", required=True)
cli.define_path("corpus", None, "Of experiments/run.py blimp.")
cli.define_path("pairs", None, "Of experiments/run.py blimp.")
flags.DEFINE_float("minutes", 10, "When to stop.", lower_bound=0)
flags.DEFINE_bool("rehearse", False, "Tiny steps, to see that all of it works.")

TINY = {
    "max_seq_length": 16,
    "vocab_size": 300,
    "embedding_size": 16,
    "model_hparam_overrides": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 16,
    },
}
_PRODUCT = re.compile("gemm|xmma|cutlass|cublas|matmul|dot", re.IGNORECASE)


# Recipe, sequences of a batch, tokens of a sequence.
SHAPES = [
    ("electra_small", 128, 128),
    ("electra_base", 128, 128),
    ("electra_base", 64, 512),
    ("electra_modern_17m", 64, 1024),
    ("electra_modern_150m", 16, 1024),
]
OTHERS = "float32,mixed_float16"
# Types of numbers, and whether XLA compiles the step.
KINDS = [("mixed_bfloat16", "on"), (OTHERS, "on"), (f"mixed_bfloat16,{OTHERS}", "off")]


def main(_):
    folder, end = Path(FLAGS.output_dir), time.monotonic() + 60 * FLAGS.minutes
    folder.mkdir(parents=True, exist_ok=True)
    for kind, shape in itertools.product(KINDS, SHAPES):
        measure(folder, end, *shape, *kind)
    if FLAGS.corpus and FLAGS.pairs:
        run(blimp(folder), end, folder)


def measure(folder: Path, end: float, model, batch_size, length, precision, jit):
    """Measures steps unless that is done; of the first kind also takes a profile."""
    name = f"{model}-{batch_size}-{length}-{precision}-{jit}".replace(",", "+")
    if (folder / f"{name}.json").exists():
        return
    flags = {
        "model": model,
        "batch_size": 2 if FLAGS.rehearse else batch_size,
        "hparams": json.dumps(TINY if FLAGS.rehearse else {"max_seq_length": length}),
        "precision": precision,
        "jit": jit,
        "repeats": 1,
        "steps": 1 if FLAGS.rehearse else 5,
        "json": folder / f"{name}.json",
    }
    if (precision, jit) == KINDS[0]:
        flags["profile"] = folder / name
    run(command("benchmarks/pretraining_step.py", **flags), end, folder)
    for profile in (folder / name).rglob("*.xplane.pb"):
        found = in_process(profile_of, str(profile))
        note(folder, "\n".join(map(str, found.values())))


def blimp(folder: Path) -> list[str]:
    """Ten million words, a seed a row."""
    flags = {"scale": "gpu", "seeds": 1, "words": 10_000_000}
    if FLAGS.rehearse:
        few = TINY | {"num_train_steps": 10, "num_warmup_steps": 1}
        flags |= {"words": 10_000, "hparams": json.dumps(few)}
    flags |= {"corpus": FLAGS.corpus, "pairs": FLAGS.pairs}
    return command("experiments/run.py", "blimp", **flags, output_dir=folder / "blimp")


def command(script: str, *args: str, **flags) -> list[str]:
    """Of a script of the checkout."""
    given = (f"--{name}={value}" for name, value in flags.items())
    return [sys.executable, str(ROOT / script), *args, *given]


def run(command: list[str], end: float, folder: Path) -> None:
    """Runs a command, at most until `end`: then it may save what it has."""
    if time.monotonic() > end:
        return
    job = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        printed, _ = job.communicate(timeout=end - time.monotonic())
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGTERM)
        printed, _ = job.communicate()
    note(folder, printed)


def note(folder: Path, text: str) -> None:
    """Prints a text, and adds it to session.md."""
    print(text, flush=True)
    with open(folder / "session.md", "a") as file:
        file.write(f"{text}\n")


def profile_of(path: str) -> dict[str, str]:
    """Two lines: how much of the time kernels run, and which of them take it."""
    startup.import_tensorflow()
    from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

    planes = XSpace.FromString(Path(path).read_bytes()).planes
    chosen = [p for p in planes if p.name.startswith("/device:GPU")]
    kernels, times = [], Counter()
    for plane in chosen or planes:
        for line in plane.lines:
            if chosen and not line.name.startswith("Stream"):
                continue  # derived from the streams
            for event in line.events:
                first = line.timestamp_ns * 1000 + event.offset_ps
                name = plane.event_metadata[event.metadata_id].name
                kernels.append((first, first + event.duration_ps))
                kind = "products" if _PRODUCT.search(name) else name
                times[kind] += event.duration_ps
    busy, last = 0, min(kernels)[0]
    for first, end in sorted(kernels):
        busy += max(0, end - max(first, last))
        last = max(last, end)
    share = busy / (last - min(kernels)[0])
    total = sum(times.values())
    top = ", ".join(f"{n} {t / total:.0%}" for n, t in times.most_common(6))
    kind = "kernels of the GPU" if chosen else "events of the CPU"
    return {
        "busy": f"profile: {len(kernels)} {kind} run {share:.0%} of the time",
        "kernels": f"profile: {top}",
    }


if __name__ == "__main__":
    cli.run(main)
