# SPDX-License-Identifier: Apache-2.0
"""Objectives and kinds of generator: what must be known of each without building it.

A new objective is a class in electra_tf/pretrain/ (`objectives.Objective` is the
contract) and a row of `OBJECTIVES`; a new generator a class in
electra_tf/pretrain/generators.py (`Generator`) and a row of `GENERATORS`: what configs,
FLOP counts and readers of checkpoints need to know before TensorFlow is imported.

The original's booleans for both, and for `embedding_sharing`, are accepted wherever
hparams are read, and translated there, once.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from electra_tf.config.hparams import identity, show
from electra_tf.errors import UserError

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


def mixture_depths(layers: int) -> tuple[int, ...]:
    """After which of its layers a mixture predicts: a half, three quarters, all."""
    return tuple(sorted({-(-layers // 2), -(-3 * layers // 4), layers}))


def original_of_generator(name: str) -> dict[str, bool]:
    """The original's booleans as they are with a kind of generator."""
    kinds = {f"{kind}_generator": name == kind for kind in ("uniform", "two_tower")}
    return kinds | {"untied_generator": name != "tied"}


GENERATORS = {
    "masked_lm": GeneratorKind(
        "MaskedLMGenerator",
        (*_ANY, "two_stage", "adversarial", "frozen_generator"),
        encoders=("generator",),
        head=MASKED_LM_HEAD,
        predicts="masked",
    ),
    "mixture": GeneratorKind(
        "MixtureGenerator",
        ("electra", "corrective_lm", "multi_choice"),
        is_originals=False,
        encoders=("generator",),
        head=MASKED_LM_HEAD,
        gate=MIXTURE_GATE,
        predicts="masked",
    ),
    "tied": GeneratorKind(
        "TiedGenerator",
        (*_ANY, "mlm"),
        encoders=(ENCODER,),
        head=MASKED_LM_HEAD,
        predicts="masked",
    ),
    "two_tower": GeneratorKind(
        "TwoTowerGenerator",
        ("electric", *_ANY, "two_tower"),
        encoders=("generator_ltr", "generator_rtl"),
        head="cloze_predictions",
        predicts="all",
    ),
    "uniform": GeneratorKind("UniformGenerator", _ANY),
    "unigram": GeneratorKind(
        "UnigramGenerator",
        (*_ANY, "electric"),
        is_originals=False,
        head="unigram_generator",
        needs_token_counts=True,
    ),
}


def by_scopes(scopes: set[str]) -> str:
    """The kind whose weights are among those of a model with these scopes."""
    found = [name for name, kind in GENERATORS.items() if kind.scopes <= scopes]
    return max(found, key=lambda name: len(GENERATORS[name].scopes))


DISCRIMINATOR_HEAD = "discriminator_predictions"
TOKEN_HEAD = "token_predictions"
BASELINE = "generator_baseline"
SENTENCE_HEAD = "sentence_predictions"
CORRECTION_HEAD = "correction_predictions"
SELECTION_HEAD = "selection_predictions"
CONTRAST_HEAD = "contrast_head"  # of any objective with contrastive_weight


class ObjectiveKind(NamedTuple):
    """What is known of an objective.

    Attributes:
      implementation: "module:Class" in electra_tf.pretrain.
      is_originals: whether the original has it.
      generator: the usual one.
      presets: what else it sets, unless that is set by hand.
      needs: what it sets and nothing else may set otherwise.
      main_network: whether there is an encoder beside the generator's own ones (of
        masked language modeling: the one that it is).
      heads: scopes of the weights that are neither an encoder's nor the generator's.
      predicts: the share of positions that the main network's softmax over the
        vocabulary is computed at: "masked", "all" or "none"; "candidates": of the
        masked positions, over num_candidates tokens.
    """

    implementation: str
    is_originals: bool = False
    generator: str = "masked_lm"
    presets: dict[str, Any] = {}
    needs: dict[str, Any] = {}
    main_network: bool = True
    heads: tuple[str, ...] = (DISCRIMINATOR_HEAD,)
    predicts: str = "none"


def original_of_objective(name: str) -> dict[str, bool]:
    """The original's booleans as they are with an objective."""
    is_electra = name not in ("electric", "mlm", "two_tower")
    return {"electra_objective": is_electra, "electric_objective": name == "electric"}


_ONE_SIZE = {"generator_hidden_size": 1.0, "generator_layers": 1.0}
OBJECTIVES = {
    "electra": ObjectiveKind("objectives:Electra", True),
    "electric": ObjectiveKind("objectives:Electric", True, generator="two_tower"),
    "mlm": ObjectiveKind("objectives:MaskedLM", True, generator="tied", heads=()),
    "two_tower": ObjectiveKind(
        "objectives:TwoTower",
        generator="two_tower",
        needs=_ONE_SIZE | {"embedding_sharing": "shared"},
        main_network=False,
        heads=(),
    ),
    "two_stage": ObjectiveKind(
        "electra_variants:TwoStage",
        presets={"embedding_size": None},
        # The generator's weights initialise the discriminator.
        needs=_ONE_SIZE | {"embedding_sharing": "untied"},
    ),
    "frozen_generator": ObjectiveKind(
        "electra_variants:FrozenGenerator",
        presets={"generator_dropout": 0.0},
        needs={"embedding_sharing": "untied"},  # The generator does not learn.
    ),
    "adversarial": ObjectiveKind(
        "electra_variants:Adversarial",
        presets={"repeated_masks": "fixed"},
        heads=(DISCRIMINATOR_HEAD, BASELINE),
    ),
    "electra_sentence": ObjectiveKind(
        "electra_variants:ElectraSentence", heads=(DISCRIMINATOR_HEAD, SENTENCE_HEAD)
    ),
    "electra_15": ObjectiveKind("electra_variants:Electra15"),
    "replace_mlm": ObjectiveKind(
        "token_objectives:ReplaceMLM",
        presets={"disc_weight": 1.0},
        heads=(TOKEN_HEAD,),
        predicts="masked",
    ),
    "all_tokens_mlm": ObjectiveKind(
        "token_objectives:AllTokensMLM",
        presets={"disc_weight": 1.0},
        heads=(TOKEN_HEAD, DISCRIMINATOR_HEAD),
        predicts="all",
    ),
    "corrective_lm": ObjectiveKind(
        "token_objectives:CorrectiveLM",
        heads=(DISCRIMINATOR_HEAD, CORRECTION_HEAD),
        predicts="masked",
    ),
    "multi_choice": ObjectiveKind(
        "token_objectives:MultiChoice",
        presets={"disc_weight": 5.0, "token_weight": 2.0},
        heads=(DISCRIMINATOR_HEAD, SELECTION_HEAD),
        predicts="candidates",
    ),
}


def by_heads(scopes: set[str]) -> str | None:
    """The objective whose heads alone are among the scopes of a model's weights.

    None where there are none, or where another objective has the same.
    """
    known = {head for kind in OBJECTIVES.values() for head in kind.heads}
    found = [n for n, kind in OBJECTIVES.items() if set(kind.heads) == known & scopes]
    return found[0] if len(found) == 1 and known & scopes else None


@dataclasses.dataclass(frozen=True)
class OriginalHparams:
    """The booleans; `translated` gives what they stand for."""

    electra_objective: bool = identity(True, "`objective` electra; false: mlm.")
    electric_objective: bool = identity(False, "`objective` electric.")
    uniform_generator: bool = identity(False, "`generator` uniform.")
    two_tower_generator: bool = identity(False, "`generator` two_tower.")
    untied_generator: bool = identity(True, "The usual `generator`; false: tied.")
    untied_generator_embeddings: bool = identity(False, "`embedding_sharing` untied.")


ORIGINAL_NAMES = frozenset(field.name for field in dataclasses.fields(OriginalHparams))
# (boolean, its value, what it chooses); the first that is given counts. None: usual.
_CHOICES = {
    "objective": (
        ("electric_objective", True, "electric"),
        ("electra_objective", False, "mlm"),
        ("electra_objective", True, "electra"),
    ),
    "generator": (
        ("uniform_generator", True, "uniform"),
        ("two_tower_generator", True, "two_tower"),
        ("untied_generator", False, "tied"),
        ("untied_generator", True, None),
    ),
    "embedding_sharing": (
        ("untied_generator_embeddings", True, "untied"),
        ("untied_generator_embeddings", False, "shared"),
    ),
}


def translated(hparams: Mapping[str, Any]) -> dict[str, Any]:
    """The same hparams without the original's booleans.

    Raises a UserError for objective, generator and booleans that contradict each other.
    """
    given = {
        n: v for n, v in hparams.items() if n in ORIGINAL_NAMES or n in _CHOICES and v
    }
    found = {name: v for name, v in hparams.items() if name not in ORIGINAL_NAMES}
    for name, choices in _CHOICES.items():
        fitting = [c for boolean, v, c in choices if hparams.get(boolean) is v]
        if fitting and not found.get(name):
            found[name] = fitting[0]
    objective = found.get("objective") or "electra"
    kind = OBJECTIVES[objective]
    if "generator" in found and found["generator"] is None:
        found["generator"] = kind.generator
    generator = found.get("generator", kind.generator)
    if objective not in GENERATORS[generator].objectives:
        takes = [n for n, kind in GENERATORS.items() if objective in kind.objectives]
        raise UserError(
            f"{_shown(given)} exclude each other: with objective {objective} goes "
            f"generator {' or '.join(takes)}"
        )
    usual = kind.needs.get("embedding_sharing", found.get("embedding_sharing"))
    sharing = hparams.get("embedding_sharing", usual)
    expected = original_of_objective(objective)
    expected["untied_generator_embeddings"] = sharing == "untied"
    if objective != "mlm":
        expected |= original_of_generator(generator)
    for name, value in expected.items():
        if hparams.get(name, value) != value:
            implied = {"objective": objective, "generator": generator}
            others = {**implied, **given}
            wrong = {name: others.pop(name)}
            raise UserError(
                f"{_shown(others)} exclude {_shown(wrong)}: leave {name} out"
            )
    return found


def overridden(
    config: Mapping[str, Any], hparams: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The checked hparams of --config without what booleans in --hparams change."""
    found, hparams = dict(config), hparams or {}

    def differs(booleans: Mapping[str, bool]) -> bool:
        return any(
            hparams.get(name, value) != value for name, value in booleans.items()
        )

    objective = found.get("objective", "electra")
    if differs(original_of_objective(objective)):
        found.pop("objective", None)
        if found.get("generator") == OBJECTIVES[objective].generator:
            del found["generator"]
    generator = found.get("generator")
    if generator and differs(original_of_generator(generator)):
        del found["generator"]
    if "untied_generator_embeddings" in hparams:
        found.pop("embedding_sharing", None)
    return found


def _shown(hparams: Mapping[str, Any]) -> str:
    return " and ".join(f"{name} {show(value)}" for name, value in hparams.items())
