# SPDX-License-Identifier: Apache-2.0
"""Uses a pre-trained model: shows which tokens look replaced, or reports a run.

    python3 run_inference.py detect --data-dir $DATA_DIR --model-name M --input text.txt
    python3 run_inference.py detect --data-dir $DATA_DIR --model-name M --corrupt < text
    python3 run_inference.py report --data-dir $DATA_DIR --model-name M

detect judges each line of its input: as it stands, or with --corrupt after the
generator replaced tokens as in pre-training. report writes an HTML page with the run's
curves, its evaluation and, with --input, such passages.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from absl import flags

from electra_tf import cli
from electra_tf.errors import EXIT_OK, UserError

_DATA_DIR = flags.DEFINE_string("data_dir", None, "Location of data files and models.")
_MODEL_NAME = flags.DEFINE_string("model_name", None, "Name of the pre-trained model.")
_INPUT = flags.DEFINE_string(
    "input", None, "Text file, one passage a line. Default of detect: standard input."
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
flags.mark_flags_as_required(["data_dir", "model_name"])

# Passages judged at one time, so that output appears while a long input is read.
_CHUNK = 256


def main(argv: list[str]) -> int:
    """Runs the command; returns the exit code."""
    command = argv[1]
    if _INPUT.value is not None and not os.path.isfile(_INPUT.value):
        raise UserError(f"--input {_INPUT.value} is not a file.")
    model_dir = os.path.join(_DATA_DIR.value, "models", _MODEL_NAME.value)
    if command == "report":
        return report(model_dir)
    return detect(model_dir)


def passages() -> Iterator[str]:
    """The non-blank lines of the input, at most --max-passages."""
    from electra_tf import corpus

    if _INPUT.value is None:
        if sys.stdin.isatty():
            print("Reading passages from the terminal; end with Ctrl-D.", flush=True)
        lines = (line.rstrip("\n") for line in sys.stdin)
    else:
        lines = corpus.read_lines(_INPUT.value, "strict")
    left = _MAX_PASSAGES.value
    for line in lines:
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
    from electra_tf import detection, verdicts
    from electra_tf.run_directory import atomic_write

    model = detection.load(model_dir)
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
        emit(verdicts.terminal_legend(_CORRUPT.value, colour) + "\n")
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
        from electra_tf import report as pages

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
    from electra_tf import detection
    from electra_tf import report as pages

    model = detection.load(model_dir)
    texts = list(passages()) if _INPUT.value else []
    shown = list(zip(texts, model.corrupt(texts, seed=_SEED.value), strict=True))
    output = _OUTPUT.value or os.path.join(model_dir, "report.html")
    pages.write_report(Path(model_dir), shown, output)
    print(f"Written to {output}")
    return EXIT_OK


if __name__ == "__main__":
    cli.run(main, commands=("detect", "report"))
