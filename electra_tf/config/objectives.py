# SPDX-License-Identifier: Apache-2.0
"""Facts about objectives and generators, available without building them.

A new objective is a class in electra_tf/pretrain/ (`objectives.Objective` is the
contract) and a row of `OBJECTIVES`; a new generator a class in
electra_tf/pretrain/generators.py (`Generator`) and a row of `GENERATORS`: what configs,
FLOP counts and readers of checkpoints need to know before TensorFlow is imported.
Both may be outside of the package: experiments/contrast.py.

The original's booleans for both, and for `embedding_sharing`, are accepted wherever
hparams are read, and translated there, once.
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from electra_tf.config.hparams import identity, show, without_left
from electra_tf.errors import UserError

ENCODER = "electra"  # the scope of the main network's encoder
GENERATOR, MAIN = "generator", "main"  # the networks
MASKED_LM_HEAD = "generator_predictions"


class GeneratorKind(NamedTuple):
    """Facts about a kind of generator.

    Attributes:
      implementation: the class, see `ObjectiveKind`.
      is_original: whether the original has it.
      encoders: scopes of its encoders' weights.
      head: scope of its other weights, None if it has none.
      needs_token_counts: whether it needs the count of each token in the data.
      predicts: the share of positions that its softmax over the vocabulary is computed
        at: "masked", "all" or "none".
    """

    implementation: str
    is_original: bool = True
    encoders: tuple[str, ...] = ()
    head: str | None = None
    predicts: str = "none"
    needs_token_counts: bool = False

    @property
    def has_own_encoders(self) -> bool:
        """Whether it has encoders of the shape that the generator_* hparams give."""
        return any(scope != ENCODER for scope in self.encoders)

    @property
    def scopes(self) -> set[str]:
        """The scopes of all weights that are the generator's alone."""
        return {*self.encoders, *filter(None, [self.head])} - {ENCODER}


def original_of_generator(name: str) -> dict[str, bool]:
    """The original's booleans for a kind of generator."""
    kinds = {f"{kind}_generator": name == kind for kind in ("uniform", "two_tower")}
    return kinds | {"untied_generator": name != "tied"}


GENERATORS = {
    "masked_lm": GeneratorKind(
        ".generators:MaskedLMGenerator",
        encoders=("generator",),
        head=MASKED_LM_HEAD,
        predicts="masked",
    ),
    "tied": GeneratorKind(
        ".generators:TiedGenerator",
        encoders=(ENCODER,),
        head=MASKED_LM_HEAD,
        predicts="masked",
    ),
    "two_tower": GeneratorKind(
        ".generators:TwoTowerGenerator",
        encoders=("generator_ltr", "generator_rtl"),
        head="cloze_predictions",
        predicts="all",
    ),
    "uniform": GeneratorKind(".generators:UniformGenerator"),
    "unigram": GeneratorKind(
        ".generators:UnigramGenerator",
        is_original=False,
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
CORRECTION_HEAD = "correction_predictions"
SELECTION_HEAD = "selection_predictions"


class ObjectiveKind(NamedTuple):
    """Facts about an objective.

    Attributes:
      implementation: "module:Class"; ".module" is one of electra_tf.pretrain.
      is_original: whether the original has it.
      generators: those it can be trained with, the usual one first.
      presets: other hparams that it sets, unless they are set by hand.
      needs: hparams that it sets and that must not have another value; of an
        embedding_size of None: than the hidden size.
      own: hparams that have no effect with most other objectives.
      uses_q: whether its loss has the probability q of samples, which must therefore
        be the generator's own.
      is_energy: whether the discriminator's logit is an energy, whose sigmoid is not
        the probability of a replacement.
      learns: what the loss trains; GENERATOR, MAIN or both.
      begins_with: the objective of the run's first steps, `stage_one_steps`.
      main_network: whether there is an encoder beside the generator's own ones (of
        masked language modeling: the one that it is).
      heads: scopes of the weights that are neither an encoder's nor the generator's.
      predicts: the share of positions that the main network's softmax over the
        vocabulary is computed at: "masked", "all" or "none"; "candidates": of the
        masked positions, over num_candidates tokens.
    """

    implementation: str
    is_original: bool = False
    generators: tuple[str, ...] = tuple(GENERATORS)
    presets: dict[str, Any] = {}
    needs: dict[str, Any] = {}
    own: tuple[str, ...] = ()
    uses_q: bool = False
    is_energy: bool = False
    learns: tuple[str, ...] = (GENERATOR, MAIN)
    begins_with: str | None = None
    main_network: bool = True
    heads: tuple[str, ...] = (DISCRIMINATOR_HEAD,)
    predicts: str = "none"


def original_of_objective(name: str) -> dict[str, bool]:
    """The original's booleans for an objective."""
    is_electra = name not in ("electric", "mlm", "two_tower")
    return {"electra_objective": is_electra, "electric_objective": name == "electric"}


_ONE_SIZE = {"generator_hidden_size": 1.0, "generator_layers": 1.0}
OBJECTIVES = {
    "electra": ObjectiveKind(".objectives:Electra", True),
    "electric": ObjectiveKind(
        ".objectives:Electric",
        True,
        generators=("two_tower", "unigram"),
        uses_q=True,
        is_energy=True,
    ),
    "mlm": ObjectiveKind(
        ".objectives:MaskedLM", True, ("tied",), learns=(GENERATOR,), heads=()
    ),
    "two_tower": ObjectiveKind(
        ".objectives:TwoTower",
        generators=("two_tower",),
        needs=_ONE_SIZE | {"embedding_sharing": "shared"},
        learns=(GENERATOR,),
        main_network=False,
        heads=(),
    ),
    "two_stage": ObjectiveKind(
        ".objectives:TwoStage",
        generators=("masked_lm",),
        # The generator's weights initialise the discriminator.
        needs=_ONE_SIZE | {"embedding_sharing": "untied", "embedding_size": None},
        own=("stage_one_steps", "init_discriminator"),
        learns=(MAIN,),
        begins_with="mlm",
    ),
    "frozen_generator": ObjectiveKind(
        ".objectives:FrozenGenerator",
        generators=("masked_lm",),
        presets={"generator_dropout": 0.0},
        needs={"embedding_sharing": "untied"},
        own=("init_generator",),
        learns=(MAIN,),
    ),
    "adversarial": ObjectiveKind(
        ".objectives:Adversarial",
        generators=("masked_lm",),
        needs={"repeated_masks": "fixed", "disallow_correct": False},
        uses_q=True,
        heads=(DISCRIMINATOR_HEAD, BASELINE),
    ),
    "electra_15": ObjectiveKind(".objectives:Electra15"),
    "replace_mlm": ObjectiveKind(
        ".token_objectives:ReplaceMLM",
        presets={"disc_weight": 1.0},
        heads=(TOKEN_HEAD,),
        predicts="masked",
    ),
    "all_tokens_mlm": ObjectiveKind(
        ".token_objectives:AllTokensMLM",
        presets={"disc_weight": 1.0},
        heads=(TOKEN_HEAD, DISCRIMINATOR_HEAD),
        predicts="all",
    ),
    "corrective_lm": ObjectiveKind(
        ".token_objectives:CorrectiveLM",
        own=("token_weight",),
        heads=(DISCRIMINATOR_HEAD, CORRECTION_HEAD),
        predicts="masked",
    ),
    "multi_choice": ObjectiveKind(
        ".token_objectives:MultiChoice",
        presets={"disc_weight": 5.0, "token_weight": 2.0},
        own=("token_weight", "num_candidates"),
        heads=(DISCRIMINATOR_HEAD, SELECTION_HEAD),
        predicts="candidates",
    ),
}


def with_heads(scopes: set[str]) -> list[str]:
    """The objectives whose heads alone are among the scopes of a model's weights."""
    known = {head for kind in OBJECTIVES.values() for head in kind.heads}
    return [n for n, kind in OBJECTIVES.items() if {*kind.heads} == known & scopes]


def by_weights(scopes: set[str], generator: str, has_main: bool) -> str:
    """The objective that weights show, else the usual one of their generator.

    Args:
      has_main: whether there is an encoder beside the generator's own ones.
    """
    # Weights may lack their head.
    for heads in (scopes, {DISCRIMINATOR_HEAD}):
        fits = [n for n in with_heads(heads) if OBJECTIVES[n].main_network == has_main]
        usual = [n for n in fits if OBJECTIVES[n].generators[0] == generator]
        if usual or (fits and OBJECTIVES[fits[0]].heads):
            return (usual or fits)[0]
    return next(iter(OBJECTIVES))


@dataclasses.dataclass(frozen=True)
class OriginalHparams:
    """The booleans; `translated` replaces them."""

    electra_objective: bool = identity(True, "`objective` electra; false: mlm.")
    electric_objective: bool = identity(False, "`objective` electric.")
    uniform_generator: bool = identity(False, "`generator` uniform.")
    two_tower_generator: bool = identity(False, "`generator` two_tower.")
    untied_generator: bool = identity(True, "The usual `generator`; false: tied.")
    untied_generator_embeddings: bool = identity(False, "`embedding_sharing` untied.")


ORIGINAL_NAMES = frozenset(field.name for field in dataclasses.fields(OriginalHparams))
# The booleans of a value, and the values that the original has.
_BOOLEANS: dict[str, tuple[Callable[[str], dict[str, bool]], tuple[str, ...]]] = {
    "objective": (original_of_objective, ("electra", "mlm", "electric")),
    "generator": (original_of_generator, ("masked_lm", "tied", "uniform", "two_tower")),
    "embedding_sharing": (
        lambda sharing: {"untied_generator_embeddings": sharing == "untied"},
        ("shared", "untied"),
    ),
}


def translated(
    hparams: Mapping[str, Any], config: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """The hparams with what the original's booleans stand for in place of these.

    Without those that have left, which checkpoints of earlier versions hold.

    Args:
      config: translated hparams that these override; kept where nothing contradicts.

    Raises a UserError for objective, generator and booleans that contradict each other.
    """
    kept = without_left(hparams)
    result = {name: v for name, v in kept.items() if name not in ORIGINAL_NAMES}
    names = ORIGINAL_NAMES | _BOOLEANS.keys()
    given = {n: v for n, v in {**config, **hparams}.items() if n in names}
    contradiction = " and ".join(
        f"{n} {show(v)}" for n, v in given.items() if v is not None
    )
    contradiction += " exclude each other"

    def choose(name: str, *preferred: str | None) -> str:
        booleans_of, originals = _BOOLEANS[name]
        options = [hparams.get(name)]
        if options == [None]:
            options = [*preferred, *originals]
        for option in filter(None, options):
            expected = booleans_of(option)
            if objective == "mlm":  # It is tied, whatever the original's default is.
                expected.pop("untied_generator", None)
            if all(hparams.get(n, value) == value for n, value in expected.items()):
                if given.keys() & {name, *expected}:
                    result[name] = option
                return option
        raise UserError(contradiction)

    objective, before = None, config.get("objective")
    objective = choose("objective", before)
    takes, chosen = OBJECTIVES[objective].generators, config.get("generator")
    earlier = OBJECTIVES[before or "electra"].generators[0]
    if "generator" in hparams or chosen == earlier:
        chosen = None  # Replaced, or it came with that objective.
    generator = choose("generator", chosen, takes[0])
    choose("embedding_sharing", config.get("embedding_sharing"))
    if generator not in takes:
        raise UserError(
            f"{contradiction}: with objective {objective} goes generator "
            f"{' or '.join(takes)}"
        )
    return result
