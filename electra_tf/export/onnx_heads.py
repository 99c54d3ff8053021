# SPDX-License-Identifier: Apache-2.0
"""What stands on the encoder, as ONNX graphs: heads of pre-training and of tasks.

Each adds the nodes on the states [B, L, H]; the names of the outputs, which are those
of the signature `ids` of the SavedModels, are returned.

Shapes: B batch, L length, H hidden width, N masked positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.export import finetuned
from electra_tf.export.inputs import NAMES
from electra_tf.export.onnx_graph import Graph, encode
from electra_tf.finetune.heads import IMPOSSIBLE_POSITION
from electra_tf.interop.networks import ENCODER
from electra_tf.interop.stored_model import DISCRIMINATOR_HEAD, GENERATOR_HEAD

POSITIONS = "masked_lm_positions"

Head = Callable[[Graph, str], list[str]]


def encoder(graph: Graph, hidden: str) -> list[str]:
    """The states, and that at [CLS] [B, H]."""
    graph.op("Identity", hidden, output="sequence_output")
    graph.at_cls(hidden, "pooled_output")
    return ["sequence_output", "pooled_output"]


def _energies(graph: Graph, hidden: str) -> str:
    dense = graph.activation(graph.dense(hidden, f"{DISCRIMINATOR_HEAD}dense"))
    return graph.squeeze(graph.dense(dense, f"{DISCRIMINATOR_HEAD}dense_1"), 2)


def detector(graph: Graph, hidden: str) -> list[str]:
    """Logits of "replaced" and their probabilities [B, L]."""
    logits = graph.op("Identity", _energies(graph, hidden), output="logits")
    return [logits, graph.op("Sigmoid", logits, output="probabilities")]


def scorer(graph: Graph, hidden: str) -> list[str]:
    """Electric's scores of the tokens [B, L], 0 at padding."""
    real = graph.op("Cast", NAMES[1], to=1)
    scores = graph.op("Neg", _energies(graph, hidden))
    return [graph.op("Mul", scores, real, output="token_scores")]


def electric_detector(config: PretrainingConfig) -> Head:
    """`detector` with the noise's log q and prior (see `objectives.Electric`)."""
    prior = math.log(config.mask_prob / (1 - config.mask_prob))
    log_q = {"two_tower": _log_q_of_towers, "unigram": _log_q_of_counts}

    def logits(graph: Graph, hidden: str) -> list[str]:
        op, net = graph.op, _energies(graph, hidden)
        noise = log_q[config.generator](graph, config)
        noise = op("Add", noise, graph.constant(prior, np.float32))
        found = op("Add", net, noise, output="logits")
        return [found, op("Sigmoid", found, output="probabilities")]

    return logits


def _log_q_of_towers(graph: Graph, config: PretrainingConfig) -> str:
    """Of each token by what is before and after it (see `TwoTowerGenerator`)."""
    op, constant = graph.op, graph.constant
    shape, ends = config.generator_config(), constant([2**31])

    def states(direction):
        return encode(graph, shape, f"generator_{direction}/", direction)

    def part(x, first, last):
        return op("Slice", x, constant([first]), last, constant([1]))

    before, after = states("ltr"), states("rtl")
    before = part(before, -1, ends), part(before, 0, constant([-1]))
    after = part(after, 1, ends), part(after, 0, constant([1]))
    both = [op("Concat", *halves, axis=1) for halves in (before, after)]
    own = "generator_ltr/embeddings/word_embeddings"
    table = own if own in graph.tensors else f"{ENCODER}embeddings/word_embeddings"
    scores = _vocabulary_scores(
        graph, op("Concat", *both, axis=-1), "cloze_predictions/", table
    )
    ids = op("Unsqueeze", op("Cast", NAMES[0], to=7), constant([2]))
    log_q = op("GatherElements", op("LogSoftmax", scores, axis=-1), ids, axis=2)
    return graph.squeeze(log_q, 2)


def _log_q_of_counts(graph: Graph, config: PretrainingConfig) -> str:
    """Of each token by how often it is in the data (see `UnigramGenerator`)."""
    del config
    counts = np.asarray(graph.tensors["unigram_generator/token_counts"], np.float32)
    table = np.log(np.maximum(counts, 1)) - np.log(counts.sum())
    return graph.op("Gather", graph.constant(table, np.float32), NAMES[0])


def generator(graph: Graph, hidden: str) -> list[str]:
    """Scores of all tokens at the masked positions [B, N, V]."""
    states = _states_at(graph, hidden, POSITIONS)
    table = f"{ENCODER}embeddings/word_embeddings"
    scores = _vocabulary_scores(graph, states, GENERATOR_HEAD, table)
    return [graph.op("Identity", scores, output="mlm_logits")]


def _states_at(graph: Graph, hidden: str, positions: str) -> str:
    """The states [B, N, H] at positions [B, N]."""
    places = graph.op("Unsqueeze", positions, graph.constant([2]))
    places = graph.op("Cast", places, to=7)
    return graph.op("GatherND", hidden, places, batch_dims=1)


def _vocabulary_scores(graph: Graph, states: str, head: str, table: str) -> str:
    """Scores of all tokens by a head like a masked language model's [B, N, V]."""
    states = graph.activation(graph.dense(states, f"{head}dense"))
    states = graph.norm(states, f"{head}LayerNorm")
    columns = graph.op("Transpose", graph.weight(table))
    scores = graph.op("MatMul", states, columns)
    return graph.op("Add", scores, graph.weight(f"{head}output_bias"))


def of_task(task: finetuned.ExportedTask) -> Head:
    """The head of a classifier, a regression, a tagger or of question answering."""
    facts, name = task.facts, f"task_specific/{task.facts.name}/dense"

    def labels(graph: Graph, hidden: str) -> list[str]:
        op = graph.op
        states = hidden if facts.kind == "tagging" else graph.at_cls(hidden)
        logits = op("Identity", graph.dense(states, name), output="logits")
        if facts.kind == "multilabel":
            return [logits, op("Sigmoid", logits, output="probabilities")]
        return [logits, op("Softmax", logits, axis=-1, output="probabilities")]

    def number(graph: Graph, hidden: str) -> list[str]:
        op = graph.op
        share = graph.squeeze(graph.dense(graph.at_cls(hidden), name), 1)
        ends = (graph.constant(value, np.float32) for value in (0, 1))
        share = op("Clip", share, *ends)
        width = graph.constant(facts.highest - facts.lowest, np.float32)
        lowest = graph.constant(facts.lowest, np.float32)
        return [op("Add", op("Mul", share, width), lowest, output="value")]

    if facts.kind == "qa":
        return _answers(task)
    return labels if facts.labels else number


def _answers(task: finetuned.ExportedTask) -> Head:
    """What `heads.QuestionAnsweringHead` gives when it is not trained."""
    config, scope = task.config, f"task_specific/{task.facts.name}/"
    # Layers are named in the order in which they are made.
    start, end, *others = (f"{scope}dense{n}" for n in ("", "_1", "_2", "_3"))

    def outputs(graph: Graph, hidden: str) -> list[str]:
        op, penalty = graph.op, _penalty(graph)
        starts = graph.squeeze(graph.dense(hidden, start), 2)
        starts = op("Add", starts, penalty, output="start_logits")
        names = [starts]
        if config.joint_prediction:
            names += _beams(
                graph, hidden, starts, penalty, scope, end, config.beam_size
            )
        else:
            ends = graph.squeeze(graph.dense(hidden, end), 2)
            names.append(op("Add", ends, penalty, output="end_logits"))
        if config.answerable_classifier:
            state, layers = graph.at_cls(hidden), iter(others)
            if config.answerable_uses_start_logits:
                weights = op("Unsqueeze", op("Softmax", starts), graph.constant([1]))
                expected = graph.squeeze(op("MatMul", weights, hidden), 1)
                both = op("Concat", state, expected, axis=-1)
                state = op("Gelu", graph.dense(both, next(layers)))
            logit = graph.dense(state, next(layers))
            names.append(graph.squeeze(logit, 1, "answerable_logit"))
        return names

    return outputs


def _penalty(graph: Graph) -> str:
    """What keeps answers out of the question and the padding [B, L]."""
    op, constant = graph.op, graph.constant
    in_text = op("Cast", op("Mul", NAMES[1], NAMES[2]), to=1)
    length = op("Shape", NAMES[0], start=1, end=2)
    cls = op("OneHot", constant([0]), length, constant([0, 1], np.float32))
    outside = op("Sub", constant(1, np.float32), op("Add", in_text, cls))
    return op("Mul", outside, constant(IMPOSSIBLE_POSITION, np.float32))


def _beams(graph, hidden, starts, penalty, scope, end, count) -> list[str]:
    """The best starts and for each the best ends, with their log-probabilities."""
    op, constant = graph.op, graph.constant
    names = ["start_top_index", "start_top_log_probs"]
    names += ["end_top_index", "end_top_log_probs"]

    def best(logits, index, log_probs):
        most, where = graph.top(op("LogSoftmax", logits, axis=-1), count)
        op("Identity", most, output=log_probs)
        return op("Identity", where, output=index)

    states = _states_at(graph, hidden, best(starts, *names[:2]))
    # The layer sees start and end side by side: its product is a sum of two.
    kernel = graph.weight(f"{scope}qa_hidden/kernel")
    parts = [graph.new_name("Split"), graph.new_name("SplitEnd")]
    of_start, of_end = graph.ops("Split", kernel, outputs=parts, axis=0, num_outputs=2)
    of_start = op("MatMul", states, of_start)
    of_start = op("Add", of_start, graph.weight(f"{scope}qa_hidden/bias"))
    of_start = op("Unsqueeze", of_start, constant([2]))
    of_end = op("Unsqueeze", op("MatMul", hidden, of_end), constant([1]))
    pairs = op("Gelu", op("Add", of_start, of_end))
    scores = graph.squeeze(graph.dense(pairs, end), 3)
    best(op("Add", scores, op("Unsqueeze", penalty, constant([1]))), *names[2:])
    return names
