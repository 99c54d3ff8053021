# SPDX-License-Identifier: Apache-2.0
"""Replays recordings of the original's pre-training program (golden/pretrain/*).

Weights are loaded by the original's variable names; masking and samples are the
recorded ones; everything else is computed here and compared.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.model import attention, layers
from electra_tf.pretrain import masking
from electra_tf.pretrain.generators import MaskedInputs
from electra_tf.pretrain.metrics import evaluation_metrics
from electra_tf.pretrain.objectives import DiscriminatorOutput
from electra_tf.pretrain.pretraining import ElectraPretrainer, build_pretrainer
from electra_tf.train.optimization import AdamWeightDecay, create_optimizer
from tests.parity.rows import Row, compare, forward_row, read_json


def has_no_gradient(name: str) -> bool:
    """A key's bias moves all scores of a query alike: its true gradient is 0."""
    return name.endswith("/self/key/bias")


class Recording:
    """One golden/pretrain directory and the model it describes, weights loaded."""

    def __init__(self, directory: str):
        self.description = read_json(directory, "config.json")
        self.forward = np.load(os.path.join(directory, "forward.npz"))
        self.grads = np.load(os.path.join(directory, "grads.npz"))
        self.steps = np.load(os.path.join(directory, "steps.npz"))
        ids = self.description["special_ids"]
        self.special_ids = ids["CLS"], ids["SEP"], ids["MASK"]
        # No data directory is read: the hparams say all.
        self.config = PretrainingConfig.from_hparams(
            tempfile.gettempdir(), self.description["name"], self.description["hparams"]
        )
        self.checkpoint = tf.train.load_checkpoint(os.path.join(directory, "init.ckpt"))

    def model(self) -> ElectraPretrainer:
        model = build_pretrainer(self.config, self.special_ids)
        for variable in model.trainable_variables:
            variable.assign(self.checkpoint.get_tensor(variable.path))
        return model

    def batch(self) -> dict[str, tf.Tensor]:
        # The recordings have all that every batch has.
        fields = [name for name in MaskedInputs._fields if name in self.forward]
        batch = {name: tf.constant(self.forward[name]) for name in fields}
        return batch | {"sampled_ids": tf.constant(self.forward["sampled_token_ids"])}


def replay(directory: str) -> Iterator[Row]:
    """Compares everything one directory recorded."""
    recording = Recording(directory)
    model = recording.model()
    yield from _variable_names(recording, model)
    yield from _masking(recording)
    batch = recording.batch()
    output, gradients = gradients_of(model, batch)
    yield from _losses(recording, output)
    yield from _generator(recording, model, batch, output)
    if output.discriminated is not None:
        yield from _discriminator(recording, model, batch, output)
    yield from _metrics(recording, model, output, batch)
    assert set(recording.grads) == {v.path for v in model.trainable_variables}
    norm = recording.forward["global_norm_dense"]
    yield from gradient_rows(
        model.trainable_variables, gradients, recording.grads, norm
    )
    yield from _steps(recording)


def _variable_names(recording, model) -> Iterator[Row]:
    ours = {v.path for v in model.trainable_variables}
    theirs = set(recording.checkpoint.get_variable_to_shape_map()) - {"global_step"}
    yield Row("variables/names", float(len(ours ^ theirs)), 0.0)


def _masking(recording) -> Iterator[Row]:
    golden, config = recording.forward, recording.config
    mask_id = recording.special_ids[-1]
    ids, input_mask = golden["input_ids"], golden["input_mask"]
    candidates = masking.candidates_mask(ids, input_mask, recording.special_ids)
    yield compare("masking/candidates_mask", candidates, golden["candidates_mask"])
    slots = config.max_predictions_per_seq
    wanted = masking.num_to_predict(input_mask.sum(1), config.mask_prob, slots)
    weights = tf.sequence_mask(wanted, slots, tf.float32)
    yield compare("masking/masked_lm_weights", weights, golden["masked_lm_weights"])
    positions = golden["mask_raw_positions"] * tf.cast(weights, tf.int32)
    masked = masking.apply_masking(
        *(tf.constant(ids), positions, weights, golden["mask_replace_uniform"]),
        *(mask_id, config.mask_token_share),
    )
    for name, value in masked.items():
        yield compare(f"masking/{name}", value, golden[name])
    corrupted, _ = masking.scatter_update(
        tf.constant(ids), golden["sampled_token_ids"], golden["masked_lm_positions"]
    )
    yield compare("masking/corrupted", corrupted, golden["corrupted_input_ids"])


def _losses(recording, output) -> Iterator[Row]:
    golden, generated = recording.forward, output.generated
    yield forward_row("loss/total", output.total_loss, golden["total_loss"])
    yield forward_row("loss/mlm", generated.mlm_loss, golden["mlm_loss"])
    if generated.cloze is not None:
        yield forward_row("loss/cloze", generated.loss, golden["cloze_loss"])
    if output.discriminated is not None:
        yield forward_row("loss/disc", output.discriminated.loss, golden["disc_loss"])


def _encoder_rows(name: str, encoded, golden, prefix: str) -> Iterator[Row]:
    for ours, key in (
        (encoded.embedding_output, "embedding_output"),
        (tf.stack(encoded.all_layer_outputs), "all_layer_outputs"),
        (encoded.sequence_output, "sequence_output"),
    ):
        yield forward_row(f"{name}/{key}", ours, golden[f"{prefix}_{key}"])


def _generator(recording, model, batch, output) -> Iterator[Row]:
    golden, generator, generated = recording.forward, model.generator, output.generated
    inputs = MaskedInputs.of(batch)
    logits = generated.logits
    if logits is None:  # the uniform generator, whose scores are all 0
        logits = tf.zeros_like(golden["mlm_logits"])
    elif generated.cloze is None:
        encoded = generator.encoder(
            inputs.masked_input_ids, inputs.input_mask, inputs.segment_ids
        )
        yield from _encoder_rows("generator", encoded, golden, "gen")
    else:
        yield from _two_towers(golden, generator, inputs, generated.cloze)
    yield forward_row("generator/mlm_logits", logits, golden["mlm_logits"])
    yield forward_row(
        "generator/mlm_per_example_loss",
        generated.per_token_loss,
        golden["mlm_per_example_loss"],
    )
    yield compare("generator/mlm_preds", generated.predictions, golden["mlm_preds"])


def _two_towers(golden, generator, inputs, cloze) -> Iterator[Row]:
    for tower in ("ltr", "rtl"):
        encoded = getattr(generator, tower)(
            inputs.input_ids, inputs.input_mask, inputs.segment_ids
        )
        yield from _encoder_rows(f"generator_{tower}", encoded, golden, f"gen_{tower}")
    towers = generator.towers(inputs)
    yield forward_row("generator/sequence", towers, golden["gen_sequence_output"])
    logits = generator.head.logits(
        cloze.hidden, generator.ltr.embeddings.word_embeddings.value
    )
    for name, ours in (
        ("cloze_logits", logits),
        ("cloze_per_example_loss", cloze.per_token_loss),
        ("cloze_weights", cloze.weights),
        ("cloze_preds", cloze.predictions),
    ):
        yield forward_row(f"generator/{name}", ours, golden[name])


def _discriminator(recording, model, batch, output) -> Iterator[Row]:
    golden, found = recording.forward, output.discriminated
    encoded = model.electra(
        output.corrupted_ids, batch["input_mask"], batch["segment_ids"]
    )
    yield from _encoder_rows("discriminator", encoded, golden, "disc")
    head = model.discriminator_predictions
    hidden = layers.gelu(head.dense(encoded.sequence_output))
    yield forward_row("discriminator/head_hidden", hidden, golden["disc_head_hidden"])
    if "disc_attn_maps_row1" in golden:
        maps = _attention_maps(model, encoded, batch["input_mask"])
        yield forward_row(
            "discriminator/attention", maps, golden["disc_attn_maps_row1"]
        )
    if "disc_log_q" in golden:
        log_q = model.generator.log_q(output.generated, output.corrupted_ids)
        yield forward_row("discriminator/log_q", log_q, golden["disc_log_q"])
    assert isinstance(found, DiscriminatorOutput)
    for name, ours in (
        ("net_logits", found.net_logits),
        ("logits", found.logits),
        ("probs", found.probs),
        ("preds", found.predictions),
        ("per_example_loss", found.per_example_loss),
    ):
        yield forward_row(f"discriminator/{name}", ours, golden[f"disc_{name}"])
    yield compare(
        "discriminator/fake_labels", output.is_replaced, golden["fake_labels"]
    )


def _attention_maps(model, encoded, input_mask) -> tf.Tensor:
    """Attention of sequence 1 in every layer: [layers, heads, L, L]."""
    inputs = [encoded.embedding_output, *encoded.all_layer_outputs[:-1]]
    bias = attention.attention_bias(input_mask, "bidirectional")
    maps = []
    for layer, x in zip(model.electra.encoder.transformer_layers, inputs, strict=True):
        flat = tf.reshape(x, [-1, x.shape[-1]])
        query, key, _ = layer._query_key_value(flat, bias)
        maps.append(attention.probabilities(query, key, bias)[1])
    return tf.stack(maps)


def _metrics(recording, model, output, batch) -> Iterator[Row]:
    objective = model.objective
    metrics = evaluation_metrics(objective.metrics, output.sums)
    for key in recording.forward.files:
        if key.startswith("metric_"):
            name = key.removeprefix("metric_")
            yield forward_row(f"metrics/{name}", metrics[name], recording.forward[key])


def gradients_of(model, batch, **options):
    """(output, dense gradients of its loss by all trainable variables)."""
    with tf.GradientTape() as tape:
        output = model(batch, **options)
    gradients = tape.gradient(
        output.total_loss,
        [v.value for v in model.trainable_variables],
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    return output, [tf.convert_to_tensor(g) for g in gradients]


def gradient_rows(
    variables, gradients, golden, golden_norm, is_constant=has_no_gradient
) -> Iterator[Row]:
    """The recorded ones among the gradients, and their norm.

    Args:
      is_constant: the paths of variables whose true gradient is 0.
    """
    norm = float(tf.linalg.global_norm(gradients))
    yield compare("gradient/global_norm", norm, golden_norm, rtol=1e-5)
    for variable, gradient in zip(variables, gradients, strict=True):
        if variable.path in golden:
            theirs = golden[variable.path]
            tolerance = 1e-5 * np.abs(theirs).max()
            if is_constant(variable.path):
                tolerance = 1e-8 * norm
            yield compare(f"gradient/{variable.path}", gradient, theirs, atol=tolerance)


class RecordedNorm(AdamWeightDecay):
    """Clips by the recorded norms: the original's counts repeated tokens apart."""

    def __init__(self, ours: AdamWeightDecay, norms, variables):
        super().__init__(
            ours._learning_rate,
            weight_decay_rate=ours.weight_decay_rate,
            layer_factor=ours.layer_factor,
        )
        self.recorded = iter(norms)
        self.build(variables)

    def norm_of(self, gradients):
        self.true_norm = super().norm_of(gradients)
        return tf.constant(next(self.recorded))


def _steps(recording) -> Iterator[Row]:
    golden, model, batch = recording.steps, recording.model(), recording.batch()
    variables = model.trainable_variables
    norms = golden["steps/global_norm"]
    optimizer = RecordedNorm(create_optimizer(recording.config), norms, variables)
    for step, golden_norm in enumerate(golden["steps/global_norm_dense"]):
        rate = golden["steps/learning_rate"][step]
        yield compare(
            f"steps/{step}/learning_rate", optimizer.learning_rate, rate, rtol=1e-6
        )
        output, gradients = gradients_of(model, batch)
        for name, ours in _step_losses(output):
            golden_loss = golden[f"steps/{name}"][step]
            yield forward_row(f"steps/{step}/{name}", ours, golden_loss)
        optimizer.apply(gradients, variables)
        yield compare(
            f"steps/{step}/global_norm", optimizer.true_norm, golden_norm, rtol=1e-5
        )
    for name, ours in _step_losses(model(batch)):
        yield forward_row(f"steps/{name}_after", ours, golden[f"steps/{name}_after"])
    for i, variable in enumerate(variables):
        path = variable.path
        yield compare(f"steps/{path}", variable, golden[f"values/{path}"], atol=2e-6)
        if not has_no_gradient(path):
            m, v = golden[f"slots/{path}/adam_m"], golden[f"slots/{path}/adam_v"]
            yield compare(f"steps/{path}/adam_m", optimizer.adam_m[i], m, atol=1e-7)
            # The recording's tolerances are relative to the largest entry of a variable
            # (tolerances.json): squares of near-zero gradients carry their noise.
            yield compare(
                f"steps/{path}/adam_v", optimizer.adam_v[i], v, atol=1e-5 * v.max()
            )


def _step_losses(output):
    yield "total_loss", output.total_loss
    yield "mlm_loss", output.generated.mlm_loss
    if output.generated.cloze is not None:
        yield "cloze_loss", output.generated.loss
    if output.discriminated is not None:
        yield "disc_loss", output.discriminated.loss
