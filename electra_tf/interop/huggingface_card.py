# SPDX-License-Identifier: Apache-2.0
"""Model cards: what an export is and how it is used."""

from __future__ import annotations

from electra_tf.interop.checkpoint import StoredModel
from electra_tf.interop.networks import Network

_DOES = {
    "ElectraForPreTraining": "tells for each token of a text whether it was replaced",
    "ElectraForMaskedLM": "proposes tokens for [MASK]",
    "ElectraForTokenClassification": "labels the tokens of a text",
    "ElectraForSequenceClassification": "classifies a text, or gives it a number",
    "ElectraForQuestionAnswering": "finds where a text answers a question",
    "ElectraModel": "encodes a text, for fine-tuning",
}
_PIPELINES = {
    "ElectraForMaskedLM": "fill-mask",
    "ElectraForTokenClassification": "token-classification",
    "ElectraForSequenceClassification": "text-classification",
    "ElectraForQuestionAnswering": "question-answering",
}
# Of transformers' pipelines; it has none for answers any more.
_BY_PIPELINE = """\
from transformers import pipeline

{function} = pipeline("{pipeline}", model=".")  # this directory
{show}
"""
_SHOW = "print({function}({call}))"
_SHOW_WORDS = """\
tokens = {function}({call})
# A word has the label of its first token.
print([token for token in tokens if not token["word"].startswith("##")])"""
_CALLS = {
    "ElectraForMaskedLM": ("fill", '"The chef [MASK] the meal."'),
    "ElectraForTokenClassification": ("tag", "{text}"),
    "ElectraForSequenceClassification": ("classify", "{text}, truncation=True"),
}
_BY_CLASS = """\
import torch
from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained(".")  # this directory
model = {architecture}.from_pretrained(".")
inputs = tokenizer({texts}, return_tensors="pt")
with torch.no_grad():
    output = model(**inputs)
"""
_OUTPUTS = {
    "ElectraForPreTraining": """\
replaced = torch.sigmoid(output.logits)  # of each token, [CLS] and [SEP] among them
tokens = tokenizer.tokenize(TEXT)
print(list(zip(tokens, replaced[0, 1:-1].tolist())))
""",
    "ElectraModel": """\
print(output.last_hidden_state.shape)  # texts, tokens, width
""",
    "ElectraForQuestionAnswering": """\
in_text = torch.tensor([part == 1 for part in inputs.sequence_ids()])
scores = output.start_logits[0, :, None] + output.end_logits[0]
scores[~(in_text[:, None] & in_text).triu()] = -torch.inf
start, end = divmod(int(scores.argmax()), len(scores))
print(tokenizer.decode(inputs["input_ids"][0, start : end + 1]))
""",
}
_CARD = """\
---
library_name: transformers
{pipeline}tags:
- electra
- electra-tf
---
# {name}: {architecture}

This network {does}. It was exported from electra_tf{steps}.

```python
{snippet}```

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
that of the model alone, and its sigmoid no probability of a replacement. The log odds
of one are the logit + log q of the token by its generator, which is not part of this
directory, + log(k / (1 - k)), k being the share of tokens masked in training.
"""


def model_card(network: Network, stored: StoredModel, architecture: str) -> str:
    """The README.md of a Hugging Face directory."""
    pipeline = _PIPELINES.get(architecture)
    electric = stored.config.objective == "electric"
    length = stored.trained_length
    return _CARD.format(
        pipeline=f"pipeline_tag: {pipeline}\n" if pipeline else "",
        name=stored.name,
        architecture=architecture,
        does=_DOES[architecture],
        steps=f" after {stored.step:,} steps" if stored.step else "",
        layers=network.shape.num_hidden_layers,
        width=network.shape.hidden_size,
        heads=network.shape.num_attention_heads,
        embedding_size=network.embedding_size,
        positions=network.shape.max_position_embeddings,
        length=f"{length} tokens" if length else "not known",
        snippet=_snippet(network, architecture),
        vocab_size=network.shape.vocab_size,
        tokenizer=stored.tokenizer_config,
        electric=_ELECTRIC if electric else "",
    )


def _snippet(network: Network, architecture: str) -> str:
    """What can be run in the directory as it is."""
    one, two = '"The chef ate the meal."', '"Who ate it?"'
    if architecture in _CALLS:
        function, call = _CALLS[architecture]
        pair = f'{{"text": {one}, "text_pair": {two}}}'
        call = call.format(text=pair if network.num_texts == 2 else one)
        if network.problem_type == "multi_label_classification":
            call += ", top_k=None"  # Without it the pipeline shows the likeliest alone.
        is_tagger = architecture == "ElectraForTokenClassification"
        show = (_SHOW_WORDS if is_tagger else _SHOW).format(
            function=function, call=call
        )
        return _BY_PIPELINE.format(
            function=function, pipeline=_PIPELINES[architecture], show=show
        )
    is_qa = architecture == "ElectraForQuestionAnswering"
    texts = f"{two}, {one}" if is_qa else one
    shown = _BY_CLASS.format(architecture=architecture, texts=texts)
    return shown + _OUTPUTS[architecture].replace("TEXT", one)
