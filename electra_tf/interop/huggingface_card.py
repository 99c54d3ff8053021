# SPDX-License-Identifier: Apache-2.0
"""Model cards of Hugging Face directories: what an export is and how it is used."""

from __future__ import annotations

from typing import NamedTuple

from huggingface_hub import ModelCardData

from electra_tf.interop.checkpoint import StoredModel
from electra_tf.interop.networks import Network

_ONE, _TWO = '"The chef ate the meal."', '"Who ate it?"'


class _Use(NamedTuple):
    """What a network does and a program that shows it."""

    does: str
    start: str  # of the program
    program: str
    task: str | None = None  # as the Hub and pipelines name it


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
_USES = {
    "ElectraForPreTraining": _Use(
        "tells for each token of a text whether it was replaced",
        _CLASS,
        """\
replaced = torch.sigmoid(output.logits)  # of each token, [CLS] and [SEP] among them
tokens = tokenizer.tokenize({texts})
print(list(zip(tokens, replaced[0, 1:-1].tolist())))
""",
    ),
    "ElectraForMaskedLM": _Use(
        "proposes tokens for [MASK]",
        _PIPELINE,
        """\
print(run("The chef [MASK] the meal."))
""",
        "fill-mask",
    ),
    "ElectraForTokenClassification": _Use(
        "labels the tokens of a text",
        _PIPELINE,
        """\
tokens = run({texts})
# A word has the label of its first token.
print([token for token in tokens if not token["word"].startswith("##")])
""",
        "token-classification",
    ),
    "ElectraForSequenceClassification": _Use(
        "classifies a text, or gives it a number",
        _PIPELINE,
        """\
print(run({inputs}, truncation=True{options}))
""",
        "text-classification",
    ),
    "ElectraForQuestionAnswering": _Use(
        "finds where a text answers a question",
        _CLASS,
        """\
in_text = torch.tensor([part == 1 for part in inputs.sequence_ids()])
scores = output.start_logits[0, :, None] + output.end_logits[0]
scores[~(in_text[:, None] & in_text).triu()] = -torch.inf
start, end = divmod(int(scores.argmax()), len(scores))
print(tokenizer.decode(inputs["input_ids"][0, start : end + 1]))
""",
        "question-answering",  # without a pipeline in transformers 5
    ),
    "ElectraModel": _Use(
        "encodes a text, for fine-tuning",
        _CLASS,
        """\
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
| layers, width, heads | {layers}, {width}, {heads} |
| width of embeddings | {embedding_size} |
| positions | {positions} |
| trained on sequences of | {length} |
| vocabulary | {vocab_size} tokens, {tokenizer} |

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
    shape, use, length = network.shape, _USES[architecture], stored.trained_length
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=use.task,
        tags=["electra", "electra-tf"],
    )
    pair = f'{{"text": {_ONE}, "text_pair": {_TWO}}}'
    is_qa = architecture == "ElectraForQuestionAnswering"
    all_labels = network.problem_type == "multi_label_classification"
    return _CARD.format(
        front_matter=data.to_yaml(),
        name=stored.name,
        architecture=architecture,
        does=use.does,
        steps=f" after {stored.step:,} steps" if stored.step else "",
        program=(use.start + use.program).format(
            architecture=architecture,
            task=use.task,
            texts=f"{_TWO}, {_ONE}" if is_qa else _ONE,
            inputs=pair if network.num_texts == 2 else _ONE,
            # Without it the pipeline shows the likeliest alone.
            options=", top_k=None" if all_labels else "",
        ),
        layers=shape.num_hidden_layers,
        width=shape.hidden_size,
        heads=shape.num_attention_heads,
        embedding_size=network.embedding_size,
        positions=shape.max_position_embeddings,
        length=f"{length} tokens" if length else "not known",
        vocab_size=shape.vocab_size,
        tokenizer=stored.tokenizer_config,
        electric=_ELECTRIC if stored.config.objective == "electric" else "",
    )
