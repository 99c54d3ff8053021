# SPDX-License-Identifier: Apache-2.0
"""A data set of tensorflow_datasets with 40 short texts, made without a download."""

import tensorflow as tf
import tensorflow_datasets as tfds


class TinyTexts(tfds.core.GeneratorBasedBuilder):
    """Forty pages of two paragraphs."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        text = tfds.features.Text()
        features = {"text": text, "number": tf.int64, "more": {"title": text}}
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager):
        del dl_manager
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i in range(40):
            text = f"Page {i}.\n\nAn é in {i}."
            yield i, {"text": text, "number": i, "more": {"title": f"Title {i}"}}
