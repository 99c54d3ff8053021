# SPDX-License-Identifier: Apache-2.0
"""The one exception for mistakes a user can fix, the exit codes, and what has left."""

import re
from typing import Any, NamedTuple

from electra_tf.paths import shown

EXIT_OK = 0
EXIT_FLAGS = 1  # The command line cannot be parsed.
EXIT_CONFIG = 2  # A setting or an input is wrong.
EXIT_PREEMPTED = 42  # Asked to stop; everything is saved, run the command again.
EXIT_DAMAGED = 65  # An input file is corrupt.
EXIT_PEER_LOST = 69  # Another worker of the run has ended or does not answer.
EXIT_DIVERGED = 70  # The loss is not finite.
EXIT_CANNOT_WRITE = 73  # Disk full, read-only, no permission.
EXIT_LOCKED = 75  # Another process writes to the same directory.

# Exceptions of reading JSON that is damaged or has another form.
JSON_ERRORS = (ValueError, LookupError, TypeError, AttributeError, OverflowError)


class Left(NamedTuple):
    """A flag, a hparam or a hparam's value that was removed.

    Attributes:
      instead: what to use, or why it left.
      default: of a hparam: its former default, which saved configs hold and which is
        dropped without a word; a tuple: any of several.
    """

    instead: str
    default: Any = None

    @property
    def message(self) -> str:
        """Follows the name of what was removed."""
        return f"left in version 0.2: {self.instead}"


_FILTER = Left("filter with datatrove first (docs/corpora.md)")
_LITERT = Left("tf.lite is leaving TensorFlow; export saved_model or onnx")
_MEASURED = "it did not pay (docs/measurements/experiments.md)"
_NEGATIVE = "a negative result of the ELECTRA paper (appendix H)"
_TFDS = "use Hugging Face's Parquet files (docs/fine_tuning_reference.md)"
# "--flag", "--flag value", "hparam" or "hparam value", as CHANGELOG.md lists them.
LEFT: dict[str, Left] = {
    "--min-document-chars": _FILTER,
    "--min-letters": _FILTER,
    "--languages": _FILTER,
    "--drop-duplicate-documents": _FILTER,
    "--drop-near-duplicates": _FILTER,
    "--drop-duplicate-lines": _FILTER,
    "--format litert": _LITERT,
    "--format tflite": _LITERT,
    "--precision int8": Left("quantise the ONNX file (docs/serving.md)"),
    "--parallel": Left("start processes with --trial (docs/fine_tuning.md)"),
    "--jit-compile": Left("compile the loaded signature (docs/serving.md)"),
    "--sweep": Left("fine-tune from each checkpoint in a shell loop"),
    "class_weights": Left("the description of a task has its own", {}),
    "data_source": Left(_TFDS, "files"),
    "tfds_data_dir": Left(_TFDS),
    "write_pictures": Left("TensorBoard draws the curves", False),
    "contrastive_weight": Left(_MEASURED, 0.0),
    "contrastive_group": Left(_MEASURED, (32, 4)),  # 4: of debug
    "generator mixture": Left(_MEASURED),
    "unigram_share": Left(f'{_MEASURED}. "generator": "unigram" did', 0.0),
    "objective electra_sentence": Left(_NEGATIVE),
    "sentence_weight": Left(_NEGATIVE, 1.0),
    "intact_share": Left(_NEGATIVE, 0.2),
    "rare_mask_power": Left(_NEGATIVE, 0.0),
    "electra_15_positions": Left("electra_15 learns from masked positions", "masked"),
    "sample_steps": Left("use run_inference.py detect --corrupt", 0),
    "cloze_chunk_size": Left("the device decides"),
    "compilation_cache": Left("docs/hardware.md has TensorFlow's", (True, False)),
    "curriculum_decay": Left("the temperature falls exponentially", "exponential"),
    "word_list": Left("separate words by spaces first (docs/objectives.md)"),
    "attention_chunk_size": Left("gradient_accumulation_steps needs less memory", 0),
    "on_bad_record": Left("build the data again, or leave that shard out", "stop"),
}


class UserError(Exception):
    """A mistake that the user can fix; scripts print it without a traceback.

    The message names what was found, where (file, line, record, setting) and the
    remedy, in at most three lines.

    Attributes:
        exit_code: the exit status of a script that ends with this error.
    """

    def __init__(self, message: str, exit_code: int = EXIT_CONFIG):
        super().__init__(shown(message))
        self.exit_code = exit_code


def reason_of(error: BaseException) -> str:
    """The first line of an error's message, cut to 200 characters; else its repr."""
    return (str(error).strip() or repr(error)).splitlines()[0][:200]


# A UserError on its way through tf.data, whose errors are text.
_AS_TEXT = re.compile(r"<user-error (\d+)>(.*?)</user-error>", re.DOTALL)


def as_text(error: UserError) -> str:
    """An error as text, which `as_user_error` finds in another error's message."""
    return f"<user-error {error.exit_code}>{error}</user-error>"


def as_user_error(error: BaseException) -> UserError | None:
    """The UserError that `error` is or contains, if any."""
    if isinstance(error, UserError):
        return error
    found = _AS_TEXT.search(str(error))
    return UserError(found[2], int(found[1])) if found else None
