# SPDX-License-Identifier: Apache-2.0
"""The commands of run_inference.py, from flags to output."""

from __future__ import annotations

import collections
import json
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl.flags import FlagValues

from electra_tf import paths
from electra_tf.config.run import run_directory
from electra_tf.console import Console
from electra_tf.errors import EXIT_FLAGS, UserError
from electra_tf.storage.files import line_writer
from electra_tf.storage.mirror import Outputs, bring_model
from electra_tf.storage.remote import fetch
from electra_tf.text import corpus, units
from electra_tf.text.records import json_line

# Modules that import TensorFlow are imported after the flags are checked.

_READ = ("input", "nbest")
_OF_CORPORA = ("workers", "shard_mb", "runner", "beam_args")
# Flags that --output-dir cannot follow.
_NOT_OF_CORPORA = ("output", "format", "corrupt", "seed", "mask_prob", "threshold")


def run(command: str, flags: FlagValues, beam_args: str | None) -> None:
    """Runs a command.

    Args:
      command: the name of a function of this module.
      beam_args: options of Apache Beam; None: processes of this machine.

    Raises `UserError`: 1 for flags that do not go together, or that of the command.
    """
    given: Any = types.SimpleNamespace(**flags.flag_values_dict())
    needed = {"rerank": "nbest", "predict": "model"}.get(command)
    if needed and getattr(given, needed) is None:
        raise UserError(f"{command} needs --{needed}.", EXIT_FLAGS)
    for name in (*_READ, "output"):
        if getattr(given, name) == "-":  # standard input or output
            setattr(given, name, None)
    _check_effects(given, flags)
    for name in _READ:
        if path := getattr(given, name):
            fetch(path)
    if given.output is not None:
        _check_not_read(given)
    if given.output_dir is not None:
        _write_shards(command, given, beam_args)
        return
    _check_input(given)
    if command == "report" and not given.output:
        given.output = os.path.join(_model(given), "report.html")
    folder, name = os.path.split(given.output or "")
    with Outputs(folder, name):
        if command == "report":
            report(given)
            return
        commands = {f.__name__: f for f in (detect, score, pairs, rerank, predict)}
        with line_writer(given.output) as write:
            for line in commands[command](given):
                write(line)


def detect(given) -> Iterator[str]:
    """Yields passages with the predictions for their tokens."""
    from electra_tf.inference import detection, prediction

    model = prediction.load(_model(given))
    if given.corrupt:
        model.corrupt([])  # raises the error of a model without generator
        _set_mask_prob(model, given)
    in_terminal = given.output is None and sys.stdout.isatty()
    return detection.show(
        detection.detect(model, _texts(given), given.seed if given.corrupt else None),
        given.format,
        temperature=model.config.temperature if given.corrupt else None,
        threshold=given.threshold,
        colour=in_terminal or "FORCE_COLOR" in os.environ,
    )


def _set_mask_prob(model, given) -> None:
    """Sets the share of tokens that are masked when a text is corrupted."""
    if given.mask_prob is not None:
        model.config = model.config.replaced(mask_prob=given.mask_prob)


def report(given) -> None:
    """Writes an HTML page about a run."""
    from electra_tf.inference import detection, html_report, pretrained_model

    folder = Path(_model(given))
    bring_model(folder)
    html_report.config_of(folder)  # raises the error of other directories
    passages: list[tuple] = []
    if given.input:
        model = pretrained_model.load(folder)
        _set_mask_prob(model, given)
        passages = list(detection.detect(model, _texts(given), given.seed))
    html_report.write_report(folder, passages, given.output)
    print(paths.shown(f"Written to {given.output}"))


def score(given) -> Iterator[str]:
    """Yields a JSON object for each text of the input."""
    from electra_tf.inference import prediction, scoring

    model = prediction.load(_model(given))
    options = model.method(given.method), given.overlap, given.tokens
    counts: collections.Counter[str] = collections.Counter()
    for row in scoring.rows(model, _texts(given), *options):
        counts.update(scoring.counts_of(row))
        yield json_line(row)
    scoring.warn_of_empty(counts)


def rerank(given) -> Iterator[str]:
    """Yields the lists of --nbest in their new order."""
    from electra_tf.inference import prediction, reranking

    if (given.weight is None) != given.tune:
        raise UserError("rerank needs --weight or --tune, and not both.", EXIT_FLAGS)
    lists = reranking.read_nbest(given.nbest, given.encoding_errors)
    errors = reranking.count_errors(lists)
    if given.tune and not errors:
        raise UserError('--tune needs the "reference" of each list, to count errors.')
    model = prediction.load(_model(given))
    scores = reranking.score_lists(lists, model, given.method, given.overlap)
    weight = given.weight
    if given.tune:
        weight = reranking.tune(lists, scores, errors)
    yield from map(json_line, reranking.reranked(lists, scores, weight))
    print(f"Lists: {len(lists)}; weight {weight:g}.", file=sys.stderr)
    if errors:
        line = reranking.describe(lists, scores, errors, weight)
        print(line, file=sys.stderr)


def pairs(given) -> Iterator[str]:
    """Yields one JSON object: how often the good text of a pair scores higher."""
    from electra_tf.inference import pairs, prediction

    rows = pairs.read_pairs(given.input, given.encoding_errors)
    model = prediction.load(_model(given))
    console = Console(sys.stderr)
    right = list(pairs.compare(rows, model, given.method, console))
    found = pairs.summary(rows, right)
    yield json.dumps(found, indent=1, ensure_ascii=False)
    console.log(
        f"Accuracy {found['accuracy']:.2f} ± {found['standard_error']:.2f} %, the mean "
        f"of {len(found['sets']):,} sets with {len(rows):,} pairs."
    )


def predict(given) -> Iterator[str]:
    """Yields the prediction of a fine-tuned model for each input."""
    from electra_tf.finetune import inputs
    from electra_tf.inference import prediction

    predictor = prediction.load_predictor(given.model, given.task, given.data_dir)
    source = inputs.open_source(given.input, given.input_format, predictor.reads)
    return map(json_line, predictor.rows(predictor.read_inputs(source)))


def _write_shards(command: str, given, beam_args: str | None) -> None:
    """Writes shards of the model's answers for all texts of a corpus."""
    from electra_tf.inference import corpus_run, scoring

    if given.input is None:
        raise UserError(
            "--output-dir needs a file or directory as --input.", EXIT_FLAGS
        )
    load, names = {
        "detect": (corpus_run.Detections, "encoding_errors text_key"),
        "predict": (corpus_run.Predictions, "task data_dir input_format"),
        "score": (corpus_run.Scores, "encoding_errors text_key method overlap tokens"),
    }[command]
    options = {name: getattr(given, name) for name in names.split()}
    model = given.model if command == "predict" else _model(given)
    options["model"] = os.path.abspath(model)
    if options.get("data_dir"):
        options["data_dir"] = os.path.abspath(given.data_dir)
    shard_bytes = given.shard_mb and max(1, round(given.shard_mb * 1e6))
    manifest = corpus_run.run(
        *(command, load, options, given.input, given.output_dir),
        *(given.workers, beam_args, shard_bytes),
    )
    scoring.warn_of_empty(manifest["counts"])


def _model(given) -> str:
    """The path of the model that the flags name."""
    by_name = given.data_dir is not None, given.model_name is not None
    if given.model is not None and not any(by_name):
        return given.model
    if given.model is None and all(by_name):
        return run_directory(given.data_dir, given.model_name)
    raise UserError(
        "give --data-dir and --model-name, or --model alone.\nTry --help.", EXIT_FLAGS
    )


def _texts(given) -> Iterator[str]:
    """The lines or records of the input, or the lines of standard input."""
    from electra_tf.inference.corpus_run import texts_in

    path = given.input
    if path is None and sys.stdin.isatty():
        print("Reading from the terminal; end with Ctrl-D.", file=sys.stderr)
    if path is None or not units.holds_records(path):
        return corpus.read_lines(path, given.encoding_errors)
    reading = units.Reading(given.encoding_errors, given.text_key)
    return texts_in(units.file_corpus(path, given.text_key).units, reading)


def _check_effects(given, flags: FlagValues) -> None:
    """Raises `UserError` for flags without effect, with or without --output-dir."""
    names, why = _OF_CORPORA, "is for --output-dir"
    if given.output_dir is not None:
        names, why = _NOT_OF_CORPORA, "is not for --output-dir"
    for name in names:
        if flags[name].value != flags[name].default:
            raise UserError(f"--{name.replace('_', '-')} {why}.", EXIT_FLAGS)


def _check_not_read(given) -> None:
    """Raises `UserError` if the output would replace an input."""
    for name in _READ:
        path = getattr(given, name)
        both_are_files = all(map(os.path.isfile, (path or "", given.output)))
        if both_are_files and os.path.samefile(path, given.output):
            raise UserError(
                f"--{name} and --output are the same file, {given.output}.", EXIT_FLAGS
            )


def _check_input(given) -> None:
    """Raises `UserError` for a missing input, before the model is loaded."""
    path = given.input
    if path and (os.path.isdir(path) or not os.path.exists(path)):
        raise UserError(
            f"--input {path} is not a file.\nA directory goes with --output-dir."
        )
