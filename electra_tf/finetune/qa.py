# SPDX-License-Identifier: Apache-2.0
"""Extractive question answering: SQuAD 1.1 and 2.0, and the sets of MRQA.

A document longer than a sequence is read through windows; example k's window w has the
eid 1000 * k + w, as in the original. From outputs to answers and scores: `qa_answers`.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_tf.errors import JSON_ERRORS, UserError
from electra_tf.finetune import inputs, qa_answers, task
from electra_tf.finetune.inputs import Input, Source, refuse, shown
from electra_tf.finetune.qa_answers import QAScorer
from electra_tf.storage.files import atomic_write
from electra_tf.text import tokenization
from electra_tf.text.unicode_classes import is_unspaced

SQUAD = ("squad", "squadv1")
MRQA = ("newsqa", "naturalqs", "triviaqa", "searchqa")
_FORMS = (
    'SQuAD\'s or MRQA\'s form, or rows with "context", "question" and "answers": '
    '{"text": [...], "answer_start": [...]}'
)
_TRUTHS = {"true": True, "false": False, "1": True, "0": False}
_WHITE_SPACE = " \t\r\n\u202f"
_NEAR = 5  # characters that normalising may take from an answer
_MOVED = "answers are not at their answer_start, but occur only once in their context"
_NO_ANSWER = (
    "questions have no answer and count as wrong; has_impossible of the task (or the "
    "task squad) is for such files"
)
_NO_BLANKS = (
    "answers are in a script without blanks, where F1 of words is exact match; "
    '"score_by": "characters" of the task scores them as CMRC 2018 does'
)

# A right answer, and where it begins in its context; None if unknown.
Answer = tuple[str, int | None]


def questions(source: Source) -> Iterator[Input]:
    """Questions to be answered, one by one."""
    return (one for one, _ in asked(entries(source), refuse))


def entries(source: Source) -> Iterator[tuple[str, Any]]:
    """(place, object with a context) for each."""
    for where, row in inputs.records(source, [("question", "context")]):
        if None in row:
            refuse(where, row[None])
        if isinstance(paragraphs := row.get("paragraphs"), list):
            where = f"{where}, {row.get('title', '?')!r}, paragraph "
            yield from ((f"{where}{i}", one) for i, one in enumerate(paragraphs))
        # MRQA's first line has a header and nothing else.
        elif "header" not in row or "context" in row:
            yield where, row


def asked(
    found: Iterable[tuple[str, Any]], bad: Callable[[str, str], None]
) -> Iterator[tuple[Input, Mapping[str, Any]]]:
    """All questions on texts, and the objects that their answers are in.

    Args:
      found: (place, object with a text and questions) for each.
      bad: is called with (where, what is wrong) for questions that cannot be used.

    Raises `UserError` for an object that is in none of the forms, naming its keys.
    """
    for where, entry in found:
        get = entry.get if isinstance(entry, Mapping) else {}.get
        context, qas = get("context"), get("qas", [entry])
        are_asked = isinstance(qas, list) and all(isinstance(x, Mapping) for x in qas)
        if not (are_asked and isinstance(context, str)):
            keys = ", ".join(entry) if isinstance(entry, Mapping) else shown(entry)
            raise UserError(
                f"{where}: no context (a text) with questions, but {keys:.200}.\n"
                f"Convert it to {_FORMS}."
            )
        for one in qas:
            text, name = one.get("question"), one.get("id", one.get("qid"))
            if isinstance(text, str):
                fields = {} if name is None else {"id": name}
                yield Input(where, fields | {"question": text, "context": context}), one
            else:
                keys = ", ".join(map(str, one))
                bad(where, f"the question is {shown(text)}, not a text; keys: {keys}")


def _answers(entry: Mapping[str, Any], name: str = "answers") -> list[Answer] | None:
    """SQuAD's list of objects, MRQA's of texts, or Hugging Face's object of lists.

    In a table its JSON, or the columns answer and answer_start. MRQA's detected_answers
    have spans, which end with their last character.
    """
    value = entry.get(name)
    if value is None and name == "answers" and "answer" in entry:
        value = [{"text": entry["answer"], "answer_start": entry.get("answer_start")}]
    if value is None:
        return None
    try:
        found = json.loads(value) if isinstance(value, str) else value
        if isinstance(found, Mapping):
            pairs = [*zip(found["text"], found["answer_start"], strict=True)]
        else:
            texts = [{"text": x} if isinstance(x, str) else x for x in found]
            spans = (x.get("char_spans", [[x.get("answer_start")]]) for x in texts)
            pairs = [(x["text"], s[0][0]) for x, s in zip(texts, spans, strict=True)]
        if all(isinstance(text, str) for text, _ in pairs):
            # pandas has 4.0 in columns with an empty cell.
            return [(t, None if s in (None, "") else int(float(s))) for t, s in pairs]
    except JSON_ERRORS:
        pass
    raise ValueError(
        f'{name} is {shown(value)}; expected [{{"text": ..., "answer_start": 4}}], in '
        "a table as JSON"
    )


def _truth(value: Any) -> bool | None:
    found = _TRUTHS.get(str(value).lower())
    if value is not None and found is None:
        raise ValueError(f"is_impossible is {shown(value)}, neither true nor false")
    return found


class QAExample(NamedTuple):
    """A question on a document."""

    eid: int
    question_id: str
    question: str
    context: str
    answer: str = ""
    first: int = 0  # its first character in the context
    is_impossible: bool = False
    answers: tuple[str, ...] = ()  # all right ones, to score by


class _Document(NamedTuple):
    """A context in tokens."""

    words: list[str]
    starts: list[int]  # the first character of each word
    tokens: np.ndarray
    splits: np.ndarray  # where each word's tokens begin, and an end
    offsets: list[tuple[int, int]]  # each token's first character, and its end

    def word_of(self, token: int) -> int:
        """The number of the word that a token is in."""
        return int(np.searchsorted(self.splits, token, side="right")) - 1


def split_words(text: str) -> tuple[list[str], list[int]]:
    """The words of a text, and the first character of each."""
    found = [*re.finditer(f"[^{_WHITE_SPACE}]+", text)]
    return [word[0] for word in found], [word.start() for word in found]


# Width of the layers in the head, whatever the encoder's width.
HIDDEN_SIZE = 512


@dataclasses.dataclass(frozen=True)
class SpanHead(task.Head):
    """Where the answer starts and ends, and whether there is one.

    With `joint_prediction` the end is predicted from the start: in training from the
    right one, else from each of the `beam_size` best starts. `end_logits` is then 0
    outside training, and the loss of the end is meaningless, as in the original.
    Without dropout, as in the original.

    Attributes:
      answerable_classifier: has a logit of "cannot be answered", from the state at
        [CLS] and, with `answerable_uses_start_logits`, the expected state at the start.
      answerable_weight: of that classifier's loss.
      n_best_size: starts and ends of a window that answers are made of, without
        `joint_prediction`.
    """

    kind = "qa"
    reads = "records"
    fields = ("question", "context")

    joint_prediction: bool = True
    beam_size: int = 20
    n_best_size: int = 20
    answerable_classifier: bool = True
    answerable_uses_start_logits: bool = True
    answerable_weight: float = 0.5

    @staticmethod
    def read_inputs(source, settings):
        """Questions to be answered, one by one."""
        return questions(source._replace(delimiter=settings.get("delimiter")))

    @staticmethod
    def prediction(fields, row):
        """The answer, its place, None without one, and its scores."""
        found = {name: row[name] for name in ("answer", "start", "end")}
        numbers = [n for n in ("score", "probability", "null_odds") if n in row]
        found |= {name: task.rounded(row[name]) for name in numbers}
        if row["start"] < 0:
            found |= {"start": None, "end": None, "score": 0.0}
        if "null_odds" in row:
            found["has_answer"] = bool(row["has_answer"])
        return found

    @classmethod
    def stored(cls, labels, config):
        """By the hparams alone."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: getattr(config, name) for name in names})

    def layers(self, width: int) -> dict[str, tuple[int, int]]:
        """Those of starts, ends and the classifier, named as the original's."""
        names = iter(["dense", "dense_1", "dense_2", "dense_3"])
        layers = {next(names): (width, 1)}
        ends = HIDDEN_SIZE if self.joint_prediction else width
        if self.joint_prediction:
            layers["qa_hidden"] = (2 * width, HIDDEN_SIZE)
        layers[next(names)] = (ends, 1)
        if self.answerable_classifier and self.answerable_uses_start_logits:
            layers[next(names)] = (2 * width, HIDDEN_SIZE)
            width = HIDDEN_SIZE
        if self.answerable_classifier:
            layers[next(names)] = (width, 1)
        return layers

    def outputs(self, dense, hidden, features, training, seed):
        """Needs input_mask and segment_ids; in training start_positions, int32 [B]."""
        from electra_tf.finetune import qa_graph

        return qa_graph.head_outputs(self, dense, hidden, features, training)

    def loss(self, outputs, features, training):
        """Needs start_positions, end_positions and is_impossible, int32 [B]."""
        import tensorflow as tf

        losses = 0.0
        for name in ("start", "end"):
            right, logits = features[f"{name}_positions"], outputs[f"{name}_logits"]
            losses += task.cross_entropy(right, logits) / 2
        if self.answerable_classifier:
            labels = tf.cast(features["is_impossible"], tf.float32)
            logits = outputs["answerable_logit"]
            of_class = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            losses += self.answerable_weight * of_class
        return losses

    def text_shapes(self, task):
        """question and context."""
        return {"question": [None], "context": [None]}

    def answer_texts(self, task, tokenizer, compute, question, context):
        """See `qa_graph.answers`."""
        from electra_tf.finetune import qa_graph

        return qa_graph.answers(task, tokenizer, compute, question, context)

    def answer_ids(self, task, compute, inputs):
        """The head's outputs."""
        from electra_tf.finetune import qa_graph

        return qa_graph.outputs(task.config, compute, inputs)


class QATask(task.Task):
    """A set of questions with answers that stand in a text.

    Attributes:
      answer_text: how the text of an answer is found: "original" or "offsets".
      score_by: "words", as SQuAD; "characters", for scripts without blanks.
    """

    def __init__(self, name, config, tokenizer):
        super().__init__(name, config, tokenizer)
        qa_answers.check_window(config)
        self.is_v2 = bool(self.description.get("has_impossible", name == "squad"))
        self.is_mrqa = name in MRQA
        usual = "offsets" if self.description else "original"
        self.answer_text = config.answer_text or usual
        self.score_by = self.description.get("score_by", "words")
        by_words = self.score_by == "words"
        self.main_metric = "f1" if by_words else qa_answers.CHARACTER_F1
        # Questions on a text follow one another.
        self.document = functools.lru_cache(1)(self._document)
        # Most words of a language are rare, but most words of a text are not.
        cached = functools.lru_cache(1 << 16)
        self._places = cached(lambda word: self.tokenizer.encode_with_offsets(word)[1])

    def check(self) -> None:
        """Joint prediction has no score of "no answer" but the classifier's."""
        config = self.config
        if self.is_v2 and config.joint_prediction and not config.answerable_classifier:
            raise UserError(
                f"{self.name} has questions without an answer: set joint_prediction to "
                "false, or answerable_classifier to true."
            )

    @property
    def head(self) -> task.Head:
        """Its settings are hparams."""
        return SpanHead.stored(self.labels, self.config)

    def settings(self) -> dict[str, Any]:
        """Also the hparams that change answers."""
        names = ("max_query_length", "doc_stride", "max_answer_length", "n_best_size")
        names += ("max_seq_length", "qa_na_threshold")
        hparams = {name: getattr(self.config, name) for name in names}
        hparams["answer_text"] = self.answer_text
        return super().settings() | {"hparams": hparams, "has_impossible": self.is_v2}

    def feature_settings(self) -> dict[str, Any]:
        """Where answers stand depends on how their text is found."""
        own = {"answer_text": self.answer_text, "places": 3}  # the version of `_place`
        return super().feature_settings() | own

    def places(self, split: str) -> list[tuple[str, str]]:
        """SQuAD's file or Hugging Face's, or MRQA's."""
        names = f"{split}.json", inputs.parquet_name(split)
        if self.is_mrqa:
            names = f"{split}.jsonl", f"{split}.jsonl.gz"
        return [(self.name, name) for name in names]

    def examples(self, split: str) -> list[QAExample]:
        """All questions; in training only those whose answer is found in the text."""
        found: list[QAExample] = []
        seen: set[str] = set()
        bad = functools.partial(self.bad, split)
        for (where, fields), entry in asked(entries(self.source(split)), bad):
            base = self.input_example(len(found), fields)
            name = base.question_id
            # An answer is known by its question's id alone.
            if split != "train" and name in seen:
                raise UserError(
                    f"{where}: the question id {shown(name)} is there twice.\n"
                    "Give each question an id of its own."
                )
            seen.add(name)
            try:
                found.append(self._answered(base, entry, split))
            except ValueError as error:
                which = f"{name!r}, {shown(base.question)}"
                bad(where, f"{error}, of the question {which}")
        return found

    def _answered(
        self, base: QAExample, entry: Mapping[str, Any], split: str
    ) -> QAExample:
        """An example with the answers that its split needs.

        Raises ValueError for a question that cannot be used.
        """
        spans, answers = _answers(entry, "detected_answers"), _answers(entry)
        is_impossible = _truth(entry.get("is_impossible"))
        right = tuple(t for t, _ in answers or () if t.strip() or not self.is_v2)
        is_some = bool("".join(right).strip())
        if is_impossible and is_some:
            raise ValueError("is_impossible is true, but there are answers")
        if split == "train" and self.is_v2 and not right:
            if is_impossible is False or (answers is None and not is_impossible):
                raise ValueError("it has no answer, and is_impossible is not true")
            return base._replace(is_impossible=True)
        if split == "train":
            return self._with_answer(base, answers if spans is None else spans)
        if split != "dev":
            return base
        if answers is None and not (self.is_v2 and is_impossible):
            raise ValueError("it has no answers to compare with")
        if not (is_some or self.is_v2):
            self.remark(split, _NO_ANSWER)
        if self.score_by == "words" and is_unspaced("".join(right)):
            self.remark(split, _NO_BLANKS)
        return base._replace(answers=right)

    def _with_answer(self, base: QAExample, answers: list[Answer] | None) -> QAExample:
        """An example with the first of the answers to train on."""
        if not (answers and answers[0][0].strip()):
            hint = "" if self.is_v2 else "; has_impossible of the task allows it"
            raise ValueError(f"the answer is missing or empty{hint}")
        text, start = answers[0]
        first = self._place(base.context, text, start)
        if first is None:
            at = base.context[max(start or 0, 0) :][:40]
            raise ValueError(
                f"the answer {text[:40]!r} is not at its answer_start {start}, where "
                f"{at!r} stands, and is there {base.context.count(text)} times"
            )
        return base._replace(answer=text, first=first)

    def _place(self, context: str, text: str, start: int | None) -> int | None:
        """Where an answer stands in its context; None: elsewhere than it says.

        At its answer_start, or where else it stands, but only once; else at its
        answer_start as the tokenizer sees both.
        """
        at = -1 if start is None else start
        if at >= 0 and context.startswith(text, at):
            return at
        first = context.find(text)
        if first >= 0 and first == context.rfind(text):
            if start is not None:
                self.remark("train", _MOVED)
            return first
        if first >= 0 or at < 0:
            return None
        words = self.tokenizer.basic_tokenize(text)
        cuts = (context[at : at + len(text) + more] for more in range(_NEAR + 1))
        is_same = any(self.tokenizer.basic_tokenize(cut) == words for cut in cuts)
        return at if words and is_same else None

    def feature_specs(self) -> tuple[task.FeatureSpec, ...]:
        """Where the answer is; in evaluation all 0."""
        names = ("eid", "start_positions", "end_positions", "is_impossible")
        return tuple(task.FeatureSpec(name, (), "int32") for name in names)

    def featurize(self, example: QAExample, is_training: bool):
        """[CLS] question [SEP] window [SEP] for each window."""
        query, document = self._query(example), self.document(example.context)
        answer = self._answer_tokens(example, document) if is_training else None
        for number, (places, shift) in enumerate(self.windows(example)):
            start = end = 0
            if answer and answer[0] in places and answer[1] in places:
                start, end = (place + shift for place in answer)
            tokens = document.tokens[places].tolist()
            yield tokenization.join(self.tokenizer.vocab, query, tokens)._asdict() | {
                "eid": qa_answers.WINDOWS_PER_EXAMPLE * example.eid + number,
                "start_positions": start,
                "end_positions": end,
                "is_impossible": int(example.is_impossible),
            }

    def _query(self, example: QAExample) -> list[int]:
        """The tokens of the question."""
        return self.tokenizer.encode(example.question)[: self.config.max_query_length]

    def _document(self, context: str) -> _Document:
        words, starts = split_words(context)
        tokens, splits = self.tokenizer.tokenize_lines(words)
        offsets = [
            (start + first, start + end)
            for word, start in zip(words, starts, strict=True)
            for first, end in self._places(word)
        ]
        return _Document(words, starts, tokens, splits, offsets)

    def _answer_tokens(self, example, document) -> tuple[int, int] | None:
        if example.is_impossible:
            return None
        begin, end = example.first, example.first + len(example.answer)
        if self.answer_text == "offsets":
            places = enumerate(document.offsets)
            there = [k for k, (x, y) in places if x < end and y > begin]
            return (there[0], there[-1]) if there else None
        # The original searches the tokens of the answer's words.
        ends = begin, min(end, len(example.context)) - 1
        first, last = (bisect.bisect_right(document.starts, x) - 1 for x in ends)
        start, end = int(document.splits[first]), int(document.splits[last + 1]) - 1
        answer = self.tokenizer.encode(example.answer)
        return qa_answers.improve_span(document.tokens, start, end, answer)

    def windows(self, example: QAExample) -> list[qa_answers.Window]:
        """The windows on an example's document."""
        count = len(self.document(example.context).tokens)
        query = len(self._query(example))
        room = self.config.max_seq_length - query - 3
        stride = min(room, self.config.doc_stride)
        starts = range(0, max(count - room, 0) + stride, stride) if count else ()
        if len(starts) > qa_answers.WINDOWS_PER_EXAMPLE:
            raise UserError(
                f"{self.name}: a text of {count:,} tokens has {len(starts):,} windows, "
                f"more than {qa_answers.WINDOWS_PER_EXAMPLE:,}.\nRaise doc_stride or "
                "max_seq_length, or part the text."
            )
        return [
            qa_answers.Window(range(start, min(start + room, count)), query + 2 - start)
            for start in starts
        ]

    def place_of(self, example: QAExample, first: int, last: int) -> tuple[int, int]:
        """Where a span of the document's tokens begins in the context and ends."""
        offsets = self.document(example.context).offsets
        return offsets[first][0], offsets[last][1]

    def text_at(self, example: QAExample, first: int, last: int) -> str:
        """The characters of the context that a span of the document's tokens is."""
        return example.context[slice(*self.place_of(example, first, last))]

    def text_of(self, example: QAExample, first: int, last: int) -> str:
        """The text of a span of the document's tokens that is scored."""
        if self.answer_text == "offsets":
            return self.text_at(example, first, last)
        document = self.document(example.context)
        tokens = self.tokenizer.convert_ids_to_tokens(document.tokens[first : last + 1])
        words = document.words[document.word_of(first) : document.word_of(last) + 1]
        return qa_answers.original_text(tokens, words, self.tokenizer.config)

    def scorer(self, split: str) -> QAScorer:
        """By exact match and F1."""
        return QAScorer(self, split)

    def input_example(self, number: int, fields: dict[str, Any]) -> QAExample:
        """Without answers."""
        name, context = str(fields.get("id", number)), fields["context"]
        return QAExample(number, name, fields["question"], context)

    def fields_of(self, example: QAExample) -> dict[str, Any]:
        """The id, the question and its text."""
        found = {"id": example.question_id, "question": example.question}
        return found | {"context": example.context}

    def right_answer(self, split: str, example: QAExample) -> list[str] | None:
        """All of a dev set."""
        return [*example.answers] if split == "dev" else None

    def prediction(self, example, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The answer as it stands in the text, and where, by characters."""
        _, best, odds = qa_answers.decode(self, example, rows, self.text_at)
        start, end = self.place_of(example, *best.tokens) if best.tokens else (-1, -1)
        row = {"answer": example.context[start:end], "start": start, "end": end}
        row |= {"score": best.score, "probability": best.probability}
        if odds is not None:
            row["null_odds"] = odds
            row["has_answer"] = odds <= self.config.qa_na_threshold
        return SpanHead.prediction({}, row)

    def write_predictions(self, split, scorer, directory) -> list[str]:
        """Answers, n-best lists and null odds in SQuAD's form; JSONL of `prediction`.

        Of 2.0 also the answers to submit, empty above the threshold of null odds.
        """
        paths = []
        for name, value in scorer.files().items():
            path = Path(directory) / f"{self.name}_{split}_{name}.json"
            atomic_write(path, json.dumps(value, indent=1) + "\n")
            paths.append(str(path))
        return [*paths, *super().write_predictions(split, scorer, directory)]


_SCORED_BY = task.Key(lambda x: x in ("words", "characters"), "words or characters")
_KEYS = {"has_impossible": task.FLAG, "delimiter": task.DELIMITER}
_KEYS |= {"score_by": _SCORED_BY}
TYPES = {"qa": task.TaskType(QATask, SpanHead, _KEYS)}
