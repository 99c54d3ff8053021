# SPDX-License-Identifier: Apache-2.0
"""What holds for every objective: what the main network's loss teaches the generator.

Nothing: samples let no gradient through, and neither does Electric's log q.
"""

import dataclasses

import pytest

from electra_tf.config.generators import GENERATORS
from electra_tf.config.objectives import BASELINE, OBJECTIVES
from tests.helpers.tiny_pretraining import gradients, tiny_batch, tiny_model

# Two networks of one size, as two_stage needs them, that have no weight in common.
APART = {
    "embedding_sharing": "untied",
    "embedding_size": 16,
    "generator_hidden_size": 1.0,
}
# Every objective with every generator that learns, and its settings.
CASES = [
    (objective, generator, {})
    for generator, kind in GENERATORS.items()
    for objective in kind.objectives
    if kind.has_own_encoders and OBJECTIVES[objective].main_network
]
CASES += [
    ("electra_15", generator, {"electra_15_positions": "other"})
    for generator in ("masked_lm", "two_tower")
]


def test_every_objective_with_a_main_network_is_tested():
    """Of masked language modeling, the main network is the generator."""
    networks = {name for name, kind in OBJECTIVES.items() if kind.main_network}
    assert {objective for objective, _, _ in CASES} == networks - {"mlm"}


@pytest.mark.parametrize("objective, generator, settings", CASES)
def test_a_generator_learns_nothing_from_the_main_networks_loss(
    objective, generator, settings
):
    """All that counts in the loss but the generator's own part, which has no weight."""
    kinds = {"objective": objective, "generator": generator}
    model = tiny_model(**kinds, **APART, **settings)
    own = dataclasses.replace(model.settings, gen_weight=0.0)
    model.objective.settings = own
    batch = tiny_batch(repeated_masks="fixed", draw_others=True, intact_share=0.3)
    found = gradients(model, lambda out: out.total_loss, batch)
    learned = {
        path.partition("/")[0]
        for path, gradient in found.items()
        if gradient is not None and gradient.any()
    }
    scopes = {path.partition("/")[0] for path in found}
    # The baseline learns with the generator.
    of_generator = GENERATORS[generator].scopes | ({BASELINE} & scopes)
    assert of_generator < scopes
    assert learned == scopes - of_generator
