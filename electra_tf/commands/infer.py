# SPDX-License-Identifier: Apache-2.0
"""Uses a model: detects, scores texts, re-ranks, reports a run; predicts.

    python3 run_inference.py detect --data-dir $DATA_DIR --model-name M --input text.txt
    python3 run_inference.py detect --data-dir $DATA_DIR --model-name M --corrupt < text
    python3 run_inference.py report --data-dir $DATA_DIR --model-name M
    python3 run_inference.py score --model $DATA_DIR/models/M < texts > scores.jsonl
    python3 run_inference.py rerank --model $DATA_DIR/models/M --nbest dev.jsonl --tune
    python3 run_inference.py predict --model TRIAL --input new.tsv --output new.jsonl
    python3 run_inference.py score --model M --input corpus/ --output-dir scores/

detect reads each line or record of its input, with --corrupt after the generator has
replaced tokens as in pre-training. report writes an HTML page about a run. score writes
the pseudo-log-likelihood (PLL) of each text; rerank orders n-best lists by given score
+ weight x PLL (docs/electric.md). predict writes labels, numbers, tags or answers of a
fine-tuned model (docs/prediction.md). With --output-dir, score, detect and predict read
a corpus in many processes or by Apache Beam (docs/scale.md).
"""

from absl import flags

from electra_tf import cli
from electra_tf.commands.shared_flags import beam_args, define_path, define_runner
from electra_tf.errors import EXIT_OK
from electra_tf.finetune.inputs import FORMS
from electra_tf.inference import run
from electra_tf.inference.scoring import METHODS

define_path("data_dir", "Location of data files and models.")
flags.DEFINE_string("model_name", None, "Name of the pre-trained model.")
define_path(
    "model", "Instead: the directory of a model; for predict, of a fine-tuned one."
)
define_path(
    "input", "Lines of text, JSON Lines, Parquet, Arrow; predict: any task file."
)
define_path("output", "File to write. Default, and -: standard output, or report.html.")
define_path(
    "output_dir", "Instead of --output: a folder of shards, for a file or directory."
)
define_path("nbest", "N-best lists: JSON lines.")
flags.DEFINE_float("weight", None, "Of the model's score in rerank.", lower_bound=0)
flags.DEFINE_boolean("tune", False, "Find the weight with the fewest errors.")
_ERRORS = ["strict", "replace"]
flags.DEFINE_enum("encoding_errors", "strict", _ERRORS, "For bytes that are not UTF-8.")
flags.DEFINE_string("text_key", "text", "Key or column of the text in records.")
_FORMATS = ["terminal", "jsonl", "html"]
flags.DEFINE_enum("format", "terminal", _FORMATS, "Output format of detect.")
flags.DEFINE_boolean("corrupt", False, "The generator replaces tokens before detect.")
flags.DEFINE_integer(
    "seed", 0, "Of --corrupt and report.", lower_bound=-(2**63), upper_bound=2**63 - 1
)
flags.DEFINE_float(
    "mask_prob", None, "Of --corrupt and report. Default: as in training.", 0.05, 1
)
flags.DEFINE_float(
    "threshold", 0.5, "Mark tokens above it.", lower_bound=0, upper_bound=1
)
flags.DEFINE_enum(
    "method", None, [*METHODS], "Of scoring. Default: the best of the model."
)
flags.DEFINE_integer(
    "overlap", 0, "Tokens shared by windows of a long text.", lower_bound=0
)
flags.DEFINE_boolean("tokens", False, "Write the score of each token, too.")
flags.DEFINE_string("task", None, "Of a fine-tuned model with several.")
_FORMS = sorted({form for forms in FORMS.values() for form in forms})
flags.DEFINE_enum(
    "input_format", None, _FORMS, "For predict. Default: by the suffix of --input."
)
flags.DEFINE_integer(
    "workers", None, "Processes. Default: one per GPU, else core.", lower_bound=1
)
flags.DEFINE_float(
    "shard_mb", None, "Input of a shard. Default: 1/1024, 1 to 64.", 1e-6, 1e9
)
define_runner()

_MODEL = "data_dir model_name model output"
_TEXTS = f"{_MODEL} input text_key encoding_errors"
_SCORES = "method overlap"
_CORPUS = "output_dir workers shard_mb runner beam_args"
# Command -> the flags that it uses.
SUBCOMMANDS = {
    "detect": f"{_TEXTS} {_CORPUS} seed mask_prob format corrupt threshold",
    "report": f"{_TEXTS} seed mask_prob",
    "score": f"{_TEXTS} {_CORPUS} {_SCORES} tokens",
    "rerank": f"{_MODEL} encoding_errors {_SCORES} nbest weight tune",
    "predict": f"model data_dir task input input_format output {_CORPUS}",
}


def main(argv: list[str]) -> int:
    """Runs the command; returns the exit code."""
    run.run(argv[1], cli.FLAGS, beam_args("workers"))
    return EXIT_OK
