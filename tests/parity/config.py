# SPDX-License-Identifier: Apache-2.0
"""Replays the recorded configurations and FLOP counts of the original (golden/misc)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from electra_tf.config import pretraining as config_lib
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.model import generator_config, model_config
from electra_tf.config.objectives import original_of_generator, original_of_objective
from electra_tf.errors import UserError
from electra_tf.pretrain import flops as flops_lib
from tests.parity.rows import Row, equal, read_json


def replay(directory: str) -> Iterator[Row]:
    """Yields a row per recorded quantity; for settings, the number that differ."""
    golden = read_json(directory, "configs.json")
    yield from _shapes(golden["bert_configs"])
    for case in golden["max_predictions_per_seq"]:
        value = config_lib.max_predictions_per_seq(
            case["mask_prob"], case["max_seq_length"]
        )
        name = f"max_predictions/{case['mask_prob']}x{case['max_seq_length']}"
        yield Row(name, abs(value - case["value"]), 0.0)
    yield from _hparams(golden)
    for number, case in enumerate(golden.get("finetuning_defaults", ())):
        yield _finetuning(number, case)
    yield from _errors(golden["pretraining_errors"])
    if os.path.exists(os.path.join(directory, "flops.json")):
        yield from _flops(read_json(directory, "flops.json"))


def _differing(ours: dict[str, Any], golden: dict[str, Any]) -> float:
    return float(sum(ours.get(name, "absent") != golden[name] for name in golden))


def _shapes(cases: list[dict[str, Any]]) -> Iterator[Row]:
    for number, case in enumerate(cases):
        overrides = case["overrides"]
        shape = model_config(
            case["model_size"],
            overrides.get("vocab_size", 30522),
            overrides.get("model_hparam_overrides", {}),
        )
        generator = generator_config(
            shape, case["generator_hidden_size"], case["generator_layers"]
        )
        name = f"{number}_{case['model_size']}"
        yield Row(f"model/{name}", _differing(vars(shape), case["bert_config"]), 0.0)
        deviation = _differing(vars(generator), case["generator_config"])
        yield Row(f"generator/{name}", deviation, 0.0)


def _hparams(golden: dict[str, Any]) -> Iterator[Row]:
    # The debug recording sets its number of steps by hand.
    steps = golden["pretraining_debug"]["num_train_steps"]
    given = {
        "pretraining_defaults": {},
        "pretraining_electric": {
            "electra_objective": False,
            "electric_objective": True,
        },
        "pretraining_debug": {"debug": True, "num_train_steps": steps},
    }
    for name, hparams in given.items():
        recorded = golden[name]
        config = config_lib.PretrainingConfig.from_hparams(
            os.path.dirname(recorded["vocab_file"]), recorded["model_name"], hparams
        )
        ours = config.to_dict()
        ours |= original_of_objective(config.objective)
        ours |= original_of_generator(config.generator)
        untied = config.embedding_sharing == "untied"
        ours["untied_generator_embeddings"] = untied
        ours["max_predictions_per_seq"] = config.max_predictions_per_seq
        yield Row(f"hparams/{name}", _differing(ours, recorded), 0.0)
    # The original leaves base without an embedding size; the model then takes its own.
    base = config_lib.PretrainingConfig.from_hparams(
        "DATA", "m", {"model_size": "base"}
    )
    theirs = golden["pretraining_base_no_embedding"]
    width = base.model_config().hidden_size if theirs is None else theirs
    yield Row("hparams/base_embedding_size", abs(base.embedding_size - width), 0.0)


def _finetuning(number: int, case: dict[str, Any]) -> Row:
    """All hparams that follow from the recorded arguments of a FinetuningConfig."""
    recorded = dict(case["config"])
    config = FinetuningConfig.from_hparams(
        recorded["data_dir"], recorded["model_name"], case["kwargs"]
    )
    ours = config.to_dict()
    # The original leaves base and large without one; their model takes its width.
    recorded["embedding_size"] = recorded["embedding_size"] or ours["embedding_size"]
    deviation = _differing(ours, recorded)
    if "paths" in case:
        raw = config.raw_data_dir("TASK")
        deviation += raw != case["paths"]["raw_data_dir"]
    return Row(f"finetuning/{number}", deviation, 0.0)


def _errors(cases: list[list[Any]]) -> Iterator[Row]:
    for hparams, _ in cases:
        try:
            config_lib.PretrainingConfig.from_hparams("DATA", "m", hparams)
            refused = False
        except UserError as e:
            refused = all(name in str(e) for name in hparams)
        yield equal(f"errors/{'+'.join(hparams)}", refused, True)


def _flops(golden: dict[str, Any]) -> Iterator[Row]:
    def relative(name: str, ours: float, theirs: float) -> Row:
        return Row(f"flops/{name}", abs(ours - theirs) / theirs, 1e-14)

    for name, value in golden["MODEL_FLOPS"].items():
        yield relative(name, flops_lib.MODEL_FLOPS[name], value)
    for number, case in enumerate(golden["hparams"]):
        model = flops_lib.TransformerHparams(*case["args"], **case["kwargs"])
        for name, value in case["attributes"].items():
            ours = getattr(model, name)
            yield equal(f"flops/{number}/{name}", ours, value)
        for name, ours in {
            "block_flops": model.get_block_flops(),
            "embedding_flops_input": model.get_embedding_flops(),
            "embedding_flops_output": model.get_embedding_flops(output=True),
            "binary_classification_flops": model.get_binary_classification_flops(),
            "infer_flops": model.get_infer_flops(),
            "train_flops_bs128_1000steps": model.get_train_flops(128, 1000),
            "train_flops_disc_bs128_1000steps": model.get_train_flops(128, 1000, True),
        }.items():
            yield relative(f"{number}/{name}", ours, case[name])
    for number, case in enumerate(golden["electra"]):
        ours = flops_lib.get_electra_train_flops(*case["args"], **case["kwargs"])
        yield relative(f"electra_{number}", ours, case["value"])
