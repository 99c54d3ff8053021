# SPDX-License-Identifier: Apache-2.0
"""Uses a model: detects, scores texts, re-ranks, reports a run; predicts.

    python3 run_inference.py detect --data-dir $DATA_DIR --model-name M --input text.txt
    python3 run_inference.py detect --data-dir $DATA_DIR --model-name M --corrupt < text
    python3 run_inference.py report --data-dir $DATA_DIR --model-name M
    python3 run_inference.py score --model $DATA_DIR/models/M < texts > scores.jsonl
    python3 run_inference.py rerank --model $DATA_DIR/models/M --nbest dev.jsonl --tune
    python3 run_inference.py rerank --model $DATA_DIR/models/M --nbest test.jsonl \\
        --weight 0.4 > reranked.jsonl
    python3 run_inference.py predict --model TRIAL --input new.tsv --output new.jsonl
    python3 run_inference.py score --model M --input corpus/ --output-dir scores/ \\
        --workers 16

detect reads each line or record of its input as it stands, or with --corrupt after the
generator replaced tokens as in pre-training (but without rare_mask_power, which needs
the counts of its data). report writes an HTML page with the run's curves, its
evaluation and, with --input, such passages; with --model-name A,B,C one that compares
runs. score writes the pseudo-log-likelihood of each text as a JSON object, in order,
blank lines too. rerank orders n-best lists by their own score + weight x that;
docs/electric.md has the forms.
predict writes labels, numbers, tags or answers of a fine-tuned model (the directory of
a trial, or an exported SavedModel), a JSON object a line; docs/prediction.md.
With --output-dir, score, detect and predict read a corpus, in many processes or by
Apache Beam, and write shards of JSON lines; docs/scale.md.
"""

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import flags

from electra_tf import cli, paths
from electra_tf.config.run import run_directory
from electra_tf.console import Console
from electra_tf.errors import EXIT_FLAGS, EXIT_OK, UserError
from electra_tf.finetune.inputs import FORMS
from electra_tf.storage.files import is_stream, line_writer
from electra_tf.storage.remote import check_writable, fetch, put
from electra_tf.storage.remote_run import bring_model
from electra_tf.text import units
from electra_tf.text.corpus import standard_input
from electra_tf.text.json_lines import json_line

_DATA_DIR = cli.define_path(
    "data_dir", None, "Location of data files and models.", in_bucket=True
)
_MODEL_NAME = flags.DEFINE_string("model_name", None, "Name of the pre-trained model.")
_MODEL = cli.define_path(
    "model",
    None,
    "Instead of --data-dir and --model-name: a run's directory or another model; for "
    "predict a fine-tuned one.",
    in_bucket=True,
)
_INPUT = cli.define_path(
    "input",
    None,
    "Text file, one passage a line, or records of JSON Lines, Parquet or Arrow; for "
    "predict any file that tasks read. Default, and -: standard input, lines.",
    in_bucket=True,
)
_ENCODING_ERRORS = flags.DEFINE_enum(
    "encoding_errors",
    "strict",
    ["strict", "replace"],
    "What is not UTF-8 ends the program, or is left out.",
)
_OUTPUT = cli.define_path(
    "output",
    None,
    "File to write. Default, and -: standard output; of report: the run's report.html.",
    in_bucket=True,
)
_FORMAT = flags.DEFINE_enum(
    "format", "terminal", ["terminal", "jsonl", "html"], "What detect prints."
)
_CORRUPT = flags.DEFINE_boolean(
    "corrupt", False, "Let the generator replace tokens before the discriminator reads."
)
_SEED = flags.DEFINE_integer(
    "seed",
    0,
    "Decides what --corrupt, or a report's --input, has replaced.",
    lower_bound=-(2**63),
    upper_bound=2**63 - 1,
)
_THRESHOLD = flags.DEFINE_float(
    "threshold",
    0.5,
    "Probability above which a token of an untouched text is marked; jsonl has all.",
)
_MAX_PASSAGES = flags.DEFINE_integer(
    "max_passages",
    1000,
    "Passages read from the input, so that a page stays readable.",
    lower_bound=1,
)
_METHOD = flags.DEFINE_enum(
    "method",
    None,
    ["electric", "electra_tt", "two_tower", "mask_each", "discriminator"],
    "How texts are scored; a model offers some of these. Default: electric.",
)
_OVERLAP = flags.DEFINE_integer(
    "overlap",
    0,
    "Tokens that the windows share in which score reads a text longer than the model.",
    lower_bound=0,
)
_TOKENS = flags.DEFINE_boolean("tokens", False, "score writes each token's, too.")
_NBEST = cli.define_path(
    "nbest",
    None,
    "N-best lists for rerank: JSON lines, or with --costs Kaldi's text; - is standard "
    "input.",
    in_bucket=True,
)
_COSTS = flags.DEFINE_list(
    "costs", [], "Kaldi's files of costs of the hypotheses, which are added."
)
_REFERENCES = cli.define_path(
    "references", None, "What was said: lines of a list's id and words.", in_bucket=True
)
_WEIGHT = flags.DEFINE_float("weight", None, "Of the model's score in rerank, >= 0.")
_TUNE = flags.DEFINE_boolean(
    "tune", False, "Find the weight with the fewest word errors on these lists."
)
_BEST = flags.DEFINE_boolean(
    "best", False, "rerank writes lines of id and best text, not lists."
)

_TASK = flags.DEFINE_string(
    "task",
    None,
    "Of a fine-tuned model that has several; of an export the one that it is of.",
)
_INPUT_FORMAT = flags.DEFINE_enum(
    "input_format",
    None,
    sorted({form for forms in FORMS.values() for form in forms}),
    "What predict reads. Default: as the input's name ends.",
)
_RESUME = flags.DEFINE_boolean(
    "resume", False, "predict goes on behind what an interrupted call has written."
)

_OUTPUT_DIR = cli.define_path(
    "output_dir",
    None,
    "Instead of --output: a new or empty folder for shards of JSON lines and a "
    "manifest. --input is a file or directory then; the same command goes on after an "
    "interruption.",
)
_WORKERS = flags.DEFINE_integer(
    "workers",
    None,
    "Processes that fill --output-dir; the result is always the same. Default: one for "
    "each GPU, or else for each core.",
    lower_bound=1,
)
_SHARD_MB = flags.DEFINE_float(
    "shard_mb",
    None,
    "MB of input for each file of --output-dir. Default: a thousandth, from 1 to 64.",
)
_TEXT_KEY = flags.DEFINE_string(
    "text_key",
    "text",
    "Where the text is in JSON Lines, Parquet and Arrow; a/b is b inside a.",
)
_BEAM_ARGS = cli.define_runner("workers")

_CORPUS_FLAGS = (
    *(_OUTPUT_DIR, _WORKERS, _SHARD_MB),
    *(flags.FLAGS[name] for name in ("runner", "beam_args")),
)
_MODEL_FLAGS = (_DATA_DIR, _MODEL_NAME, _MODEL)
_PASSAGE_FLAGS = (*_MODEL_FLAGS, _INPUT, _TEXT_KEY, _ENCODING_ERRORS, _OUTPUT)
_FLAGS = {
    "detect": (
        *(*_PASSAGE_FLAGS, _MAX_PASSAGES, _SEED),
        *(_FORMAT, _CORRUPT, _THRESHOLD, *_CORPUS_FLAGS),
    ),
    "report": (*_PASSAGE_FLAGS, _MAX_PASSAGES, _SEED),
    "score": (*(*_PASSAGE_FLAGS, _METHOD, _OVERLAP, _TOKENS, *_CORPUS_FLAGS),),
    "rerank": (
        *(*_MODEL_FLAGS, _ENCODING_ERRORS, _OUTPUT, _METHOD, _OVERLAP),
        *(_NBEST, _COSTS, _REFERENCES, _WEIGHT, _TUNE, _BEST),
    ),
    "predict": (
        *(_MODEL, _DATA_DIR, _TASK, _INPUT, _INPUT_FORMAT, _OUTPUT, _RESUME),
        *_CORPUS_FLAGS,
    ),
}
# With --output-dir, what would change or end what is written.
_NOT_FOR_CORPORA = (
    *(_OUTPUT, _FORMAT, _CORRUPT, _SEED, _THRESHOLD, _MAX_PASSAGES, _RESUME),
)


def main(argv: list[str]) -> int:
    """Runs the command; returns the exit code."""
    command = argv[1]
    check_corpus_flags(command)
    check_needed_flags(command)
    for flag in (_INPUT, _NBEST, _REFERENCES):
        if flag.value not in (None, "-"):
            fetch(flag.value)
    if file_of(_OUTPUT) is not None:
        check_writable(os.path.dirname(file_of(_OUTPUT)))
        check_not_read(file_of(_OUTPUT))
    if _OUTPUT_DIR.value is not None:
        run_on_corpus(command)
        return EXIT_OK
    check_there(command)
    names = (_MODEL_NAME.value or "").split(",")
    if command == "predict":
        predict()
        return EXIT_OK
    if command == "report" and len(names) > 1:
        compare(names)
        return EXIT_OK
    commands = {"detect": detect, "report": report, "score": score, "rerank": rerank}
    commands[command](model_directory())
    if file_of(_OUTPUT) is not None:
        put(file_of(_OUTPUT))
    return EXIT_OK


def check_not_read(output: str) -> None:
    """Raises a UserError where the result would replace what is read."""
    read = {flag.name: file_of(flag) for flag in (_INPUT, _NBEST, _REFERENCES)}
    given = [*read.items(), *((_COSTS.name, path) for path in _COSTS.value)]
    for name, path in given:
        both_are_files = all(map(os.path.isfile, (path or "", output)))
        if both_are_files and os.path.samefile(path, output):
            raise UserError(
                f"--{name} and --output are the same file, {output}.", EXIT_FLAGS
            )


def check_needed_flags(command: str) -> None:
    """Raises a UserError for a flag without effect, since another is not given."""
    several = command == "report" and "," in (_MODEL_NAME.value or "")
    reads = command != "report" or _INPUT.value is not None
    has_records = units.holds_records(file_of(_INPUT) or "")
    for flag, has_effect, why in (
        (_SEED, not several, "is for the report on one run"),
        (_MAX_PASSAGES, not several, "is for the report on one run"),
        (_ENCODING_ERRORS, not several, "is for the report on one run"),
        (_SEED, command != "detect" or _CORRUPT.value, "is for --corrupt"),
        (_SEED, reads, "is for --input"),
        (_MAX_PASSAGES, reads, "is for --input"),
        (_THRESHOLD, not _CORRUPT.value, "is for texts as they stand, not --corrupt"),
        (_THRESHOLD, _FORMAT.value != "jsonl", "marks nothing in --format jsonl"),
        (_ENCODING_ERRORS, reads, "is for --input"),
        (_TEXT_KEY, has_records, "is for JSON Lines, Parquet and Arrow"),
    ):
        given = flags.FLAGS[flag.name].present and _OUTPUT_DIR.value is None
        if given and not has_effect:
            name = flag.name.replace("_", "-")
            raise UserError(f"--{name} {why}: without effect here.", EXIT_FLAGS)
    if not 0 <= _THRESHOLD.value <= 1:
        raise UserError(
            f"--threshold {_THRESHOLD.value}: a probability, from 0 to 1.", EXIT_FLAGS
        )


def check_there(command: str) -> None:
    """Raises a UserError for an input that is not there."""
    path = file_of(_INPUT)
    if path is None:
        if command in ("detect", "score", "predict"):
            standard_input()
    elif os.path.isdir(path):
        raise UserError(
            f"--input {path} is not a file.\nA directory goes with --output-dir."
        )
    elif not os.path.exists(path):
        raise UserError(f"--input {path} does not exist.")


def check_corpus_flags(command: str) -> None:
    """Raises a UserError for flags about corpora that do not go together."""
    _BEAM_ARGS()
    given = [
        flag.name.replace("_", "-")
        for flag in (*_CORPUS_FLAGS, *_NOT_FOR_CORPORA)
        if flags.FLAGS[flag.name].present and flag.value != "local"
    ]
    refused = {flag.name.replace("_", "-") for flag in _NOT_FOR_CORPORA}
    if _OUTPUT_DIR.value is None:
        wrong = [name for name in given if name not in refused]
        if wrong:
            raise UserError(f"--{wrong[0]} is for --output-dir.", EXIT_FLAGS)
        return
    wrong = [name for name in given if name in refused]
    if wrong:
        why = {"resume": ", which is always gone on with"}.get(wrong[0], "")
        raise UserError(f"--{wrong[0]} is not for --output-dir{why}.", EXIT_FLAGS)
    if file_of(_INPUT) is None:
        raise UserError(
            "--output-dir needs a file or directory as --input.", EXIT_FLAGS
        )
    if _SHARD_MB.value is not None and not 0 < _SHARD_MB.value < math.inf:
        raise UserError(f"--shard-mb {_SHARD_MB.value}: more than 0.", EXIT_FLAGS)
    if command == "predict" and _MODEL.value is None:
        raise UserError("predict needs --model.", EXIT_FLAGS)


def run_on_corpus(command: str) -> None:
    """Writes shards of what the model says of all texts of a corpus."""
    from electra_tf.inference import (
        corpus_prediction,
        corpus_run,
        saved_model_texts,
        scoring,
    )

    if command == "predict":
        load: Any = corpus_prediction.Predictions
        options = {
            "model": os.path.abspath(_MODEL.value),
            "task": _TASK.value,
            "data_dir": _DATA_DIR.value and os.path.abspath(_DATA_DIR.value),
            "input_format": _INPUT_FORMAT.value,
        }
    else:
        load = saved_model_texts.detections
        options = {
            "model": os.path.abspath(model_directory()),
            "encoding_errors": _ENCODING_ERRORS.value,
            "text_key": _TEXT_KEY.value,
        }
    if command == "score":
        load = saved_model_texts.scores
        chosen = {"method": _METHOD, "overlap": _OVERLAP, "tokens": _TOKENS}
        options |= {name: flag.value for name, flag in chosen.items()}
    shard_bytes = _SHARD_MB.value and max(1, round(_SHARD_MB.value * 1e6))
    manifest = corpus_run.run(
        *(command, load, options, file_of(_INPUT), _OUTPUT_DIR.value),
        *(_WORKERS.value, _BEAM_ARGS(), shard_bytes),
    )
    counts = manifest["counts"]
    empty, unknown = "texts_without_tokens", "texts_of_unknown_tokens"
    scoring.warn_of_nothing(counts.get(empty, 0), counts.get(unknown, 0))


def model_directory() -> str:
    """The run that the flags name."""
    by_name = _DATA_DIR.value is not None, _MODEL_NAME.value is not None
    if _MODEL.value is not None and not any(by_name):
        return _MODEL.value
    if _MODEL.value is None and all(by_name):
        return run_directory(_DATA_DIR.value, _MODEL_NAME.value)
    raise UserError(
        "give --data-dir and --model-name, or --model alone.\nTry --help.", EXIT_FLAGS
    )


def file_of(flag: flags.FlagHolder) -> str | None:
    """The file that a flag names; None: standard input or output."""
    return None if flag.value == "-" else flag.value


def input_texts() -> Iterator[str]:
    """The lines or records of the input."""
    from electra_tf.inference.corpus_texts import texts_of

    if file_of(_INPUT) is None and standard_input().isatty():
        print("Reading from the terminal; end with Ctrl-D.", file=sys.stderr)
    reading = units.Reading(_ENCODING_ERRORS.value, _TEXT_KEY.value)
    return texts_of(file_of(_INPUT), reading)


def detect(model_dir: str) -> None:
    """Shows the predictions for the tokens of each passage of the input."""
    from electra_tf.inference import detection, pretrained_model

    with line_writer(file_of(_OUTPUT)) as write:
        model = pretrained_model.load(model_dir)
        in_terminal = file_of(_OUTPUT) is None and sys.stdout.isatty()
        detected = detection.detect(
            model,
            detection.passages(input_texts(), _MAX_PASSAGES.value),
            _SEED.value if _CORRUPT.value else None,
        )
        for line in detection.show(
            detected,
            _FORMAT.value,
            temperature=model.config.temperature if _CORRUPT.value else None,
            threshold=_THRESHOLD.value,
            colour=in_terminal or "FORCE_COLOR" in os.environ,
        ):
            write(line)


def report(model_dir: str) -> None:
    """Writes the run's HTML page."""
    from electra_tf.inference import detection, html_report, pretrained_model

    bring_model(model_dir)
    html_report.check_run(Path(model_dir))
    shown = []
    if _INPUT.value:
        texts = list(detection.passages(input_texts(), _MAX_PASSAGES.value))
        model = pretrained_model.load(model_dir)
        shown = list(zip(texts, model.corrupt(texts, seed=_SEED.value), strict=True))
    output = file_of(_OUTPUT) or os.path.join(model_dir, "report.html")
    html_report.write_report(Path(model_dir), shown, output)
    put(output)
    print(paths.shown(f"Written to {output}"))


def compare(names: list[str]) -> None:
    """Writes an HTML page about several runs."""
    from electra_tf.inference import comparison

    if _DATA_DIR.value is None or _INPUT.value is not None or _MODEL.value is not None:
        raise UserError(
            "report on several runs needs --data-dir, and takes neither --model nor "
            "--input.",
            EXIT_FLAGS,
        )
    folders = [Path(run_directory(_DATA_DIR.value, name)) for name in names]
    for folder in folders:
        bring_model(folder)
    output = file_of(_OUTPUT) or os.path.join(_DATA_DIR.value, "models/comparison.html")
    comparison.write_comparison(names, folders, output)
    put(output)
    print(paths.shown(f"Written to {output}"))


def score(model_dir: str) -> None:
    """Writes a JSON object for each line of the input."""
    from electra_tf.inference import pretrained_model, scoring

    with line_writer(file_of(_OUTPUT)) as write:
        scorer = pretrained_model.load(model_dir).scorer(_METHOD.value)
        texts = input_texts()
        for row in scoring.rows(scorer, texts, _OVERLAP.value, _TOKENS.value):
            write(json_line(row))


def rerank(model_dir: str) -> None:
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
        file_of(_NBEST), _COSTS.value, _REFERENCES.value, _ENCODING_ERRORS.value
    )
    errors = reranking.errors_if_known(lists, is_needed=_TUNE.value)
    with line_writer(file_of(_OUTPUT)) as write:
        scorer = pretrained_model.load(model_dir).scorer(_METHOD.value)
        scores = reranking.score_lists(lists, scorer, _OVERLAP.value)
        tuned = reranking.tune(lists, scores, errors) if _TUNE.value else None
        weight = tuned.weight if tuned else _WEIGHT.value
        for line in reranking.lines(lists, scores, weight, best_only=_BEST.value):
            write(line)
    print(reranking.describe_lists(lists, weight, tuned), file=sys.stderr)
    if errors:
        print(reranking.describe_errors(lists, scores, errors, weight), file=sys.stderr)


def predict() -> None:
    """Writes what a fine-tuned model says of each input."""
    from electra_tf.finetune import inputs
    from electra_tf.inference import prediction

    if _MODEL.value is None:
        raise UserError("predict needs --model.", EXIT_FLAGS)
    if _RESUME.value and (file_of(_OUTPUT) is None or is_stream(file_of(_OUTPUT))):
        raise UserError("--resume needs a file as --output.", EXIT_FLAGS)
    taken, made = file_of(_INPUT), file_of(_OUTPUT)
    predictor = prediction.load_predictor(_MODEL.value, _TASK.value, _DATA_DIR.value)
    source = inputs.open_source(taken, _INPUT_FORMAT.value, predictor.reads)
    asked, console = predictor.asked(source), Console(sys.stderr)
    prediction.write(predictor, asked, made, _RESUME.value, console)
    if made:
        put(made)


if __name__ == "__main__":
    cli.run(main, commands=_FLAGS)
