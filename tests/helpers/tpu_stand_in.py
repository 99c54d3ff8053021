# SPDX-License-Identifier: Apache-2.0
"""The TPU's path as far as TensorFlow goes without one; a script that prints JSON.

    python -m tests.helpers.tpu_stand_in DATA_DIR MODEL_NAME HPARAMS

A resolver that finds two CPU devices stands in for the TPU. TPUStrategy places
variables and inputs on them; the loop is traced, but what it replicates only a TPU
executes.
"""

import json
import sys
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import UserError
from electra_tf.model import target
from electra_tf.pretrain import pretraining
from electra_tf.pretrain.pretrain_data import RunData
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.text.vocabulary import Vocabulary
from electra_tf.train import distribution, optimization
from electra_tf.train import step as training_step
from tests.helpers.encoder_passes import operations

CORES = 2


class CoreName(str):
    """The name of a CPU device that TPUStrategy takes for a TPU's core."""

    def __contains__(self, part: str) -> bool:
        return part == "device:TPU:" or super().__contains__(part)


class StandIn:
    """What TPUStrategy and `distribution` ask of a TPUClusterResolver."""

    def __init__(self, tpu, zone=None, project=None, job_name=None):
        self.asked = {"tpu": tpu, "zone": zone, "project": project, "job": job_name}

    def get_tpu_system_metadata(self):
        names = [d.name for d in tf.config.list_logical_devices("CPU")]
        devices = [SimpleNamespace(name=CoreName(name)) for name in names]
        cores = {"num_cores": CORES, "num_of_cores_per_host": CORES, "num_hosts": 1}
        return SimpleNamespace(devices=devices, **cores)


def stand_in() -> None:
    tf.distribute.cluster_resolver.TPUClusterResolver = StandIn
    tf.config.experimental_connect_to_cluster = lambda resolver: None
    tf.tpu.experimental.initialize_tpu_system = lambda resolver: None
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * CORES,
    )


def main(data_dir: str, model_name: str, hparams: str) -> dict:
    config = PretrainingConfig.from_hparams(data_dir, model_name, json.loads(hparams))
    distribution.configure_devices(config)
    threads = tf.config.threading.get_inter_op_parallelism_threads()
    stand_in()
    placement = distribution.create_strategy(config)
    found = {"line": distribution.describe(placement, config.precision)}
    found |= {"replicas": placement.num_replicas, "inter_op_threads": threads}
    # A TPU of another machine.
    extended = type(placement.strategy.extended)
    devices = extended.worker_devices
    extended.worker_devices = ("/job:worker/device:TPU:0",)
    try:
        distribution.create_strategy(config)
    except UserError as error:
        found["refused"] = str(error)
    extended.worker_devices = devices
    found["target_is_tpu"] = target.is_for_tpu()
    vocab = Vocabulary.load(config.vocab_file)
    special = (vocab.cls_id, vocab.sep_id, vocab.mask_id)
    with placement.strategy.scope():
        task = pretraining.task_of(pretraining.build_pretrainer(config, special))
        optimizer = optimization.create_optimizer(config)
        state = training_step.TrainState(task.model, optimizer)
    found["kind_of_variable"] = type(state.optimizer.adam_m[0].value).__name__

    checkpoints = Checkpoints(config.model_dir, log=lambda text: None)
    before = {name: v.numpy() for name, v in state.variables().items()}
    checkpoints.save(0, state.variables())
    for variable in state.variables().values():
        variable.assign(tf.ones_like(variable))
    checkpoints.restore(checkpoints.verify(0), state.variables())
    found["restored"] = all(
        np.array_equal(v.numpy(), before[name]) for name, v in state.variables().items()
    )

    def dataset(context):
        del context
        return RunData(vocab).dataset(
            config,
            True,
            batch_size=config.train_batch_size,
            num_replicas=placement.num_replicas,
        )

    batches = iter(placement.strategy.distribute_datasets_from_function(dataset))
    parts = placement.strategy.experimental_local_results(next(batches)["input_ids"])
    found["parts"] = [list(part.shape) for part in parts]
    step = training_step.TrainingStep(task, state, placement, seed=config.seed)
    count, scale = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.float32)
    traced = step._loop.get_concrete_function(batches, count, count, scale, count)
    found["operations"] = operations(traced)
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
