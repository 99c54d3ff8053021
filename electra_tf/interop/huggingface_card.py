# SPDX-License-Identifier: Apache-2.0
"""Model cards of Hugging Face directories: what an export is and how it is used."""

from __future__ import annotations

from electra_tf.interop.checkpoint import StoredModel
from electra_tf.interop.networks import Network

_ONE, _TWO = '"The chef ate the meal."', '"Who ate it?"'
_DOES = {
    "ElectraForPreTraining": "tells for each token of a text whether it was replaced",
    "ElectraForMaskedLM": "proposes tokens for [MASK]",
    "ElectraForTokenClassification": "labels the tokens of a text",
    "ElectraForSequenceClassification": "classifies a text, or gives it a number",
    "ElectraForQuestionAnswering": "finds where a text answers a question",
    "ElectraModel": "encodes a text, for fine-tuning",
}
# As the Hub names them. The last is not a pipeline of transformers 5.
_TASKS = {
    "ElectraForMaskedLM": "fill-mask",
    "ElectraForTokenClassification": "token-classification",
    "ElectraForSequenceClassification": "text-classification",
    "ElectraForQuestionAnswering": "question-answering",
}
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
_PROGRAMS = {
    "ElectraForPreTraining": f"""{_CLASS}\
replaced = torch.sigmoid(output.logits)  # of each token, [CLS] and [SEP] among them
tokens = tokenizer.tokenize({{texts}})
print(list(zip(tokens, replaced[0, 1:-1].tolist())))
""",
    "ElectraForMaskedLM": f"""{_PIPELINE}\
print(run("The chef [MASK] the meal."))
""",
    "ElectraForTokenClassification": f"""{_PIPELINE}\
tokens = run({{texts}})
# A word has the label of its first token.
print([token for token in tokens if not token["word"].startswith("##")])
""",
    "ElectraForSequenceClassification": f"""{_PIPELINE}\
print(run({{inputs}}, truncation=True{{options}}))
""",
    "ElectraForQuestionAnswering": f"""{_CLASS}\
in_text = torch.tensor([part == 1 for part in inputs.sequence_ids()])
scores = output.start_logits[0, :, None] + output.end_logits[0]
scores[~(in_text[:, None] & in_text).triu()] = -torch.inf
start, end = divmod(int(scores.argmax()), len(scores))
print(tokenizer.decode(inputs["input_ids"][0, start : end + 1]))
""",
    "ElectraModel": f"""{_CLASS}\
print(output.last_hidden_state.shape)  # texts, tokens, width
""",
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
    from huggingface_hub import ModelCardData  # reads the environment, and is slow

    shape, length = network.shape, stored.trained_length
    task = _TASKS.get(architecture)
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=task,
        tags=["electra", "electra-tf"],
    )
    pair = f'{{"text": {_ONE}, "text_pair": {_TWO}}}'
    is_qa = architecture == "ElectraForQuestionAnswering"
    all_labels = network.problem_type == "multi_label_classification"
    return _CARD.format(
        front_matter=data.to_yaml(),
        name=stored.name,
        architecture=architecture,
        does=_DOES[architecture],
        steps=f" after {stored.step:,} steps" if stored.step else "",
        program=_PROGRAMS[architecture].format(
            architecture=architecture,
            task=task,
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
