# SPDX-License-Identifier: Apache-2.0
"""Prints docs/python_api.md, made from signatures and docstrings of the sources.

python3 docs/make_python_api.py > docs/python_api.md
"""

import ast
import re
from pathlib import Path

import electra_tf

PACKAGE = Path(electra_tf.__file__).parent
HEAD = """\
<!-- Written by `python3 docs/make_python_api.py > docs/python_api.md`; do not edit. -->
# Python API

All public names of `electra_tf`. In shapes B is a batch, L a length in tokens, H the
width of the model. A mistake of the caller raises `UserError`. Programs:
[keras.md](keras.md).
"""
# Section -> names; of a class with the methods to show.
SECTIONS = {
    "Use a model": (
        "load",
        "Model: encode detect fill_mask score score_texts score_tokens",
        "PretrainedModel: corrupt save",
        "Predictor: predict",
        "TokenPrediction",
        "TextScore",
        "TokenScore",
    ),
    "Text and vocabulary": (
        "train_vocabulary",
        "Vocabulary: load",
        "Tokenizer: __call__ tokenize encode encode_with_offsets",
        "TokenizerConfig",
    ),
    "Pre-train with Keras": (
        "build_dataset",
        "make_dataset",
        "PretrainingConfig",
        "ModelConfig",
        "read_hparams",
        "build_pretrainer",
        "create_optimizer",
        "ElectraPretrainer: call",
        "TextEncoder: call",
        "EncoderOutput",
    ),
    "Errors": ("UserError",),
}
MADE_BY_USERS = "Vocabulary", "Tokenizer", "TextEncoder"
FROM_HPARAMS = "PretrainingConfig", "ModelConfig"
SHORTER = {"str | os.PathLike": "path", ": Any": "", " -> Any": "", " -> None": ""}
LIST = re.compile(r"(?m)^(Args|Attributes):\n((?:[ ].*\n?|\n(?=[ ]))+)")
ITEM = re.compile(r"(?m)^( {2,4})(\w[\w, ]*): ((?:.*\n?)(?:\1 +.*\n?)*)")
RETURNS = re.compile(r"(?m)^Returns:\s+((?:.+\n?)+)")
RAISES = re.compile(r"(?m)^Raises(?::\s+| (?=`?UserError))(?:.+\n?)+")


def definitions() -> dict[str, ast.AST]:
    """The functions and classes of the package; a public name's is the public one."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                if electra_tf._MODULES.get(node.name, module) == module:
                    found[node.name] = node
    return found


def signature(function: ast.FunctionDef, name: str) -> str:
    """`name(arguments) -> type`, without self, in a fence."""
    function.args.args = [a for a in function.args.args if a.arg not in ("self", "cls")]
    returned = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    text = f"{name}({ast.unparse(function.args)}){returned}"
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    return f"```python\n{text}\n```"


def markdown(node: ast.AST, of_made: bool = True) -> str:
    """A docstring in Google's style as Markdown, without what is raised.

    Args:
      of_made: whether users call it; else its arguments are left out.
    """
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)

    def items(part: re.Match) -> str:
        if part[1] == "Args" and not of_made:
            return ""
        rows = (f"- `{i[2]}`: {' '.join(i[3].split())}" for i in ITEM.finditer(part[2]))
        return "\n".join(rows) + "\n"

    text = LIST.sub(items, ast.get_docstring(node) or "")
    text = RETURNS.sub(lambda p: f"\nReturns: {' '.join(p[1].split())}\n", text)
    text = RAISES.sub("", text)
    return re.sub("\n{3,}", "\n\n", text).strip()


def parts_of(name: str, methods: list[str], node: ast.AST) -> list[str]:
    """The paragraphs about a function, or about a class and its methods."""
    parts = [f"### {name}"]
    if isinstance(node, ast.FunctionDef):
        return [*parts, signature(node, name), markdown(node)]
    assert isinstance(node, ast.ClassDef)
    own = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    if name in MADE_BY_USERS:
        parts += [signature(own["__init__"], name), markdown(node)]
    else:
        parts.append(markdown(node, of_made=False))
    if name in FROM_HPARAMS:
        parts.append(f"`{name}(**hparams)`; [hparams.md](hparams.md) lists them.")
    if "NamedTuple" in map(ast.unparse, node.bases):
        fields = (ast.unparse(p) for p in node.body if isinstance(p, ast.AnnAssign))
        parts.append(f"Fields: {', '.join(f'`{field}`' for field in fields)}.")
    for method in methods:
        shown = "tokenizer" if method == "__call__" else f"{name}.{method}"
        parts += [signature(own[method], shown), markdown(own[method])]
    return parts


def page() -> str:
    """The page."""
    found, parts = definitions(), [HEAD.strip()]
    for section, names in SECTIONS.items():
        parts.append(f"## {section}")
        for line in names:
            name, _, methods = line.partition(": ")
            parts += parts_of(name, methods.split(), found[name])
    return "\n\n".join(filter(None, parts)) + "\n"


if __name__ == "__main__":
    print(page(), end="")
