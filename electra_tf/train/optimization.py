# SPDX-License-Identifier: Apache-2.0
"""The optimizer of BERT and ELECTRA: Adam without bias correction, decoupled decay.

The weight change of a step is
    lr * (m / (sqrt(v) + epsilon) + weight_decay_rate * w)
with the learning rate warmed up linearly while it already decays polynomially.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

NO_DECAY = ("LayerNorm", "layer_norm", "bias")


@keras.saving.register_keras_serializable("electra_tf")
class WarmupPolynomialDecay(keras.optimizers.schedules.LearningRateSchedule):
    """lr * (1 - step / num_train_steps) ** power * min(1, step / warmup).

    The warm-up multiplies the decay, so the peak lies below `learning_rate`; after
    `num_train_steps` the rate is 0 (unless power is 0).  Without warm-up the second
    factor is 1 from the first step on.

    Args:
      warmup_steps, warmup_proportion: the warm-up lasts for the larger of
        `warmup_steps` and `warmup_proportion * num_train_steps`, not rounded.
    """

    def __init__(
        self,
        learning_rate: float,
        num_train_steps: int,
        warmup_steps: float = 0,
        warmup_proportion: float = 0.0,
        power: float = 1.0,
    ):
        super().__init__()
        self.learning_rate = learning_rate
        self.num_train_steps = num_train_steps
        self.warmup_steps = warmup_steps
        self.warmup_proportion = warmup_proportion
        self.power = power

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        step = tf.cast(step, tf.float32)
        done = tf.minimum(step, self.num_train_steps) / self.num_train_steps
        rate = self.learning_rate * tf.pow(1.0 - done, self.power)
        warmup = max(self.num_train_steps * self.warmup_proportion, self.warmup_steps)
        if warmup > 0:
            rate *= tf.minimum(1.0, step / warmup)
        return rate

    def get_config(self):
        return {
            "learning_rate": self.learning_rate,
            "num_train_steps": self.num_train_steps,
            "warmup_steps": self.warmup_steps,
            "warmup_proportion": self.warmup_proportion,
            "power": self.power,
        }


@keras.saving.register_keras_serializable("electra_tf")
class LayerwiseDecay:
    """Learning-rate factor of each variable: lower layers learn more slowly.

    Embeddings have depth 0, layer i depth i + 1, a task's head `num_layers + 2`; the
    factor is `decay ** (num_layers + 2 - depth)`.  So the top layer gets decay ** 2:
    the original counts a pooler that ELECTRA does not have ("original").  "fixed"
    counts layers without it.

    Raises ValueError for a variable that belongs to none of these.
    """

    def __init__(self, decay: float, num_layers: int, offset: str = "original"):
        self.settings = {"decay": decay, "num_layers": num_layers, "offset": offset}
        top = num_layers + (2 if offset == "original" else 1)
        self.factors = {
            "/embeddings/": decay**top,
            "/embeddings_project/": decay**top,
            "task_specific/": 1.0,
        }
        for layer in range(num_layers):
            self.factors[f"encoder/layer_{layer}/"] = decay ** (top - layer - 1)

    def __call__(self, path: str) -> float:
        for key, factor in self.factors.items():
            if key in path:
                return factor
        raise ValueError(
            f"variable {path} is in no layer with a learning rate of its own; "
            f"known: {', '.join(self.factors)}"
        )

    def get_config(self):
        return self.settings

    @classmethod
    def from_config(cls, config):
        return cls(**config)


class Slice:
    """A variable's part of a flat one, in the shape of the variable.

    Attributes:
      flat: the variable that it is a part of.
      shape, dtype: as of a tf.Variable.
    """

    def __init__(self, flat: tf.Variable, start: int, shape: Sequence[int]):
        self.shape = tf.TensorShape(shape)
        self.dtype = flat.dtype
        self.flat = flat
        self._range = slice(start, start + self.shape.num_elements())

    def __tf_tensor__(self, dtype=None, name=None) -> tf.Tensor:
        del dtype
        first = tf.distribute.get_strategy().experimental_local_results(self.flat)[0]
        return tf.reshape(first[self._range], self.shape, name)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        del copy
        return np.asarray(tf.convert_to_tensor(self).numpy(), dtype)

    def numpy(self) -> np.ndarray:
        """The values."""
        return np.asarray(self)

    def assign(self, value) -> None:
        """Sets the values, on all devices."""
        flat = tf.reshape(value, [-1])
        local = tf.distribute.get_strategy().experimental_local_results(self.flat)
        for variable in local:
            variable[self._range].assign(flat)


class _Group:
    """Variables with the same decay and factor: their slots in one vector each.

    Attributes:
      shapes: of each variable, by its index in the optimizer.
      sizes: their numbers of elements.
      m, v: float32 [sum of sizes].
    """

    def __init__(self, optimizer, number, decay, factor, shapes):
        self.decay, self.factor, self.shapes = decay, factor, shapes
        self.sizes = [math.prod(shape) for shape in shapes.values()]
        self.m, self.v = (
            optimizer.add_variable([sum(self.sizes)], name=f"{name}_{number}")
            for name in ("adam_m", "adam_v")
        )

    def flatten(self, values: Mapping[int, Any]) -> tf.Tensor:
        """The values by index as one vector; 0 for variables that have none."""
        flat = tf.constant([-1])
        parts = [
            tf.reshape(values[index], flat) if index in values else tf.zeros([size])
            for index, size in zip(self.shapes, self.sizes, strict=True)
        ]
        return tf.concat(parts, 0)

    def mask(self, present: Container[int]) -> tf.Tensor:
        """Where `present` has the index of a variable: bool [sum of sizes] or []."""
        if all(index in present for index in self.shapes):
            return tf.constant(True)
        return tf.repeat([index in present for index in self.shapes], self.sizes)

    def slices(self, flat: tf.Variable) -> dict[int, Slice]:
        """The parts of `m` or `v`, by index."""
        starts = itertools.accumulate(self.sizes, initial=0)
        return {
            index: Slice(flat, start, shape)
            for start, (index, shape) in zip(starts, self.shapes.items())  # noqa: B905
        }


@keras.saving.register_keras_serializable("electra_tf")
class AdamWeightDecay(keras.optimizers.Optimizer):
    """Adam with decoupled weight decay, as BERT and ELECTRA use it.

    No bias correction; epsilon outside the square root.  Decay is part of the
    update that the learning rate multiplies, so it follows the schedule and the layer's
    factor.

    Gradients are summed over the replicas, then clipped by their global norm, then
    applied.  If the norm is not finite, nothing changes but `iterations`.

    Args:
      learning_rate: float or schedule, read at the step before it is counted: the first
        step uses the rate of step 0.
      clip_norm: largest global norm of the gradients; None: no clipping.
      no_decay: regular expressions; variables whose path matches are not decayed.
      layer_factor: learning-rate factor from a variable's path, see LayerwiseDecay.
    """

    def __init__(
        self,
        learning_rate=1e-3,
        weight_decay_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        clip_norm: float | None = 1.0,
        no_decay: Sequence[str] = NO_DECAY,
        layer_factor: Callable[[str], float] | None = None,
        name: str = "AdamWeightDecay",
        **kwargs,
    ):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.clip_norm = clip_norm
        self.no_decay = tuple(no_decay)
        self.layer_factor = layer_factor
        self.global_norm = None  # of the last call's gradients, before clipping

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        groups: dict[tuple[float, float], list[int]] = {}
        for index, variable in enumerate(variables):
            factor = self.layer_factor(variable.path) if self.layer_factor else 1.0
            group = self._decay_of(variable.path), factor
            groups.setdefault(group, []).append(index)
        shapes = [variable.shape for variable in variables]
        self._groups = [
            _Group(self, number, *group, {i: shapes[i] for i in indices})
            for number, (group, indices) in enumerate(groups.items())
        ]

    @property
    def adam_m(self) -> list[Slice]:
        """The first moment of each variable."""
        return self._slots("m")

    @property
    def adam_v(self) -> list[Slice]:
        """The second moment of each variable."""
        return self._slots("v")

    def _slots(self, name: str) -> list[Slice]:
        slots: dict[int, Slice] = {}
        for group in self._groups:
            slots |= group.slices(getattr(group, name).value)
        return [slots[index] for index in sorted(slots)]

    def _decay_of(self, path: str) -> float:
        spared = any(re.search(pattern, path) for pattern in self.no_decay)
        return 0.0 if spared else self.weight_decay_rate

    # Keras sums gradients over the replicas and then updates one variable after the
    # other: 37 operations for each of 400. Here each group is one vector. These two
    # methods are not public, so setup.py has the versions of Keras that are known.

    def _all_reduce_sum_gradients(self, grads_and_vars):
        """Sums over replicas and clips; returns the gradient of each group.

        Keras's own clipping comes before the sum.
        """
        gradients = {
            # Repeated tokens are summed before the norm is taken: the true norm.
            self._get_variable_index(v): tf.cast(tf.convert_to_tensor(g), tf.float32)
            for g, v in grads_and_vars
        }
        flat = [group.flatten(gradients) for group in self._groups]
        flat = tf.distribute.get_replica_context().all_reduce("SUM", flat)
        self.global_norm = self.norm_of(flat)
        finite = tf.math.is_finite(self.global_norm)
        # What took no part in the loss keeps its value, as in Keras.
        self._learns = [finite & group.mask(gradients) for group in self._groups]
        scale = tf.ones([])
        if self.clip_norm is not None:
            scale = self.clip_norm / tf.maximum(self.global_norm, self.clip_norm)
        return [gradient * scale for gradient in flat]

    def norm_of(self, gradients: list[tf.Tensor]) -> tf.Tensor:
        """The global norm that decides the clipping."""
        return tf.linalg.global_norm(gradients)

    def _distributed_tf_update_step(self, distribution, gradients, learning_rate):
        variables = [
            v.value if isinstance(v, keras.Variable) else v
            for v in self._trainable_variables
        ]
        for group, gradient, learns in zip(
            self._groups, gradients, self._learns, strict=True
        ):
            own = [variables[index] for index in group.shapes]
            distribution.extended.update(
                group.m.value,
                functools.partial(self._update, group),
                args=(group.v.value, own, gradient, learning_rate, learns),
                group=False,
            )

    def _update(self, group, m, v, variables, gradient, rate, learns):
        """Updates a group on one device."""
        values = group.flatten(dict(zip(group.shapes, variables, strict=True)))
        new_m = self.beta_1 * m + (1 - self.beta_1) * gradient
        new_v = self.beta_2 * v + (1 - self.beta_2) * tf.square(gradient)
        update = new_m / (tf.sqrt(new_v) + self.epsilon)
        if group.decay:
            update += group.decay * values
        new_values = values - rate * group.factor * update
        m.assign(tf.where(learns, new_m, m))
        v.assign(tf.where(learns, new_v, v))
        parts = tf.split(tf.where(learns, new_values, values), group.sizes)
        # Many have the same shape, and each constant is an operation.
        shapes = {tuple(variable.shape) for variable in variables}
        constants = {shape: tf.constant(shape, tf.int32) for shape in shapes}
        for variable, part in zip(variables, parts, strict=True):
            variable.assign(tf.reshape(part, constants[tuple(variable.shape)]))

    def get_config(self):
        factor = self.layer_factor
        return super().get_config() | {
            "layer_factor": factor and keras.saving.serialize_keras_object(factor),
            "weight_decay_rate": self.weight_decay_rate,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "clip_norm": self.clip_norm,
            "no_decay": self.no_decay,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        if isinstance(config.get("layer_factor"), dict):
            factor = keras.saving.deserialize_keras_object(config["layer_factor"])
            config = config | {"layer_factor": factor}
        return super().from_config(config, custom_objects=custom_objects)


def create_optimizer(config) -> AdamWeightDecay:
    """The optimizer of a PretrainingConfig."""
    schedule = WarmupPolynomialDecay(
        config.learning_rate,
        config.num_train_steps,
        warmup_steps=config.num_warmup_steps,
        power=config.lr_decay_power,
    )
    return AdamWeightDecay(schedule, weight_decay_rate=config.weight_decay_rate)


def create_finetuning_optimizer(config, num_train_steps: int) -> AdamWeightDecay:
    """The optimizer of a FinetuningConfig, with a rate for each layer."""
    schedule = WarmupPolynomialDecay(
        config.learning_rate,
        num_train_steps,
        warmup_proportion=config.warmup_proportion,
    )
    factor = None
    if config.layerwise_lr_decay > 0:
        factor = LayerwiseDecay(
            config.layerwise_lr_decay,
            config.model_config().num_hidden_layers,
            config.layerwise_lr_offset,
        )
    return AdamWeightDecay(
        schedule, weight_decay_rate=config.weight_decay_rate, layer_factor=factor
    )
