# SPDX-License-Identifier: Apache-2.0
"""The scales that experiments run at: recipe, budget, data, and what is measured.

pocket measures by a labelled task out of plain text: which mark follows this word, if
any? Words are lower-cased and without their marks; tags are comma, stop (. ; : ! ?) or
none. It needs no annotators, and it takes some syntax. Tuning and test texts are novels
that training has nothing of, by its authors.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jobs import Commands
from report import ROOT, Comparison

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import read_hparams
from electra_tf.config.model import SIZES
from electra_tf.config.run import read_config
from electra_tf.errors import UserError
from electra_tf.finetune.registry import originals_with_data
from electra_tf.storage.files import atomic_write
from electra_tf.storage.manifest import sha256

# GLUE without WNLI, as the ELECTRA paper reports it: task -> metric.
GLUE = {
    "cola": "mcc",
    "sst": "accuracy",
    "mrpc": "accuracy",
    "sts": "spearman",
    "qqp": "accuracy",
    "mnli": "accuracy",
    "qnli": "accuracy",
    "rte": "accuracy",
}
# Learning rates of fine-tuning: the ELECTRA paper, Table 7. The original's program has
# 1e-4 for small.
RATES = {"small": 3e-4, "base": 1e-4, "large": 5e-5}
# pocket learns from sequences of 32 tokens, so it is measured by short sentences.
_CHUNK_WORDS = 16
_CHUNK_SENTENCES = 600
# The task of marks.
_MARKS = {
    "train": ("corpus/hound_of_the_baskervilles.txt", "corpus/secret_garden.txt"),
    "tuning": ("corpus/little_princess.txt",),
    "test": ("heldout/lost_world_opening.txt",),
}
PASSAGES = {"train": 800, "tuning": 800, "test": 800}
_WORDS = 12  # of a passage, and then to the end of the sentence, if that is near
_MOST = 18
_TOKEN = re.compile(r"[A-Za-z]+(?:['’][A-Za-z]+)*|[,.;:!?]")


class Scale(NamedTuple):
    """What runs of one size have in common.

    Attributes:
      recipe: hparams of pre-training; a run may take the FLOPs that these take.
      finetuning: hparams of fine-tuning.
      trials: fine-tuning runs of each pre-trained model; their median is its score.
    """

    recipe: dict[str, Any]
    finetuning: dict[str, Any]
    trials: int


def scale_named(name: str, comparison: Comparison) -> Scale:
    """The scale that a command line names; `UserError` where a comparison lacks it."""
    recipes = comparison.recipes or dict.fromkeys(("pocket", "small", "base"), "pocket")
    if name not in recipes:
        found = ", ".join(recipes)
        raise UserError(f"--scale {name}: {comparison.name} has {found}.")
    if name in RATES:
        finetuning = {"model_size": name, "learning_rate": RATES[name]}
        return Scale(read_config(f"electra_{name}"), finetuning, trials=10)
    files = f"{recipes[name]}.json", "pocket_finetuning.json"
    here = Path(__file__).parent
    return Scale(*(read_hparams(str(here / file)) for file in files), trials=1)


def script(name: str, *arguments: str) -> list[str]:
    """The command of a script of this checkout."""
    return [sys.executable, str(ROOT / name), *arguments]


def run_of(name: str, data_dir: Path, model: str, hparams: Mapping) -> list[str]:
    """The command of a run."""
    places = f"--data-dir={data_dir}", f"--model-name={model}"
    return script(name, *places, f"--hparams={json.dumps(hparams)}")


class Data(NamedTuple):
    """What all runs of an output directory are trained on.

    Attributes:
      directory: of vocabulary and TFRecords.
      jobs: what makes them, before the runs.
      sha256: of files that the user may replace, by name; None: they are ours.
    """

    directory: Path
    jobs: list[Commands]
    sha256: dict[str, str] | None


class Measure(NamedTuple):
    """A task that pre-trained models are fine-tuned on, and its metric."""

    name: str
    task: str
    metric: str
    hparams: dict[str, Any] = {}

    def command(self, run: Any, folder: Path, scale: Scale, data: Data) -> list[str]:
        """Fine-tunes the model of a `Run`, in its folder."""
        hparams = merged({} if run.steps else run.hparams, scale.finetuning)
        hparams |= self.hparams | {
            "task_names": [self.task],
            "num_trials": scale.trials,
            "keep_all_models": False,
            "seed": 1000 * run.seed,  # Those of the trials follow it.
            "init_checkpoint": str(folder / "model") if run.steps else None,
            "model_dir": str(folder / self.name),
            "preprocessed_data_dir": str(folder / f"{self.name}_features"),
        }
        return run_of("run_finetuning.py", data.directory, run.key, hparams)

    def score(self, folder: Path) -> float | None:
        """The median of the trials; None where no trial has a defined one."""
        path = folder / f"{self.name}_results" / f"{self.task}_results.json"
        found = json.loads(path.read_text(encoding="utf-8"))["statistics"]
        return found[self.task][self.metric]["median"]


def merged(recipe: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe with changes; those of the model's shape one by one."""
    name = "model_hparam_overrides"
    shape = {**recipe.get(name, {}), **changes.get(name, {})}
    return {**recipe, **changes, **({name: shape} if shape else {})}


def built_data(
    folder: Path,
    corpora: Mapping[str, Path],
    recipe: Mapping[str, Any],
    flags: Sequence[str] = (),
) -> Data:
    """A vocabulary and TFRecords of text, in a folder.

    Args:
      corpora: text by the name of its TFRecords; the vocabulary is the first one's.
      flags: of build_pretraining_dataset.py.
    """
    vocab, sources = folder / "vocab.txt", iter(corpora.values())
    size, length = recipe["vocab_size"], recipe["max_seq_length"]
    commands = []
    if not vocab.exists():
        places = f"--corpus-dir={next(sources)}", f"--output-file={vocab}"
        commands.append(script("build_vocab.py", *places, f"--vocab-size={size}"))
    for name, source in corpora.items():
        records = folder / name
        if not (records / "manifest.json").exists():
            places = f"--corpus-dir={source}", f"--vocab-file={vocab}"
            places += f"--output-dir={records}", f"--max-seq-length={length}"
            build = script("build_pretraining_dataset.py", *places, *flags)
            commands.append(build)
    job = Commands("Data", commands, folder.parent / "logs" / "data.log")
    return Data(folder, [job] if commands else [], None)


def pocket_data(output: Path, corpus: Path, recipe: Mapping[str, Any]) -> Data:
    """A vocabulary and TFRecords of a directory of text, in `output`."""
    return built_data(output / "data", {"pretrain_tfrecords": corpus}, recipe)


def given_data(data_dir: Path | None, scale: str) -> Data:
    """What a user has built for a scale larger than pocket."""
    if data_dir is None:
        raise UserError(
            f"--scale {scale} needs --data-dir: a directory with vocab.txt, "
            "pretrain_tfrecords and finetuning_data."
        )
    files = [data_dir / "vocab.txt", data_dir / "pretrain_tfrecords" / "manifest.json"]
    found = {f"sha256 of {path}": sha256(path) for path in files if path.exists()}
    return Data(data_dir, [], found)


def glue_tasks(there: Sequence[str], data_dir: Path) -> list[str]:
    """The tasks of GLUE that are there, in the paper's order.

    Args:
      there: the original's tasks that have data.
    """
    found = [task for task in GLUE if task in there]
    if not found:
        raise UserError(
            f"found no data of {', '.join(GLUE)}.\nGLUE's files go into "
            f"{data_dir / 'finetuning_data'}/<task>, as docs/fine_tuning.md says."
        )
    return found


def paper_rate(hparams: Mapping[str, Any]) -> float | None:
    """The paper's rate for fine-tuning; None for a model of none of its sizes."""
    size = hparams.get("model_size", "small")
    shape = SIZES[size] | hparams.get("model_hparam_overrides", {})
    is_paper = all(shape[name] == value for name, value in SIZES[size].items())
    return RATES[size] if is_paper else None


def measures(
    scale: str, output: Path, data_dir: Path | None, comparison: Comparison
) -> dict[str, Measure]:
    """What models are measured by: name -> Measure; files are written where needed."""
    if scale != "pocket":
        if comparison.tuning:
            raise UserError("what is tuned here is --scale pocket; others are papers'.")
        config = FinetuningConfig.from_hparams(str(data_dir), "m", {})
        there = glue_tasks(originals_with_data(config), data_dir)
        return {task: Measure(task, task, GLUE[task]) for task in there}
    folder = output / "data" / "tasks"
    split = "tuning" if comparison.tuning else "test"
    write_marks(folder, ROOT / "examples")
    dev = {"marks": f"marks_{split}.txt"}
    if data_dir is not None:
        chunk = data_dir / "finetuning_data" / "chunk"
        _write_chunk(folder, chunk)
        dev["chunk"] = f"chunk_{split}.txt"
    end = "_tuning" if comparison.tuning else ""
    found = {}
    for name, file in dev.items():
        train = str(folder / f"{name}_train.txt")
        task = {"type": "tagging", "train": train, "dev": str(folder / file)}
        tasks = {"tasks": {name: task}}
        found[name + end] = Measure(name + end, name, "f1", tasks)
    return found


def _write_chunk(folder: Path, source: Path) -> None:
    """The first short sentences to train on, the last to tune by; those of dev."""

    def short(file: str) -> list[str]:
        text = (source / file).read_text(encoding="utf-8").strip()
        found = text.split("\n\n")
        return [s for s in found if len(s.splitlines()) <= _CHUNK_WORDS]

    train, count = short("train.txt"), _CHUNK_SENTENCES
    parts = {"train": train[:count], "tuning": train[count:][-count:]}
    for name, sentences in (parts | {"test": short("dev.txt")}).items():
        write_once(folder / f"chunk_{name}.txt", "\n\n".join(sentences))


def write_marks(folder: Path, texts: Path) -> None:
    """Writes marks_train.txt, marks_tuning.txt, marks_test.txt, as CoNLL has them."""
    for split, novels in _MARKS.items():
        count = PASSAGES[split] // len(novels)
        chosen = [p for n in novels for p in spread(passages(texts / n), count)]
        rows = ["\n".join(" ".join(pair) for pair in passage) for passage in chosen]
        write_once(folder / f"marks_{split}.txt", "\n\n".join(rows))


def write_once(path: Path, text: str) -> None:
    """Writes a file unless it is there; features that are made of it stay valid."""
    if not path.exists():
        atomic_write(path, text + "\n")


def passages(novel: Path) -> list[list[tuple[str, str]]]:
    """(word, tag) of passages of some sentences each."""
    found, passage = [], []
    for line in novel.read_text(encoding="utf-8").splitlines():
        passage += tagged(line)
        if len(passage) >= _WORDS:
            found.append(passage[:_MOST])
            passage = []
    return found


def tagged(line: str) -> list[tuple[str, str]]:
    """The words of a line, each with the mark that follows it."""
    pairs: list[tuple[str, str]] = []
    for token in _TOKEN.findall(line):
        if token[0].isalpha():
            pairs.append((token.lower(), "O"))
        elif pairs and pairs[-1][1] == "O":
            tag = "B-comma" if token == "," else "B-stop"
            pairs[-1] = pairs[-1][0], tag
    return pairs


def spread(items: list, count: int) -> list:
    """`count` of them at equal distances; all if there are fewer."""
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]
