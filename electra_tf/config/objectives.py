# SPDX-License-Identifier: Apache-2.0
"""The objectives: what must be known of each without building it.

A new objective is a class in electra_tf/pretrain/ (`objectives.Objective` is the
contract) and a row here: what configs, FLOP counts and readers of checkpoints need to
know before TensorFlow is imported.
"""

from typing import Any, NamedTuple

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
      original: the original's hparams as they are with it.
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
    original: dict[str, bool]
    is_originals: bool = False
    generator: str = "masked_lm"
    presets: dict[str, Any] = {}
    needs: dict[str, Any] = {}
    main_network: bool = True
    heads: tuple[str, ...] = (DISCRIMINATOR_HEAD,)
    predicts: str = "none"


_ELECTRA = {"electra_objective": True, "electric_objective": False}
_NEITHER = {"electra_objective": False, "electric_objective": False}
_ONE_SIZE = {"generator_hidden_size": 1.0, "generator_layers": 1.0}
OBJECTIVES = {
    "electra": ObjectiveKind("objectives:Electra", _ELECTRA, True),
    "electric": ObjectiveKind(
        "objectives:Electric",
        {"electra_objective": False, "electric_objective": True},
        True,
        generator="two_tower",
    ),
    "mlm": ObjectiveKind(
        "objectives:MaskedLM", _NEITHER, True, generator="tied", heads=()
    ),
    "two_tower": ObjectiveKind(
        "objectives:TwoTower",
        _NEITHER,
        generator="two_tower",
        needs=_ONE_SIZE | {"embedding_sharing": "shared"},
        main_network=False,
        heads=(),
    ),
    "two_stage": ObjectiveKind(
        "electra_variants:TwoStage",
        _ELECTRA,
        presets={"embedding_size": None},
        # The generator's weights initialise the discriminator.
        needs=_ONE_SIZE | {"embedding_sharing": "untied"},
    ),
    "frozen_generator": ObjectiveKind(
        "electra_variants:FrozenGenerator",
        _ELECTRA,
        presets={"generator_dropout": 0.0},
        needs={"embedding_sharing": "untied"},  # The generator does not learn.
    ),
    "adversarial": ObjectiveKind(
        "electra_variants:Adversarial",
        _ELECTRA,
        presets={"repeated_masks": "fixed"},
        heads=(DISCRIMINATOR_HEAD, BASELINE),
    ),
    "electra_sentence": ObjectiveKind(
        "electra_variants:ElectraSentence",
        _ELECTRA,
        heads=(DISCRIMINATOR_HEAD, SENTENCE_HEAD),
    ),
    "electra_15": ObjectiveKind("electra_variants:Electra15", _ELECTRA),
    "replace_mlm": ObjectiveKind(
        "token_objectives:ReplaceMLM",
        _ELECTRA,
        presets={"disc_weight": 1.0},
        heads=(TOKEN_HEAD,),
        predicts="masked",
    ),
    "all_tokens_mlm": ObjectiveKind(
        "token_objectives:AllTokensMLM",
        _ELECTRA,
        presets={"disc_weight": 1.0},
        heads=(TOKEN_HEAD, DISCRIMINATOR_HEAD),
        predicts="all",
    ),
    "corrective_lm": ObjectiveKind(
        "token_objectives:CorrectiveLM",
        _ELECTRA,
        heads=(DISCRIMINATOR_HEAD, CORRECTION_HEAD),
        predicts="masked",
    ),
    "multi_choice": ObjectiveKind(
        "token_objectives:MultiChoice",
        _ELECTRA,
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
