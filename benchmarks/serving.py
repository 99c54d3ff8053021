# SPDX-License-Identifier: Apache-2.0
"""Latency of served models beside Hugging Face's torch model with the same weights.

    python benchmarks/serving.py
    python benchmarks/serving.py --data-dir D --model-name M
    python benchmarks/serving.py --what encoder,classifier,qa --jit_compile

Without a run, a model of ELECTRA-Small's size with random weights and a vocabulary
made from the examples. Each side runs in a process of its own; they take turns at the
same requests, and see the same ids (encoder) or the same strings (detector: tokenizer,
model, probabilities and character offsets; classifier: probabilities; qa: the best
answer to a question on a text). What classifies and answers is fine-tuned for one step.
Batches follow each other through a text, so their lengths differ as they do in life.
"Quiet" is the median over requests of each one's fastest run; "times as fast" compares
that.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from absl import flags
from measurement import ROOT, save
from preparation import train_vocabulary

from electra_tf import cli, startup
from electra_tf.errors import UserError

FLAGS = flags.FLAGS

flags.DEFINE_string("data_dir", None, "Of the run to serve.")
flags.DEFINE_string("model_name", None, "Of the run to serve.")
flags.DEFINE_string(
    "hparams", "{}", "Changes of the made up model, JSON: other sizes, for example."
)
flags.DEFINE_string("text", None, "File with one text a line; default: the examples'.")
flags.DEFINE_list("batch_sizes", ["1", "8", "32"], "Texts of a request.")
flags.DEFINE_list(
    "what",
    ["encoder", "detector"],
    "SavedModels to measure, of encoder, detector, classifier and qa.",
)
flags.DEFINE_integer("requests", 60, "Requests of a measurement.")
flags.DEFINE_integer("rounds", 5, "Measurements of each side, in turns.")
flags.DEFINE_list("precisions", ["float32"], "Of our side; mixed_bfloat16 is another.")
flags.DEFINE_boolean(
    "jit_compile",
    False,
    "Another side of ours: the encoder compiled by XLA, in float32, for ids that are "
    "padded to multiples of 16.",
)
flags.DEFINE_integer(
    "threads",
    len(os.sched_getaffinity(0)),
    "Of each side; 1 suffers least from others.",
)
flags.DEFINE_integer(
    "intra_op_threads",
    None,
    "That share one operation of our side; default: all. TensorFlow Serving has "
    "--tensorflow_intra_op_parallelism.",
)
flags.DEFINE_string("peer_python", sys.executable, "Python with torch, transformers.")
flags.DEFINE_string("json", None, "File for all that was measured.")
flags.DEFINE_string("worker", None, "Internal: the side that this process measures.")

HELDOUT = ROOT / "examples" / "heldout" / "lost_world_opening.txt"
TASKS = {
    "classifier": {"type": "classification", "text_a": "text", "label": "label"},
    "qa": {"type": "qa"},
}
COMPILED = "float32, XLA"
MULTIPLE = 16  # of which lengths are, for XLA, which compiles each
LONGEST_ANSWER = 30  # tokens: the default of "max_answer_length"


def main(_):
    if FLAGS.worker:
        return work(*FLAGS.worker.split("=", 1))
    texts = read_texts()
    startup.import_tensorflow()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        stored = stored_model(folder)
        write_peer(stored, folder)
        write_tasks(stored, texts, folder)
        workers = {"torch": Worker("torch", folder)}
        sides = {precision: (precision, False) for precision in FLAGS.precisions}
        if FLAGS.jit_compile:
            sides[COMPILED] = "float32", True
        for side, (precision, jit_compile) in sides.items():
            write_ours(stored, folder, side, precision, jit_compile)
            workers[side] = Worker("ours", folder / side)
        requests = batches_of(texts, stored)
        found = compare(workers, requests)
        for worker in workers.values():
            worker.close()
    save(FLAGS.json, found)
    return 0


# What is measured.


def read_texts() -> list[str]:
    path = Path(FLAGS.text) if FLAGS.text else HELDOUT
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip()]


def stored_model(folder: Path):
    """The run's newest checkpoint, or a model that is made up."""
    from electra_tf.interop import sources
    from electra_tf.interop.stored_model import StoredModel, empty_pretrainer

    if FLAGS.model_name:
        return sources.read(os.path.join(FLAGS.data_dir, "models", FLAGS.model_name))

    from electra_tf.config.pretraining import PretrainingConfig
    from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary

    vocab_file = folder / "vocab.txt"
    train_vocabulary(ROOT / "examples" / "corpus", vocab_file, 8000)
    vocab = Vocabulary.load(vocab_file)
    hparams = {"vocab_size": len(vocab), "vocab_file": str(vocab_file)}
    config = PretrainingConfig.from_hparams(
        str(folder), "made_up", hparams | json.loads(FLAGS.hparams)
    )
    weights = {v.path: v.numpy() for v in empty_pretrainer(config, vocab).variables}
    return StoredModel(config, vocab, TokenizerConfig(), weights, {}, 0, "made up")


def write_peer(stored, folder: Path) -> None:
    from electra_tf.interop import huggingface

    huggingface.write_huggingface(
        stored, "discriminator", folder / "peer", log=lambda line: None
    )


def write_tasks(stored, texts: list[str], folder: Path) -> None:
    """Fine-tunes for the tasks that are measured, and writes them for transformers."""
    (folder / "text.tsv").write_text(
        "\n".join(["text\tlabel", *(f"{t}\t{i % 2}" for i, t in enumerate(texts[:8]))])
    )
    paragraphs = [
        {
            "context": text,
            "qas": [
                {
                    "id": str(number),
                    "question": question_on(text),
                    "answers": [{"text": text.split()[0], "answer_start": 0}],
                }
            ],
        }
        for number, text in enumerate(texts[:8])
    ]
    content = {"version": "1.1", "data": [{"title": "", "paragraphs": paragraphs}]}
    (folder / "qa.json").write_text(json.dumps(content))
    files = {"classifier": "text.tsv", "qa": "qa.json"}
    for what in FLAGS.what:
        if what not in TASKS:
            continue
        data = {"train": files[what], "dev": files[what]}
        hparams = {
            "task_names": [what],
            "tasks": {what: TASKS[what] | data},
            "init_checkpoint": str(folder / "peer" / "discriminator"),
            "max_seq_length": stored.config.max_seq_length,
            "train_batch_size": 8,
            "num_train_epochs": 1,
            "do_eval": False,
            "jit_compile": False,
        }
        if what == "qa":
            hparams |= {"joint_prediction": False, "answerable_classifier": False}
            hparams |= {"max_answer_length": LONGEST_ANSWER}
        command = [sys.executable, str(ROOT / "run_finetuning.py")]
        command += [f"--data-dir={folder}", f"--model-name={what}"]
        command += [f"--hparams={json.dumps(hparams)}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        export_task(what, folder, folder / f"peer_{what}", "huggingface")


def export_task(
    what: str, folder: Path, output_dir: Path, form: str, precision: str = "float32"
) -> None:
    """As export_model.py does."""
    from electra_tf.export import formats

    request = formats.ExportRequest(form, str(output_dir), str(folder), what, what=what)
    with contextlib.redirect_stdout(None):  # how far from the model it is
        formats.export(request._replace(precision=precision))


def question_on(text: str) -> str:
    return " ".join(text.split()[:5]) + "?"


def write_ours(stored, folder: Path, side: str, precision: str, jit_compile: bool):
    from electra_tf.export import saved_models

    source = saved_models.source_of(stored, precision, jit_compile)
    for what in ["encoder"] if jit_compile else FLAGS.what:
        if what in TASKS:
            export_task(what, folder, folder / side, "saved_model", precision)
        else:
            saved_models.write_part(source, what, folder / side)


def batches_of(texts: list[str], stored) -> dict[int, dict[str, list]]:
    """Batch size -> requests of texts, and of their padded ids."""
    from electra_tf.text import packing
    from electra_tf.text.tokenization import Tokenizer

    tokenizer = Tokenizer(stored.vocab, *stored.tokenizer_config)
    longest = stored.config.max_seq_length - 2
    found = {}
    for size in map(int, FLAGS.batch_sizes):
        if size > len(texts):
            raise UserError(f"a batch of {size} texts: there are {len(texts)}.")
        requests: dict[str, list] = {"encoder": [], "qa": [], "texts": []}
        for number in range(FLAGS.requests):
            first = number * size % (len(texts) - size + 1)
            batch = texts[first : first + size]
            rows = [tokenizer.encode(text)[:longest] for text in batch]
            packed = packing.pack(stored.vocab, rows)
            requests["texts"].append(batch)
            requests["qa"].append([list(map(question_on, batch)), batch])
            ids, mask = packed.input_ids, packed.input_mask
            requests["encoder"].append([ids.tolist(), mask.tolist()])
        found[size] = requests | dict.fromkeys(
            ("detector", "classifier"), requests["texts"]
        )
    return found


def compare(workers: dict, requests: dict) -> dict:
    """Measures all sides in turns and prints a table."""
    found = {}
    print(
        "| | batch | side | quiet ms | p50 ms | p99 ms | texts/s | times as fast "
        "| difference |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for what in FLAGS.what:
        for size, of_size in requests.items():
            sides = {
                side: worker
                for side, worker in workers.items()
                if side != COMPILED or what == "encoder"
            }
            answers = {
                side: worker.ask(what=what, first=of_size[what][0])
                for side, worker in sides.items()
            }
            seconds = {side: [] for side in sides}
            for _ in range(FLAGS.rounds):
                for side, worker in sides.items():
                    seconds[side] += [worker.ask(what=what, requests=of_size[what])]
            quiet = {side: quiet_seconds(rounds) for side, rounds in seconds.items()}
            for side in sides:
                flat = sorted(s for r in seconds[side] for s in r)
                gap = max_difference(answers[side], answers["torch"])
                print(
                    f"| {what} | {size} | {side} | {1e3 * quiet[side]:.2f} "
                    f"| {1e3 * statistics.median(flat):.2f} "
                    f"| {1e3 * flat[int(0.99 * (len(flat) - 1))]:.2f} "
                    f"| {size * len(flat) / sum(flat):.0f} "
                    f"| {quiet['torch'] / quiet[side]:.2f} | {gap:.1e} |",
                    flush=True,
                )
            found[f"{what} {size}"] = seconds
    return found


def quiet_seconds(rounds: list[list[float]]) -> float:
    """The median over requests of each one's fastest run: what other programs cost
    is left out, as far as there was a quiet moment."""
    return statistics.median(map(min, zip(*rounds, strict=True)))


def max_difference(ours: list, theirs: list) -> float:
    """Of the numbers of tokens that both have: padding differs."""
    return max(
        abs(a - b)
        for row, other in zip(ours, theirs, strict=True)
        for a, b in zip(row, other, strict=True)
    )


# The sides, each in a process of its own.


class Worker:
    """A process that measures one side when it is asked to."""

    def __init__(self, side: str, directory: Path):
        python = FLAGS.peer_python if side == "torch" else sys.executable
        self._process = subprocess.Popen(
            [
                *(python, __file__),
                *(f"--worker={side}={directory}", f"--threads={FLAGS.threads}"),
                f"--intra_op_threads={FLAGS.intra_op_threads or FLAGS.threads}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        )

    def ask(self, **order):
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise UserError("a process that measures ended; its error stands above.")
        return json.loads(line)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(30)


def work(side: str, directory: str) -> int:
    """Answers orders from standard input until it ends."""
    answer = sys.stdout
    sys.stdout = sys.stderr  # Libraries print.
    make = {"ours": our_functions, "torch": torch_functions}[side]
    functions = make(Path(directory))
    for line in sys.stdin:
        order = json.loads(line)
        prepare, run, numbers = functions[order["what"]]
        if "first" in order:
            found = numbers(order["first"], run(prepare(order["first"])))
        else:
            found = []
            prepared = [prepare(request) for request in order["requests"]]
            for request in prepared:  # XLA compiles each length.
                run(request)
            for request in prepared:
                start = time.perf_counter()
                run(request)
                found.append(time.perf_counter() - start)
        print(json.dumps(found), file=answer, flush=True)
    return 0


def our_functions(directory: Path) -> dict:
    """What -> (prepare a request, run it, numbers per row of the result)."""
    startup.import_tensorflow()
    import numpy as np
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    multiple = MULTIPLE if directory.name == COMPILED else 1
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.intra_op_threads)
    tf.config.threading.set_inter_op_parallelism_threads(FLAGS.threads)
    loaded = {
        path.name: tf.saved_model.load(str(path / "1"))
        for path in directory.iterdir()
        if path.is_dir()
    }

    def ids_of(request):
        ids, mask = (np.array(x, np.int32) for x in request)
        padding = (0, 0), (0, -ids.shape[1] % multiple)
        ids, mask = (np.pad(x, padding) for x in (ids, mask))
        return ids, mask, np.zeros_like(ids)

    def encode(arrays):
        names = ("input_word_ids", "input_mask", "input_type_ids")
        inputs = {n: tf.constant(x) for n, x in zip(names, arrays, strict=True)}
        return (
            loaded["encoder"]
            .signatures["serving_default"](**inputs)["sequence_output"]
            .numpy()
        )

    def ask(what, **texts):
        inputs = {name: tf.constant(value) for name, value in texts.items()}
        outputs = loaded[what].signatures["serving_default"](**inputs)
        return {name: x.numpy() for name, x in outputs.items()}

    def detected(texts, found):
        counts = found["num_tokens"]
        pairs = zip(found["probabilities"], counts, strict=True)
        return [row[:count].tolist() for row, count in pairs]

    return {
        "encoder": (ids_of, encode, real_rows),
        "detector": (same, lambda texts: ask("detector", text=texts), detected),
        "classifier": (
            same,
            lambda texts: ask("classifier", text=texts),
            lambda texts, found: found["probabilities"].tolist(),
        ),
        "qa": (
            same,
            lambda asked: ask("qa", question=asked[0], context=asked[1]),
            lambda asked, found: found["score"][:, None].tolist(),
        ),
    }


def same(request):
    """A request as it is."""
    return request


def torch_functions(directory: Path) -> dict:
    """The same by transformers: fast tokenizer and the class for each task."""
    import numpy as np
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(FLAGS.threads)

    def model_in(name, path):
        path = directory / path
        if not path.is_dir():
            return None
        return getattr(transformers, name).from_pretrained(path).eval()

    of_pretraining = "peer/discriminator"
    model = model_in("ElectraForPreTraining", of_pretraining)
    classifier = model_in(
        "ElectraForSequenceClassification", "peer_classifier/classifier"
    )
    answerer = model_in("ElectraForQuestionAnswering", "peer_qa/qa")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory / of_pretraining)
    longest = tokenizer.model_max_length

    def ids_of(request):
        return [torch.tensor(x) for x in request]

    @torch.inference_mode()
    def encode(request):
        ids, mask = request
        return model.electra(ids, attention_mask=mask).last_hidden_state.numpy()

    @torch.inference_mode()
    def detect(texts):
        inputs = tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=longest,
            return_offsets_mapping=True,
            return_tensors="pt",
        )
        offsets = inputs.pop("offset_mapping").numpy()
        probabilities = torch.sigmoid(model(**inputs).logits).numpy()
        return probabilities, offsets, inputs["attention_mask"].numpy()

    @torch.inference_mode()
    def classify(texts):
        inputs = tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=longest,
            return_tensors="pt",
        )
        return torch.softmax(classifier(**inputs).logits, -1).numpy()

    @torch.inference_mode()
    def answer(asked):
        questions, contexts = asked
        inputs = tokenizer(
            questions,
            contexts,
            padding=True,
            truncation="only_second",
            max_length=longest,
            return_offsets_mapping=True,
            return_tensors="pt",
        )
        offsets = inputs.pop("offset_mapping").numpy()
        outputs = answerer(**inputs)
        starts, ends = outputs.start_logits.numpy(), outputs.end_logits.numpy()
        # A span of up to so many tokens, all of them the text's.
        inside = (inputs["token_type_ids"] * inputs["attention_mask"]).numpy() > 0
        last = inputs["attention_mask"].numpy().sum(1) - 1  # [SEP]
        inside[np.arange(len(last)), last] = False
        pairs = starts[:, :, None] + ends[:, None, :]
        spans = np.triu(np.ones(pairs.shape[1:], bool))
        spans &= ~np.triu(spans, LONGEST_ANSWER)
        pairs[~(spans & inside[:, :, None] & inside[:, None, :])] = -np.inf
        best = pairs.reshape(len(pairs), -1).argmax(1)
        first, final = np.divmod(best, pairs.shape[2])
        rows = zip(contexts, offsets, first, final, strict=True)
        texts = [text[row[a, 0] : row[b, 1]] for text, row, a, b in rows]
        return texts, pairs.max((1, 2))

    def detected(texts, found):
        counts = found[2].sum(axis=1)
        pairs = zip(found[0], counts, strict=True)
        return [row[1 : count - 1].tolist() for row, count in pairs]

    return {
        "encoder": (ids_of, encode, real_rows),
        "detector": (same, detect, detected),
        "classifier": (same, classify, lambda texts, found: found.tolist()),
        "qa": (same, answer, lambda asked, found: found[1][:, None].tolist()),
    }


def real_rows(request, sequence) -> list:
    """The first numbers of the vectors of real tokens, row by row."""
    counts = [sum(row) for row in request[1]]
    pairs = zip(sequence, counts, strict=True)
    return [row[:count, 0].tolist() for row, count in pairs]


if __name__ == "__main__":
    cli.run(main)
