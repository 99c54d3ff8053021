# SPDX-License-Identifier: Apache-2.0
"""init_checkpoint of run_finetuning.py: models of other libraries, and refusals."""

import json
import shutil
import types

import pytest

import electra_tf
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune import initial_weights
from electra_tf.interop import huggingface, sources
from electra_tf.interop.stored_model import Settings
from electra_tf.text.vocabulary import Vocabulary, write_tokens
from tests.helpers import forked_runs
from tests.helpers.runs import SPECIAL, tiny, write_tiny_data
from tests.helpers.tiny_finetuning import TINY, finetune, fork, write_data

# Format -> the directory below what export_model.py writes.
MODELS = {"huggingface": "discriminator", "keras_hub": "discriminator", "tf1": ""}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Task data, and the pre-trained model "m" exported to each format."""
    folder = write_data(tmp_path_factory.mktemp("exported"))
    vocabulary = (folder / "vocab.txt").read_text()
    write_tiny_data(folder)
    (folder / "vocab.txt").write_text(vocabulary)
    hparams = tiny(overrides=TINY["model_hparam_overrides"], num_train_steps=3)
    run = forked_runs.pretrain(folder, "m", hparams).wait()
    assert run.returncode == 0, run.stderr
    for name in MODELS:
        run = forked_runs.Run(
            folder / "logs" / name,
            "export_model.py",
            *("--data-dir", str(folder), "--model-name", "m", "--format", name),
            *("--output-dir", str(folder / name)),
        ).wait()
        assert run.returncode == 0, run.stderr
    return folder


def trained(data, name, init_checkpoint):
    """(what the run said, its dev scores)."""
    given = {"task_names": ["sts"], "num_train_epochs": 0.5}
    given["init_checkpoint"] = init_checkpoint and str(init_checkpoint)
    run = fork(data, name, given)
    assert run.returncode == 0, run.stdout + run.stderr
    results = data / "models" / name / "results" / "sts_results.json"
    return run.stdout, json.loads(results.read_text())["trials"][0]["scores"]["sts"]


@pytest.fixture(scope="module")
def expected(data):
    """The dev scores from the original's format, which are not those of chance."""
    _, scores = trained(data, "from_tf1", data / "tf1")
    assert trained(data, "from_nothing", None)[1] != pytest.approx(scores, abs=1e-3)
    return scores


@pytest.mark.parametrize("path", ["huggingface", "keras_hub/discriminator", "models/m"])
def test_the_scores_do_not_depend_on_the_format(data, expected, path):
    said, scores = trained(data, path.replace("/", "_"), data / path)
    assert f"Encoder's weights from {data / path}" in said
    assert scores == pytest.approx(expected, abs=1e-4)


def test_a_trial_finds_its_vocabulary_from_everywhere(data, tmp_path, monkeypatch):
    """Also where the file that it was trained with has gone."""
    place = tmp_path / "data"
    place.mkdir()
    (place / "finetuning_data").symlink_to(data / "finetuning_data")
    shutil.copytree(data / "huggingface", tmp_path / "hf")
    monkeypatch.chdir(tmp_path)
    trained(place, "m", "hf")
    trial = place / "models" / "m" / "finetuning_models" / "sts_model_1"
    monkeypatch.chdir(data)
    [row] = electra_tf.load(trial).predict([("waa", "wab")])
    (tmp_path / "hf").rename(tmp_path / "gone")
    with pytest.raises(UserError, match="hf/.*vocab.txt.*, nor does .*\n.*--data-dir"):
        electra_tf.load(trial)
    assert electra_tf.load(trial, data_dir=str(data)).predict([("waa", "wab")]) == [row]
    other = (data / "vocab.txt").read_text().replace("waa", "new")
    (place / "vocab.txt").write_text(other)
    with pytest.raises(UserError, match="was trained with another"):
        electra_tf.load(trial)
    config = json.loads((trial / "config.json").read_text())
    config["vocab_file"] = "hf/vocab.txt"  # as an earlier version has left it
    (trial / "config.json").write_text(json.dumps(config))
    assert electra_tf.load(trial, data_dir=str(data)).predict([("waa", "wab")]) == [row]


def without_peers():
    """As where transformers is not installed."""
    huggingface._peer_installed = lambda: False


def test_what_is_left_out_or_not_understood_is_said(data, tmp_path):
    """Of what others wrote, as in all that read it."""
    foreign = tmp_path / "foreign"
    shutil.copytree(data / "huggingface" / "discriminator", foreign)
    (foreign / "manifest.json").unlink()
    config = json.loads((foreign / "config.json").read_text())
    (foreign / "config.json").write_text(json.dumps(config | {"novelty": 1}))
    given = {"task_names": ["sts"], "num_train_epochs": 0.1, "num_trials": 2}
    given["init_checkpoint"] = str(foreign)
    run = fork(data, "from_foreign", given, before=without_peers)
    assert run.returncode == 0, run.stdout + run.stderr
    said = f"Note: {foreign}: transformers and torch are not installed"
    assert run.stdout.count(said) == 1  # and not for each trial
    assert "not understood in config.json: novelty" in run.stdout
    preset = sources.find(str(data / "keras_hub" / "discriminator"), print)
    said = []
    preset.tensors(said.append)
    assert any("left out: the pooler" in line for line in said)


def test_capitals_that_nothing_says_are_read(data, tmp_path):
    words = (data / "vocab.txt").read_text().split()
    words = [word if word in SPECIAL else f"{word}A" for word in words]
    cased = write_tokens(tmp_path / "vocab.txt", words).path
    found = sources.find(str(data / "tf1"), print)
    found = found._replace(settings=Settings({}, None, None))
    for explicit, is_said in (({}, True), ({"do_lower_case": True}, False)):
        said = []
        initial_weights.hparams_of(found, explicit, cased, said.append)
        note = "does not say whether it reads capitals"
        assert any(note in line for line in said) == is_said


@pytest.fixture(scope="module")
def refusal(data, tmp_path_factory):
    """What the error says of a model and hparams, where TensorFlow is missing."""
    folder = tmp_path_factory.mktemp("no_tensorflow")
    for name in ("tensorflow", "keras"):
        (folder / f"{name}.py").write_text("raise ImportError('was imported')\n")

    def run(path, hparams):
        given = {"task_names": ["sts"], "init_checkpoint": str(path)} | hparams
        done = finetune(data, "never", given, env={"PYTHONPATH": str(folder)})
        assert done.returncode == 2, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        message = done.stderr[f"\n{done.stderr}".rindex("\nerror: ") :]
        assert len(message.splitlines()) <= 3, message
        return message

    return run


@pytest.mark.parametrize("name", [*MODELS, "models/m"])
def test_the_checkpoint_knows_its_shape(data, name):
    """Nothing of the shape is in the hparams; the original's has no heads either."""
    found = sources.find(str(data / name / MODELS.get(name, "")), print)
    said = []
    if name == "tf1":  # as the original writes it, which is the checkpoint alone
        found = found._replace(settings=Settings({}, None, None))
    known = initial_weights.hparams_of(found, {}, "none", said.append)
    short = {"max_seq_length": 24}
    config = FinetuningConfig.from_hparams(str(data), "m", short, None, known)
    shape = TINY["model_hparam_overrides"] | {"hidden_act": "gelu"}
    if name == "tf1":
        shape["num_attention_heads"] = 1
        assert "does not say its number of attention heads: 1 taken" in said[0]
    for key, value in shape.items():
        assert getattr(config.model_config(), key) == value
    assert config.embedding_size == TINY["embedding_size"]
    vocab = Vocabulary.load(config.vocab_file)
    initial_weights.check(found, config, vocab)


def test_what_the_user_says_must_agree(data):
    found = sources.find(str(data / "models" / "m"), print)

    def known(**explicit):
        return initial_weights.hparams_of(found, explicit, "none", print)

    for wrong in (
        {"model_size": "base"},
        {"embedding_size": 64},
        {"model_hparam_overrides": {"num_attention_heads": 4}},
    ):
        with pytest.raises(UserError, match="there, .* here") as caught:
            known(**wrong)
        assert str(caught.value).count("\n") <= 2
    same = TINY["model_hparam_overrides"] | {"hidden_dropout_prob": 0.2}
    told = known(model_size="small", model_hparam_overrides=same, do_lower_case=True)
    assert told["model_hparam_overrides"].pop("hidden_dropout_prob") == 0.2
    assert told | {"do_lower_case": True} == known()


def test_no_overrides_are_copied(data):
    """As a user would: a task, and whatever the checkpoint is."""
    args = ("--data-dir", str(data), "--model-name", "m")
    given = {"task_names": ["sts"], "max_seq_length": 24, "num_train_epochs": 0.1}
    given |= {"model_dir": str(data / "alone" / "sts"), "jit_compile": False}
    run = forked_runs.Run(
        data / "logs" / "alone",
        "run_finetuning.py",
        *(*args, "--hparams", json.dumps(given)),
    ).wait()
    assert run.returncode == 0, run.stdout + run.stderr
    saved = json.loads((data / "alone" / "sts_1" / "config.json").read_text())
    assert saved["embedding_size"] == 16
    # The trial knows its shape as well.
    given |= {"do_train": False}
    again = forked_runs.Run(
        data / "logs" / "again",
        "run_finetuning.py",
        *(*args, "--hparams", json.dumps(given)),
    ).wait()
    assert again.returncode == 0, again.stdout + again.stderr


def fitting(message):
    """The hparams that an error names."""
    return json.loads("{" + message.split("fit it: ")[1] + "}")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_attention_heads": 4}, "num_attention_heads is 2 there, 4 here"),
        ({"hidden_act": "relu"}, "hidden_act is 'gelu' there, 'relu' here"),
        ({"hidden_size": 64}, "hidden_size is 32 there, 64 here"),
    ],
)
def test_another_shape_is_refused_without_tensorflow(
    data, refusal, name, changed, said
):
    path = data / name / MODELS[name]
    wrong = {"model_hparam_overrides": TINY["model_hparam_overrides"] | changed}
    message = refusal(path, wrong)
    assert said in message and str(path) in message
    right = TINY | fitting(message)
    overrides = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    assert overrides.items() <= right["model_hparam_overrides"].items()
    assert "hidden_act" not in right["model_hparam_overrides"]


@pytest.mark.parametrize("name", [*MODELS, "models/m"])
def test_another_vocabulary_is_refused_without_tensorflow(
    data, refusal, tmp_path, name
):
    path = data / name / MODELS.get(name, "")
    other = tmp_path / "other.txt"
    other.write_text((data / "vocab.txt").read_text().replace("waa", "other"))
    message = refusal(path, {"vocab_file": str(other)})
    assert "was trained with another vocabulary" in message
    assert str(other) in message and str(path) in message
    own = fitting(message)["vocab_file"]
    assert (data / "vocab.txt").read_text() == open(own).read()


@pytest.mark.parametrize("name", ["huggingface", "keras_hub"])
def test_another_case_is_refused_without_tensorflow(data, refusal, name):
    message = refusal(data / name / MODELS[name], {"do_lower_case": False})
    assert fitting(message) == {"do_lower_case": True}


def test_what_is_no_model_is_refused_without_tensorflow(data, refusal, tmp_path):
    assert '"init_checkpoint": null' in refusal(data / "models" / "none", {})
    assert "holds no model" in refusal(tmp_path, {})
    copy = tmp_path / "copy"
    shutil.copytree(data / "huggingface" / "discriminator", copy)
    (copy / "manifest.json").unlink()
    (copy / "config.json").write_text('{"model_type": "bert"}')
    assert "model family 'bert'" in refusal(copy, {})


@pytest.mark.parametrize(
    ("there", "said"), [(["sts", "rte"], "only on rte, sts"), ([], "on no task")]
)
def test_a_model_of_other_tasks_is_not_evaluated(there, said):
    names = ["electra/embeddings", *(f"task_specific/{name}/bias" for name in there)]
    tensors = types.SimpleNamespace(shapes=dict.fromkeys(names, (2,)))
    model = types.SimpleNamespace(origin="M", tensors=lambda log: tensors)
    wanted = dict.fromkeys(["task_specific/cola/bias", "task_specific/sts/bias"])
    missing = "cola" if there else "cola, sts"
    with pytest.raises(UserError, match=f"M is not fine-tuned on {missing}, {said}"):
        initial_weights.load_all(model, wanted, print)
