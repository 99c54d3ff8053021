# SPDX-License-Identifier: Apache-2.0
"""The tensors in a directory of transformers, in whatever files they lie.

One safetensors file or several with an index; PyTorch's pickles only where that was
asked for, and then by the reader that takes nothing but tensors from them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from electra_tf import startup
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop.checkpoint import as_float32
from electra_tf.storage.manifest import read_json

WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_INDEX = ".index.json"  # of a file in parts
# As safetensors names them; whole numbers are in buffers.
_FLOATS = ("F64", "F32", "F16", "BF16")
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
# Old checkpoints name gain and bias of a layer norm as TensorFlow does.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def files_in(folder: Path, name: str = WEIGHTS) -> list[Path]:
    """The files that hold the weights; [] if there are none.

    Args:
      name: WEIGHTS or PICKLED.
    """
    if (folder / name).is_file():
        return [folder / name]
    index = folder / f"{name}{_INDEX}"
    if not index.is_file():
        return []
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UserError(f"{index} has no weight_map.", EXIT_DAMAGED)
    return [folder / Path(str(name)).name for name in sorted(set(places.values()))]


def is_pickle(path: Path) -> bool:
    """Whether a file is one of PyTorch's, by its name."""
    return path.suffix in _PICKLES


def pickle_refused(path: Path) -> UserError:
    """Loading a pickle runs the program that is in it."""
    return UserError(
        f"{path} is a PyTorch pickle, which can run any code when it is loaded; it is "
        "not read.\nexport_model.py --allow-pytorch-bin converts all but the head of a "
        "task, reading nothing but weights.\nsave_pretrained of transformers converts "
        "that as well (model.safetensors)."
    )


def safetensors_library():
    """The package safetensors; `UserError` saying how to get it."""
    try:
        import safetensors
    except ImportError:
        raise UserError(
            "Hugging Face directories need the package safetensors.\n"
            "pip install safetensors"
        ) from None
    return safetensors


def read(folder: Path, allow_pytorch_bin: bool = False) -> dict[str, np.ndarray]:
    """Every tensor by today's name, numbers with a point as float32.

    Raises `UserError` (65) for files that are missing or damaged.
    """
    files, read_file = files_in(folder), _of_safetensors
    if not files and allow_pytorch_bin:
        files, read_file = files_in(folder, PICKLED), _of_pickle
    tensors: dict[str, np.ndarray] = {}
    for path in files or [folder / WEIGHTS]:
        if not path.is_file():
            raise UserError(
                f"{path} is missing.\nWeights are read from safetensors; "
                "save_pretrained of a current transformers writes it.",
                EXIT_DAMAGED,
            )
        tensors |= read_file(path)
    return {_name_today(k): as_float32(array) for k, array in tensors.items()}


def _name_today(name: str) -> str:
    for old, new in _OLD_NAMES.items():
        name = name.replace(old, new)
    return name


def _of_safetensors(path: Path) -> dict[str, np.ndarray]:
    library = safetensors_library()
    tensors = {}
    try:
        with library.safe_open(path, framework="numpy") as file:
            for name in file.keys():
                kind = file.get_slice(name).get_dtype()
                if kind not in _FLOATS and not name.endswith(BUFFERS):
                    raise ValueError(f"{name} has numbers of the type {kind}")
                if kind == "BF16":
                    tensors[name] = _bfloat16(path, name)
                else:
                    tensors[name] = file.get_tensor(name)
    except (library.SafetensorError, TypeError, ValueError, OSError) as error:
        raise UserError(
            f"{path} cannot be read: {str(error).splitlines()[0][:120]}\nIt is "
            "damaged, cut off or of an unknown type; copy it again.",
            EXIT_DAMAGED,
        ) from None
    return tensors


def _bfloat16(path: Path, name: str) -> np.ndarray:
    """A tensor of the type that NumPy lacks: the upper half of a float32."""
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        record = json.loads(f.read(size))[name]
        first, last = record["data_offsets"]
        f.seek(8 + size + first)
        half = np.frombuffer(f.read(last - first), "<u2")
    return (half.astype(np.uint32) << 16).view(np.float32).reshape(record["shape"])


def _of_pickle(path: Path) -> dict[str, np.ndarray]:
    startup.keep_triton_out()
    try:
        import torch
    except ImportError:
        raise UserError(
            f"--allow-pytorch-bin: {path} needs the package torch.\npip install torch"
        ) from None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        return {name: tensor.float().numpy() for name, tensor in found.items()}
    except Exception as error:  # whatever a damaged pickle makes it raise
        raise UserError(
            f"{path} cannot be read as weights alone: "
            f"{str(error).strip().splitlines()[0][:120]}",
            EXIT_DAMAGED,
        ) from None
