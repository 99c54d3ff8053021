# SPDX-License-Identifier: Apache-2.0
"""Shared by the benchmarks: models and steps; their FLOPs, memory and time; tables.

Imported first, it puts the checkout before an installed electra_tf. The step is that of
run_pretraining.py. peer_torch.py imports this, too, and counts the time that it takes:
what loads longer is imported where it is used.

FLOPs are those that the model needs: matrix products only, a multiply-add as two, the
backward pass as two products for each of the forward pass. Element-wise work, softmax,
layer norm, sampling, metrics and the optimizer are not counted, though their time is;
an embedding lookup is not a product; the vocabulary softmax is counted at the masked
positions only.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from absl import flags

if TYPE_CHECKING:
    from electra_tf.config.pretraining import PretrainingConfig
    from electra_tf.text.vocabulary import Vocabulary

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
# Flags defined here belong to the script that calls define_choices.
flags.disclaim_key_flags()


def step_flops(config: PretrainingConfig) -> int:
    """FLOPs of one training step: forward and backward pass of both networks.

    ELECTRA-Small, 32 x 128, 19 masked: 288e9, of which 252 are the discriminator's
    encoder, 20 the generator's, 14 the generator's head and softmax, 2 the
    discriminator's head.
    """
    length, embedding = config.max_seq_length, config.embedding_size
    main, generator = config.model_config(), config.generator_config()
    for_token = 0
    for shape in (main, generator):
        h = shape.hidden_size
        projections = 2 * 4 * h * h  # query, key, value, output
        attention = 2 * 2 * length * h  # scores, weighted sum of the values
        feed_forward = 2 * 2 * h * shape.intermediate_size
        project = 2 * embedding * h if embedding != h else 0
        layer = projections + attention + feed_forward
        for_token += shape.num_hidden_layers * layer + project
    h = main.hidden_size
    head = 2 * h * h + 2 * h
    transform = 2 * generator.hidden_size * embedding
    softmax = 2 * embedding * config.vocab_size
    for_mask = config.max_predictions_per_seq * (transform + softmax)
    sequence = length * (for_token + head) + for_mask
    return 3 * config.train_batch_size * sequence


def peak_memory(*, reset: bool = False) -> int:
    """Largest resident memory since the last reset, in bytes."""
    # Not ru_maxrss, which includes what the parent had before exec.
    status = Path("/proc/self/status").read_text()
    if reset:
        with contextlib.suppress(OSError):  # where the kernel offers that
            Path("/proc/self/clear_refs").write_text("5")
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])


def time_steps(
    run: Callable[[int], object], matmul: Callable[[], object], flops: float, count: int
) -> dict:
    """Times `count` loops of steps, with matrix products between them.

    Args:
      run: makes that many steps and waits for their results.
      matmul: computes one large product and waits for it.
      flops: of that product.

    Returns: for each loop "seconds" per step and "cpu_seconds" of all threads, which
      depend little on other programs; for each product "rates" in FLOP/s.
    """
    rates, seconds, cpu_seconds = [], [], []
    matmul()
    run(1)
    started = time.perf_counter()
    run(1)
    # As the training loop does: as many steps at a time as take half a second.
    loop = max(1, min(200, int(0.5 / (time.perf_counter() - started))))
    if loop > 1:
        run(loop)
    for _ in range(count):
        started, cpu_started = time.perf_counter(), time.process_time()
        run(loop)
        seconds.append((time.perf_counter() - started) / loop)
        cpu_seconds.append((time.process_time() - cpu_started) / loop)
        for _ in range(3):
            started = time.perf_counter()
            matmul()
            rates.append(flops / (time.perf_counter() - started))
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "rates": rates}


class Device(NamedTuple):
    """The device that computes the steps."""

    name: str
    version: str  # of the library
    make_matmul: Callable  # () -> a function that waits for a large product, its FLOPs
    gpu_peak: Callable[[], int] | None  # bytes since the last call; None on CPUs


def measure_steps(run, device: Device, flops: float, job: dict) -> dict:
    """Makes a first step, then times others.

    Args:
      run: makes that many steps; returns the loss of the last.
      flops: that a step needs; 0 if they are not counted.
      job: has "launched", the time.time() at which the process was started, and
        "steps", the number of loops to time.

    Returns: times in seconds, memory in bytes, losses; see `time_steps`.
    """
    ready = time.time()
    result = {"device": device.name, "version": device.version, "flops": flops}
    result["start_s"] = ready - job["launched"]
    peak_memory(reset=True)
    cpu_started = time.process_time()
    loss = run(1)
    result |= {"first_s": time.time() - ready, "peak_first": peak_memory(reset=True)}
    result["first_cpu_s"] = time.process_time() - cpu_started
    if device.gpu_peak:
        device.gpu_peak()
    result |= time_steps(run, *device.make_matmul(), job["steps"])
    result["peak_steps"] = device.gpu_peak() if device.gpu_peak else peak_memory()
    return result | {"loss": [loss, run(1)]}


def in_turns(
    makers: dict[str, Callable[[], dict]], repeats: int, shown: str
) -> dict[str, list[dict]]:
    """Calls each maker `repeats` times, reversing the order from one to the next.

    Args:
      shown: the format of a result's line.

    Returns: name -> results, but for those that say why they "failed".
    """
    results: dict[str, list[dict]] = {name: [] for name in makers}
    for repeat in range(repeats):
        for name in list(makers)[:: -1 if repeat % 2 else 1]:
            found = makers[name]()
            failed = found.get("failed")
            print(f"  {name}: {failed or shown.format(**found)}", flush=True)
            results[name] += [] if failed else [found]
    return {name: found for name, found in results.items() if found}


def in_process(function: Callable, *arguments) -> dict:
    """What a function returns in a process of its own, or "failed": why it does not.

    The process has this one's flags and none of its libraries for accelerators.
    """
    processes = multiprocessing.get_context("fork")
    receiver, sender = processes.Pipe(duplex=False)

    def call():
        with contextlib.redirect_stdout(sys.stderr):
            sender.send(function(*arguments))

    process = processes.Process(target=call)
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        return {"failed": f"ended with code {process.exitcode}"}
    finally:
        process.join()


def machine() -> str:
    """Processor, cores and load; a second line if other programs are running."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    name = found[1] if found else platform.machine()
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    busy = "\nOther programs are running: times and rates are not to be quoted."
    return f"{name}, {cores} cores, load {load:.1f}{busy * (load > 0.3 * cores)}"


def median(runs: Iterable[dict], key: str) -> float:
    """The median over runs with a number, or over all numbers of runs with lists."""
    found = [run[key] for run in runs]
    if isinstance(found[0], list):
        found = [number for numbers in found for number in numbers]
    return statistics.median(found)


def print_table(head: str, form: str, rows: Iterable[dict]) -> None:
    """Prints Markdown: `form` is the format of a row."""
    print(f"\n| {head} |\n{'|---' * (1 + head.count('|'))}|")
    for row in rows:
        print(f"| {form.format(**row)} |", flush=True)


def save(path: str | None, results) -> None:
    """Writes all that was measured, if --json was given."""
    if path:
        Path(path).write_text(json.dumps(results, indent=1) + "\n")


def define_choices(name: str, default: list, known: tuple, text: str) -> None:
    """A flag that lists some of the known names."""
    flags.DEFINE_list(name, default, f"{text}, of {', '.join(known)}.")
    flags.register_validator(
        name, lambda found: {*found} <= {*known}, f"must be of {', '.join(known)}."
    )


def numbers(vocab_size: int) -> Vocabulary:
    """The special tokens, then 0, 1, 2, ..."""
    from electra_tf.text.vocabulary import SPECIAL_TOKENS, Vocabulary

    count = vocab_size - len(SPECIAL_TOKENS)
    return Vocabulary((*SPECIAL_TOKENS, *map(str, range(count))))


def random_model(folder: Path, vocab_file: str, hparams: dict):
    """A `StoredModel` with random weights."""
    from electra_tf.config.pretraining import PretrainingConfig
    from electra_tf.interop.checkpoint import StoredModel
    from electra_tf.pretrain.pretraining import build_pretrainer
    from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary

    vocab = Vocabulary.load(vocab_file)
    hparams = {"vocab_size": len(vocab), "vocab_file": vocab_file} | hparams
    config = PretrainingConfig.from_hparams(str(folder), "random", hparams)
    model = build_pretrainer(config, vocab, at_rest=True)
    weights = {v.path: v.numpy() for v in model.variables}
    return StoredModel(config, vocab, TokenizerConfig(), weights, {}, 0, "random")


def write_data(config: PretrainingConfig, count: int = 4096) -> Vocabulary:
    """Writes a vocabulary and random examples into the config's data directory."""
    import numpy as np

    from electra_tf.data import tfrecord
    from electra_tf.text.vocabulary import write_tokens

    folder = Path(config.data_dir) / "pretrain_tfrecords"
    folder.mkdir()
    length = config.max_seq_length
    shape = count, length
    segments = np.zeros(shape, int)
    segments[:, length // 2 + 1 :] = 1
    ids = np.random.default_rng(1).integers(5, config.vocab_size, shape)
    ids[:, 0], ids[:, length // 2], ids[:, -1] = 2, 3, 3
    records = tfrecord.encode_examples(ids, np.ones(shape, int), segments)
    path = folder / "pretrain_data.tfrecord-00000-of-00001"
    path.write_bytes(b"".join(map(tfrecord.frame, records)))
    return write_tokens(config.vocab_file, numbers(config.vocab_size).tokens)


def place(config: PretrainingConfig, special: tuple[int, int, int]):
    """Returns task, state and placement, on the first GPU or without any on the CPU.

    Args:
      special: the ids of [CLS], [SEP] and [MASK].
    """
    import keras
    import tensorflow as tf

    from electra_tf.pretrain import pretraining
    from electra_tf.train import distribution, optimization
    from electra_tf.train import step as training_step

    gpus = tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices(gpus[:1], "GPU")  # several would share the batch
    distribution.configure_devices(config)
    placement = distribution.create_strategy(config)
    print(distribution.describe(placement, config.precision), flush=True)
    keras.utils.set_random_seed(config.seed)
    with placement.strategy.scope():
        task = pretraining.task_of(pretraining.build_pretrainer(config, special))
        optimizer = optimization.create_optimizer(config)
        state = training_step.TrainState(task.model, optimizer)
    return task, state, placement


def make_loop(config: PretrainingConfig, vocab: Vocabulary):
    """Returns count -> loss of the last of `count` steps of pre-training."""
    from electra_tf.pretrain import run
    from electra_tf.pretrain.pretrain_data import RunData
    from electra_tf.train import step as training_step

    task, state, placement = place(config, (2, 3, 4))
    step = training_step.TrainingStep(task, state, placement, seed=config.seed)
    batches = run.batches_of(config, RunData(vocab), placement)
    done = 0

    def loop(count):
        nonlocal done
        done += count
        return float(step.run(batches, done - count, count)["loss"][-1])

    return loop


def make_device(precision: str) -> Device:
    """TensorFlow's first GPU, or its CPU."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    name = details.get("device_name", "GPU") if gpus else "CPU"

    def make_matmul():
        rows, inner, columns = (8192, 8192, 8192) if gpus else (4096, 1024, 1024)
        dtype = tf.as_dtype(precision.removeprefix("mixed_"))
        a = tf.cast(tf.random.normal([rows, inner]), dtype)
        b = tf.cast(tf.random.normal([inner, columns]), dtype)
        # The transfer to NumPy waits for the product.
        return lambda: tf.matmul(a, b)[0, 0].numpy(), 2.0 * rows * inner * columns

    def gpu_peak():
        peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
        tf.config.experimental.reset_memory_stats("GPU:0")
        return peak

    version = f"TensorFlow {tf.__version__}"
    return Device(name, version, make_matmul, gpu_peak if gpus else None)
