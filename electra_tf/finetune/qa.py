# SPDX-License-Identifier: Apache-2.0
"""Extractive question answering: SQuAD 1.1 and 2.0, and the sets of MRQA.

A document longer than a sequence is read through windows; example k's window w has the
eid 1000 * k + w, as in the original.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_tf.errors import UserError
from electra_tf.finetune import qa_decoding, qa_metrics
from electra_tf.finetune.task import FeatureSpec, HeadSpec, Scorer, Task, read_text
from electra_tf.storage.files import atomic_write
from electra_tf.text import packing

SQUAD = ("squad", "squadv1")
MRQA = ("newsqa", "naturalqs", "triviaqa", "searchqa")
WINDOWS_PER_EXAMPLE = 1000
_WHITE_SPACE = " \t\r\n\u202f"


class QAExample(NamedTuple):
    """A question on a document."""

    eid: int
    question_id: str
    question: str
    words: list[str]
    start: int | None  # of the answer, in words; None where there is none
    end: int | None
    answer: str
    is_impossible: bool


def split_words(text: str) -> tuple[list[str], list[int]]:
    """The words of a text, and for each character the word it is in or follows."""
    words: list[str] = []
    owners = []
    in_word = False
    for character in text:
        if character in _WHITE_SPACE:
            in_word = False
        elif in_word:
            words[-1] += character
        else:
            words.append(character)
            in_word = True
        owners.append(len(words) - 1)
    return words, owners


class QATask(Task):
    """A set of questions with answers that stand in a text."""

    head = HeadSpec("qa")

    def __init__(self, name, config, tokenizer):
        super().__init__(name, config, tokenizer)
        self.is_v2 = name == "squad"
        self.is_mrqa = name in MRQA
        self._tokens: tuple[list[str] | None, np.ndarray, np.ndarray] = (
            None,
            np.zeros(0),
            np.zeros(0),
        )

    def splits(self, kind: str) -> list[str]:
        """The test set is optional."""
        return [kind] if kind == "dev" or self.path(kind).is_file() else []

    def path(self, split: str) -> Path:
        """The file of a split."""
        ending = "jsonl" if self.is_mrqa else "json"
        return Path(self.config.raw_data_dir(self.name)) / f"{split}.{ending}"

    def paragraphs(self, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """(where it stands, paragraph) for each text with questions."""
        path = self.required(split)
        text = read_text(path)
        try:
            if self.is_mrqa:
                for number, line in enumerate(text.split("\n"), start=1):
                    found = json.loads(line) if line.strip() else {"header": {}}
                    if "header" not in found:
                        yield f"{path}, line {number}", found
                return
            for entry in json.loads(text)["data"]:
                for number, found in enumerate(entry["paragraphs"]):
                    title = entry.get("title", "?")
                    yield f"{path}, {title!r}, paragraph {number}", found
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path} is not in the form it should be: {error!r}"
            ) from None

    def examples(self, split: str) -> list[QAExample]:
        """All questions; in training only those whose answer is found in the text."""
        found: list[QAExample] = []
        for where, paragraph in self.paragraphs(split):
            try:
                found += self._questions(paragraph, split, where, len(found))
            except (KeyError, TypeError, IndexError) as error:
                raise UserError(
                    f"{where} is not in the form it should be: {error!r}"
                ) from None
        return found

    def _questions(self, paragraph, split, where, first) -> list[QAExample]:
        """The questions on one text; their eids count from `first`."""
        words, owners = split_words(paragraph["context"])
        key = "qid" if self.is_mrqa else "id"
        found = []
        for question in paragraph["qas"]:
            answer = self._answer(question, words, owners, split, where)
            if answer is not None:
                eid, text = first + len(found), question["question"]
                found.append(QAExample(eid, question[key], text, words, *answer))
        return found

    def _answer(self, question, words, owners, split, where):
        """(start, end, text, is impossible); None to leave the question out."""
        if split != "train":
            return None, None, "", False
        if self.is_v2 and question["is_impossible"]:
            return None, None, "", True
        if not question["detected_answers" if self.is_mrqa else "answers"]:
            self.bad(split, where, f"no answer to {question['question'][:40]!r}")
            return None
        if self.is_mrqa:
            answer = question["detected_answers"][0]
            first = answer["char_spans"][0][0]
        else:
            answer = question["answers"][0]
            first = answer["answer_start"]
        text = answer["text"]
        last = first + len(text) - 1
        reason = "is empty or reaches beyond its context"
        if 0 <= first <= last < len(owners):
            start, end = owners[first], owners[last]
            actual = " ".join(words[start : end + 1]).lower()
            if " ".join(text.split()).lower() in actual:
                return start, end, text, False
            reason = f"is not in its context, where {actual[:40]!r} stands"
        self.bad(split, where, f"the answer {text[:40]!r} {reason}")
        return None

    def feature_specs(self) -> tuple[FeatureSpec, ...]:
        """Where the answer is; in evaluation all 0."""
        names = ("eid", "start_positions", "end_positions", "is_impossible")
        return tuple(FeatureSpec(name, (), "int32") for name in names)

    def featurize(
        self, example: QAExample, is_training: bool
    ) -> Iterator[dict[str, Any]]:
        """[CLS] question [SEP] window [SEP] for each window."""
        query = self.tokenizer.encode(example.question)[: self.config.max_query_length]
        tokens, splits = self._document(example.words)
        answer = self._answer_tokens(example, tokens, splits) if is_training else None
        spans = self._windows(len(tokens), len(query))
        for number, (first, length) in enumerate(spans):
            start = end = 0
            if answer and first <= answer[0] and answer[1] < first + length:
                start, end = (place - first + len(query) + 2 for place in answer)
            window = tokens[first : first + length].tolist()
            yield packing.join(self.tokenizer.vocab, query, window)._asdict() | {
                "eid": WINDOWS_PER_EXAMPLE * example.eid + number,
                "start_positions": start,
                "end_positions": end,
                "is_impossible": int(example.is_impossible),
            }

    def _document(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of the words, and where each word's begin; kept for one document."""
        if self._tokens[0] is not words:
            self._tokens = (words, *self.tokenizer.tokenize_lines(words))
        return self._tokens[1:]

    def _answer_tokens(self, example, tokens, splits) -> tuple[int, int] | None:
        if example.is_impossible:
            return None
        start, end = int(splits[example.start]), int(splits[example.end + 1]) - 1
        answer = self.tokenizer.encode(example.answer)
        return qa_decoding.improve_span(tokens, start, end, answer)

    def _windows(self, count: int, query: int) -> list[tuple[int, int]]:
        """(start, length) of the windows on a document of `count` tokens."""
        room = self.config.max_seq_length - query - 3
        spans, start = [], 0
        while start < count:
            length = min(count - start, room)
            spans.append((start, length))
            if start + length == count:
                break
            start += min(length, self.config.doc_stride)
        return spans

    def windows(self, example: QAExample) -> list[qa_decoding.Window]:
        """What decoding must know of each window."""
        vocab = self.tokenizer.vocab
        _, splits = self._document(example.words)
        owners = np.repeat(np.arange(len(example.words)), np.diff(splits)).tolist()
        query = self.tokenizer.encode(example.question)[: self.config.max_query_length]
        spans = self._windows(len(owners), len(query))
        found = []
        for number, features in enumerate(self.featurize(example, False)):
            first, length = spans[number]
            offset = len(query) + 2
            places = range(first, first + length)
            found.append(
                qa_decoding.Window(
                    [vocab.tokens[i] for i in features["input_ids"]],
                    {p - first + offset: owners[p] for p in places},
                    {
                        p - first + offset: qa_decoding.is_max_context(spans, number, p)
                        for p in places
                    },
                )
            )
        return found

    def scorer(self, split: str) -> QAScorer:
        """By exact match and F1."""
        return QAScorer(self, split)

    def answers(self, split: str) -> dict[str, list[str]]:
        """Question -> right answers."""
        key = "qid" if self.is_mrqa else "id"
        return {
            question[key]: [
                answer if isinstance(answer, str) else answer["text"]
                for answer in question["answers"]
            ]
            for _, paragraph in self.paragraphs(split)
            for question in paragraph["qas"]
        }

    def write_predictions(self, split, scorer, directory, trial) -> list[str]:
        """Answers, n-best lists and null odds, in SQuAD's form."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        best = {
            question: [
                {"text": a.text, "probability": p, "start_logit": a.start_logit,
                 "end_logit": a.end_logit}
                for a, p in zip(
                    found,
                    qa_decoding.softmax([a.start_logit + a.end_logit for a in found]),
                    strict=True,
                )
            ]
            for question, found in scorer.nbest.items()
        }  # fmt: skip
        content = {"preds": scorer.predictions, "nbest": best}
        if self.is_v2:
            content["null_odds"] = scorer.null_odds
        paths = []
        for name, value in content.items():
            path = folder / f"{self.name}_{split}_{name}.json"
            atomic_write(path, json.dumps(value, indent=1) + "\n")
            paths.append(str(path))
        return paths


class QAScorer(Scorer):
    """Decodes windows to answers and compares them with the right ones."""

    _KEPT = (
        "answerable_logit",
        "start_top_index",
        "start_top_log_probs",
        "end_top_index",
        "end_top_log_probs",
    )

    def __init__(self, task: QATask, split: str):
        super().__init__()
        self._task, self._split = task, split
        self._outputs: dict[int, dict[str, Any]] = {}
        self._is_decoded = False
        self.nbest: dict[str, list[qa_decoding.Answer]] = {}
        self.predictions: dict[str, str] = {}
        self.null_odds: dict[str, float] = {}

    def update(self, outputs: dict[str, Any]) -> None:
        """Takes the head's outputs for one window."""
        kept = self._KEPT
        if not self._task.config.joint_prediction:
            kept = ("answerable_logit", "start_logits", "end_logits")
        self._outputs[int(outputs["eid"])] = {name: outputs[name] for name in kept}
        self._is_decoded = False

    def decode(self) -> None:
        """Finds the answers to all questions of the split."""
        if self._is_decoded:
            return
        config = self._task.config
        for example in self._task.examples(self._split):
            windows = self._task.windows(example)
            first = WINDOWS_PER_EXAMPLE * example.eid
            outputs = [self._outputs[first + i] for i in range(len(windows))]
            found = qa_decoding.nbest(
                windows,
                outputs,
                example.words,
                joint=config.joint_prediction,
                n_best_size=config.n_best_size,
                max_answer_length=config.max_answer_length,
                do_lower_case=config.do_lower_case,
            )
            best = found[0]
            if self._task.is_v2:
                best = next((a for a in found if a.text), best)
                self.null_odds[example.question_id] = self._null_odds(outputs, best)
            self.nbest[example.question_id] = found
            self.predictions[example.question_id] = best.text
        self._is_decoded = True

    def _null_odds(self, outputs, best: qa_decoding.Answer) -> float:
        """The lowest score of the windows, in float32 as the original has it."""
        if self._task.config.answerable_classifier:
            return min(float(output["answerable_logit"]) for output in outputs)
        null = min(
            np.float32(o["start_logits"][0]) + np.float32(o["end_logits"][0])
            for o in outputs
        )
        return float(null - np.float32(best.start_logit) - np.float32(best.end_logit))

    def get_results(self) -> list[tuple[str, float]]:
        """The official results."""
        self.decode()
        answers = self._task.answers(self._split)
        if self._task.is_v2:
            threshold = self._task.config.qa_na_threshold
            results = qa_metrics.evaluate_v2(
                answers, self.predictions, self.null_odds, threshold
            )
        else:
            results = qa_metrics.evaluate_v1(
                answers, self.predictions, skip_unanswered=self._task.is_mrqa
            )
        return list(results.items())

    @property
    def is_degenerate(self) -> bool:
        """Whether every question gets the same answer."""
        self.decode()
        return len(self.predictions) > 1 and len(set(self.predictions.values())) == 1
