# SPDX-License-Identifier: Apache-2.0
"""Devices of a run: strategy, threads, precision, jit, and several workers.

Call `configure_devices` before TensorFlow uses a device. A process creates one strategy
(a second MirroredStrategy would reuse the collective keys of the first).

Each worker is a process that runs the whole program. All of them must make the same
steps. A local event (a signal, the time limit, a full disk) therefore becomes a
decision of all workers, by an all-reduce between two loops. A single worker exchanges
nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from electra_tf.errors import EXIT_PEER_LOST, UserError, reason_of
from electra_tf.model.target import set_target
from electra_tf.train.supervisor import Cluster, plain_signals

# Splits the CPU into that many devices, to try out replicas without GPUs. All replicas
# share the same cores.
CPU_DEVICES_VARIABLE = "ELECTRA_TF_CPU_DEVICES"

# How long TensorFlow may take to connect workers that have all arrived.
_MEETING_SECONDS = 60.0


class Decision(NamedTuple):
    """What all workers do next.

    Attributes:
      reason: why the run ends now; None if it continues.
      count: steps of the next loop.
      seconds: what a loop and a save take on the slowest worker.
    """

    reason: str | None
    count: int
    seconds: float


class Workers:
    """The workers of a run; all of them call the same methods in the same order.

    Args:
      strategy: over the devices of all workers.
      cluster: the processes.
    """

    def __init__(self, strategy: tf.distribute.Strategy, cluster: Cluster):
        self.cluster = cluster
        self.count = max(1, len(cluster.places))
        self._strategy = strategy
        self._sum = tf.function(
            self._all_reduce, autograph=False, reduce_retracing=True
        )

    def _all_reduce(self, value: tf.Tensor) -> tf.Tensor:
        """Sums one tensor per worker."""
        local = self._strategy.num_replicas_in_sync // self.count

        def add(value):
            context = tf.distribute.get_replica_context()
            # Other replicas of this worker add -0.0: x + -0.0 is x, also for x = -0.0.
            is_first = context.replica_id_in_sync_group == self.cluster.index * local
            value = tf.where(is_first, value, -tf.zeros_like(value))
            return context.all_reduce("SUM", value)

        values = self._strategy.run(add, args=(value,))
        return self._strategy.experimental_local_results(values)[0]

    def gather(self, numbers: Sequence[float]) -> np.ndarray:
        """Collects n numbers from each worker: float64 [workers, n], exact to 2**53."""
        rows = np.zeros([self.count, len(numbers)])
        rows[self.cluster.index] = numbers
        if self.count == 1:
            return rows
        with self.cluster.patience():
            return self._sum(tf.constant(rows)).numpy()

    def gather_texts(self, text: str) -> list[str]:
        """Collects a text from each worker."""
        data = text.encode()
        longest = int(self.gather([len(data)]).max())
        rows = self.gather([*data, *[0] * (longest - len(data))])
        return [bytes(row.astype(np.uint8)).rstrip(b"\0").decode() for row in rows]

    def copy_from_chief(self, variables: Mapping[str, tf.Variable]) -> None:
        """Copies the chief's values of the variables to all workers, bit by bit."""
        if self.count == 1:
            return
        with self.cluster.patience():
            for name in sorted(variables):
                variable = variables[name]
                value = tf.reshape(tf.convert_to_tensor(variable), [-1])
                if not self.cluster.is_chief:
                    value = -tf.zeros_like(value)
                variable.assign(tf.reshape(self._sum(value), variable.shape))

    def acknowledge(self) -> None:
        """Waits until all have the last message, after which this process may end.

        An exchange ends for a worker when it has received the parts of its peers. A
        peer that ends at that moment would look lost, except in this last exchange.
        """
        with contextlib.suppress(tf.errors.OpError):
            self.gather([0.0])

    def decide(
        self,
        failure: UserError | None = None,
        reason: str | None = None,
        count: int = 0,
        seconds: float = 0.0,
    ) -> Decision:
        """Makes one decision for all workers.

        Args:
          failure: why this worker cannot continue.
          reason: why this worker asks to end the run.
          count: steps of the next loop; the chief's number is used.
          seconds: what a loop and a save take here.

        Raises `UserError`: on all workers, the failure of the first that has one.
        """
        code = failure.exit_code if failure else 0
        rows = self.gather([code, reason is not None, count, seconds])
        texts = [""] * self.count
        if rows[:, :2].any():
            texts = self.gather_texts(str(failure or reason or ""))
        for index in np.flatnonzero(rows[:, 0]).tolist():
            self.acknowledge()
            if failure and index == self.cluster.index:
                raise failure
            text = f"{self.cluster.name(index)}: {texts[index]}"
            raise UserError(text, int(rows[index, 0]))
        reason = None
        for index in np.flatnonzero(rows[:, 1])[:1].tolist():
            at = f" at {self.cluster.name(index)}" if self.count > 1 else ""
            reason = texts[index] + at
        return Decision(reason, int(rows[0, 2]), float(rows[:, 3].max()))


# TensorFlow's errors after the loss of another worker.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)
_ABORTED = "Collective ops is aborted"
_TASK = re.compile(r"/job:(chief|worker)/(?:replica:\d+/)?task:(\d+)")


@contextlib.contextmanager
def peers_may_be_lost(cluster: Cluster) -> Iterator[None]:
    """Raises a `UserError` (69) for TensorFlow's errors after the loss of a worker."""
    try:
        yield
    except tf.errors.OpError as error:
        is_lost = isinstance(error, _LOST) or _ABORTED in error.message
        if not (cluster.has_peers and is_lost):
            raise
        named = (cluster.index_of(*task) for task in _TASK.findall(error.message))
        lost = next((i for i in named if i != cluster.index), None)
        peer = "another worker" if lost is None else cluster.name(lost)
        raise UserError(
            f"{peer} has ended or cannot be reached; its own output says why. Run the "
            "same commands again on all workers.",
            EXIT_PEER_LOST,
        ) from error


class Placement(NamedTuple):
    """A strategy and the settings derived from it."""

    strategy: tf.distribute.Strategy
    jit_compile: bool
    is_chief: bool  # writes checkpoints, metrics and log lines
    num_replicas: int  # of all workers together
    workers: Workers

    @property
    def is_one_cpu(self) -> bool:
        """Whether the run has one replica and no accelerator."""
        on_tpu = isinstance(self.strategy, tf.distribute.TPUStrategy)
        has_accelerator = on_tpu or tf.config.list_logical_devices("GPU")
        return self.num_replicas == 1 and not has_accelerator

    def sum_of_replicas(self, values):
        """The sums of nested tensors over all replicas, in one of them."""
        if self.num_replicas == 1:
            return values
        return tf.distribute.get_replica_context().all_reduce("SUM", values)


def configure_devices(config) -> None:
    """Sets up devices, threads and precision, before any other use of TensorFlow.

    Without XLA, a CPU runs the graph with one inter-op thread: about 5 % slower, but
    reproducible. With two, TensorFlow accumulates some gradients in the order in which
    they finish, and two runs of the same step differ in the last bit.
    """
    gpus = tf.config.list_physical_devices("GPU")
    set_target("tpu" if config.use_tpu else "gpu" if gpus else "cpu")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    cpus = int(os.environ.get(CPU_DEVICES_VARIABLE, "1"))
    if cpus > 1:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * cpus,
        )
    on_one_cpu = cpus == 1 and not gpus
    # The host of a TPU only reads and masks, in any order.
    if on_one_cpu and not uses_jit(config) and not config.use_tpu:
        tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.config.set_dtype_policy(config.precision)


def uses_jit(config) -> bool:
    """Whether XLA compiles the step: `jit_compile`, or by default the faster choice.

    Measured on 2 CPU cores (docs/hardware.md): steps of one length are faster with XLA
    in float32, and slower in bfloat16, for which it does not use AMX. For varying
    lengths (fine-tuning) plain graphs are faster.
    """
    if config.jit_compile is not None:
        return config.jit_compile
    if config.use_tpu:
        return False  # TPUs always compile.
    if tf.config.list_physical_devices("GPU"):
        return True
    faster = config.has_one_length and config.precision == "float32"
    return faster and not config.debug and _pays(config)


def _pays(config) -> bool:
    """Whether XLA saves more seconds of all steps than it takes to compile one.

    Through the measurements of ELECTRA-Small and electra_pocket
    (docs/measurements/pretraining_step.md#when-xla-pays).
    """
    networks = config.model_config(), config.generator_config()
    layers = sum(n.num_hidden_layers for n in networks)
    per_token = sum(72 * n.num_hidden_layers * n.hidden_size**2 for n in networks)
    flops = per_token * config.train_batch_size * config.max_seq_length
    saved = 0.002 + 2.4e-12 * flops
    return config.num_train_steps * saved > 4.0 + 0.6 * layers


def create_strategy(config, cluster: Cluster | None = None) -> Placement:
    """Chooses the strategy for the available devices and checks the batch size.

    TPU with `use_tpu`; the devices of all workers of the cluster; all GPUs or CPU
    devices if there are several; otherwise the only one.

    Raises `UserError` (2) if the global batch does not divide into replicas times
    `gradient_accumulation_steps`.

    Args:
      cluster: the workers by TF_CONFIG; by default this process alone.
    """
    cluster = cluster or Cluster()
    strategy = _strategy(config, cluster)
    replicas = strategy.num_replicas_in_sync
    check_training_batch(config, replicas)
    workers = Workers(strategy, cluster)
    return Placement(strategy, uses_jit(config), cluster.is_chief, replicas, workers)


def _strategy(config, cluster: Cluster) -> tf.distribute.Strategy:
    if config.use_tpu:
        return _tpu_strategy(config)
    if cluster.places:
        # TensorFlow logs every all-reduce that it builds.
        tf.get_logger().setLevel("WARNING")
        # All workers have arrived (`Cluster.meet`). If one is lost now, TensorFlow
        # waits for an hour, holds Python's lock and takes SIGTERM for itself.
        with plain_signals(min(cluster.timeout, _MEETING_SECONDS)):
            return tf.distribute.MultiWorkerMirroredStrategy()
    devices = [d.name for d in tf.config.list_logical_devices("GPU")]
    devices = devices or [d.name for d in tf.config.list_logical_devices("CPU")]
    if len(devices) > 1:
        return tf.distribute.MirroredStrategy(devices)
    return tf.distribute.get_strategy()


def _tpu_strategy(config) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            config.tpu_name or "local",
            zone=config.tpu_zone,
            project=config.gcp_project,
            job_name=config.tpu_job_name or "worker",
        )
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    # Names are looked up on Google's servers, with packages that may be missing.
    except (ValueError, OSError, ImportError, tf.errors.OpError) as error:
        name = f" {config.tpu_name}" if config.tpu_name else ""
        raise UserError(
            f"use_tpu is set, but no TPU{name} answers: {reason_of(error)}\n"
            "Install tensorflow-tpu in place of tensorflow (docs/hardware.md), or set "
            "use_tpu to false."
        ) from error
    strategy = tf.distribute.TPUStrategy(resolver)
    host = tf.DeviceSpec.from_string(strategy.extended.worker_devices[0])
    if host.job not in (None, "localhost"):
        raise UserError(
            "the TPU belongs to another machine; its hosts cannot read the data.\n"
            "Run on its TPU VM and leave tpu_name out (docs/hardware.md)."
        )
    return strategy


def check_training_batch(config, replicas: int) -> None:
    """Raises `UserError` if the training batch does not divide evenly."""
    if config.do_train:
        parts = config.gradient_accumulation_steps
        _check_batch(config, "train_batch_size", replicas, parts)


def check_evaluation_batch(config, replicas: int) -> None:
    """The same for the evaluation batch."""
    if config.do_eval or config.eval_every_steps:
        _check_batch(config, "eval_batch_size", replicas, 1)


def _check_batch(config, name: str, replicas: int, parts: int) -> None:
    size, divisor = getattr(config, name), replicas * parts
    if size % divisor:
        product = f"{replicas} replicas"
        product += f" x gradient_accumulation_steps {parts}" if parts > 1 else ""
        raise UserError(f"{name} {size} does not divide by {divisor} = {product}.")


def describe(placement: Placement, precision: str) -> str:
    """One line with devices, strategy, precision and jit."""
    gpus = tf.config.list_physical_devices("GPU")
    kind = "CPU"
    if gpus:
        details = tf.config.experimental.get_device_details(gpus[0])
        kind = details.get("device_name", "GPU")
    jit = f"jit_compile {'on' if placement.jit_compile else 'off'}"
    if isinstance(placement.strategy, tf.distribute.TPUStrategy):
        kind, jit = "TPU", "compiled by XLA"
    name = type(placement.strategy).__name__.removesuffix("V2")
    if placement.workers.count > 1:
        name = f"{placement.workers.count} workers"
    elif placement.num_replicas == 1:
        name = "one device"
    return (
        f"Devices: {placement.num_replicas} x {kind} ({name}), precision {precision}, "
        f"{jit}"
    )
