# SPDX-License-Identifier: Apache-2.0
"""The optimizer of BERT and ELECTRA: Adam without bias correction, decoupled decay.

The weight change of a step is
    lr * (m / (sqrt(v) + epsilon) + weight_decay_rate * w)
with a learning rate that warms up linearly while it decays polynomially. AdamW and LAMB
have one or two more terms.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from electra_tf.model import target

# Settings of AdamWeightDecay that Keras's optimizers do not have.
_SETTINGS = "weight_decay_rate beta_1 beta_2 epsilon clip_norm clip_apart".split()
_SETTINGS += "no_decay bias_correction moments_from trust_ratio orthogonal".split()
NO_DECAY = ("LayerNorm", "layer_norm", "bias")
MATRICES = (r"encoder/layer_\d+/.*kernel",)  # those that Muon is for


class _Configured:
    """Mixin for dataclasses: Keras saves their fields, other Keras objects included."""

    def get_config(self):
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @classmethod
    def from_config(cls, config):
        return cls(**keras.saving.deserialize_keras_object(config))


@keras.saving.register_keras_serializable("electra_tf")
@dataclasses.dataclass(eq=False)
class WarmupPolynomialDecay(
    _Configured, keras.optimizers.schedules.LearningRateSchedule
):
    """A linear warm-up, times a polynomial decay that ends at `num_train_steps`.

    In the original the decay begins with the warm-up, so the peak is below
    `learning_rate`: lr * (1 - step / num_train_steps) ** power * min(1, step / warmup).

    Args:
      warmup_steps, warmup_proportion: the length of the warm-up is the larger of
        `warmup_steps` and `warmup_proportion * num_train_steps`, not rounded.
      power: of the decay; 1 is linear.
      decay_steps: length of the decay; None: all steps; 0: no decay.
    """

    learning_rate: float
    num_train_steps: int
    warmup_steps: float = 0
    warmup_proportion: float = 0.0
    power: float = 1.0
    decay_steps: float | None = None

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        step, total = tf.cast(step, tf.float32), self.num_train_steps
        rate = tf.constant(self.learning_rate, tf.float32)
        length = total if self.decay_steps is None else self.decay_steps
        if length:
            done = tf.minimum(step, total) - (total - length)
            left = tf.maximum(0.0, 1.0 - tf.maximum(done, 0.0) / length)  # of rounding
            rate *= tf.pow(left, self.power)
        warmup = max(total * self.warmup_proportion, self.warmup_steps)
        if warmup > 0:
            rate *= tf.minimum(1.0, step / warmup)
        return rate


@keras.saving.register_keras_serializable("electra_tf")
@dataclasses.dataclass(eq=False)
class InPhases(_Configured, keras.optimizers.schedules.LearningRateSchedule):
    """A sequence of schedules, each of which counts steps from its own start.

    Args:
      schedules: of each phase, in order.
      starts: the first step of each; the first is 0.
    """

    schedules: Sequence[Callable]
    starts: Sequence[int]

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        step = tf.cast(step, tf.float32)
        rate = tf.zeros([])
        for schedule, start in zip(self.schedules, self.starts, strict=True):
            phase_rate = schedule(tf.maximum(step - start, 0.0))
            rate = tf.where(step < start, rate, phase_rate)
        return rate


@keras.saving.register_keras_serializable("electra_tf")
@dataclasses.dataclass(eq=False)
class LayerwiseDecay(_Configured):
    """Learning-rate factor of each variable: lower layers learn more slowly.

    Embeddings have depth 0, layer i depth i + 1, a task's head `num_layers + 2`; the
    factor is `decay ** (num_layers + 2 - depth)`. So the top layer has decay ** 2: the
    original counts a pooler that ELECTRA does not have. `offset` "fixed" leaves it out.

    Raises ValueError for other variables.
    """

    decay: float
    num_layers: int
    offset: str = "original"

    def __post_init__(self):
        decay, top = self.decay, self.num_layers + 1 + (self.offset == "original")
        self.factors = {
            "/embeddings/": decay**top,
            "/embeddings_project/": decay**top,
            "/embeddings_LayerNorm/": decay**top,
            "/final_LayerNorm/": decay ** (top - self.num_layers),
            "task_specific/": 1.0,
        }
        for layer in range(self.num_layers):
            self.factors[f"encoder/layer_{layer}/"] = decay ** (top - layer - 1)

    def __call__(self, path: str) -> float:
        for key, factor in self.factors.items():
            if key in path:
                return factor
        raise ValueError(f"no layerwise learning rate for variable {path}")


@keras.saving.register_keras_serializable("electra_tf")
@dataclasses.dataclass(eq=False)
class ScopedRate(_Configured):
    """Learning-rate factor of the variables in some scopes; the others have 1.

    Args:
      factor: a number, or a function of the step.
    """

    scopes: Sequence[str]
    factor: float | Callable

    def __call__(self, path: str) -> float | Callable:
        return self.factor if path.split("/")[0] in self.scopes else 1.0


class _Slots(NamedTuple):
    """What the optimizer keeps for a variable."""

    variable: keras.Variable
    m: keras.Variable
    v: keras.Variable
    decays: bool
    orthogonal: bool
    apart: bool  # clipped by the norm of `clip_apart`
    factor: float | Callable  # of the learning rate


@keras.saving.register_keras_serializable("electra_tf")
class AdamWeightDecay(keras.optimizers.Optimizer):
    """Adam with decoupled weight decay, as BERT and ELECTRA use it; AdamW and LAMB.

    Epsilon is outside the square root. The learning rate, with its schedule and layer
    factor, multiplies the decay as well.

    Gradients are summed over the replicas, then clipped by their global norm, then
    applied. If the norm is not finite, only `iterations` changes.

    Args:
      learning_rate: float or schedule; the first step uses the rate of step 0.
      clip_norm: largest global norm of the gradients; None: no clipping.
      clip_apart: scopes whose variables are clipped together by a separate norm.
      no_decay: regular expressions; variables with a matching path have no decay.
      layer_factor: path -> learning-rate factor, or the factor's function of the step;
        see LayerwiseDecay and ScopedRate.
      bias_correction: of both moments, as in AdamW (arXiv 1711.05101); BERT has none.
      moments_from: the steps from which other variables are trained than before; the
        correction counts from the last of them.
      trust_ratio: scale the update of a variable to the variable's norm, as in LAMB
        (arXiv 1904.00962, algorithm 2), except for `no_decay`. `keras.optimizers.Lamb`
        omits the weight decay from the update's norm.
      orthogonal: regular expressions; variables with a matching path are updated by
        Muon (arXiv 2502.16982), a matrix each, as by `keras.optimizers.Muon`.
    """

    def __init__(
        self,
        learning_rate=1e-3,
        weight_decay_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        clip_norm: float | None = 1.0,
        clip_apart: Sequence[str] = (),
        no_decay: Sequence[str] = NO_DECAY,
        layer_factor: Callable[[str], float | Callable] | None = None,
        bias_correction: bool = False,
        moments_from: Sequence[int] = (0,),
        trust_ratio: bool = False,
        orthogonal: Sequence[str] = (),
        name: str = "AdamWeightDecay",
    ):
        super().__init__(learning_rate=learning_rate, name=name)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.clip_norm = clip_norm
        self.clip_apart = tuple(clip_apart)
        self.no_decay = tuple(no_decay)
        self.layer_factor = layer_factor
        self.bias_correction = bias_correction
        self.moments_from = tuple(moments_from)
        self.trust_ratio = trust_ratio
        self.orthogonal = tuple(orthogonal)
        self._muon = keras.optimizers.Muon() if orthogonal else None
        self.global_norm = None  # of the last call's gradients, before clipping
        # On CPUs a trace stays a function: TensorFlow's passes over the graph of a step
        # see it once, not once for each of 400 variables.
        apart = {"_noinline": True} if target.is_for_cpu() else None
        traced = tf.function(
            self._update, autograph=False, experimental_attributes=apart
        )
        # As an attribute, SavedModels would contain its traces.
        self._traced_update = lambda *args, **kwargs: traced(*args, **kwargs)

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.adam_m = self.add_optimizer_variables(variables, "adam_m")
        self.adam_v = self.add_optimizer_variables(variables, "adam_v")
        known = {
            id(v): _Slots(
                v,
                m,
                square,
                decays=not matches(self.no_decay, v.path),
                orthogonal=matches(self.orthogonal, v.path),
                apart=v.path.split("/")[0] in self.clip_apart,
                factor=self.layer_factor(v.path) if self.layer_factor else 1.0,
            )
            for v, m, square in zip(variables, self.adam_m, self.adam_v, strict=True)
        }
        # As an attribute, checkpoints would contain the variables again.
        self._known = lambda: known

    def apply(self, grads, trainable_variables=None):
        """Makes a step with a gradient, or None, for each of the variables.

        Replaces Keras's method, which clips before it sums over the replicas.
        """
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            self.build(trainable_variables)
        known = self._known()
        try:
            ids = known if trainable_variables is None else map(id, trainable_variables)
            slots = [known[key] for key in ids]
        except KeyError:
            raise ValueError("The optimizer was built with other variables.") from None
        pairs = list(zip(grads, slots, strict=True))
        if missing := [s.variable.path for g, s in pairs if g is None]:
            message = f"Gradients do not exist for {', '.join(missing)}."
            warnings.warn(message, stacklevel=2)
        # Sums the rows of repeated tokens, which the norm requires.
        dense = [tf.convert_to_tensor(g) for g, _ in pairs if g is not None]
        with tf.name_scope(self.name):
            self._apply(dense, [s for g, s in pairs if g is not None])
        self.iterations.assign_add(1)

    def _apply(self, gradients: list[tf.Tensor], slots: list[_Slots]) -> None:
        replica = tf.distribute.get_replica_context()
        has_replicas = replica.num_replicas_in_sync > 1
        if has_replicas:
            gradients = replica.all_reduce("SUM", gradients)
        norm = self.norm_of(gradients)
        scales = dict.fromkeys((False, True), self._scale(norm))
        if self.clip_apart:
            pairs = list(zip(gradients, slots, strict=True))
            for apart in scales:
                group = [gradient for gradient, slot in pairs if slot.apart == apart]
                scales[apart] = self._scale(self.norm_of(group))
        number = None
        if self.bias_correction:
            now = tf.convert_to_tensor(self.iterations.value)
            starts = tf.constant(self.moments_from, now.dtype)
            begun = tf.reduce_max(tf.where(starts <= now, starts, 0))
            number = tf.cast(now - begun, tf.float32) + 1.0
        rate = tf.convert_to_tensor(self.learning_rate)
        finite = tf.math.is_finite(norm)
        states = [
            (s.m.value, s.v.value, gradient, rate, scales[s.apart], finite, number)
            for gradient, s in zip(gradients, slots, strict=True)
        ]

        def update_all(strategy, states):
            for slot, state in zip(slots, states, strict=True):
                variable = slot.variable.value
                update = functools.partial(self._update_one, slot)
                if has_replicas:
                    strategy.extended.update(variable, update, args=state, group=False)
                else:
                    update(variable, *state)

        if has_replicas:
            replica.merge_call(update_all, args=(states,))
        else:
            update_all(replica.strategy, states)
        self.global_norm = norm

    def _update_one(self, slot, variable, m, v, gradient, rate, *others) -> None:
        if slot.factor != 1:
            own = slot.factor
            rate *= own(self.iterations) if callable(own) else own
        # Many of 400 variables have the same shape, and can share one trace in a graph.
        # A shared trace would update another variable's replicas.
        is_single = tf.distribute.get_strategy().num_replicas_in_sync == 1
        is_traced = is_single and tf.inside_function()
        update = self._traced_update if is_traced else self._update
        kind = {"decays": slot.decays, "orthogonal": slot.orthogonal}
        update(variable, m, v, gradient, rate, *others, **kind)

    def _scale(self, norm: tf.Tensor) -> tf.Tensor:
        """The clipping factor for gradients of this norm."""
        if self.clip_norm is None:
            return tf.ones([])
        return self.clip_norm / tf.maximum(norm, self.clip_norm)

    def norm_of(self, gradients: list[tf.Tensor]) -> tf.Tensor:
        """The global norm, which decides the clipping."""
        return tf.linalg.global_norm(gradients)

    def _update(
        self,
        variable,
        m,
        v,
        gradient,
        rate,
        scale,
        finite,
        number,
        *,
        decays: bool,
        orthogonal: bool,
    ) -> None:
        gradient = tf.cast(gradient, tf.float32) * scale
        if orthogonal:
            new_m, new_v = self._muon.momentum * m + gradient, v
            nesterov = self._muon.momentum * new_m + gradient
            steps = self._muon.ns_steps
            update = self._muon.zeropower_via_newtonschulz5(nesterov, steps)
            update = self._muon.lr_adjust(update)
        else:
            new_m = self.beta_1 * m + (1 - self.beta_1) * gradient
            new_v = self.beta_2 * v + (1 - self.beta_2) * tf.square(gradient)
            update = self._direction(new_m, new_v, number)
        if self.weight_decay_rate and decays:
            update += self.weight_decay_rate * variable
        if self.trust_ratio and decays:
            norms = tf.norm(variable), tf.norm(update)
            update *= tf.where(norms[0] * norms[1] > 0, norms[0] / norms[1], 1.0)
        new_value = variable - rate * update
        m.assign(tf.where(finite, new_m, m))
        v.assign(tf.where(finite, new_v, v))
        variable.assign(tf.where(finite, new_value, variable))

    def _direction(self, m, v, number) -> tf.Tensor:
        if self.bias_correction:
            m = m / (1.0 - tf.pow(self.beta_1, number))
            v = v / (1.0 - tf.pow(self.beta_2, number))
        # Bitwise the same, but faster to compile: TensorFlow lowers a square root
        # through MLIR, 6 ms for each of 400 variables.
        on_cpu = target.compiled_for() == "cpu"
        root = tf.pow(v, 0.5) if on_cpu else tf.sqrt(v)
        return m / (root + self.epsilon)

    def get_config(self):
        factor, saved = self.layer_factor, super().get_config()
        return {name: saved[name] for name in ("name", "learning_rate")} | {
            "layer_factor": factor and keras.saving.serialize_keras_object(factor),
            **{name: getattr(self, name) for name in _SETTINGS},
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        if isinstance(config.get("layer_factor"), dict):
            factor = keras.saving.deserialize_keras_object(config["layer_factor"])
            config = config | {"layer_factor": factor}
        return super().from_config(config, custom_objects=custom_objects)


def matches(patterns: Sequence[str], path: str) -> bool:
    """Whether one of the regular expressions is found in a path."""
    return any(re.search(pattern, path) for pattern in patterns)


def create_optimizer(config) -> AdamWeightDecay:
    """The optimizer of a PretrainingConfig."""
    scopes = sorted(config.generator_kind.scopes)
    # A phase with another objective trains other variables, whose moments are new.
    begins = {p.objective: p.first for p in reversed(config.run_phases())}
    return AdamWeightDecay(
        learning_rate_schedule(config),
        weight_decay_rate=config.weight_decay_rate,
        beta_1=config.adam_beta_1,
        beta_2=config.adam_beta_2,
        clip_apart=scopes if config.clip_by == "network" else (),
        layer_factor=_generator_factor(config, scopes),
        bias_correction=config.optimizer != "original",
        moments_from=sorted(begins.values()),
        trust_ratio=config.optimizer == "lamb",
        orthogonal=MATRICES if config.optimizer == "muon" else (),
    )


def _generator_factor(config, scopes: Sequence[str]) -> ScopedRate | None:
    """The generator's learning rate in each phase, relative to that of the others."""
    phases = config.run_phases()
    rates = [(p.config.generator_learning_rate, p.config.learning_rate) for p in phases]
    factors = [1.0 if own is None else own / rate for own, rate in rates]
    if len({*factors}) == 1:
        return None if factors[0] == 1 else ScopedRate(scopes, factors[0])
    last_steps = [phase.end - 1 for phase in phases[:-1]]
    steps = keras.optimizers.schedules.PiecewiseConstantDecay(last_steps, factors)
    return ScopedRate(scopes, steps)


def learning_rate_schedule(config) -> keras.optimizers.schedules.LearningRateSchedule:
    """The learning-rate schedule of a PretrainingConfig."""
    phases = config.run_phases()
    schedules = [_phase_schedule(phase.config) for phase in phases]
    if len(phases) == 1:
        return schedules[0]
    return InPhases(schedules, [phase.first for phase in phases])


def _phase_schedule(config):
    """The schedule of one phase, which counts its own steps."""
    rate, power = config.learning_rate, config.lr_decay_power
    total, warmup = config.num_train_steps, config.num_warmup_steps
    decay_steps = {
        "original": None,
        "constant": 0.0,
        "wsd": config.decay_proportion * total,
    }.get(config.schedule, max(1, total - warmup))
    return WarmupPolynomialDecay(rate, total, warmup, 0.0, power, decay_steps)


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
