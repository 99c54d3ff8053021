# SPDX-License-Identifier: Apache-2.0
"""The experiments: what is compared, and what of which paper that repeats."""

from report import Comparison, Variant

_MLM = {"objective": "mlm"}
# Where the main network predicts tokens, both losses count once.
_ONCE = {"disc_weight": 1.0}
# Part of the FLOPs -> the paper's score of ELECTRA-Small
_PARTS = {"": (1.0, 79.9), " 1/2": (0.5, 79.0), " 1/4": (0.25, 77.7)}
_PARTS |= {" 1/8": (0.125, 76.0), " 1/16": (0.0625, 74.1)}
_SIZES = {"1/8": 0.125, "1/4": 0.25, "1/2": 0.5, "3/4": 0.75, "1": 1.0}
_EQUAL = {"generator_hidden_size": 1.0}
_UNTIED = {"untied_generator_embeddings": True}
# Adversarial training needs distinct positions; so all that it is compared with have.
_DISTINCT = {"repeated_masks": "fixed"}
_STAGES = _DISTINCT | _EQUAL | _UNTIED
_STAGES |= {"objective": "two_stage", "embedding_size": None}
_WAYS = {
    "ELECTRA": _DISTINCT,
    "Adversarial": {**_DISTINCT, "objective": "adversarial"},
    "Two-stage": _STAGES,
    "Two-stage from random": {**_STAGES, "init_discriminator": False},
    "BERT": _DISTINCT | _MLM,
}
# (share of [MASK], of random tokens; the rest stays) -> the paper's score on MNLI
_SHARES = {
    (0.8, 0.1): 84.2,
    (1.0, 0.0): 84.3,
    (0.8, 0.2): 84.1,
    (0.8, 0.0): 84.4,
    (0.0, 0.8): 83.7,
    (0.0, 1.0): 83.6,
}
# Younger than the paper; a line each.
_RECIPES = {
    "ELECTRA": {},
    "AdamW": {"optimizer": "adamw"},
    "LAMB": {"optimizer": "lamb"},
    "Linear schedule": {"schedule": "linear"},
    "WSD schedule": {"schedule": "wsd"},
    "Constant rate": {"schedule": "constant"},
    # Whole words are always distinct; this is what to compare them with.
    "Distinct positions": _DISTINCT,
    "Whole words masked": {"mask_unit": "word"},
    "Untied embeddings": {"embedding_sharing": "untied"},
    "Disentangled embeddings": {"embedding_sharing": "disentangled"},
}
# ELECTRA's successors: replacements from easy to hard, a generator of its own rate.
_UNIGRAM, _QUARTER = {"generator": "unigram"}, {"mask_prob": 0.25}
_CORRECTIVE, _CHOICE = {"objective": "corrective_lm"}, {"objective": "multi_choice"}
_MANY = {"mask_prob": 0.4}
_SUCCESSORS = {
    "Unigram": _UNIGRAM,
    "Unigram, 25 % masked": _UNIGRAM | _QUARTER,
    "Unigram, 40 % masked": _UNIGRAM | _MANY,
    "Corrective LM": _CORRECTIVE,
    "Corrective LM, unigram": _CORRECTIVE | _UNIGRAM,
    "Corrective LM, unigram, 25 % masked": _CORRECTIVE | _UNIGRAM | _QUARTER,
    "Corrective LM, unigram, 40 % masked": _CORRECTIVE | _UNIGRAM | _MANY,
    "Multi-choice": _CHOICE,
    "Multi-choice, unigram, 40 % masked": _CHOICE | _UNIGRAM | _MANY,
    "Temperature 4 to 1": {"temperature_start": 4.0},
    "Generator's rate 1/4": {"generator_learning_rate": 1.25e-4, "clip_by": "network"},
    "Generator's rate 4": {"generator_learning_rate": 2e-3, "clip_by": "network"},
    "ELECTRA": {},
    "BERT": _MLM,
    "BERT 80/10/10": _MLM | {"mask_token_share": 0.8, "random_token_share": 0.1},
    "BERT 80/10/10, 40 % masked": _MLM
    | {"mask_token_share": 0.8, "random_token_share": 0.1}
    | _MANY,
    "BERT 80/20/0": _MLM | {"mask_token_share": 0.8, "random_token_share": 0.2},
}
# Those that were best on the tuning sets, and BERT, with half to twice the FLOPs.
_BEST = ("Corrective LM, unigram, 25 % masked", "Unigram, 40 % masked", "BERT 80/10/10")
_BEST += ("BERT 80/10/10, 40 % masked",)
_BEST += ("Multi-choice, unigram, 40 % masked", "BERT 80/20/0")
_SURVIVORS = {name: _SUCCESSORS[name] for name in _BEST}
# The modern block's feed-forward layer has three matrices, so two thirds of the width.
_MODERN = {"block": "modern", "intermediate_size": 344, "global_rope_theta": 10000.0}
_MODERN = {"model_hparam_overrides": _MODERN}
# Those whose texts have scores.
_BLIMP = {
    "Masked LM, 40 %": _MLM | _MANY,
    "Masked LM, 15 %": _MLM,
    "Two towers": {"objective": "two_tower"} | _EQUAL,
    "ELECTRA, two towers": {
        "objective": "electra",
        "generator": "two_tower",
        "embedding_sharing": "untied",
    }
    | _EQUAL
    | _QUARTER,
    "Corrective LM": _CORRECTIVE | _UNIGRAM | _MANY,
    "Multi-choice": _CHOICE | _UNIGRAM | _MANY,
    "Electric": {"objective": "electric"},
    "Electric, unigram": {"objective": "electric"} | _UNIGRAM,
}
# Both blocks, and the rates that are best on the tuning sets (block_rates).
_MANY_CHOICE = _SUCCESSORS["Multi-choice, unigram, 40 % masked"]
_BLOCKS = {
    "BERT 80/10/10, 40 % masked": _SUCCESSORS["BERT 80/10/10, 40 % masked"],
    "Multi-choice": _MANY_CHOICE,
    "ELECTRA": {},
    "Multi-choice, Muon": _MANY_CHOICE | {"optimizer": "muon"},
}
_SHAPES = {"": {}, ", modern block": _MODERN}
_RATES = (5e-4, 1e-3, 2e-3)
_BEST_RATES = {
    "BERT 80/10/10, 40 % masked": 1e-3,
    "BERT 80/10/10, 40 % masked, modern block": 2e-3,
    "Multi-choice": 5e-4,
    "Multi-choice, modern block": 2e-3,
    "ELECTRA": 5e-4,
    "ELECTRA, modern block": 5e-4,
}
_BUDGETS = {"": 1.0, " 1/2": 0.5, " x 2": 2.0}


def _shares(mask: float, random: float, paper: float) -> Variant:
    kept = abs(round(1 - mask - random, 2))  # not -0
    name = f"{mask:.0%} [MASK] {random:.0%} random {kept:.0%} kept"
    shares = {"mask_token_share": mask, "random_token_share": random}
    return Variant(name.replace("%", " %"), _MLM | shares, paper=paper)


_COMPARISONS = [
    Comparison(
        "objectives",
        "Objectives between BERT and ELECTRA",
        "ELECTRA paper, Table 5 (GLUE, dev)",
        [
            Variant("ELECTRA", paper=85.0),
            Variant(
                "All-Tokens MLM", {"objective": "all_tokens_mlm"} | _ONCE, paper=84.3
            ),
            Variant("Replace MLM", {"objective": "replace_mlm"} | _ONCE, paper=82.4),
            Variant("ELECTRA 15 %", {"objective": "electra_15"}, paper=82.4),
            Variant("BERT", _MLM, paper=82.2),
        ],
    ),
    Comparison(
        "generator_size",
        "Size of the generator",
        "ELECTRA paper, Figure 3, left",
        [
            *(
                Variant(name, {"generator_hidden_size": size}, line="generator", x=size)
                for name, size in _SIZES.items()
            ),
            Variant("Unigram", {"generator": "unigram"}, line="unigram", x=0.0),
        ],
        x_label="width of the generator / of the discriminator (0: word frequencies)",
    ),
    Comparison(
        "two_stage_adversarial",
        "Ways to train the generator",
        "ELECTRA paper, Figure 3, right",
        [
            Variant(name + part, hparams, budget, line=name)
            for part, budget in {"": 1.0, " 1/2": 0.5, " 1/4": 0.25}.items()
            for name, hparams in _WAYS.items()
        ],
        x_label="FLOPs",
    ),
    Comparison(
        "sharing",
        "Weights that generator and discriminator share",
        "ELECTRA paper, section 3.2 (GLUE, dev)",
        [
            Variant("Embeddings", _EQUAL, paper=84.3),
            Variant("None", _EQUAL | _UNTIED, paper=83.6),
            Variant("All", {"untied_generator": False}, paper=84.4),
        ],
    ),
    Comparison(
        "efficiency",
        "Score against compute",
        "ELECTRA paper, Figure 2 and Table 1 (small size; GLUE, dev)",
        [
            *(
                Variant(f"ELECTRA{name}", {}, part, line="ELECTRA", paper=score)
                for name, (part, score) in _PARTS.items()
            ),
            Variant("BERT", _MLM, line="BERT", paper=75.1),
            *(
                Variant(f"BERT{name}", _MLM, part, line="BERT")
                for name, (part, _) in _PARTS.items()
                if name
            ),
        ],
        x_label="FLOPs",
    ),
    Comparison(
        "masking",
        "What stands at masked positions",
        "BERT paper, Table 8 (MNLI, fine-tuned)",
        [_shares(*shares, paper) for shares, paper in _SHARES.items()],
    ),
    Comparison(
        "recipes",
        "Recipes",
        "no table of the papers",
        [Variant(name, hparams) for name, hparams in _RECIPES.items()],
    ),
    Comparison(
        "successors",
        "ELECTRA's successors",
        "no table of the papers; tuning sets",
        [Variant(name, hparams) for name, hparams in _SUCCESSORS.items()],
        tuning=True,
    ),
    Comparison(
        "survivors",
        "Replaced token detection beside masked language modeling",
        "no table of the papers",
        [
            Variant(name + part, hparams, budget, line=name)
            for part, budget in _BUDGETS.items()
            for name, hparams in _SURVIVORS.items()
        ],
        x_label="FLOPs",
    ),
    Comparison(
        "blimp",
        "BLiMP after few words of text",
        "no table of the papers",
        [Variant(name, hparams) for name, hparams in _BLIMP.items()],
        recipes={"pocket": "blimp", "gpu": "blimp_gpu"},
    ),
    Comparison(
        "blocks",
        "BERT's block and the modern one",
        "no table of the papers",
        [
            Variant(name + end, hparams | shape | {"learning_rate": rate})
            for name, hparams in _BLOCKS.items()
            for end, shape in _SHAPES.items()
            if (rate := _BEST_RATES.get(name + end))
        ],
    ),
    Comparison(
        "block_rates",
        "Learning rates of both blocks",
        "no table of the papers; tuning sets",
        [
            Variant(
                f"{name}{end} {rate:g}",
                hparams | shape | {"learning_rate": rate},
                line=name + end,
                x=rate,
            )
            for rate in _RATES
            for end, shape in _SHAPES.items()
            for name, hparams in _BLOCKS.items()
        ],
        x_label="learning rate",
        tuning=True,
    ),
    Comparison(
        "learning_rate",
        "Learning rates",
        "no table of the papers; tuning sets",
        [
            Variant(
                f"{name} {rate:g}", hparams | {"learning_rate": rate}, line=name, x=rate
            )
            for name, hparams in {"ELECTRA": {}, "BERT": _MLM}.items()
            for rate in (2.5e-4, 5e-4, 1e-3)
        ],
        x_label="learning rate",
        tuning=True,
    ),
]
COMPARISONS = {comparison.name: comparison for comparison in _COMPARISONS}
