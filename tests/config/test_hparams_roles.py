# SPDX-License-Identifier: Apache-2.0
"""What checkpoints store of a config: its identity and its settings, by name."""

import dataclasses

import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import (
    IDENTITY,
    PLACE,
    SETTING,
    Role,
    hparam,
    in_another_role,
    values_in_roles,
)
from electra_tf.config.model import ModelConfig
from electra_tf.config.pretraining import PretrainingConfig

# Written down from checkpoints of version 1: changing a name here makes their runs
# other runs (identity), or lets results of unlike runs be mixed (settings).
SHAPE = (
    "hidden_act hidden_size intermediate_size max_position_embeddings "
    "num_attention_heads num_hidden_layers type_vocab_size vocab_size"
)
PRETRAINING = (
    f"{SHAPE} do_lower_case electra_objective electric_objective embedding_size "
    "two_tower_generator uniform_generator untied_generator untied_generator_embeddings"
)
GENERATOR = "generator_hidden_size generator_layers"
PRETRAINING_SETTINGS = """
    adam_beta_1 adam_beta_2 phases sample_steps
    cloze_chunk_size debug decay_proportion disallow_correct disc_weight
    do_lower_case electra_15_positions electra_objective electric_objective
    embedding_sharing embedding_size eval_batch_size eval_every_steps gcp_project
    gen_weight generator generator_hidden_size generator_layers
    gradient_accumulation_steps init_checkpoint init_discriminator intact_share
    iterations_per_loop jit_compile keep_checkpoint_max learning_rate log_steps
    lr_decay_power mask_prob mask_token_share mask_unit max_seq_length
    model_hparam_overrides model_size num_eval_steps num_tpu_cores num_train_steps
    num_warmup_steps objective on_alarm on_bad_record on_nonfinite optimizer
    precision random_token_share rare_mask_power repeated_masks sampling_alpha
    save_checkpoints_steps schedule seed sentence_weight stage_one_steps temperature
    tpu_job_name tpu_name tpu_zone train_batch_size two_tower_generator
    uniform_generator untied_generator untied_generator_embeddings use_tpu vocab_size
    weight_decay_rate
"""
FINETUNING_SETTINGS = """
    answer_text answerable_classifier answerable_uses_start_logits answerable_weight
    beam_size class_weights data_source debug do_lower_case doc_stride double_unordered
    early_stopping_patience embedding_size eval_every_steps freeze_layers
    gcp_project gradient_accumulation_steps jit_compile joint_prediction keep
    label_smoothing layerwise_lr_decay layerwise_lr_offset learning_rate
    length_buckets max_answer_length max_query_length max_seq_length
    model_hparam_overrides model_size n_best_size num_tpu_cores num_train_epochs
    on_bad_example on_nonfinite precision qa_na_threshold seed task_names tasks
    tpu_job_name tpu_name tpu_zone train_batch_size use_tpu vocab_size
    warmup_proportion weight_decay_rate write_distill_outputs
"""


@pytest.mark.parametrize(
    "hparams, names",
    [
        ({}, f"{PRETRAINING} {GENERATOR}"),
        ({"electra_objective": False}, PRETRAINING),
        ({"electric_objective": True}, f"{PRETRAINING} {GENERATOR}"),
        ({"uniform_generator": True}, PRETRAINING),
        ({"untied_generator": False}, PRETRAINING),
    ],
    ids=["electra", "mlm", "electric", "uniform", "tied"],
)
def test_what_checkpoints_of_pretraining_store(hparams, names):
    config = PretrainingConfig.from_hparams("D", "m", {"model_size": "base"} | hparams)
    values = config.to_dict()
    shape = dataclasses.asdict(config.model_config())
    assert config.identity() == {n: (shape | values)[n] for n in names.split()}
    assert config.settings() == {n: values[n] for n in PRETRAINING_SETTINGS.split()}


def test_what_trials_of_finetuning_store():
    config = FinetuningConfig.from_hparams("D", "m", {"task_names": ["squad"]})
    values = config.to_dict()
    shape = dataclasses.asdict(config.model_config())
    names = f"{SHAPE} embedding_size".split()
    assert config.identity() == {n: (shape | values)[n] for n in names}
    assert config.settings() == {n: values[n] for n in FINETUNING_SETTINGS.split()}


@pytest.mark.parametrize("cls", [PretrainingConfig, FinetuningConfig, ModelConfig])
def test_every_hparam_has_a_role(cls):
    assert all(type(f.metadata["role"]) is Role for f in dataclasses.fields(cls))


def test_an_hparam_without_a_role_is_impossible():
    with pytest.raises(TypeError, match="role"):
        hparam(1, "Documented, but without a role.")


def test_a_subclass_gives_an_hparam_another_role_and_nothing_else():
    @dataclasses.dataclass(frozen=True)
    class Base:
        steps: int = hparam(3, "Steps.", SETTING, minimum=1)
        size: int = hparam(4, "Size.", IDENTITY)

    @dataclasses.dataclass(frozen=True)
    class Own(Base):
        steps: int = in_another_role(Base, "steps", PLACE)

    base, own = (dataclasses.fields(cls)[0] for cls in (Base, Own))
    assert own.metadata == {**base.metadata, "role": PLACE}
    assert values_in_roles(Own(steps=5), IDENTITY, SETTING) == {"size": 4}
    assert values_in_roles(Base(steps=5), SETTING) == {"steps": 5}
