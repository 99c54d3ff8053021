# SPDX-License-Identifier: Apache-2.0
"""Prints the floating point operations that pre-training takes, by formula.

  python3 flops_computation.py

The first table holds published models and equals the original's; the second holds the
recipes in configs/.

As in the paper: a multiply-add counts as two operations, the backward pass as much as
the forward pass, and looking up an embedding as a product with a one-hot vector.
"""

import dataclasses

from electra_tf.config.model import BLOCKS, BlockKind
from electra_tf.config.objectives import DISCRIMINATOR_HEAD, GENERATOR, MAIN, OBJECTIVES
from electra_tf.config.pretraining import Phase, PretrainingConfig, read_hparams
from electra_tf.config.run import NO_DATA, recipes
from electra_tf.storage.files import line_writer

# Operations per element.
DROPOUT_FLOPS = 4  # Draw, compare, multiply by the mask, rescale.
LAYER_NORM_FLOPS = 5  # Mean, square, variance, shift, scale.
ACTIVATION_FLOPS = 8  # GELU, in its tanh form.
SOFTMAX_FLOPS = 5  # Max, subtract, exp, sum, divide.
OUTPUT_FRAC = 0.15625  # 20 of 128 positions are predicted.


@dataclasses.dataclass(frozen=True)
class TransformerHparams:
    """A transformer's shape, and the operations that follow from it.

    All counts are for one sequence of length s.
    """

    h: int  # hidden size
    l: int  # layers  # noqa: E741
    s: int = 512  # sequence length
    v: int = 30522  # vocabulary size
    e: int | None = None  # embedding size; None: h
    i: int | None = None  # feed-forward size; None: 4 h
    heads: int | None = None  # None: one per 64 of h
    head_size: int | None = None  # None: the heads share h
    output_frac: float = OUTPUT_FRAC  # share of positions with an output softmax
    sparse_embed_lookup: bool = False  # look embeddings up instead of multiplying
    decoder: bool = False  # attend to an encoder as well
    kind: BlockKind = BLOCKS["bert"]
    window: int | None = None  # of layers that attend locally; None: there are none
    global_every: int = 1  # every n-th does not

    def __post_init__(self):
        derived = {"e": self.h, "i": 4 * self.h, "heads": max(self.h // 64, 1)}
        for name, value in derived.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def kqv(self) -> int:
        """Width of the keys, queries and values, all heads together."""
        return self.h if self.head_size is None else self.head_size * self.heads

    def get_block_flops(self, keys: int | None = None) -> float:
        """One layer, forward; each position attends to `keys` of them, None: to all."""
        h, i, s, kqv = self.h, self.i, self.s, self.kqv
        keys = s if keys is None else min(s, keys)
        per_score = SOFTMAX_FLOPS + DROPOUT_FLOPS + 1  # 1: divide by sqrt(d)
        scores = 2 * kqv * keys + per_score * keys * self.heads
        values = 2 * h * keys
        if self.kind.is_gated:  # no biases, rotary positions, norms before
            norms = 2 * LAYER_NORM_FLOPS * h
            attention = 3 * 2 * h * h + 2 * 3 * h + scores + values + 2 * h * h
            mlp = 3 * 2 * h * i + (ACTIVATION_FLOPS + 1 + DROPOUT_FLOPS) * i
            return s * (norms + attention + mlp + (DROPOUT_FLOPS + 2) * h)
        projections = 3 * (2 * h * kqv + kqv)
        # bias, dropout, residual; the original counts this layer norm once, not h times
        output = 2 * h * h + (1 + DROPOUT_FLOPS + 1) * h + LAYER_NORM_FLOPS
        attention = projections + scores + values + output
        feed_forward = 2 * h * i + (1 + ACTIVATION_FLOPS) * i
        feed_forward += 2 * h * i + (1 + DROPOUT_FLOPS + 1 + LAYER_NORM_FLOPS) * h
        return s * ((2 if self.decoder else 1) * attention + feed_forward)

    def get_embedding_flops(self, output: bool = False) -> float:
        """The input embeddings, or the head with the softmax; forward."""
        h, e, s, v = self.h, self.e, self.s, self.v
        if output:
            hidden = 2 * h * e + (1 + ACTIVATION_FLOPS + LAYER_NORM_FLOPS) * e
            logits = 2 * e * v + (SOFTMAX_FLOPS + 2) * v  # 2: pick the target
            return self.output_frac * s * (hidden + logits)
        lookup = 0 if self.sparse_embed_lookup else 2 * e * v
        project = 0 if e == h else 2 * h * e + h * self.kind.has_biases
        if not self.kind.has_tables:  # and a norm behind the last layer
            return s * (lookup + project + (2 * LAYER_NORM_FLOPS + DROPOUT_FLOPS) * h)
        type_and_position = 2 * e * (s + 2) + 2 * e
        normalize = (LAYER_NORM_FLOPS + DROPOUT_FLOPS) * e
        return s * (lookup + type_and_position + normalize + project)

    def get_binary_classification_flops(self) -> float:
        """The discriminator's head, forward."""
        h = self.h
        per_token = 2 * h * h + (1 + ACTIVATION_FLOPS) * h + 2 * h
        return self.s * (per_token + LAYER_NORM_FLOPS * h * self.kind.is_pre_norm)

    def get_encoder_flops(self) -> float:
        """Embeddings and layers, forward."""
        layers = self.l * self.get_block_flops()
        if self.window is not None:
            full = -(-self.l // self.global_every)
            local = (self.l - full) * self.get_block_flops(self.window + 1)
            layers = full * self.get_block_flops() + local
        return layers + self.get_embedding_flops()

    def get_infer_flops(self) -> float:
        """Classification of every token, forward."""
        return self.get_encoder_flops() + self.get_binary_classification_flops()

    def get_train_flops(
        self, batch_size: float, train_steps: float, discriminator: bool = False
    ) -> float:
        """Forward and backward passes of a whole training run."""
        head = self.get_embedding_flops(output=True)
        if discriminator:
            head = self.get_binary_classification_flops()
        return 2 * batch_size * train_steps * (self.get_encoder_flops() + head)


def get_electra_train_flops(
    h_d: int,
    l_d: int,
    h_g: int,
    l_g: int,
    batch_size: float,
    train_steps: float,
    tied_embeddings: bool,
    e: int | None = None,
    s: int = 512,
    output_frac: float = OUTPUT_FRAC,
    v: int = 30522,
) -> float:
    """A whole training run of discriminator (h_d, l_d) and generator (h_g, l_g)."""
    e = h_d if e is None else e
    options = {"s": s, "v": v, "output_frac": output_frac}
    discriminator = TransformerHparams(h_d, l_d, e=e, **options)
    e = e if tied_embeddings else None
    generator = TransformerHparams(h_g, l_g, e=e, **options)
    total = discriminator.get_train_flops(batch_size, train_steps, discriminator=True)
    return total + generator.get_train_flops(batch_size, train_steps)


def get_recipe_flops(config: PretrainingConfig) -> float:
    """The whole training run that a config describes, all of its phases."""
    return sum(map(_phase_flops, config.run_phases()))


def _phase_flops(phase: Phase) -> float:
    config, learns = phase.config, phase.learns
    main, generator = 0.0, _generator_flops(config)
    # The backward pass counts as much as the forward pass.
    if GENERATOR in learns:
        generator *= 2
    if MAIN in learns:  # Or else all is the generator's.
        main = 2 * _main_flops(config)
    return config.train_batch_size * config.num_train_steps * (main + generator)


def _main_flops(config: PretrainingConfig) -> float:
    """The main network on one sequence, forward."""
    kind = OBJECTIVES[config.objective]
    model = _encoder(config, config.model_config(), config.embedding_size)
    verdict = model.get_binary_classification_flops()
    total = model.get_encoder_flops() + verdict * (DISCRIMINATOR_HEAD in kind.heads)
    if kind.predicts == "candidates":
        model = dataclasses.replace(model, v=config.num_candidates)
    return total + _softmax_flops(model, kind.predicts)


def _generator_flops(config: PretrainingConfig) -> float:
    """The generator on one sequence, forward."""
    kind = config.generator_kind
    if not kind.encoders:
        return 0.0
    shape = config.model_config()
    if kind.has_own_encoders:
        shape = config.generator_config()
    own = kind.has_own_encoders and config.embedding_sharing == "untied"
    own &= GENERATOR in OBJECTIVES[config.objective].learns
    encoder = _encoder(config, shape, None if own else config.embedding_size)
    # The outputs of several encoders are concatenated.
    head = dataclasses.replace(encoder, h=len(kind.encoders) * encoder.h)
    total = len(kind.encoders) * encoder.get_encoder_flops()
    return total + _softmax_flops(head, kind.predicts)


def _encoder(config, shape, embedding_size: int | None) -> TransformerHparams:
    return TransformerHparams(
        shape.hidden_size,
        shape.num_hidden_layers,
        s=config.max_seq_length,
        v=config.vocab_size,
        e=embedding_size,
        i=shape.intermediate_size,
        heads=shape.num_attention_heads,
        kind=shape.kind,
        window=None if shape.kind.has_tables else shape.local_window,
        global_every=shape.global_every,
    )


def _softmax_flops(model: TransformerHparams, predicts: str) -> float:
    """The head that predicts tokens, forward; `predicts` as in config/objectives.py."""
    share = {"all": 1.0, "none": 0.0}.get(predicts, OUTPUT_FRAC)
    model = dataclasses.replace(model, output_frac=share)
    return model.get_embedding_flops(output=True)


_Shape = TransformerHparams
_T5 = {"v": 32000, "i": 65536, "heads": 128, "head_size": 128}
_T5_ENCODER = _Shape(1024, 24, output_frac=0.0, **_T5)
_T5_DECODER = _Shape(1024, 24, output_frac=1.0, decoder=True, **_T5)
MODEL_FLOPS = {
    # Counted by a profiler, not by the formulas: 10 epochs over 768,648,884 words in
    # batches of 20 x 128, and 500k steps of batch 8192.
    "elmo": 2 * 10 * 768648884 * 568093262680 / (20 * 128),
    "xlnet": 2 * 500000 * 8192 * 15064773691518 / 32,
    "gpt": _Shape(768, 12, v=40000, output_frac=1.0).get_train_flops(128, 960800),
    "bert_small": _Shape(256, 12, s=128, e=128).get_train_flops(128, 1.45e6),
    "bert_base": _Shape(768, 12).get_train_flops(256, 1e6),
    "bert_large": _Shape(1024, 24).get_train_flops(256, 1e6),
    "electra_small": get_electra_train_flops(
        256, 12, 64, 12, 128, 1e6, True, s=128, e=128
    ),
    "electra_base": get_electra_train_flops(768, 12, 256, 12, 256, 766000, True),
    "electra_400k": get_electra_train_flops(1024, 24, 256, 24, 2048, 400000, True),
    "electra_1.75M": get_electra_train_flops(1024, 24, 256, 24, 2048, 1750000, True),
    "roberta": _Shape(1024, 24, v=50265).get_train_flops(8000, 500000),
    "albert": _Shape(4096, 12, v=30000, e=128).get_train_flops(4096, 1.5e6),
    "t5_11b": _T5_ENCODER.get_train_flops(2048, 1e6)
    + _T5_DECODER.get_train_flops(2048, 1e6),
}


def main(argv: list[str]) -> None:
    """Prints the FLOPs of the models and of the recipes."""
    with line_writer(None) as write:
        for name, flops in MODEL_FLOPS.items():
            write(f"{name:<32}{flops:.4g}")
        write("")
        for path in recipes().values():
            hparams = read_hparams(str(path))
            config = PretrainingConfig.from_hparams(NO_DATA, "recipe", hparams)
            write(f"{path.name:<32}{get_recipe_flops(config):.4g}")
