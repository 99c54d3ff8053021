# SPDX-License-Identifier: Apache-2.0
"""Installs electra_tf: `pip install -e .`, or `pip install -e .[gpu]` for GPUs.

Installed by default is what the commands of README.md, quickstart.sh and the original
need; an error that asks for a package of an extra names the extra.
"""

import pathlib
import re

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).parent
VERSION = re.search(
    r'__version__ = "(.+)"', (HERE / "electra_tf" / "__init__.py").read_text()
)[1]
README = HERE / "README.md"

# What build_pretraining_dataset.py and build_vocab.py read besides text.
DATA = [
    "pyarrow>=15",  # Parquet and Arrow; tensorflow-datasets needs it, too
    "backports.zstd>=1,<2; python_version < '3.14'",  # then it is part of Python
]
# --tfds.
TFDS = [
    "tensorflow-datasets>=4.9.7,<5",
    # tensorflow-datasets imports it without requiring it.
    "importlib-resources>=6",
]
# export_model.py --format keras_hub. It needs tensorflow-text.
KERAS_HUB = ["keras-hub>=0.21,<1; python_version < '3.14'"]
# --runner beam; it asks for protobuf<7, which TensorFlow takes as well.
BEAM = ["apache-beam>=2.77,<3"]
ONNX = ["onnx>=1.17,<2", "onnxruntime>=1.20,<2", "tf2onnx>=1.17,<2"]
DOCS = ["mkdocs-material>=9.6,<10"]
TENSORBOARD = ["tensorboard>=2.21,<3"]  # 2.20 does not start beside setuptools 82
FSSPEC = "fsspec>=2025.5"
# Without the lower bound of aiobotocore, pip looks through years of its releases.
S3 = [FSSPEC, "s3fs>=2025.5", "aiobotocore>=2.24"]


class BuildWithConfigs(build_py):
    """Copies configs/ into the wheel; a checkout has them beside the package."""

    def run(self):
        super().run()
        if not self.editable_mode:
            self.copy_tree(
                str(HERE / "configs"), f"{self.build_lib}/electra_tf/configs"
            )


setup(
    name="electra-tf",
    version=VERSION,
    description="ELECTRA and Electric in TensorFlow 2: pre-train, fine-tune, serve.",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["electra_tf", "electra_tf.*"]),
    package_data={
        "electra_tf": [
            "py.typed",
            "text/unicode_14.txt",
            "interop/cards/*.md",
            "inference/page.html",
        ]
    },
    cmdclass={"build_py": BuildWithConfigs},
    entry_points={"console_scripts": ["electra-tf = electra_tf.commands:main"]},
    python_requires=">=3.11,<3.15",  # on 3.14 with TensorFlow 2.22, now a candidate
    install_requires=[
        "tensorflow>=2.20,<2.23",
        # For SavedModels that read texts; everything else runs without it. No release
        # goes with Python 3.14 or TensorFlow 2.22, so on 3.13 it keeps TensorFlow at
        # 2.21. 2.21.0 does not import.
        "tensorflow-text>=2.20,<2.23,!=2.21.0; python_version < '3.14'",
        "keras>=3.15.1,<4",
        "tokenizers>=0.20,<1",  # build_vocab.py
        "google-crc32c>=1.5,<2",  # the checksums of TFRecords
        "huggingface_hub>=0.30,<3",  # model cards; tokenizers needs it, too
        "safetensors>=0.4,<1",  # export_model.py --format huggingface
        "scikit-learn>=1.3,<2",  # scores of fine-tuned models
        "scipy>=1.11,<2",  # correlations; scikit-learn needs it, too
        "matplotlib>=3.8,<4",  # loss_curves.png
        "numpy>=1.26,<3",
        "absl-py>=2.1,<3",
    ],
    extras_require={
        "beam": BEAM,
        "data": DATA,
        "gpu": ["tensorflow[and-cuda]>=2.20,<2.23"],
        "keras_hub": KERAS_HUB,
        "onnx": ONNX,  # export_model.py --format onnx
        # To look at the curves of a run, which are written without it. TensorFlow 2.20
        # brings it, 2.21 no longer does.
        "tensorboard": TENSORBOARD,
        "tfds": TFDS,
        "ray": ["ray[tune]>=2.40,<3"],  # examples/ray_sweep.py
        "s3": S3,  # data, runs and exports at s3://
        "gcs": [FSSPEC, "gcsfs>=2025.5"],  # and at gs://
        "docs": DOCS,  # mkdocs serve
        "test": [
            "pytest>=8,<10",
            "pytest-xdist>=3.6,<4",
            "ruff>=0.8,<1",
            "import-linter>=2.6,<3",
            "ty==0.0.107",  # its rules still change between releases
            # Those on the other side of an export; a CPU build of torch will do.
            "torch>=2.6,<2.14",
            "transformers>=4.50,<6",
            # Messages of TensorFlow Serving.
            "tensorflow-serving-api>=2.18,<3",
            "grpcio>=1.60,<2",
            "protobuf>=5,<8",
            "packaging>=23",
            "psutil>=5.9",
            *BEAM,
            *DATA,
            *KERAS_HUB,
            *ONNX,
            *TFDS,
            *TENSORBOARD,
            *DOCS,
            # Buckets, and an S3 on this machine.
            *S3,
            "boto3>=1.40,<2",
            "moto[server]>=5.1,<6",
            "werkzeug>=3,<4",
        ],
    },
)
