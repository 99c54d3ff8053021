# SPDX-License-Identifier: Apache-2.0
"""Extractive question answering: SQuAD 1.1 and 2.0, and the sets of MRQA.

A document longer than a sequence is read through windows; example k's window w has the
eid 1000 * k + w, as in the original.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune import inputs, qa_decoding, question_inputs
from electra_tf.finetune.inputs import Asked, Source, shown
from electra_tf.finetune.qa_scorer import (
    WINDOWS_PER_EXAMPLE,
    Answers,
    QAScorer,
    decode,
)
from electra_tf.finetune.task import (
    FeatureSpec,
    HeadSpec,
    Task,
    rounded,
    write_jsonl,
)
from electra_tf.storage.files import atomic_write
from electra_tf.text import packing

SQUAD = ("squad", "squadv1")
MRQA = ("newsqa", "naturalqs", "triviaqa", "searchqa")
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
    context: str = ""
    first: int = 0  # the answer's first character in the context
    answers: tuple[str, ...] = ()  # all right ones, to score by


class _Document(NamedTuple):
    """A context in tokens."""

    words: list[str]
    tokens: np.ndarray
    splits: np.ndarray  # where each word's tokens begin, and an end
    starts: list[int]  # the first character of each word
    offsets: dict[int, list[tuple[int, int]]]  # of a word's tokens, where looked up


def check_window(config: FinetuningConfig) -> None:
    """Raises a UserError where a long question leaves no room for a text."""
    longest = config.max_seq_length - 4
    if config.max_query_length > longest:
        raise UserError(
            f"max_query_length {config.max_query_length} leaves no room for a text in "
            f"max_seq_length {config.max_seq_length}.\nSet max_query_length to "
            f"{longest} or less, better to a quarter of it, or raise max_seq_length."
        )
    name = "beam_size" if config.joint_prediction else "n_best_size"
    if getattr(config, name) > config.max_seq_length:
        raise UserError(
            f"{name} {getattr(config, name)} is more than the tokens of a sequence "
            f"(max_seq_length {config.max_seq_length})."
        )
    short = min(config.length_buckets or [config.max_seq_length])
    if config.joint_prediction and config.beam_size > short:
        raise UserError(
            f"beam_size {config.beam_size} is more than the tokens of a sequence of "
            f"length_buckets ({short})."
        )


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


# All questions on a text share its words.
_words_of = functools.lru_cache(maxsize=1)(split_words)


class QATask(Task):
    """A set of questions with answers that stand in a text.

    Attributes:
      answer_text: how the text of an answer is found: "original" or "offsets".
    """

    reads = "questions"
    head = HeadSpec("qa")
    main_metric = "f1"
    answer_text = "original"

    def __init__(self, name, config, tokenizer):
        super().__init__(name, config, tokenizer)
        check_window(config)
        self.is_v2 = name == "squad"
        self.is_mrqa = name in MRQA
        self.answer_text = config.answer_text or self.answer_text
        self._last: _Document | None = None

    def feature_settings(self) -> dict[str, Any]:
        """Where answers stand depends on how their text is found."""
        return super().feature_settings() | {"answer_text": self.answer_text}

    def splits(self, kind: str) -> list[str]:
        """The test set is optional."""
        return [kind] if kind == "dev" or self.path(kind).is_file() else []

    def path(self, split: str) -> Path:
        """The file of a split."""
        folder = Path(self.config.raw_data_dir(self.name))
        names = [f"{split}.json"]
        if self.is_mrqa:
            names = [f"{split}.jsonl", f"{split}.jsonl.gz"]
        elif not (folder / names[0]).is_file():
            names.append(inputs.parquet_name(folder, split))
        there = (folder / name for name in names if (folder / name).is_file())
        return next(there, folder / names[0])

    def paragraphs(self, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """(where it stands, paragraph) for each text with questions."""
        return question_inputs.paragraphs(Source.of(self.required(split)))

    def examples(self, split: str) -> list[QAExample]:
        """All questions; in training only those whose answer is found in the text."""
        found: list[QAExample] = []
        seen: set[str] = set()
        for where, paragraph in self.paragraphs(split):
            try:
                questions = self._questions(paragraph, split, where, len(found))
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise UserError(
                    f"{where} is not in the form it should be: {error!r}"
                ) from None
            for question in questions:
                # An answer is known by its question's id alone.
                if split != "train" and question.question_id in seen:
                    raise UserError(
                        f"{where}: the question id {shown(question.question_id)} is "
                        "there twice.\nGive each question an id of its own."
                    )
                seen.add(question.question_id)
            found += questions
        return found

    def _questions(self, paragraph, split, where, first) -> list[QAExample]:
        """The questions on one text; their eids count from `first`."""
        context = paragraph["context"]
        words, owners = _words_of(context)
        found = []
        for question in paragraph["qas"]:
            text = question["question"]
            if not isinstance(text, str):
                self.bad(split, where, f"the question is {shown(text)}, not a text")
                continue
            answer = self._answer(question, words, owners, split, where)
            if answer is not None:
                eid, key = first + len(found), "qid" if "qid" in question else "id"
                name = str(question[key])
                place, *answer = answer
                right = self._right_answers(question) if split == "dev" else ()
                found.append(
                    QAExample(eid, name, text, words, *answer, context, place, right)
                )
        return found

    def _right_answers(self, question) -> tuple[str, ...]:
        """Those that a prediction is compared with."""
        if self.is_v2 and question.get("is_impossible") and "answers" not in question:
            return ()
        return tuple(a if isinstance(a, str) else a["text"] for a in _answers(question))

    def _answer(self, question, words, owners, split, where):
        """(first character, start, end, text, is impossible); None leaves it out."""
        if split != "train":
            return 0, None, None, "", False
        has_none = not question.get("answers") or not _answers(question)
        if self.is_v2 and question.get("is_impossible", has_none):
            return 0, None, None, "", True
        is_mrqa = "detected_answers" in question
        answers = _answers(question, "detected_answers" if is_mrqa else "answers")
        if not answers:
            self.bad(split, where, f"no answer to {question['question'][:40]!r}")
            return None
        answer = answers[0]
        first = answer["char_spans"][0][0] if is_mrqa else answer["answer_start"]
        text = answer["text"]
        last = first + len(text) - 1
        reason = "is empty or reaches beyond its context"
        if 0 <= first <= last < len(owners):
            start, end = owners[first], owners[last]
            actual = " ".join(words[start : end + 1])
            if self._is_in(text, actual):
                return first, start, end, text, False
            reason = f"is not in its context, where {actual[:40]!r} stands"
        self.bad(split, where, f"the answer {text[:40]!r} {reason}")
        return None

    def _is_in(self, answer: str, actual: str) -> bool:
        """By the original's rule, else as the tokenizer sees both."""
        if " ".join(answer.split()).lower() in actual.lower():
            return True
        seen = (" ".join(self.tokenizer.basic_tokenize(x)) for x in (answer, actual))
        ours, theirs = seen
        return bool(ours) and ours in theirs

    def feature_specs(self) -> tuple[FeatureSpec, ...]:
        """Where the answer is; in evaluation all 0."""
        names = ("eid", "start_positions", "end_positions", "is_impossible")
        return tuple(FeatureSpec(name, (), "int32") for name in names)

    def featurize(
        self, example: QAExample, is_training: bool
    ) -> Iterator[dict[str, Any]]:
        """[CLS] question [SEP] window [SEP] for each window."""
        query, document, spans = self._layout(example)
        answer = self._answer_tokens(example, document) if is_training else None
        for number, (first, length) in enumerate(spans):
            start = end = 0
            if answer and first <= answer[0] and answer[1] < first + length:
                start, end = (place - first + len(query) + 2 for place in answer)
            window = document.tokens[first : first + length].tolist()
            yield packing.join(self.tokenizer.vocab, query, window)._asdict() | {
                "eid": WINDOWS_PER_EXAMPLE * example.eid + number,
                "start_positions": start,
                "end_positions": end,
                "is_impossible": int(example.is_impossible),
            }

    def _layout(self, example: QAExample):
        """(tokens of the question, its document, windows on that)."""
        query = self.tokenizer.encode(example.question)[: self.config.max_query_length]
        document = self._document(example)
        return query, document, self._windows(len(document.tokens), len(query))

    def _document(self, example: QAExample) -> _Document:
        """The context in tokens; the last one is kept, for its other questions."""
        words = example.words
        if self._last is None or self._last.words is not words:
            tokens, splits = self.tokenizer.tokenize_lines(words)
            starts, at = [], 0
            for word in words:
                at = example.context.find(word, at)
                starts.append(at)
                at += len(word)
            self._last = _Document(words, tokens, splits, starts, {})
        return self._last

    def _answer_tokens(self, example, document) -> tuple[int, int] | None:
        if example.is_impossible:
            return None
        splits = document.splits
        if self.answer_text == "offsets":
            end = example.first + len(example.answer)
            there = [
                token
                for token in range(splits[example.start], splits[example.end + 1])
                for first, last in [self._characters(document, token)]
                if first < end and last > example.first
            ]
            return (there[0], there[-1]) if there else None
        start, end = int(splits[example.start]), int(splits[example.end + 1]) - 1
        answer = self.tokenizer.encode(example.answer)
        return qa_decoding.improve_span(document.tokens, start, end, answer)

    def _characters(self, document: _Document, token: int) -> tuple[int, int]:
        """Where a token stands in the context: its first character and its end."""
        word = int(np.searchsorted(document.splits, token, side="right")) - 1
        if word not in document.offsets:
            _, offsets = self.tokenizer.encode_with_offsets(document.words[word])
            document.offsets[word] = offsets
        first, end = document.offsets[word][token - int(document.splits[word])]
        return document.starts[word] + first, document.starts[word] + end

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
        if len(spans) > WINDOWS_PER_EXAMPLE:
            raise UserError(
                f"{self.name}: a text of {count:,} tokens has {len(spans):,} windows; "
                f"{WINDOWS_PER_EXAMPLE:,} can be told apart.\nRaise doc_stride "
                f"({self.config.doc_stride}) or max_seq_length "
                f"({self.config.max_seq_length}), or part the text."
            )
        return spans

    def windows(self, example: QAExample) -> list[qa_decoding.Window]:
        """What decoding must know of each window."""
        vocab = self.tokenizer.vocab
        query, document, spans = self._layout(example)
        splits = document.splits
        owners = np.repeat(np.arange(len(example.words)), np.diff(splits)).tolist()
        found = []
        for number, (first, length) in enumerate(spans):
            shift = len(query) + 2 - first
            places = range(first, first + length)
            row = packing.join(vocab, query, document.tokens[places].tolist())
            found.append(
                qa_decoding.Window(
                    [vocab.tokens[i] for i in row.input_ids],
                    {p + shift: owners[p] for p in places},
                    {
                        p + shift: qa_decoding.is_max_context(spans, number, p)
                        for p in places
                    },
                    shift,
                )
            )
        return found

    def text_of(self, example: QAExample) -> qa_decoding.TextOf:
        """What finds the text of a span of a window on this example's document."""
        if self.answer_text == "original":
            return qa_decoding.original_text(example.words, self.tokenizer.config)
        document = self._document(example)

        def by_offsets(window: qa_decoding.Window, start: int, end: int) -> str:
            first, _ = self._characters(document, start - window.shift)
            _, last = self._characters(document, end - window.shift)
            return example.context[first:last]

        return by_offsets

    def scorer(self, split: str) -> QAScorer:
        """By exact match and F1."""
        return QAScorer(self, split)

    def answers(self, split: str) -> dict[str, list[str]]:
        """Question -> right answers."""
        return {e.question_id: list(e.answers) for e in self.read(split)}

    def asked(self, source: Source) -> Iterator[Asked]:
        """Questions on texts."""
        return question_inputs.questions(source)

    def example_of(self, number: int, given: dict[str, Any]) -> QAExample:
        """Without answers."""
        question, context = given["question"], given["context"]
        words, _ = _words_of(context)
        name = str(given.get("id", number))
        return QAExample(number, name, question, words, None, None, "", False, context)

    def told(self, example: QAExample, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The answer as it stands in the text, and where, by characters."""
        return self._told(example, decode(self, example, rows))

    def _told(self, example: QAExample, found: Answers) -> dict[str, Any]:
        scores = [a.start_logit + a.end_logit for a in found.nbest]
        best = found.nbest.index(found.best)
        start = end = None
        if found.best.tokens:
            document = self._document(example)
            start, _ = self._characters(document, found.best.tokens[0])
            _, end = self._characters(document, found.best.tokens[1])
        told = {
            "answer": example.context[start:end] if found.best.tokens else "",
            "start": start,
            "end": end,
            "score": rounded(scores[best]),
            "probability": rounded(qa_decoding.softmax(scores)[best]),
        }
        if self.is_v2:
            has = found.null_odds <= self.config.qa_na_threshold
            told |= {"null_odds": rounded(found.null_odds), "has_answer": has}
        return told

    def write_predictions(self, split, scorer, directory, trial) -> list[str]:
        """Answers, n-best lists and null odds in SQuAD's form; JSONL as `told` is.

        Of 2.0 also the answers to submit: those whose null odds are low enough.
        """
        folder = Path(directory)
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
            content["submission"] = scorer.submitted
        paths = []
        for name, value in content.items():
            path = folder / f"{self.name}_{split}_{name}.json"
            atomic_write(path, json.dumps(value, indent=1) + "\n")
            paths.append(str(path))
        rows = []
        for example in self.read(split):
            asked = {"question": example.question, "context": example.context}
            right = {"correct": list(example.answers)} if split == "dev" else {}
            told = self._told(example, scorer.decoded[example.question_id])
            rows.append({"id": example.question_id} | asked | told | right)
        return [*paths, write_jsonl(folder / f"{self.name}_{split}.jsonl", rows)]


def _answers(question: dict[str, Any], name: str = "answers") -> list[Any]:
    """The answers to a question; Hugging Face has them as a table."""
    found = question[name]
    if not isinstance(found, dict):
        return found
    columns = (found["text"], found.get("answer_start") or [-1] * len(found["text"]))
    pairs = zip(*columns, strict=True)
    return [{"text": text, "answer_start": start} for text, start in pairs]
