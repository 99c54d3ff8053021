# SPDX-License-Identifier: Apache-2.0
"""Uses a pre-trained model: judges tokens, scores texts, re-ranks, reports a run.

    python3 run_inference.py detect --data-dir $DATA_DIR --model-name M --input text.txt
    python3 run_inference.py detect --data-dir $DATA_DIR --model-name M --corrupt < text
    python3 run_inference.py report --data-dir $DATA_DIR --model-name M
    python3 run_inference.py score --model $DATA_DIR/models/M < texts > scores.jsonl
    python3 run_inference.py rerank --model $DATA_DIR/models/M --nbest dev.jsonl --tune
    python3 run_inference.py rerank --model $DATA_DIR/models/M --nbest test.jsonl \\
        --weight 0.4 > reranked.jsonl

detect judges each line of its input: as it stands, or with --corrupt after the
generator replaced tokens as in pre-training. report writes an HTML page with the run's
curves, its evaluation and, with --input, such passages. score writes the
pseudo-log-likelihood of each line as a JSON object, in order, blank lines too. rerank
orders n-best lists by their own score + weight x that; docs/electric.md has the forms.
"""

import contextlib
import itertools
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from absl import flags

from electra_tf import cli
from electra_tf.errors import EXIT_FLAGS, EXIT_OK, UserError
from electra_tf.storage import files

_DATA_DIR = flags.DEFINE_string("data_dir", None, "Location of data files and models.")
_MODEL_NAME = flags.DEFINE_string("model_name", None, "Name of the pre-trained model.")
_MODEL = flags.DEFINE_string(
    "model", None, "Instead of --data-dir and --model-name: the directory of a run."
)
_INPUT = flags.DEFINE_string(
    "input", None, "Text file, one passage a line. Default: standard input."
)
_ENCODING_ERRORS = flags.DEFINE_enum(
    "encoding_errors",
    "strict",
    ["strict", "replace"],
    "What is not UTF-8 ends the program, or is left out.",
)
_OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "File to write. Default: standard output; of report: the run's report.html.",
)
_FORMAT = flags.DEFINE_enum(
    "format", "terminal", ["terminal", "jsonl", "html"], "What detect prints."
)
_CORRUPT = flags.DEFINE_boolean(
    "corrupt", False, "Let the generator replace tokens before the discriminator reads."
)
_SEED = flags.DEFINE_integer("seed", 0, "Decides what --corrupt replaces.")
_THRESHOLD = flags.DEFINE_float(
    "threshold", 0.5, "Probability from which a token of an untouched text is marked."
)
_MAX_PASSAGES = flags.DEFINE_integer(
    "max_passages", 1000, "Passages read from the input, so that a page stays readable."
)
_WAY = flags.DEFINE_enum(
    "way",
    None,
    ["electric", "two_tower", "mask_each", "discriminator"],
    "How texts are scored; a model offers some of these. Default: electric.",
)
_OVERLAP = flags.DEFINE_integer(
    "overlap",
    0,
    "Tokens that the windows share in which score reads a text longer than the model.",
    lower_bound=0,
)
_TOKENS = flags.DEFINE_boolean("tokens", False, "score writes each token's, too.")
_NBEST = flags.DEFINE_string(
    "nbest", None, "N-best lists for rerank: JSON lines, or with --costs Kaldi's text."
)
_COSTS = flags.DEFINE_list(
    "costs", [], "Kaldi's files of costs of the hypotheses, which are added."
)
_REFERENCES = flags.DEFINE_string(
    "references", None, "What was said: lines of a list's id and words."
)
_WEIGHT = flags.DEFINE_float("weight", None, "Of the model's score in rerank, >= 0.")
_TUNE = flags.DEFINE_boolean(
    "tune", False, "Find the weight with the fewest word errors on these lists."
)
_BEST = flags.DEFINE_boolean(
    "best", False, "rerank writes lines of id and best text, not lists."
)

# Passages judged at one time, so that output appears while a long input is read.
_CHUNK = 256


def main(argv: list[str]) -> int:
    """Runs the command; returns the exit code."""
    command = argv[1]
    if _INPUT.value is not None and not os.path.isfile(_INPUT.value):
        raise UserError(f"--input {_INPUT.value} is not a file.")
    commands = {"detect": detect, "report": report, "score": score, "rerank": rerank}
    return commands[command](model_directory())


def model_directory() -> str:
    """The run that the flags name."""
    by_name = _DATA_DIR.value is not None, _MODEL_NAME.value is not None
    if _MODEL.value is not None and not any(by_name):
        return _MODEL.value
    if _MODEL.value is None and all(by_name):
        return os.path.join(_DATA_DIR.value, "models", _MODEL_NAME.value)
    raise UserError(
        "give --data-dir and --model-name, or --model alone.\nTry --help.", EXIT_FLAGS
    )


def input_lines() -> Iterator[str]:
    """The lines of the input."""
    from electra_tf.text import corpus

    if _INPUT.value is not None:
        return corpus.read_lines(_INPUT.value, _ENCODING_ERRORS.value)
    if sys.stdin.isatty():
        print("Reading from the terminal; end with Ctrl-D.", file=sys.stderr)
    reader = corpus.TextReader(
        sys.stdin.buffer, "standard input", _ENCODING_ERRORS.value
    )
    return itertools.chain.from_iterable(reader)


def passages() -> Iterator[str]:
    """The non-blank lines of the input, at most --max-passages."""
    left = _MAX_PASSAGES.value
    for line in input_lines():
        if line.strip():
            if left == 0:
                print(
                    f"Stopped after {_MAX_PASSAGES.value} passages: --max-passages.",
                    file=sys.stderr,
                )
                return
            left -= 1
            yield line.strip()


def judged(model, number: int, texts: list[str]) -> list:
    """Verdicts on the tokens of each text."""
    if _CORRUPT.value:
        # Another seed for each chunk, or equal places would be masked in all.
        return model.corrupt(texts, seed=_SEED.value + 1_000_003 * number)
    return model.detect(texts)


def detect(model_dir: str) -> int:
    """Prints the verdicts on each passage of the input."""
    from electra_tf.inference import pretrained_model, verdicts
    from electra_tf.storage.files import atomic_write

    model = pretrained_model.load(model_dir)
    colour = (
        _OUTPUT.value is None and sys.stdout.isatty() or "FORCE_COLOR" in os.environ
    )
    lines: list[str] = []

    def emit(line: str) -> None:
        if _OUTPUT.value is None:
            print(line, flush=True)
        else:
            lines.append(line)

    html_parts: list[str] = []
    if _FORMAT.value == "terminal":
        drawn = ""
        if _CORRUPT.value:
            drawn = f" (replacements drawn at temperature {model.config.temperature:g})"
        emit(verdicts.terminal_legend(_CORRUPT.value, colour) + drawn + "\n")
    total = verdicts.Score(0, 0, 0)
    for number, texts in enumerate(chunks(passages())):
        for text, tokens in zip(texts, judged(model, number, texts), strict=True):
            score = verdicts.score(tokens)
            total = verdicts.Score(*map(sum, zip(total, score, strict=True)))
            if _FORMAT.value == "jsonl":
                emit(json.dumps(verdicts.to_json(text, tokens), ensure_ascii=False))
            elif _FORMAT.value == "html":
                html_parts.append(verdicts.to_html(text, tokens, _THRESHOLD.value))
            else:
                shown = verdicts.to_terminal(text, tokens, _THRESHOLD.value, colour)
                emit(shown + "\n")
    if _FORMAT.value == "html":
        from electra_tf.inference import html_report as pages

        legend = verdicts.html_legend(_CORRUPT.value)
        emit(pages.page("Replaced tokens", [legend, *html_parts]))
    elif _FORMAT.value == "terminal" and total.replaced:
        emit(
            f"{total.caught} of {total.replaced} replaced tokens are among the "
            f"{total.flagged} most suspicious ones."
        )
    if _OUTPUT.value is not None:
        atomic_write(_OUTPUT.value, "\n".join(lines) + "\n")
    return EXIT_OK


def chunks(texts: Iterator[str]) -> Iterator[list[str]]:
    """Lists of up to _CHUNK texts."""
    chunk: list[str] = []
    for text in texts:
        chunk.append(text)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def report(model_dir: str) -> int:
    """Writes the run's HTML page."""
    from electra_tf.inference import html_report as pages
    from electra_tf.inference import pretrained_model

    model = pretrained_model.load(model_dir)
    texts = list(passages()) if _INPUT.value else []
    shown = list(zip(texts, model.corrupt(texts, seed=_SEED.value), strict=True))
    output = _OUTPUT.value or os.path.join(model_dir, "report.html")
    pages.write_report(Path(model_dir), shown, output)
    print(f"Written to {output}")
    return EXIT_OK


@contextlib.contextmanager
def opened_output():
    """A function that writes a line to the output; a file appears when it is whole."""
    if _OUTPUT.value is None:
        try:
            yield lambda line: print(line, flush=sys.stdout.isatty())
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader, such as head, has seen enough.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    partial = _OUTPUT.value + files.PARTIAL
    try:
        os.makedirs(os.path.dirname(os.path.abspath(partial)), exist_ok=True)
        with open(partial, "w", encoding="utf-8") as f:
            yield lambda line: print(line, file=f)
        os.replace(partial, _OUTPUT.value)
    except OSError as error:
        raise files.cannot_write(_OUTPUT.value, error) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(partial)


def score(model_dir: str) -> int:
    """Writes a JSON object for each line of the input."""
    from electra_tf.inference import pretrained_model

    scorer = pretrained_model.load(model_dir).scorer(_WAY.value)
    texts, copy = itertools.tee(input_lines())
    empty = unknown = 0
    with opened_output() as emit:
        if _TOKENS.value:
            rows = map(row_of_tokens, scorer.score_tokens(texts, _OVERLAP.value))
        else:
            scores = scorer.score_texts(texts, _OVERLAP.value)
            rows = (scored._asdict() for scored in scores)
        for text, row in zip(copy, rows, strict=True):
            empty += not row["num_tokens"]
            unknown += 0 < row["num_tokens"] == row["num_unknown"]
            row["score"] = round(row["score"], 6)
            emit(json.dumps({"text": text} | row, ensure_ascii=False))
    warn_of_nothing(empty, unknown)
    return EXIT_OK


def row_of_tokens(tokens: list) -> dict:
    """What `score --tokens` writes of a text."""
    return {
        "score": math.fsum(token.score for token in tokens),
        "num_tokens": len(tokens),
        "num_unknown": sum(token.is_unknown for token in tokens),
        "tokens": [
            {
                "token": token.text,
                "start": token.start,
                "end": token.end,
                "score": round(token.score, 6),
            }
            for token in tokens
        ],
    }


def warn_of_nothing(empty: int, unknown: int) -> None:
    """Says on stderr which scores say nothing about their texts."""
    if empty:
        print(f"{empty} texts have no tokens: they score 0.", file=sys.stderr)
    if unknown:
        print(
            f"{unknown} texts hold unknown tokens only: their scores say nothing about "
            "their words.",
            file=sys.stderr,
        )


def rerank(model_dir: str) -> int:
    """Writes the lists of --nbest in their new order."""
    from electra_tf.inference import nbest, pretrained_model, reranking

    if _NBEST.value is None:
        raise UserError("rerank needs --nbest.", EXIT_FLAGS)
    if (_WEIGHT.value is None) != _TUNE.value:
        raise UserError("rerank needs --weight or --tune, and not both.", EXIT_FLAGS)
    if _WEIGHT.value is not None and not 0 <= _WEIGHT.value < math.inf:
        raise UserError(
            f"--weight {_WEIGHT.value}: it is a number of at least 0.", EXIT_FLAGS
        )
    lists = nbest.read_nbest(
        _NBEST.value, _COSTS.value, _REFERENCES.value, _ENCODING_ERRORS.value
    )
    with_reference = sum(one.reference is not None for one in lists)
    errors = None
    if _TUNE.value or with_reference == len(lists):
        errors = reranking.errors_of(lists)
    elif with_reference:
        missing = len(lists) - with_reference
        print(f"No word error rate: {missing} lists lack a reference.", file=sys.stderr)

    scorer = pretrained_model.load(model_dir).scorer(_WAY.value)
    texts = (hypothesis.text for one in lists for hypothesis in one.hypotheses)
    scored = list(scorer.score_texts(texts, _OVERLAP.value))
    scores = reranking.score_lists(lists, (one.score for one in scored))
    empty = sum(not one.num_tokens for one in scored)
    warn_of_nothing(empty, sum(one.says_nothing for one in scored) - empty)
    weight, found = _WEIGHT.value, ""
    if _TUNE.value:
        tuned = reranking.tune(lists, scores, errors)
        weight = tuned.weight
        found = (
            f", found: the errors are the same from {tuned.low:.6g} to {tuned.high:.6g}"
        )
    with opened_output() as emit:
        for one, values in zip(lists, scores, strict=True):
            emit(reranked_line(one, values, weight))
    single = sum(len(one.hypotheses) == 1 for one in lists)
    print(
        f"{len(lists)} lists, {single} of them with one hypothesis only; "
        f"weight {weight:.6g}{found}.",
        file=sys.stderr,
    )
    if errors:
        print_word_errors(lists, scores, errors, weight)
    return EXIT_OK


def reranked_line(one, scores: list[float], weight: float) -> str:
    """A list in its new order, or with --best its best text."""
    from electra_tf.inference import reranking

    given = [hypothesis.score for hypothesis in one.hypotheses]
    ranked = reranking.rank(
        given, scores, weight, [hypothesis.text for hypothesis in one.hypotheses]
    )
    if _BEST.value:
        return f"{one.id} {' '.join(ranked[0].text.split())}".rstrip()
    hypotheses = [
        one.hypotheses[row.index].row
        | {"text": row.text, "score": row.given}
        | {"model_score": round(row.model, 6), "total": round(row.total, 6)}
        for row in ranked
    ]
    whole = {"id": one.id} | one.row | {"hypotheses": hypotheses}
    if one.reference is not None:
        whole["reference"] = one.reference
    return json.dumps(whole, ensure_ascii=False)


def print_word_errors(lists, scores, errors, weight: float) -> None:
    """Word error rates before and after, and the least that these lists allow."""
    from electra_tf.inference import reranking

    before = reranking.chosen_errors(lists, scores, errors, 0.0)
    after = reranking.chosen_errors(lists, scores, errors, weight)
    least = reranking.WordErrors(sum(map(min, errors)), before.words)
    print(
        f"Word error rate: {before.rate:.2%} as given, {after.rate:.2%} reranked; "
        f"{least.rate:.2%} with the best of each list "
        f"({before.errors}, {after.errors}, {least.errors} of {before.words} words).",
        file=sys.stderr,
    )


if __name__ == "__main__":
    cli.run(main, commands=("detect", "report", "score", "rerank"))
