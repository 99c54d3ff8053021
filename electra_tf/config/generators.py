# SPDX-License-Identifier: Apache-2.0
"""The kinds of generator: what must be known of each without building it.

A new generator is a class in electra_tf/pretrain/generators.py (`Generator` is the
contract) and a row here: what configs, FLOP counts and readers of checkpoints need to
know before TensorFlow is imported.
"""

from typing import NamedTuple

# The objectives in which the main network reads what any generator put in the text.
_ANY = ("electra", "electra_15", "electra_sentence", "replace_mlm", "all_tokens_mlm")
_ANY += ("corrective_lm", "multi_choice")
ENCODER = "electra"  # the scope of the main network's encoder
MASKED_LM_HEAD = "generator_predictions"
MIXTURE_GATE = "generator_mixture"


class GeneratorKind(NamedTuple):
    """What is known of a kind of generator.

    Attributes:
      implementation: the class in electra_tf.pretrain.generators.
      objectives: those it can be trained with; the first is the one that its weights
        are taken for where nothing else says it.
      original: the original's hparams as they are with it.
      is_originals: whether the original has it.
      encoders: scopes of its encoders' weights.
      head: scope of its other weights, None if it has none.
      gate: scope of the weights that mix its depths, None if it has one depth.
      needs_token_counts: whether it must know how often each token is in the data.
      predicts: the share of positions that its softmax over the vocabulary is computed
        at: "masked", "all" or "none".
    """

    implementation: str
    objectives: tuple[str, ...]
    original: dict[str, bool]
    is_originals: bool = True
    encoders: tuple[str, ...] = ()
    head: str | None = None
    gate: str | None = None
    predicts: str = "none"
    needs_token_counts: bool = False

    @property
    def has_own_encoders(self) -> bool:
        """Whether it has encoders of the shape that the generator_* hparams give."""
        return any(scope != ENCODER for scope in self.encoders)

    @property
    def scopes(self) -> set[str]:
        """The scopes of all weights that are the generator's alone."""
        return {*self.encoders, *filter(None, [self.head, self.gate])} - {ENCODER}


def _original(uniform=False, two_tower=False, untied=True) -> dict[str, bool]:
    return {
        "uniform_generator": uniform,
        "two_tower_generator": two_tower,
        "untied_generator": untied,
    }


GENERATORS = {
    "masked_lm": GeneratorKind(
        "MaskedLMGenerator",
        (*_ANY, "two_stage", "adversarial", "frozen_generator"),
        _original(),
        encoders=("generator",),
        head=MASKED_LM_HEAD,
        predicts="masked",
    ),
    "mixture": GeneratorKind(
        "MixtureGenerator",
        ("electra", "corrective_lm", "multi_choice"),
        _original(),
        is_originals=False,
        encoders=("generator",),
        head=MASKED_LM_HEAD,
        gate=MIXTURE_GATE,
        predicts="masked",
    ),
    "tied": GeneratorKind(
        "TiedGenerator",
        (*_ANY, "mlm"),
        _original(untied=False),
        encoders=(ENCODER,),
        head=MASKED_LM_HEAD,
        predicts="masked",
    ),
    "two_tower": GeneratorKind(
        "TwoTowerGenerator",
        ("electric", *_ANY, "two_tower"),
        _original(two_tower=True),
        encoders=("generator_ltr", "generator_rtl"),
        head="cloze_predictions",
        predicts="all",
    ),
    "uniform": GeneratorKind("UniformGenerator", _ANY, _original(uniform=True)),
    "unigram": GeneratorKind(
        "UnigramGenerator",
        (*_ANY, "electric"),
        _original(),
        is_originals=False,
        head="unigram_generator",
        needs_token_counts=True,
    ),
}


def mixture_depths(layers: int) -> tuple[int, ...]:
    """After which of its layers a mixture predicts: a half, three quarters, all."""
    return tuple(sorted({-(-layers // 2), -(-3 * layers // 4), layers}))


def by_scopes(scopes: set[str]) -> str:
    """The kind whose weights are among those of a model with these scopes."""
    found = [name for name, kind in GENERATORS.items() if kind.scopes <= scopes]
    return max(found, key=lambda name: len(GENERATORS[name].scopes))
