# SPDX-License-Identifier: Apache-2.0
"""Model cards: what an export is and how it is used."""

from __future__ import annotations

from electra_tf.interop.networks import Network
from electra_tf.interop.stored_model import StoredModel

_DOES = {
    "ElectraForPreTraining": "tells for each token of a text whether it was replaced",
    "ElectraForMaskedLM": "proposes tokens for [MASK]",
    "ElectraForTokenClassification": "labels the tokens of a text",
    "ElectraModel": "encodes a text, for fine-tuning",
}
_PIPELINES = {
    "ElectraForMaskedLM": "fill-mask",
    "ElectraForTokenClassification": "token-classification",
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
from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained("<this directory>")
model = {architecture}.from_pretrained("<this directory>")
output = model(**tokenizer("A text.", return_tensors="pt"))
```

| | |
|---|---|
| layers, width, heads | {layers}, {width}, {heads} |
| width of embeddings | {embedding_size} |
| longest sequence | {positions} tokens |
| vocabulary | {vocab_size} tokens, {tokenizer} |

`manifest.json` holds the checksums of the files and by how much their outputs differ
from the source's.
{electric}
ELECTRA: Clark, Luong, Le, Manning, 2020, https://openreview.net/forum?id=r1xMH1BtvB
"""
_ELECTRIC = """
The discriminator was trained by noise-contrastive estimation (Electric): its logit is
that of the model alone. Odds of a replacement need log q of its generator
added, which is not part of this directory.
"""


def model_card(network: Network, stored: StoredModel, architecture: str) -> str:
    """The README.md of a Hugging Face directory."""
    pipeline = _PIPELINES.get(architecture)
    electric = stored.config.objective == "electric"
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
        vocab_size=network.shape.vocab_size,
        tokenizer=stored.tokenizer_config,
        electric=_ELECTRIC if electric else "",
    )
