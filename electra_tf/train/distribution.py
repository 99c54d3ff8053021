# SPDX-License-Identifier: Apache-2.0
"""Where the computation runs and in which precision: strategy, threads, jit.

`configure_devices` must be called before TensorFlow touches a device; a process makes
one strategy (a second MirroredStrategy would reuse the collective keys of the first).
"""

from __future__ import annotations

import os
from typing import NamedTuple

import keras
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.model.target import set_target
from electra_tf.train.cluster import Cluster
from electra_tf.train.stopping import plain_signals
from electra_tf.train.workers import Workers

# Splits the CPU into that many devices, so that replicas can be tried out without
# GPUs: every replica then computes on the same cores.
CPU_DEVICES_VARIABLE = "ELECTRA_TF_CPU_DEVICES"


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
    as fast in float32 and slower in bfloat16, whose products it does not hand to AMX.
    """
    if config.jit_compile is not None:
        return config.jit_compile
    if config.use_tpu:
        return False  # TPUs compile everything by themselves.
    if tf.config.list_physical_devices("GPU"):
        return True
    return config.precision == "float32" and not config.debug


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
    return Placement(
        strategy=strategy,
        jit_compile=uses_jit(config),
        is_chief=cluster.is_chief,
        num_replicas=replicas,
        workers=Workers(strategy, cluster),
    )


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
            f"use_tpu is set, but no TPU{name} answers: {str(error).splitlines()[0]}\n"
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


def check_training_batch(config, replicas: int) -> None:
    """Refuses a batch that does not divide evenly, naming both numbers."""
    parts = replicas * config.gradient_accumulation_steps
    if config.do_train and config.train_batch_size % parts:
        raise UserError(
            f"train_batch_size {config.train_batch_size} does not divide by "
            f"{parts} = {replicas} replicas x gradient_accumulation_steps "
            f"{config.gradient_accumulation_steps}."
        )


def check_evaluation_batch(config, replicas: int) -> None:
    """The same of evaluations on all replicas, as those of pre-training are."""
    evaluates = config.do_eval or config.eval_every_steps
    if evaluates and config.eval_batch_size % replicas:
        raise UserError(
            f"eval_batch_size {config.eval_batch_size} does not divide by "
            f"{replicas} replicas."
        )


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
