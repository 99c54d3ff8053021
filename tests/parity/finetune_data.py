# SPDX-License-Identifier: Apache-2.0
"""Replays recordings of the original's fine-tuning data: readers, features, scorers.

golden/finetune/*/featurize.json, golden/finetune_readers and golden/scorers. Counts of
what differs are reported; scores within 1e-9 (1e-6 where a loss is a mean of float32).

On purpose different (docs/fine_tuning.md): the last sentence of a CoNLL file that ends
without a blank line is kept, the loss per word of tagging is not counted twice, F1 of
classification is scikit-learn's.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.finetune import classification, qa, qa_answers, tagging
from electra_tf.finetune.conll import tags_of
from electra_tf.finetune.registry import make_tasks
from electra_tf.finetune.task import truncate_pair
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import Vocabulary
from tests.parity.rows import Row, compare, equal, read_json, vocabulary

SCORE = 1e-9
LOSS = 1e-6


def replay(directory: str) -> Iterator[Row]:
    """Compares what one directory recorded."""
    if os.path.exists(os.path.join(directory, "featurize.json")):
        yield from _features(directory)
    if os.path.exists(os.path.join(directory, "glue_readers.json")):
        yield from _readers(directory)
    if os.path.exists(os.path.join(directory, "qa_nbest.json")):
        yield from _classification_scores(read_json(directory, "classification.json"))
        yield from _tagging_scores(read_json(directory, "tagging.json"))
        yield from _text_metrics(read_json(directory, "squad_text_metrics.json"))
        yield from _qa_helpers(directory)
        yield from _qa_decoding(directory)


def _task(name: str, data: str, hparams: dict[str, Any], vocab: Vocabulary):
    """A task on the files in `data`, which the recording left out bad lines of."""
    with tempfile.TemporaryDirectory() as folder:
        hparams = hparams | {"task_names": [name], "vocab_size": 1000}
        hparams["on_bad_example"] = "skip"
        config = FinetuningConfig.from_hparams(folder, "parity", hparams)
        object.__setattr__(config, "raw_data_dir", lambda _: data)
        return make_tasks(config, vocab)[0]


def _differing(task, found: dict[str, Any], golden: dict[str, Any]) -> int:
    """The number of features that are not the recorded ones."""
    count = 0
    for key, theirs in golden.items():
        name = key.removeprefix(f"{task.name}_")
        if name in ("task_id", "doc_span_index"):
            continue
        ours = [1] * len(found["input_ids"]) if name == "input_mask" else found[name]
        if isinstance(theirs, list):
            ours = list(ours) + [0] * (len(theirs) - len(ours))
        if isinstance(theirs, float):
            count += abs(ours - theirs) > 1e-12
        else:
            count += ours != theirs
    return count


def _features(directory: str) -> Iterator[Row]:
    described = read_json(directory, "config.json")
    name = described["task"]
    raw = os.path.join(os.path.dirname(os.path.abspath(directory)), "raw", name)
    task = _task(name, raw, described["hparams"], vocabulary(directory))
    for split, recorded in read_json(directory, "featurize.json").items():
        examples = task.examples(split)
        tagged = isinstance(task, tagging.TaggingTask)
        lost = tagged and _ends_in_a_sentence(task.path(split))
        yield Row(f"examples/{split}", len(examples) - len(recorded) - lost, 0.0)
        for number, (example, golden) in enumerate(
            zip(examples, recorded, strict=False)
        ):
            found = list(task.featurize(example, split == "train"))
            theirs = golden["features"]
            if isinstance(task, qa.QATask):
                where = f"features/{split}/{number}/words"
                words = task.document(example.context).words
                yield equal(where, words, golden["doc_tokens"])
                for ours, window in zip(found, _windows(task, example), strict=True):
                    ids = ours["input_ids"]
                    ours["tokens"] = task.tokenizer.convert_ids_to_tokens(ids)
                    ours |= window
            else:
                theirs = [theirs]
            count = len(found) != len(theirs)
            for ours, window in zip(found, theirs, strict=False):
                count += _differing(task, ours, window)
            yield Row(f"features/{split}/{number}", float(count), 0.0)


def _ends_in_a_sentence(path: Path) -> bool:
    """Whether the original loses the last sentence: no blank line ends it."""
    text = path.read_text(encoding="utf-8").removesuffix("\n")
    words = text.split("\n")[-1].split()
    return bool(words) and words[0] != "-DOCSTART-"


def _windows(task, example) -> Iterator[dict[str, Any]]:
    """The words of the tokens, and whether no other window shows more around them.

    JSON has no whole numbers as keys.
    """
    windows, document = task.windows(example), task.document(example.context)
    shown = [window.places for window in windows]
    for number, (places, shift) in enumerate(windows):
        words = {str(p + shift): document.word_of(p) for p in places}
        most = (qa_answers.is_max_context(shown, number, p) for p in places)
        most = dict(zip(words, most, strict=True))
        yield {"token_to_orig_map": words, "token_is_max_context": most}


def _readers(directory: str) -> Iterator[Row]:
    vocab = vocabulary(directory)
    for number, case in enumerate(read_json(directory, "glue_readers.json")):
        name, split = case["task"], case["split"]
        hparams = {"double_unordered": case["double_unordered"], "max_seq_length": 16}
        data = os.path.join(directory, "raw_glue", name)
        task = _task(name, data, hparams, vocab)
        where = f"readers/{number}_{name}_{split}"
        examples = [e._asdict() for e in task.examples(split)]
        theirs = case["examples"]
        for ours, golden in zip(examples, theirs, strict=False):
            expected = golden | {"label": str(golden["label"])}
            ours = {name: ours[name] for name in expected}
            yield equal(f"{where}/{golden['eid']}", ours, expected)
        yield Row(f"{where}/count", abs(len(examples) - len(theirs)), 0.0)
        for example, golden in zip(
            task.examples(split), case["features"], strict=False
        ):
            (found,) = task.featurize(example, split == "train")
            count = _differing(task, found, golden)
            yield Row(f"{where}/features", float(count), 0.0)
        if case["label_list"] is not None:
            yield equal(f"{where}/labels", list(task.labels), case["label_list"])
        yield equal(f"{where}/test_splits", task.splits("test"), case["test_splits"])
    for number, case in enumerate(read_json(directory, "truncate_seq_pair.json")):
        a = [f"a{i}" for i in range(case["len_a"])]
        b = [f"b{i}" for i in range(case["len_b"])]
        cut = truncate_pair(a, b, case["max_length"])
        yield equal(f"truncate/{number}", cut, (case["a"], case["b"]))


def _scores(name: str, scorer, golden, skip: tuple[str, ...] = ()) -> Iterator[Row]:
    """Values and order of a scorer's results."""
    ours = scorer.get_results()
    order = [metric for metric, _ in golden]
    yield equal(f"{name}/order", [metric for metric, _ in ours], order)
    for (metric, value), (_, theirs) in zip(ours, golden, strict=False):
        if metric not in skip:
            tolerance = LOSS if metric == "loss" else SCORE
            yield compare(f"{name}/{metric}", value, theirs, atol=tolerance)


def _classification_scores(golden) -> Iterator[Row]:
    for case in golden["classification"]:
        for metric, name in (("accuracy", "AccuracyScorer"), ("mcc", "MCCScorer")):
            scorer = classification.ClassificationScorer(metric)
            for row in zip(
                case["label_ids"], case["predictions"], case["loss"], strict=True
            ):
                names = ("label_ids", "predictions", "loss")
                scorer.update(dict(zip(names, row, strict=True)))
            recorded = case["results"][name]
            yield from _scores(f"classification/{case['name']}", scorer, recorded)
    for case in golden["regression"]:
        scorer = classification.RegressionScorer()
        for row in zip(case["targets"], case["predictions"], case["loss"], strict=True):
            names = ("targets", "predictions", "loss")
            row = map(np.float32, row)  # as the model gives them
            scorer.update(dict(zip(names, row, strict=True)))
        # A correlation with a constant is recorded as nan; ours is 0, and flagged.
        skip = tuple(name for name, value in case["results"] if value == "nan")
        flag = f"regression/{case['name']}/flag"
        yield equal(flag, scorer.is_degenerate, bool(skip))
        yield from _scores(f"regression/{case['name']}", scorer, case["results"], skip)


def _tagging_scores(golden) -> Iterator[Row]:
    for number, case in enumerate(golden["get_span_labels"]):
        spans = [list(span) for span in tagging.spans_of(case["tags"])]
        yield equal(f"spans/{number}", spans, case["spans"])
    for number, case in enumerate(golden["get_tags"]):
        if case["encoding"] == "BIOES":
            tags = tags_of([tuple(s) for s in case["spans"]], case["length"])
            yield equal(f"tags/{number}", tags, case["tags"])
    for number, case in enumerate(golden["entity_f1"]):
        mapping = case["label_mapping"]
        scorer = tagging.SpanScorer(sorted(mapping, key=mapping.get))
        for sentence in case["sentences"]:
            scorer.update(sentence)
        yield from _scores(f"span_f1/{number}", scorer, case["results"], ("loss",))
        loss = dict(case["results"])["loss"] / 2  # the original counts it twice
        ours = dict(scorer.get_results())["loss"]
        yield compare(f"span_f1/{number}/loss", ours, loss, atol=LOSS)


def _text_metrics(golden) -> Iterator[Row]:
    v1, v2 = (functools.partial(qa_answers.f1, empty_counts=x) for x in (False, True))
    functions = {"v2_f1": v2, "v1_f1": v1, "mrqa_f1": v1}
    functions |= {f"{name}_exact": qa_answers.exact for name in ("v2", "v1", "mrqa")}
    for number, pair in enumerate(golden["pairs"]):
        ours = qa_answers.normalize(pair["gold"])
        yield equal(f"text/{number}/normalized", ours, pair["normalized_gold"])
        for name, function in functions.items():
            ours = function(pair["gold"], pair["pred"])
            yield compare(f"text/{number}/{name}", ours, pair[name], atol=SCORE)
    for kind in ("v2", "v1"):
        for number, case in enumerate(golden[f"{kind}_datasets"]):
            answers = {
                question["id"]: [answer["text"] for answer in question["answers"]]
                for entry in case["dataset"]
                for paragraph in entry["paragraphs"]
                for question in paragraph["qas"]
            }
            if kind == "v2":
                threshold = case["na_prob_thresh"]
                ours = qa_answers.evaluate_v2(
                    answers, case["predictions"], case["na_probs"], threshold
                )
            else:
                ours = qa_answers.evaluate_v1(answers, case["predictions"])
            yield from _official(f"{kind}/{number}", ours, case["results"])
    for number, case in enumerate(golden["mrqa"]):
        ours = qa_answers.evaluate_v1(
            case["answers"], case["predictions"], case["skip_no_answer"]
        )
        yield from _official(f"mrqa/{number}", ours, case["results"])


def _official(name: str, ours, golden) -> Iterator[Row]:
    golden = dict(golden)
    yield equal(f"{name}/names", set(ours), set(golden))
    for metric in golden:
        value = ours.get(metric, np.nan)
        yield compare(f"{name}/{metric}", value, golden[metric], atol=SCORE)


def _qa_helpers(directory: str) -> Iterator[Row]:
    golden = read_json(directory, "qa_helpers.json")
    tokenizer = Tokenizer(vocabulary(directory))

    def rows(name: str, function) -> Iterator[Row]:
        for number, case in enumerate(golden[name]):
            yield equal(f"{name}/{number}", function(case), case["result"])

    yield from rows(
        "get_final_text",
        lambda c: qa_answers.final_text(
            c["pred_text"], c["orig_text"], c["do_lower_case"]
        ),
    )
    yield from rows(
        "get_best_indexes",
        lambda c: qa_answers.best_indexes(c["logits"], c["n_best_size"]),
    )
    yield from rows(
        "check_is_max_context",
        lambda c: [
            [
                qa_answers.is_max_context(
                    [range(first, first + count) for first, count in c["doc_spans"]],
                    i,
                    place,
                )
                for place in range(len(row))
            ]
            for i, row in enumerate(c["result"])
        ],
    )
    yield from rows(
        "improve_answer_span",
        lambda c: list(
            qa_answers.improve_span(
                c["doc_tokens"],
                c["input_start"],
                c["input_end"],
                tokenizer.tokenize(c["orig_answer_text"]),
            )
        ),
    )
    for number, case in enumerate(golden["compute_softmax"]):
        ours = qa_answers.softmax(case["scores"])
        yield compare(f"softmax/{number}", ours, case["probs"], atol=1e-12)
    for number, (character, is_space) in enumerate(golden["is_whitespace"]):
        words, _ = qa.split_words(f"a{character}b")
        yield equal(f"white_space/{number}", len(words) > 1, is_space)


def _qa_decoding(directory: str) -> Iterator[Row]:
    inputs = np.load(os.path.join(directory, "qa_nbest_inputs.npz"))
    vocab = vocabulary(directory)
    for variant, case in read_json(directory, "qa_nbest.json").items():
        data = os.path.join(directory, "qa_data", case["task"])
        task = _task(case["task"], data, case["hparams"], vocab)
        scorer = task.scorer("dev")
        prefix = f"{variant}/"
        arrays = {
            key.removeprefix(prefix): inputs[key]
            for key in inputs.files
            if key.startswith(prefix)
        }
        for row in range(len(arrays["eid"])):
            scorer.update({name: array[row] for name, array in arrays.items()})
        yield from _scores(f"decoding/{variant}", scorer, case["results"])
        name = f"decoding/{variant}/predictions"
        yield equal(name, scorer.predictions, case["predictions"])
        for question, odds in case["null_odds"].items():
            ours = scorer.null_odds[question]
            yield compare(f"decoding/{variant}/null_odds", ours, odds, atol=SCORE)
        for question, theirs in case["nbest"].items():
            found = scorer.decoded[question].nbest
            name, texts = (
                f"decoding/{variant}/nbest/{question}",
                [a.text for a in found],
            )
            yield equal(name, texts, [b["text"] for b in theirs])
            ours = qa_answers.softmax([a.start_logit + a.end_logit for a in found])
            golden = [b["probability"] for b in theirs]
            yield compare(f"decoding/{variant}/probability", ours, golden, atol=1e-6)
