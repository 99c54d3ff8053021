# SPDX-License-Identifier: Apache-2.0
"""An objective outside of the package: ELECTRA with a contrast of sequences.

  python3 experiments/contrast.py pretrain --data-dir $DATA_DIR --model-name contrast \
    --hparams '{"objective": "contrast"}'

The commands of `electra-tf`, with one objective more: its row and its class are in this
file. Each sequence is read twice, with the generator's tokens and without, and finds
its other view among those of the batch (on several devices, of a device's part), as in
COCO-LM (Meng et al., NeurIPS 2021), which crops the second view; the temperature is
that of SimCSE (Gao et al., EMNLP 2021).
"""

from electra_tf import commands
from electra_tf.config.objectives import DISCRIMINATOR_HEAD, OBJECTIVES, ObjectiveKind

HEAD, TEMPERATURE = "contrast_head", 0.05
# Before the imports below: they make the choices of hparams from the rows.
OBJECTIVES["contrast"] = ObjectiveKind(
    "contrast:Contrast", generators=("masked_lm",), heads=(DISCRIMINATOR_HEAD, HEAD)
)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from electra_tf.model.dropout import fold_in  # noqa: E402
from electra_tf.pretrain.objectives import Electra, Losses  # noqa: E402
from electra_tf.train.reporting import Curve, Metric, Ratio  # noqa: E402

_LOSS = Ratio("contrastive_loss", "sequences")


class Contrast(Electra):
    """Replaced token detection, and two views of a sequence that find each other."""

    model = "an ELECTRA with contrast"
    description = "ELECTRA with a contrast of sequences"
    metrics = (
        *Electra.metrics,
        Metric(
            "contrastive_loss",
            "cross-entropy of a sequence's other view among those of the batch, nats",
            evaluation=_LOSS,
            training=_LOSS,
            curve=Curve("Contrast", "contrastive loss", "#009e73"),
        ),
    )

    def head(self, name, shape, dtype):
        if name != HEAD:
            return super().head(name, shape, dtype)
        layer = keras.layers.Dense(shape.hidden_size, name=name, dtype=dtype)
        layer.build((None, shape.hidden_size))
        return layer

    def loss(self, model, text, seed, weights):
        inputs, hidden = text.inputs, text.states(model.electra, seed)
        loss, sums, found = self.detect(model, text, hidden, weights)
        original = inputs.input_ids, inputs.input_mask, inputs.segment_ids
        other = model.electra(*original, fold_in(seed, 2)).sequence_output
        views = tf.concat([hidden[:, 0], other[:, 0]], axis=0)  # [2 B, H]
        losses = contrast(tf.cast(model.contrast_head(views), tf.float32))
        # The part of the global batch that this one is.
        masked = tf.reduce_sum(inputs.masked_lm_weights)
        share = 1.0 if weights.masked is None else masked / weights.masked
        sums["contrastive_loss"] = tf.reduce_sum(losses)
        return Losses(loss + share * tf.reduce_mean(losses), sums, found)


def contrast(views: tf.Tensor) -> tf.Tensor:
    """Cross-entropy over the cosine similarities of views, float32 [B].

    Args:
      views: float32 [2 B, H]; rows i and B + i are of one sequence.
    """
    views, rows = tf.math.l2_normalize(views, axis=-1), tf.shape(views)[0]
    scores = tf.matmul(views, views, transpose_b=True) / TEMPERATURE
    scores -= 1e9 * tf.eye(rows)
    others = tf.roll(tf.range(rows), rows // 2, axis=0)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(others, scores)
    return tf.reduce_mean(tf.reshape(losses, [2, -1]), axis=0)


if __name__ == "__main__":
    commands.main()
