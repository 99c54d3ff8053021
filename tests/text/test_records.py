# SPDX-License-Identifier: Apache-2.0
"""Documents of tensorflow_datasets, of a data set made here."""

import pytest

from electra_tf.text import records
from electra_tf.text.units import Reading, Unit


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
    from tests.helpers import tiny_texts

    path = tmp_path_factory.mktemp("tfds")
    tiny_texts.TinyTexts(data_dir=path).download_and_prepare()
    return str(path)


def documents(spec, folder, start=0, end=40):
    unit = Unit("tfds", spec, spec, start, end, 1)
    readers = records.read_tfds_documents(unit, Reading(tfds_data_dir=folder))
    return ["\n".join(line for block in reader for line in block) for reader in readers]


def test_tfds_documents(tfds_dir):
    name, count, _ = records.open_tfds("tiny_texts:text", tfds_dir)
    assert (name, count) == ("tiny_texts/1.0.0", 40)
    texts = documents("tiny_texts:text", tfds_dir)
    expected = {f"Page {i}.\n\nAn é in {i}." for i in range(40)}
    assert set(texts) == expected and len(texts) == 40
    assert documents("tiny_texts:text", tfds_dir, 7, 12) == texts[7:12]
    assert documents("tiny_texts:text", tfds_dir, 38, 40) == texts[38:]
