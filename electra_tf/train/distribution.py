# SPDX-License-Identifier: Apache-2.0
"""Where the computation runs: strategy, threads, precision, jit, and several workers.

`configure_devices` must be called before TensorFlow touches a device; a process makes
one strategy (a second MirroredStrategy would reuse the collective keys of the first).

Each worker is a process that runs the whole program. They stay one run only if all of
them make the same steps, so everything that a worker finds out by itself (a signal, a
clock, a full disk) becomes a decision of all, by an all-reduce between two loops. With
one worker nothing is exchanged.
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

# Splits the CPU into that many devices, so that replicas can be tried out without
# GPUs: every replica then computes on the same cores.
CPU_DEVICES_VARIABLE = "ELECTRA_TF_CPU_DEVICES"


class Decision(NamedTuple):
    """What all workers do next.

    Attributes:
      reason: why the run ends now; None: it goes on.
      count: how many steps the next loop has.
      seconds: how long a loop and a save take on the slowest.
    """

    reason: str | None
    count: int
    seconds: float


class Workers:
    """The workers of a run; all of them call the same methods in the same order.

    Args:
      strategy: over the devices of all.
      cluster: who they are.
    """

    def __init__(self, strategy: tf.distribute.Strategy, cluster: Cluster):
        self.cluster = cluster
        self.count = max(1, len(self.cluster.places))
        self._strategy = strategy
        self._gather = tf.function(
            self._placed, input_signature=[tf.TensorSpec([None])], autograph=False
        )
        self._from_chief = tf.function(
            self._chiefs, autograph=False, reduce_retracing=True
        )

    def gather(self, numbers: Sequence[float]) -> np.ndarray:
        """Everybody's numbers, as many from each: float32 [workers, n]."""
        own = np.asarray(numbers, np.float32)
        if self.count == 1:
            return own[None]
        with self.cluster.patience():
            return self._gather(own).numpy()

    def _placed(self, own: tf.Tensor) -> tf.Tensor:
        local = self._strategy.num_replicas_in_sync // self.count

        def place(own):
            context = tf.distribute.get_replica_context()
            replica = context.replica_id_in_sync_group
            row = tf.where(replica == self.cluster.index * local, own, 0.0)
            rows = tf.one_hot(self.cluster.index, self.count)[:, None] * row
            return context.all_reduce("SUM", rows)

        rows = self._strategy.run(place, args=(own,))
        return self._strategy.experimental_local_results(rows)[0]

    def gather_texts(self, text: str) -> list[str]:
        """Everybody's text, in the order of the workers."""
        if self.count == 1:
            return [text]
        letters = text.encode()
        longest = int(self.gather([len(letters)]).max())
        rows = self.gather([*letters, *[0] * (longest - len(letters))])
        return [bytes(row.astype(np.uint8)).rstrip(b"\0").decode() for row in rows]

    def copy_from_chief(self, variables: Mapping[str, tf.Variable]) -> None:
        """Gives all workers the chief's values of the variables, to the bit."""
        if self.count == 1:
            return
        with self.cluster.patience():
            for name in sorted(variables):
                variable = variables[name]
                flat = tf.reshape(tf.convert_to_tensor(variable), [-1])
                variable.assign(tf.reshape(self._from_chief(flat), variable.shape))

    def _chiefs(self, value: tf.Tensor) -> tf.Tensor:
        def offer(value):
            context = tf.distribute.get_replica_context()
            # x + -0.0 is x, for x = -0.0 as well.
            nothing = tf.fill(tf.shape(value), -tf.zeros([], value.dtype))
            own = tf.where(context.replica_id_in_sync_group == 0, value, nothing)
            return context.all_reduce("SUM", own)

        values = self._strategy.run(offer, args=(value,))
        return self._strategy.experimental_local_results(values)[0]

    def acknowledge(self) -> None:
        """Waits until all have the last message, after which this process may end.

        An exchange ends for a worker when it has fetched its peers' parts, and a peer
        that ended meanwhile would look lost. To an acknowledgement it does not matter.
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
        """Makes of what each worker knows one decision for all.

        Args:
          failure: what this worker cannot go on with.
          reason: why this worker wants the run to end.
          count: steps of the next loop; the chief's holds.
          seconds: that a loop and a save take.

        Raises `UserError`: at all workers the failure of the first that has one.
        """
        code = failure.exit_code if failure else 0
        rows = self.gather([code, reason is not None, count, seconds])
        texts = [""] * self.count
        if rows[:, :2].any():
            texts = self.gather_texts(str(failure) if failure else reason or "")
        failed = np.flatnonzero(rows[:, 0]).tolist()
        if failed:
            self.acknowledge()
        for index in failed:
            if failure and index == self.cluster.index:
                raise failure
            text = f"{self.cluster.name(index)}: {texts[index]}"
            raise UserError(text, int(rows[index, 0]))
        reason = None
        for index in np.flatnonzero(rows[:, 1])[:1].tolist():
            at = f" at {self.cluster.name(index)}" if self.count > 1 else ""
            reason = texts[index] + at
        return Decision(reason, int(rows[0, 2]), float(rows[:, 3].max()))


# What TensorFlow raises when another worker is gone.
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
    """Turns what TensorFlow raises for a lost worker into a `UserError` (69)."""
    try:
        yield
    except tf.errors.OpError as error:
        is_lost = isinstance(error, _LOST) or _ABORTED in error.message
        if not (cluster.has_peers and is_lost):
            raise
        named = (cluster.index_of(*task) for task in _TASK.findall(error.message))
        lost = next((i for i in named if i != cluster.index), None)
        who = "another worker" if lost is None else cluster.name(lost)
        raise UserError(
            f"{who} has ended or cannot be reached; its own output says why. Run the "
            "same commands again on all workers.",
            EXIT_PEER_LOST,
        ) from error


class Placement(NamedTuple):
    """A strategy and what follows from it."""

    strategy: tf.distribute.Strategy
    jit_compile: bool
    is_chief: bool  # writes checkpoints, metrics and log lines
    num_replicas: int  # of all workers together
    workers: Workers

    @property
    def is_one_cpu(self) -> bool:
        """Whether one replica computes, without an accelerator."""
        on_tpu = isinstance(self.strategy, tf.distribute.TPUStrategy)
        others = on_tpu or tf.config.list_logical_devices("GPU")
        return self.num_replicas == 1 and not others

    @property
    def is_read_elsewhere(self) -> bool:
        """Whether other processes read the data: the hosts of a TPU that is not here.

        They have the graph and no Python.
        """
        if not isinstance(self.strategy, tf.distribute.TPUStrategy):
            return False
        device = self.strategy.extended.worker_devices[0]
        return tf.DeviceSpec.from_string(device).job not in (None, "localhost")


def configure_devices(config) -> None:
    """Sets up devices and threads; before anything else of TensorFlow runs.

    A graph that XLA does not compile is run by one inter-op thread on CPUs: with two,
    TensorFlow accumulates some gradients in the order in which they finish, and two
    runs of the same step differ in the last bit (about 5 % slower, and then
    reproducible).
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
    # Beside a TPU the host reads and masks, and runs no graph whose order matters.
    if on_one_cpu and not uses_jit(config) and not config.use_tpu:
        tf.config.threading.set_inter_op_parallelism_threads(1)


def uses_jit(config) -> bool:
    """Whether XLA compiles the step: `jit_compile`, or what is faster here.

    Measured for ELECTRA-Small on 2 CPU cores (docs/performance.md): XLA is 1.2 times
    as fast in float32 and slower in bfloat16, whose products it does not hand to AMX;
    where lengths vary, in fine-tuning, plain graphs save more.
    """
    if config.jit_compile is not None:
        return config.jit_compile
    if config.use_tpu:
        return False  # TPUs compile everything by themselves.
    if tf.config.list_physical_devices("GPU"):
        return True
    is_plain = config.precision != "float32" or config.debug
    return config.has_one_length and not is_plain


def set_precision(name: str) -> None:
    """Sets Keras's dtype policy: float32, mixed_bfloat16 or mixed_float16."""
    keras.config.set_dtype_policy(name)


def create_strategy(config, cluster: Cluster | None = None) -> Placement:
    """Chooses the strategy for the devices at hand and checks the batch size.

    TPU when `use_tpu`; the devices of all workers of the cluster; all GPUs, or the
    devices the CPU was split into, when there is more than one; otherwise the one.

    Raises `UserError` (2) when the global batch does not divide into replicas times
    `gradient_accumulation_steps`.

    Args:
      cluster: of several workers, by TF_CONFIG; by default there is only this one.
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
        # It reports every all-reduce that it builds.
        tf.get_logger().setLevel("WARNING")
        # All have come (`Cluster.meet`). If one is lost now, TensorFlow waits for an
        # hour and holds Python's lock.
        with plain_signals(cluster.timeout):
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
    # A name is looked up on Google's servers, through packages that may be missing.
    except (ValueError, OSError, ImportError, tf.errors.OpError) as error:
        name = f" {config.tpu_name}" if config.tpu_name else ""
        raise UserError(
            f"use_tpu is set, but no TPU{name} answers: {reason_of(error)}\n"
            "Install tensorflow-tpu in place of tensorflow (docs/tpu.md), set tpu_name "
            "if the TPU is not this machine's, or set use_tpu to false."
        ) from error
    strategy = tf.distribute.TPUStrategy(resolver)
    cores = strategy.num_replicas_in_sync
    if config.num_tpu_cores not in (1, cores):
        raise UserError(
            f"num_tpu_cores is {config.num_tpu_cores}, but the TPU has {cores} cores, "
            "all of which are used.\nLeave num_tpu_cores out."
        )
    return strategy


def check_training_batch(config, replicas: int, together: int = 1) -> None:
    """Refuses a batch that does not divide evenly, naming both numbers.

    Args:
      together: how many sequences must be on one replica at one time.
    """
    parts = replicas * config.gradient_accumulation_steps * together
    if config.do_train and config.train_batch_size % parts:
        raise UserError(
            f"train_batch_size {config.train_batch_size} does not divide by "
            f"{parts} = {replicas} replicas x gradient_accumulation_steps "
            f"{config.gradient_accumulation_steps}{_groups_of(together)}."
        )


def check_evaluation_batch(config, replicas: int, together: int = 1) -> None:
    """The same of evaluations on all replicas, as those of pre-training are."""
    evaluates = config.do_eval or config.eval_every_steps
    if evaluates and config.eval_batch_size % (replicas * together):
        raise UserError(
            f"eval_batch_size {config.eval_batch_size} does not divide by "
            f"{replicas} replicas{_groups_of(together)}."
        )


def _groups_of(together: int) -> str:
    return f" x contrastive_group {together}" if together > 1 else ""


def describe(placement: Placement, precision: str) -> str:
    """One line that names devices, strategy, precision and jit."""
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
