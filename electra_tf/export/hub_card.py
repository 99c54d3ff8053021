# SPDX-License-Identifier: Apache-2.0
"""What is written about a model that is published: its card, and a page per SavedModel.

Everything said comes from the run's files; what they do not hold is said to be missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from electra_tf.inference.html_report import data_of
from electra_tf.pretrain import history
from electra_tf.pretrain.metrics import ALL_METRICS
from electra_tf.pretrain.objectives import objective_class

REPOSITORY = "electra_tf"
LICENCE = "apache-2.0"  # of weights, if none is chosen

# TensorFlow Hub's name for what each SavedModel does, and one sentence about it.
_TASKS = {
    "encoder": (
        "text-embedding",
        "A text encoder to build upon: vectors of tokens and of the text.",
    ),
    "preprocessor": (
        "text-preprocessing",
        "Packs raw strings into the inputs of the encoder beside it.",
    ),
    "detector": (
        "text-classification",
        "Says for each token of a raw string how much it looks replaced.",
    ),
    "generator": (
        "text-language-model",
        "Fills [MASK] in a raw string with the most likely tokens.",
    ),
    "scorer": (
        "text-language-model",
        "Gives a raw string its pseudo-log-likelihood, in one pass.",
    ),
}
_HPARAMS = (
    "num_train_steps train_batch_size max_seq_length learning_rate num_warmup_steps "
    "weight_decay_rate mask_prob gen_weight disc_weight precision seed"
).split()

_USE = {
    "encoder": """\
import tensorflow as tf
import tensorflow_text  # the preprocessor's ops

preprocessor = tf.saved_model.load("preprocessor")
encoder = tf.saved_model.load("encoder")
outputs = encoder(preprocessor(tf.constant(["The chef ate the meal."])))
outputs["sequence_output"]  # [texts, tokens, width]; also pooled_output, default,
                            # encoder_outputs; training=True switches dropout on
""",
    "preprocessor": """\
import tensorflow as tf
import tensorflow_text

preprocessor = tf.saved_model.load("preprocessor")
preprocessor(tf.constant(["one text", "another"]))
tokens = [preprocessor.tokenize(tf.constant([t])) for t in ("premise", "hypothesis")]
preprocessor.bert_pack_inputs(tokens, seq_length=64)
""",
    "detector": """\
import tensorflow as tf
import tensorflow_text

detect = tf.saved_model.load("detector").signatures["serving_default"]
found = detect(text=tf.constant(["The chef ate the giraffe."]))
found["tokens"], found["starts"], found["ends"], found["probabilities"]
""",
    "generator": """\
import tensorflow as tf
import tensorflow_text

fill = tf.saved_model.load("generator").signatures["serving_default"]
found = fill(text=tf.constant(["The chef [MASK] the meal."]))
found["tokens"], found["probabilities"]
""",
    "scorer": """\
import tensorflow as tf
import tensorflow_text

score = tf.saved_model.load("scorer").signatures["serving_default"]
score(text=tf.constant(["The chef ate the meal."]))["score"]
""",
}
# How the SavedModels of a model card become layers.
_AS_LAYERS = """\
In tf_keras, to be trained further (tensorflow_hub 0.16 needs `pip install
"setuptools<82"`):

```python
import tensorflow as tf
import tensorflow_hub as hub
import tensorflow_text
import tf_keras

text = tf_keras.layers.Input([], dtype=tf.string)
inputs = hub.KerasLayer("preprocessor")(text)
outputs = hub.KerasLayer("encoder", trainable=True)(inputs)
model = tf_keras.Model(text, tf_keras.layers.Dense(1)(outputs["pooled_output"]))
```

In Keras 3, for inference:

```python
import keras
import tensorflow as tf
import tensorflow_text

inputs = tf.saved_model.load("preprocessor")(tf.constant(["The chef ate the meal."]))
encoder = keras.layers.TFSMLayer("encoder", call_endpoint="__call__")
encoder(inputs)["sequence_output"]
```
"""

# What a card says only of these.
_POOLED = """\
- `pooled_output` is the vector of [CLS], not a trained sentence embedding: fine-tune
  it.
"""
_DETECTOR = """\
- A detector tells tokens that a small language model put in; it is no test of truth and
  no detector of machine-written text.
"""


class RunFacts(NamedTuple):
    """What is known of how a model came about."""

    step: int
    objective: str  # a key of `config.objectives.OBJECTIVES`
    sizes: dict[str, Any]  # ModelConfig and embedding_size
    tokenizer: str  # "uncased, accents stripped", ...
    trained_length: int | None  # as `StoredModel.trained_length`
    hparams: dict[str, Any] | None  # config.json of the run
    results: dict[str, Any] | None  # of its evaluation
    data: list[dict[str, Any] | None]  # manifests of the training data, by phase


def hub_page(what: str, handle: str, facts: RunFacts, licence: str) -> str:
    """The page of one SavedModel in TensorFlow Hub's markdown.

    Args:
      what: "encoder", ...
      handle: "owner/model" on Kaggle Models.
    """
    owner, model = handle.split("/")
    task, sentence = _TASKS[what]
    # Without a version: Kaggle numbers what is uploaded, and has the newest there.
    url = f"https://www.kaggle.com/models/{owner}/{model}/tensorFlow2/{what}"
    comments = {
        "asset-path": url,
        "task": task,
        "fine-tunable": "true" if what == "encoder" else "false",
        "format": "saved_model_2",
        "network-architecture": "transformer",
        "license": licence,
    }
    metadata = "\n".join(f"<!-- {k}: {v} -->" for k, v in comments.items())
    fits = ""
    if what == "encoder":
        fits = (
            "\nUse it with the preprocessor published beside it: another vocabulary "
            "gives numbers without meaning. `pooled_output` is the vector of [CLS]; "
            "ELECTRA trains no pooler.\n"
        )
    return f"""\
# Module {owner}/{model}-{what}

{sentence}

{metadata}

## Overview

{_overview(facts)}
{fits}
## Use

```python
{_USE[what]}```

Input that makes no sense (ids beyond the vocabulary, masks of another shape, too many
tokens) raises `InvalidArgumentError`; texts that are too long are truncated by the
preprocessor and the generator, and read in windows by the detector and the scorer.
"""


def model_card(
    name: str,
    handle: str,
    facts: RunFacts,
    licence: str,
    kinds: list[str],
    differences: dict[str, float],
) -> str:
    """README.md of the model, with the front matter that Hugging Face reads.

    Args:
      kinds: the SavedModels beside it.
      differences: of each from the model it was exported from.
    """
    files = "\n".join(
        f"| `{kind}` | {_TASKS[kind][1]} | {differences[kind]:.1e} |" for kind in kinds
    )
    # The encoder's program begins with the preprocessor's.
    main = kinds[0]
    layers, limits = ("\n" + _AS_LAYERS, _POOLED) if main == "encoder" else ("", "")
    if "detector" in kinds:
        limits += _DETECTOR
    return (
        _front_matter(facts, licence)
        + f"""
# {name}

{_overview(facts)}

| SavedModel | what it does | greatest difference from the model |
|---|---|---|
{files}

They load with tensorflow and tensorflow_text alone. The difference was measured on a
fixed batch after the files were written; manifest.json holds it too.

```python
{_USE[main]}```

The directories are the archives unpacked (`mkdir {main} && tar -xzf {main}.tar.gz -C
{main}`), as Kaggle and Hugging Face give them: published as `{handle}`.
{layers}
## Data

{_data(facts)}

## Training

{_training(facts)}

## Evaluation

{_evaluation(facts)}

## Licence

{licence}, as chosen by who published the model. The licence of the training data is
theirs to know.

## Limits

- It reads at most {facts.sizes["max_position_embeddings"]} tokens at a time. \
{_trained_on(facts)}
- What it knows, it knows from its training data, with their language, age and bias. It
  was not examined for harmful bias.
{limits}"""
    )


def _trained_on(facts: RunFacts) -> str:
    if facts.trained_length is None:
        return "On sequences of which length it was trained is not known."
    return f"It was trained on sequences of {facts.trained_length}."


def _front_matter(facts: RunFacts, licence: str) -> str:
    tags = ["electra", *filter(None, [objective_class(facts.objective).tag])]
    lines = ["---", f"license: {licence}", "library_name: tensorflow", "tags:"]
    lines += [f"- {tag}" for tag in [*tags, "tf-keras"]]
    return "\n".join([*lines, "---"])


def _overview(facts: RunFacts) -> str:
    kind = objective_class(facts.objective).description
    sizes = facts.sizes
    made = f"Exported with {REPOSITORY}"
    if facts.hparams is not None:
        made = f"Pre-trained for {facts.step:,} steps with {REPOSITORY}"
    if start := _initial_weights(facts):
        made += f", from the weights of {start}"
    return (
        f"{kind}. {made}. "
        f"{sizes['num_hidden_layers']} layers, {sizes['hidden_size']} wide, "
        f"{sizes['num_attention_heads']} heads, embeddings of "
        f"{sizes['embedding_size']}; {sizes['vocab_size']:,} wordpieces, "
        f"{facts.tokenizer}."
    )


def _initial_weights(facts: RunFacts) -> str | None:
    """What the run began with, without the folders of whoever trained it."""
    path = (facts.hparams or {}).get("init_checkpoint")
    return path and "/".join(Path(path).parts[-2:])


def _data(facts: RunFacts) -> str:
    sets = list(map(_data_set, facts.data or [None]))
    if start := _initial_weights(facts):
        sets.append(f"What {start} was trained on before is not listed here.")
    return "\n\n".join(sets)


def _data_set(manifest: dict[str, Any] | None) -> str:
    if manifest is None:
        return "Not recorded: the manifest of the training data was not found."
    corpus = manifest.get("corpus")
    if not isinstance(corpus, dict) or not corpus:
        return "Not recorded: the manifest of the training data does not say it."
    names = corpus.get("names") or []
    shown = ", ".join(map(str, names[:10])) + (", ..." if len(names) > 10 else "")
    lines = [
        f"- {corpus.get('files', '?')} files, {corpus.get('bytes', 0) / 1e6:,.1f} MB"
        + (f": {shown}" if shown else ""),
        f"- {corpus.get('tokens_kept', 0):,} tokens in {corpus.get('examples', 0):,} "
        f"examples of up to {manifest.get('max_seq_length')} tokens",
        f"- sha256 of the corpus: {corpus.get('sha256')}",
    ]
    return "\n".join(lines)


def _training(facts: RunFacts) -> str:
    if facts.hparams is None:
        return "Not recorded: the files of the model do not say it."
    parts = history.begun(facts.hparams, facts.step)
    rows = []
    for name in _HPARAMS:
        if name in facts.hparams:
            values = [str(part[name]) for part in parts]
            shown = values if len(set(values)) > 1 else values[:1]
            rows.append(f"| {name} | {', then '.join(shown)} |")
    return "\n".join(["| setting | value |", "|---|---|", *rows])


def _evaluation(facts: RunFacts) -> str:
    metrics = (facts.results or {}).get("metrics")
    if not metrics:
        return "Not evaluated, as far as the files of the model say."
    rows = [
        f"| {metric.label} | {metrics[metric.name]:.4f} |"
        for metric in ALL_METRICS
        if isinstance(metrics.get(metric.name), (int, float))
    ]
    step = facts.results.get("global_step")
    head = f"Pre-training metrics at step {step}, on {data_of(facts.results)}."
    return "\n".join([head, "", "| metric | value |", "|---|---|", *rows])
