# SPDX-License-Identifier: Apache-2.0
"""The files of a Hugging Face directory: tensors, tokenizer and model card.

One safetensors file or several with an index; PyTorch's pickles only on request, and
then by the reader that takes nothing but tensors from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from electra_tf import startup
from electra_tf.errors import EXIT_DAMAGED, UserError, reason_of
from electra_tf.interop import verification
from electra_tf.interop.checkpoint import StoredModel, as_float32
from electra_tf.interop.networks import Network
from electra_tf.storage.manifest import read_json
from electra_tf.text import vocabulary
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary, write_tokens

WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"
_INDEX = ".index.json"  # of a file in parts
# As safetensors names them; integers are in buffers.
_FLOATS = ("F64", "F32", "F16", "BF16")
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
# Old checkpoints name gain and bias of a layer norm as TensorFlow does.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

TOKENIZER_CONFIG, TOKENIZER = "tokenizer_config.json", "tokenizer.json"
VOCABULARY = "vocab.txt"
ADDED, SPECIAL_TOKENS = "added_tokens.json", "special_tokens_map.json"
SHORTEST = 8  # tokens; a model_max_length below is not a real limit
_ADDED_KEYS = ("added_tokens_decoder", "additional_special_tokens")
_ADDED_KEYS += ("extra_special_tokens",)
# Classes that take tokenizer.json unchanged. ElectraTokenizer and its predecessors
# build another from vocab.txt: words end at 100 characters there, and its tables of
# characters are those of another version of Unicode.
_UNCHANGED = ("PreTrainedTokenizerFast", "TokenizersBackend")
_BERTS = tuple(
    f"{name}Tokenizer{fast}" for name in ("Electra", "Bert") for fast in ("", "Fast")
)
_BERTS += ("AutoTokenizer",)  # names none: the family decides


def files_in(folder: Path, name: str = WEIGHTS) -> list[Path]:
    """The files that hold the weights; [] if there are none.

    Args:
      name: WEIGHTS or PICKLED.
    """
    if (folder / name).is_file():
        return [folder / name]
    index = folder / f"{name}{_INDEX}"
    if not index.is_file():
        return []
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UserError(f"{index} has no weight_map.", EXIT_DAMAGED)
    return [folder / Path(str(name)).name for name in sorted(set(places.values()))]


def read_tensors(
    folder: Path, allow_pytorch_bin: bool = False
) -> dict[str, np.ndarray]:
    """Every tensor by today's name, numbers with a point as float32.

    Raises `UserError` (65) for files that are missing or damaged.
    """
    files, read_file = files_in(folder), _of_safetensors
    if not files and allow_pytorch_bin:
        files, read_file = files_in(folder, PICKLED), _of_pickle
    tensors: dict[str, np.ndarray] = {}
    for path in files or [folder / WEIGHTS]:
        if not path.is_file():
            raise UserError(
                f"{path} is missing.\nWeights are read from safetensors; "
                "save_pretrained of a current transformers writes it.",
                EXIT_DAMAGED,
            )
        tensors |= read_file(path)
    return {_name_today(k): as_float32(array) for k, array in tensors.items()}


def _name_today(name: str) -> str:
    for old, new in _OLD_NAMES.items():
        name = name.replace(old, new)
    return name


def _of_safetensors(path: Path) -> dict[str, np.ndarray]:
    tensors = {}
    try:
        # NumPy lacks bfloat16.
        with safe_open(path, framework="tf", device="cpu") as file:
            for name in file.keys():
                kind = file.get_slice(name).get_dtype()
                if kind not in _FLOATS and not name.endswith(BUFFERS):
                    raise ValueError(f"{name} has numbers of the type {kind}")
                tensors[name] = file.get_tensor(name).numpy()
    except (SafetensorError, TypeError, ValueError, OSError) as error:
        raise UserError(
            f"{path} cannot be read: {reason_of(error)}\nIt is "
            "damaged, cut off or of an unknown type; copy it again.",
            EXIT_DAMAGED,
        ) from None
    return tensors


def _of_pickle(path: Path) -> dict[str, np.ndarray]:
    startup.keep_triton_out()
    try:
        import torch
    except ImportError:
        raise UserError(
            f"--allow-pytorch-bin: {path} needs the package torch.\npip install torch"
        ) from None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        return {name: tensor.float().numpy() for name, tensor in found.items()}
    except Exception as error:  # whatever a damaged pickle makes it raise
        raise UserError(
            f"{path} cannot be read as weights alone: {reason_of(error)}", EXIT_DAMAGED
        ) from None


# The tokenizer.


def write_tokenizer(
    folder: Path, vocab: Vocabulary, config: TokenizerConfig, max_length: int
) -> None:
    """Writes vocab.txt, tokenizer.json and the two files of settings."""
    write_tokens(folder / VOCABULARY, vocab.tokens)
    vocabulary.fast_tokenizer(vocab.distinct, config).save(str(folder / TOKENIZER))
    settings = {
        "tokenizer_class": _UNCHANGED[0],
        "do_lower_case": config.do_lower_case,
        "strip_accents": vocabulary.strips_accents(config),
        "tokenize_chinese_chars": True,
        "model_max_length": max_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **vocabulary.SPECIAL_NAMES,
    }
    write_json(folder / TOKENIZER_CONFIG, settings)
    write_json(folder / SPECIAL_TOKENS, vocabulary.SPECIAL_NAMES)


def words_tokenized_otherwise(stored: StoredModel) -> verification.Words:
    """How `vocabulary.fast_tokenizer` does on the words of the vocabulary."""
    tokenizer = vocabulary.fast_tokenizer(
        stored.vocab.distinct, stored.tokenizer_config
    )

    def encode(texts):
        return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]

    return verification.words_tokenized_otherwise(stored, encode)


def read_tokenizer(folder: Path) -> tuple[TokenizerConfig | None, str | None]:
    """(settings, vocabulary) of a directory, each None if it is missing.

    Raises `UserError`: 2 for a tokenizer that does something else than those here, or
    for files that contradict each other, 65 for damaged ones.
    """
    said, fixed = folder / TOKENIZER_CONFIG, folder / TOKENIZER
    settings = _json_of(said)
    kind = settings.get("tokenizer_class") or _BERTS[0]
    if kind not in (*_BERTS, *_UNCHANGED):
        remedy = f"If it splits words as BERT does, write {_BERTS[0]!r} there."
        raise vocabulary.refused_tokenizer(said, f"tokenizer_class is {kind!r}", remedy)
    _check_added(folder, settings)
    by_config = by_json = None
    if settings and (kind in _BERTS or "do_lower_case" in settings):
        checked = vocabulary.config_of_bert(settings, said)
        if settings.keys() & {*TokenizerConfig._fields}:  # else it says no casing
            by_config = checked
    if fixed.is_file():
        by_json = vocabulary.config_of_json(read_json(fixed), fixed)
    if by_config and by_json and not by_config.equivalent(by_json):
        raise UserError(
            f"{said} says {by_config}, {fixed.name} beside it {by_json}.\nRemove the "
            "one that the model was not trained with."
        )
    found = [folder / name for name in (VOCABULARY, TOKENIZER)]
    found = [path for path in found if path.is_file()]
    if len(found) == 2:
        vocab, other = map(Vocabulary.load, found)
        if vocab.distinct != other.distinct:
            user, advice = f"{found[1]} was made", "Remove one of the two."
            vocab.check_same(other.sha256, user, advice)
    return by_config or by_json, str(found[0]) if found else None


def max_length(folder: Path) -> int | None:
    """The longest sequence that the settings allow; None where they say nothing."""
    said = _json_of(folder / TOKENIZER_CONFIG).get("model_max_length")
    is_length = isinstance(said, int) and said >= SHORTEST
    return said if is_length else None


def _check_added(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuses tokens beside the vocabulary, wherever versions of transformers put them.

    Only a tokenizer.json says them itself.
    """
    vocabulary.check_added_tokens(_json_of(folder / ADDED), folder / ADDED)
    for path, said in (
        (folder / TOKENIZER_CONFIG, settings),
        (folder / SPECIAL_TOKENS, _json_of(folder / SPECIAL_TOKENS)),
    ):
        for name in _ADDED_KEYS:
            added = said.get(name) or ()
            added = added.values() if isinstance(added, Mapping) else added
            vocabulary.check_added_tokens(added, path)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a file of settings."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _json_of(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


# The model card.

_ONE, _TWO = '"The chef ate the meal."', '"Who ate it?"'
_PIPELINE = """\
from transformers import pipeline

run = pipeline("{task}", model=".")  # this directory
"""
_CLASS = """\
import torch
from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained(".")  # this directory
model = {architecture}.from_pretrained(".")
inputs = tokenizer({texts}, return_tensors="pt")
with torch.no_grad():
    output = model(**inputs)
"""
# Of each architecture what it does, its task as the Hub names it, and its use.
_USES = {
    "ElectraForPreTraining": (
        "tells for each token of a text whether it was replaced",
        None,
        f"""{_CLASS}\
replaced = torch.sigmoid(output.logits)  # of each token, [CLS] and [SEP] among them
tokens = tokenizer.tokenize({{texts}})
print(list(zip(tokens, replaced[0, 1:-1].tolist())))
""",
    ),
    "ElectraForMaskedLM": (
        "proposes tokens for [MASK]",
        "fill-mask",
        f"""{_PIPELINE}\
print(run("The chef [MASK] the meal."))
""",
    ),
    "ElectraForTokenClassification": (
        "labels the tokens of a text",
        "token-classification",
        f"""{_PIPELINE}\
tokens = run({{texts}})
# A word has the label of its first token.
print([token for token in tokens if not token["word"].startswith("##")])
""",
    ),
    "ElectraForSequenceClassification": (
        "classifies a text, or gives it a number",
        "text-classification",
        f"""{_PIPELINE}\
print(run({{inputs}}, truncation=True{{options}}))
""",
    ),
    "ElectraForQuestionAnswering": (
        "finds where a text answers a question",
        "question-answering",  # not a pipeline of transformers 5
        f"""{_CLASS}\
in_text = torch.tensor([part == 1 for part in inputs.sequence_ids()])
scores = output.start_logits[0, :, None] + output.end_logits[0]
scores[~(in_text[:, None] & in_text).triu()] = -torch.inf
start, end = divmod(int(scores.argmax()), len(scores))
print(tokenizer.decode(inputs["input_ids"][0, start : end + 1]))
""",
    ),
    "ElectraModel": (
        "encodes a text, for fine-tuning",
        None,
        f"""{_CLASS}\
print(output.last_hidden_state.shape)  # texts, tokens, width
""",
    ),
}
_CARD = """\
---
{front_matter}
---
# {name}: {architecture}

This network {does}. It was exported from electra_tf{steps}.

```python
{program}```

| | |
|---|---|
| layers, width, heads | {sizes} |
| width of embeddings | {embedding_size} |
| positions | {shape.max_position_embeddings} |
| trained on sequences of | {length} |
| vocabulary | {shape.vocab_size} tokens, {tokenizer} |

`manifest.json` holds the checksums of the files and by how much their outputs differ
from the source's.
{electric}
ELECTRA: Clark, Luong, Le, Manning, 2020, https://openreview.net/forum?id=r1xMH1BtvB
"""
_ELECTRIC = """
The discriminator was trained by noise-contrastive estimation (Electric): its logit is
that of the model alone, and its sigmoid is not the probability of a replacement. The
log odds of one are the logit + log q of the token by its generator, which this
directory does not contain, + log(k / (1 - k)), k being the share of tokens masked in
training.
"""


def model_card(network: Network, stored: StoredModel, architecture: str) -> str:
    """The README.md of a Hugging Face directory."""
    from huggingface_hub import ModelCardData  # reads the environment, and is slow

    shape, length = network.shape, stored.trained_length
    does, task, program = _USES[architecture]
    tags = ["electra", "electra-tf"]
    data = ModelCardData(library_name="transformers", pipeline_tag=task, tags=tags)
    pair = f'{{"text": {_ONE}, "text_pair": {_TWO}}}'
    is_qa = architecture == "ElectraForQuestionAnswering"
    all_labels = network.problem_type == "multi_label_classification"
    program = program.format(
        architecture=architecture,
        task=task,
        texts=f"{_TWO}, {_ONE}" if is_qa else _ONE,
        inputs=pair if network.num_texts == 2 else _ONE,
        # Without it the pipeline shows the likeliest alone.
        options=", top_k=None" if all_labels else "",
    )
    return _CARD.format(
        front_matter=data.to_yaml(),
        name=stored.name,
        architecture=architecture,
        does=does,
        steps=f" after {stored.step:,} steps" if stored.step else "",
        program=program,
        sizes=f"{shape.num_hidden_layers}, {shape.hidden_size}, "
        f"{shape.num_attention_heads}",
        shape=shape,
        embedding_size=network.embedding_size,
        length=f"{length} tokens" if length else "not known",
        tokenizer=stored.tokenizer_config,
        electric=_ELECTRIC if stored.config.objective == "electric" else "",
    )
