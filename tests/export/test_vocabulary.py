# SPDX-License-Identifier: Apache-2.0
"""The vocabulary in an export is the model's."""

import pytest

from electra_tf.errors import UserError
from electra_tf.export import formats
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.exporting import tiny_source, tiny_vocabulary, write_run
from tests.helpers.runs import by_default

# KerasHub strips the tokens that it reads: blank ones would be one.
KINDS = sorted(formats.FORMATS.keys() - {"keras_hub"})


@pytest.fixture(scope="module")
def source():
    """Its vocabulary has blank tokens, as the Chinese one of BERT has."""
    blank = {"unused0": "\u2028", "unused1": "", "unused2": "\u3000"}
    tokens = tiny_vocabulary().tokens
    vocab = Vocabulary(tuple(blank.get(token, token) for token in tokens))
    assert set(blank.values()) < set(vocab.tokens)
    return tiny_source(vocab=vocab)


@pytest.mark.parametrize("kind", by_default(KINDS, ["onnx"]))
def test_blank_tokens_are_kept(source, tmp_path, kind):
    write_run(tmp_path, source)
    out = tmp_path / "out"
    options = {"handle": "me/tiny"} if kind == "hub" else {}
    formats.export(
        formats.ExportRequest(kind, str(out), str(tmp_path), "tiny", **options)
    )
    names = "vocab.txt", "vocabulary.txt", "tokenizer.json"
    found = [path for name in names for path in out.rglob(name)]
    for path in found:
        assert Vocabulary.load(path).sha256 == source.vocab.sha256, path
    assert found


def test_keras_hub_refuses_tokens_that_are_equal_when_stripped(source, tmp_path):
    write_run(tmp_path, source)
    request = formats.ExportRequest(
        "keras_hub", str(tmp_path / "out"), str(tmp_path), "tiny"
    )
    with pytest.raises(UserError, match="KerasHub strips tokens"):
        formats.export(request)
    assert not (tmp_path / "out").exists()
