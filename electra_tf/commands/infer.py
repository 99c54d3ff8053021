# SPDX-License-Identifier: Apache-2.0
"""Uses a model: detects, scores texts and pairs, re-ranks, reports a run; predicts.

    python3 run_inference.py detect --data-dir $DATA_DIR --model-name M --input text.txt
    python3 run_inference.py detect --data-dir $DATA_DIR --model-name M --corrupt < text
    python3 run_inference.py report --data-dir $DATA_DIR --model-name M
    python3 run_inference.py score --model $DATA_DIR/models/M < texts > scores.jsonl
    python3 run_inference.py pairs --model $DATA_DIR/models/M --input blimp.jsonl
    python3 run_inference.py rerank --model $DATA_DIR/models/M --nbest dev.jsonl --tune
    python3 run_inference.py predict --model TRIAL --input new.tsv --output new.jsonl
    python3 run_inference.py score --model M --input corpus/ --output-dir scores/

detect reads each line or record of its input, with --corrupt after the generator has
replaced tokens as in pre-training. report writes an HTML page about a run. score writes
the pseudo-log-likelihood (PLL) of each text; pairs counts how often the good one of two
texts has the higher PLL; rerank orders n-best lists by given score + weight x PLL
(docs/electric.md). predict writes labels, numbers, tags or answers of a
fine-tuned model (docs/prediction.md). With --output-dir, score, detect and predict read
a corpus in many processes or by Apache Beam (docs/scale.md).
"""

from absl import flags

from electra_tf import cli
from electra_tf.commands import shared_flags
from electra_tf.commands.shared_flags import define_path
from electra_tf.errors import EXIT_OK
from electra_tf.finetune.inputs import FORMS
from electra_tf.inference import run
from electra_tf.inference.scoring import METHODS

define_path("data_dir", "Location of data files and models.")
flags.DEFINE_string("model_name", None, "Name of the pre-trained model.")
define_path(
    "model",
    "Path of a model, instead of --data-dir and --model-name. predict needs a "
    "fine-tuned one.",
)
define_path(
    "input",
    "Lines of text, JSON Lines, Parquet or Arrow; for predict a file of the task.",
)
define_path(
    "output",
    "Output file. By default standard output (also -); for report, report.html in the "
    "run's directory.",
)
define_path(
    "output_dir",
    "Directory of output shards, instead of --output; resumes and uses all cores.",
)
define_path("nbest", "rerank: n-best lists, a JSON object a line.")
flags.DEFINE_float(
    "weight",
    None,
    "rerank: weight of the model's score (higher trusts the model more).",
    lower_bound=0,
)
flags.DEFINE_boolean("tune", False, "rerank: choose the weight with the fewest errors.")
shared_flags.define_encoding_errors()
flags.DEFINE_string("text_key", "text", "Key or column of the text in records.")
_FORMATS = ["terminal", "jsonl", "html"]
flags.DEFINE_enum("format", "terminal", _FORMATS, "Output format of detect.")
flags.DEFINE_boolean(
    "corrupt", False, "detect: let the generator replace tokens first."
)
flags.DEFINE_integer("seed", 0, "Seed of the replacements by --corrupt and report.")
flags.DEFINE_float(
    "mask_prob",
    None,
    "Share of tokens to replace with --corrupt and in report. Default: the model's own "
    "mask_prob.",
    0.05,
    1,
)
flags.DEFINE_float(
    "threshold",
    0.5,
    "detect: mark tokens with a higher probability.",
    lower_bound=0,
    upper_bound=1,
)
flags.DEFINE_enum(
    "method",
    None,
    [*METHODS],
    "Scoring method; docs/electric.md compares them. Default: the best that the model "
    "supports.",
)
flags.DEFINE_integer(
    "overlap", 0, "Tokens shared by windows of a long text.", lower_bound=0
)
flags.DEFINE_boolean("tokens", False, "score: also write the score of each token.")
flags.DEFINE_string(
    "task", None, "Which task to predict, if the model was fine-tuned on several."
)
_FORMS = sorted({form for forms in FORMS.values() for form in forms})
flags.DEFINE_enum(
    "input_format",
    None,
    _FORMS,
    "predict: format of the input. Default: by the extension of --input.",
)
flags.DEFINE_integer(
    "workers",
    None,
    "Number of processes. Default: one per GPU, else per core.",
    lower_bound=1,
)
flags.DEFINE_float(
    "shard_mb",
    None,
    "MB of input per output shard. Default: 1/1024 of the input, at least 1 and at "
    "most 64.",
    1e-6,
    1e9,
)
shared_flags.define_runner()

_MODEL = "data_dir model_name model output"
_TEXTS = f"{_MODEL} input text_key encoding_errors"
_SCORES = "method overlap"
_CORPUS = "output_dir workers shard_mb runner beam_args"
# Command -> the flags that it uses.
SUBCOMMANDS = {
    "detect": f"{_TEXTS} {_CORPUS} seed mask_prob format corrupt threshold",
    "report": f"{_TEXTS} seed mask_prob",
    "score": f"{_TEXTS} {_CORPUS} {_SCORES} tokens",
    "pairs": f"{_MODEL} input encoding_errors method",
    "rerank": f"{_MODEL} encoding_errors {_SCORES} nbest weight tune",
    "predict": f"model data_dir task input input_format output {_CORPUS}",
}


def main(argv: list[str]) -> int:
    """Runs the command; returns the exit code."""
    run.run(argv[1], cli.FLAGS, shared_flags.beam_args("workers"))
    return EXIT_OK
