# SPDX-License-Identifier: Apache-2.0
"""The model card of a directory that is published: what is recorded of the model.

Facts come from the run's files; what these do not hold is marked as missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import EvalResult, ModelCardData

from electra_tf.config import phases
from electra_tf.export import saved_model
from electra_tf.export.signatures import ExportedModel
from electra_tf.inference import html_report
from electra_tf.paths import joined
from electra_tf.pretrain import history
from electra_tf.pretrain.metrics import ALL_METRICS, Metric
from electra_tf.pretrain.objectives import objective_class
from electra_tf.storage.manifest import read_json
from electra_tf.storage.remote import expand, fetch_once

REPOSITORY = "electra_tf"
LICENCE = "apache-2.0"  # of weights, if none is chosen

_DOES = {
    "encoder": "A text encoder to build upon: vectors of tokens and of the text.",
    "preprocessor": "Packs raw strings into the inputs of the encoder beside it.",
    "detector": "Says for each token of a raw string how much it looks replaced.",
    "generator": "Fills [MASK] in a raw string with the most likely tokens.",
    "scorer": "Gives a raw string its pseudo-log-likelihood, in one pass.",
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
- A detector tells tokens that a small language model put in. It tests neither truth
  nor whether a machine wrote a text.
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


def kinds_of(source: ExportedModel) -> list[str]:
    """The SavedModels that are published: a generator only if there is nothing else.

    And a preprocessor only beside the encoder whose inputs it packs.
    """
    kinds = saved_model.kinds_of(source)
    if "encoder" not in kinds:
        kinds.remove("preprocessor")
    if "detector" in kinds:
        kinds = [kind for kind in kinds if kind != "generator"]
    return kinds


def facts_of(source: ExportedModel, run_dir: Path | None = None) -> RunFacts:
    """What a model card can say.

    Args:
      run_dir: of the run; None when there is only a checkpoint. One of fine-tuning
        knows nothing of the pre-training.
    """
    model = source.pretrainer
    fields = (
        "num_hidden_layers hidden_size num_attention_heads vocab_size "
        "max_position_embeddings"
    ).split()
    sizes = {name: getattr(model.model_config, name) for name in fields}
    hparams = run_dir and _json_if_there(run_dir / "config.json")
    if hparams and "task_names" in hparams:
        hparams = run_dir = None
    results, data = None, []
    step = source.facts.get("step", 0)
    if run_dir is not None:
        results = html_report.results_of(run_dir) or None
        data = _manifests(hparams or {}, run_dir, step)
    return RunFacts(
        step=step,
        objective=model.objective.name,
        sizes=sizes | {"embedding_size": model.settings.embedding_size},
        tokenizer=str(source.tokenizer_config),
        trained_length=source.facts.get("trained_length"),
        hparams=hparams,
        results=results,
        data=data,
    )


def _manifests(hparams, run_dir: Path, step: int) -> list:
    """Those of the data that a run has read; None for one that is not there."""
    found = []
    for part in history.begun(hparams, step):
        usual = phases.folder_of(part, hparams.get("phases", []))
        shards = expand(joined(part.get("pretrain_tfrecords") or ""))
        folders = [Path(shard).parent for shard in shards]
        folders = folders or [run_dir.parent.parent / usual]
        found += [str(folder / "manifest.json") for folder in folders]
    return [_json_if_there(Path(fetch_once(path))) for path in dict.fromkeys(found)]


def _json_if_there(path: Path) -> dict[str, Any] | None:
    """A file's JSON object; `UserError` (65) for another content."""
    return read_json(path) if path.is_file() else None


def model_card(
    name: str,
    handle: str,
    facts: RunFacts,
    licence: str,
    differences: dict[str, float],
) -> str:
    """README.md of the model, with the front matter that Hugging Face reads.

    Args:
      differences: of each SavedModel beside it from the model it was exported from.
    """
    files = "\n".join(
        f"| `{kind}` | {_DOES[kind]} | {gap:.1e} |" for kind, gap in differences.items()
    )
    programs = "\n".join(f"```python\n{_USE[kind]}```" for kind in differences)
    main = next(iter(differences))
    layers, limits = ("\n" + _AS_LAYERS, _POOLED) if main == "encoder" else ("", "")
    if "detector" in differences:
        limits += _DETECTOR
    return f"""\
---
{_front_matter(name, facts, licence)}
---
# {name}

{_overview(facts)}

| SavedModel | what it does | greatest difference from the model |
|---|---|---|
{files}

They load with tensorflow and tensorflow_text alone. The difference was measured on a
fixed batch after the files were written; manifest.json holds it too. Invalid ids and
masks raise `InvalidArgumentError`.

{programs}

Kaggle and Hugging Face give the directories: published as `{handle}`.
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


def _trained_on(facts: RunFacts) -> str:
    if facts.trained_length is None:
        return "On sequences of which length it was trained is not known."
    return f"It was trained on sequences of {facts.trained_length}."


def _front_matter(name: str, facts: RunFacts, licence: str) -> str:
    """What the Hub reads, with the results that it shows beside the model."""
    tags = ["electra", *filter(None, [objective_class(facts.objective).tag])]
    results = facts.results or {}
    found = [
        EvalResult(
            task_type="feature-extraction",
            dataset_type="pre-training",
            dataset_name=html_report.data_of(results),
            metric_type=metric.name,
            metric_name=metric.label,
            metric_value=value,
        )
        for metric, value in _metrics(facts)
    ]
    data = ModelCardData(
        license=licence,
        library_name="tensorflow",
        tags=[*tags, "tf-keras"],
        model_name=name if found else None,
        eval_results=found or None,
    )
    return data.to_yaml()


def _metrics(facts: RunFacts) -> list[tuple[Metric, float]]:
    """The numbers that a run's evaluation has of the known metrics."""
    numbers = (facts.results or {}).get("metrics", {})
    found = [(metric, numbers.get(metric.name)) for metric in ALL_METRICS]
    return [pair for pair in found if isinstance(pair[1], (int, float))]


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
    """What the run began with, without the folders it was in."""
    path = (facts.hparams or {}).get("init_checkpoint")
    return path and "/".join(Path(path).parts[-2:])


def _data(facts: RunFacts) -> str:
    sets = list(map(_data_set, facts.data or [None]))
    if start := _initial_weights(facts):
        sets.append(f"What {start} was trained on before is not listed here.")
    return "\n\n".join(sets)


def _data_set(manifest: dict[str, Any] | None) -> str:
    corpus = (manifest or {}).get("corpus")
    if not manifest or not corpus:
        return "Not recorded: no manifest of the training data describes the corpus."
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
    metrics = _metrics(facts)
    if not metrics:
        return "Not evaluated, as far as the files of the model say."
    rows = [f"| {metric.label} | {value:.4f} |" for metric, value in metrics]
    step = facts.results.get("global_step")
    head = (
        f"Pre-training metrics at step {step}, on {html_report.data_of(facts.results)}."
    )
    return "\n".join([head, "", "| metric | value |", "|---|---|", *rows])
