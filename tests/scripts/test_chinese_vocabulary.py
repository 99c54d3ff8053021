# SPDX-License-Identifier: Apache-2.0
"""A vocabulary like BERT's Chinese one, from text to a fine-tuned model and exports."""

import hashlib
import json
import random

import pytest

from electra_tf.interop import readers
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.runs import SPECIAL, pretrain, run_script, tiny
from tests.helpers.tiny_finetuning import finetune

SIZE = 21_128
IDEOGRAPHS = [chr(0x4E00 + i) for i in range(7_000)]


def write_vocabulary(path):
    """21,128 lines; one is U+2028, others are blank or have white space alone."""
    tokens = [SPECIAL[0], *(f"[unused{i}]" for i in range(1, 100)), *SPECIAL[1:]]
    tokens += ["\u2028", "", "\u3000", "\x85", *IDEOGRAPHS]
    tokens += [f"##{c}" for c in IDEOGRAPHS]
    tokens += [f"w{i}" for i in range(SIZE - len(tokens))]
    path.write_bytes("".join(f"{token}\n" for token in tokens).encode())
    return hashlib.sha256(path.read_bytes()).hexdigest()


def succeed(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sha256_of(model):
    return readers.read(str(model), log=str).vocab.sha256


@pytest.mark.slow
def test_every_step_keeps_the_vocabulary(tmp_path):
    vocab, rng = tmp_path / "vocab.txt", random.Random(1)
    sha256 = write_vocabulary(vocab)
    sentences = ["".join(rng.choices(IDEOGRAPHS[:500], k=20)) for _ in range(400)]
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("\u2028\n".join(sentences))
    records = tmp_path / "pretrain_tfrecords"
    flags = [f"--corpus-dir={tmp_path}/text", f"--vocab-file={vocab}"]
    flags += [f"--output-dir={records}", "--max-seq-length=32"]
    succeed(run_script("build_pretraining_dataset.py", *flags))
    manifest = json.loads((records / "manifest.json").read_text())
    assert manifest["vocab"]["sha256"] == sha256
    assert manifest["token_counts"]["unknown"] == 0

    hparams = tiny(vocab_size=SIZE, num_train_steps=2, num_warmup_steps=1)
    succeed(pretrain(tmp_path, "zh", hparams))
    exported = tmp_path / "exported"
    run = ["--data-dir", str(tmp_path), "--model-name", "zh"]
    for kind in ("huggingface", "tf1", "saved_model", "onnx"):
        output = str(exported / kind)
        flags = (*run, "--format", kind, "--output-dir", output)
        succeed(run_script("export_model.py", *flags))
        if kind in ("huggingface", "tf1"):
            assert sha256_of(output) == sha256
    written = [*exported.rglob("vocab*.txt"), *exported.rglob("tokenizer.json")]
    assert len(written) >= 5
    for path in written:
        assert Vocabulary.load(path).sha256 == sha256, path

    rows = [f"{s}\t{s[0] < IDEOGRAPHS[250]}" for s in sentences[:40]]
    (tmp_path / "zh.tsv").write_text("\n".join(["text\tlabel", *rows]))
    files = dict.fromkeys(("train", "dev"), str(tmp_path / "zh.tsv"))
    task = {"type": "classification", "text_a": "text", "label": "label", **files}
    hparams = {"task_names": ["zh"], "tasks": {"zh": task}, "num_train_epochs": 1.0}
    hparams |= {"vocab_size": SIZE, "init_checkpoint": str(exported / "huggingface")}
    succeed(finetune(tmp_path, "zh_tuned", hparams))
    output = exported / "tuned"
    flags = ("--data-dir", str(tmp_path), "--model-name", "zh_tuned", "--what", "zh")
    flags += ("--format", "saved_model", "--output-dir", str(output))
    succeed(run_script("export_model.py", *flags))
    assert Vocabulary.load(next(output.rglob("vocab*.txt"))).sha256 == sha256
