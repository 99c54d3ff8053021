# SPDX-License-Identifier: Apache-2.0
"""Rules that a machine can check: folders, imports, names, sizes, forbidden calls."""

import ast
import dataclasses
import functools
import os
import re
import subprocess
import sys

import pytest

import electra_tf
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.model import ModelConfig
from electra_tf.config.pretraining import PretrainingConfig

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ("electra_tf", "tests", "benchmarks", "examples", "experiments")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70

# The folders of electra_tf, bottom up: a module imports from its own folder and from
# those before it. "" stands for ROOT_MODULES; the package itself names what is public,
# so it stands above all, and the scripts above it.
ORDER = (
    *("", "storage", "config", "text", "model", "train", "data", "pretrain"),
    *("interop", "inference", "finetune", "export"),
)
ROOT_MODULES = ("errors", "console", "paths", "processes", "beam", "startup", "cli")
# Tests in these folders of tests/ are not those of one module.
FREE_TESTS = ("faults", "parity")

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal"}
# Only to show that a UserError survives the journey between processes.
MAY_PICKLE = {os.path.join("tests", "test_cli.py")}


def python_files():
    for name in sorted(os.listdir(ROOT)):
        if name.endswith(".py"):
            yield name
    for folder in FOLDERS:
        for directory, folders, files in os.walk(os.path.join(ROOT, folder)):
            folders[:] = sorted(f for f in folders if not f.startswith((".", "__")))
            for name in sorted(files):
                if name.endswith(".py"):
                    yield os.path.relpath(os.path.join(directory, name), ROOT)


FILES = list(python_files())


@functools.cache
def source(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


@functools.cache
def tree(path):
    return ast.parse(source(path))


def imports(node, package=""):
    """Dotted names that are imported anywhere in a tree, except for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                up = package.split(".")[: 1 - child.level or None]
                base = ".".join([*up, base] if base else up)
            yield base
            yield from (f"{base}.{alias.name}" for alias in child.names)
        else:
            yield from imports(child, package)


def module_name(path):
    name = path.removesuffix(".py").replace(os.sep, ".")
    return name.removesuffix(".__init__")


@functools.cache
def graph():
    """Module of electra_tf -> the modules of electra_tf that it imports."""
    paths = {module_name(p): p for p in FILES if p.startswith("electra_tf" + os.sep)}
    found = {}
    for name, path in paths.items():
        package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
        names = set(imports(tree(path), package))
        # Every import runs the package's __init__, which imports nothing.
        found[name] = {n for n in names if n in paths} - {"electra_tf", name}
    return found


def folder_of(name):
    """The folder of a module; "" for one of ROOT_MODULES, None if it is unknown."""
    _, *folders, last = name.split(".")
    if not folders:
        return "" if last in ROOT_MODULES else last if last in ORDER else None
    return folders[0] if len(folders) == 1 and folders[0] in ORDER else None


def homeless(names):
    """Modules that are in no folder of ORDER."""
    return [n for n in names if n != "electra_tf" and folder_of(n) is None]


def upward(imported):
    """Imports from a folder that stands above: (module, module that it imports)."""
    place = {name: len(ORDER) for name in imported}
    for name in imported:
        if name != "electra_tf" and folder_of(name) is not None:
            place[name] = ORDER.index(folder_of(name))
    return [
        (name, other)
        for name, others in sorted(imported.items())
        for other in sorted(others)
        if place[other] > place[name]
    ]


def circles(imported):
    """Modules that import themselves through others."""

    def reachable(name):
        seen, todo = set(), [name]
        while todo:
            for other in imported[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        return seen

    return [name for name in sorted(imported) if name in reachable(name)]


def test_every_module_is_in_a_folder_of_the_order():
    assert homeless(graph()) == []
    assert {folder_of(n) for n in graph() if n != "electra_tf"} == set(ORDER)


def test_imports_run_one_way():
    assert upward(graph()) == []


def test_there_are_no_circles():
    assert circles(graph()) == []


def test_the_checks_of_imports_can_fail():
    assert "electra_tf.errors" in graph()["electra_tf.cli"]
    assert len(graph()) > 100
    made_up = {
        "electra_tf": {"electra_tf.export.a"},
        "electra_tf.cli": {"electra_tf.storage.a"},
        "electra_tf.storage.a": {"electra_tf.text"},
        "electra_tf.text": set(),
        "electra_tf.export.a": {"electra_tf.storage.a", "electra_tf.export.b"},
        "electra_tf.export.b": {"electra_tf.export.a"},
        "electra_tf.text.deep.b": set(),
        "electra_tf.utils": set(),
        "electra_tf.new.a": set(),
    }
    assert homeless(made_up) == [
        "electra_tf.text.deep.b",
        "electra_tf.utils",
        "electra_tf.new.a",
    ]
    assert upward(made_up) == [
        ("electra_tf.cli", "electra_tf.storage.a"),
        ("electra_tf.storage.a", "electra_tf.text"),
    ]
    assert circles(made_up) == ["electra_tf.export.a", "electra_tf.export.b"]


def test_every_folder_says_what_it_is_for():
    for folder in ORDER:
        path = os.path.join("electra_tf", folder, "__init__.py")
        assert ast.get_docstring(tree(path)), path


def misnamed(tests, names):
    """Test files that are not named after a module of their folder, or a script.

    Args:
      tests: paths of all files of tests.
      names: folder of tests -> what a file in it may be named after.
    """
    for path in tests:
        _, *folders, last = path.split(os.sep)
        folder = "/".join(folders)
        if not last.startswith("test_") or folder in FREE_TESTS:
            continue
        subject = last.removeprefix("test_").removesuffix(".py")
        known = names.get(folder, ())
        if not any(subject == n or subject.startswith(f"{n}_") for n in known):
            yield path


def test_tests_are_named_after_what_they_test():
    names = {folder: [] for folder in ORDER} | {
        "scripts": ["benchmarks", "examples", "experiments", "quickstart", "venv"]
    }
    names[""].append("style")
    for name in graph():
        if name.count(".") and folder_of(name) != name.rpartition(".")[2]:
            names[folder_of(name)].append(name.rpartition(".")[2])
    names["scripts"] += [p.removesuffix(".py") for p in FILES if os.sep not in p]
    paths = [p for p in FILES if p.startswith("tests" + os.sep)]
    assert list(misnamed(paths, names)) == []


def test_the_check_of_names_can_fail():
    names = {"": ["cli"], "text": ["corpus"], "scripts": ["run_it"]}
    right = (
        "tests/test_cli.py tests/text/test_corpus.py tests/text/test_corpus_tfds.py "
        "tests/helpers/runs.py tests/faults/test_kill.py tests/scripts/test_run_it.py"
    )
    wrong = (
        "tests/test_corpus.py tests/text/test_corpustfds.py tests/scripts/test_cli.py "
        "tests/new/test_cli.py"
    )
    paths = [path.replace("/", os.sep) for path in f"{right} {wrong}".split()]
    assert list(misnamed(paths, names)) == paths[-4:]


@pytest.mark.parametrize("name", sorted(graph()))
def test_the_package_does_not_import_scripts(name):
    path = name.replace(".", os.sep)
    path += ".py" if f"{path}.py" in FILES else f"{os.sep}__init__.py"
    tops = {p.removesuffix(".py") for p in FILES if os.sep not in p}
    used = {n.partition(".")[0] for n in imports(tree(path))}
    assert not used & (tops | {"tests", "benchmarks"})


@pytest.mark.parametrize(
    "path", [p for p in FILES if p.startswith("electra_tf" + os.sep)]
)
def test_flags_are_defined_in_scripts(path):
    if path != os.path.join("electra_tf", "cli.py"):
        assert "absl.flags" not in set(imports(tree(path)))


def forbidden(module, may_pickle=False):
    """What must not be in a module's tree, with its line."""
    for name in set(imports(module)):
        if name.partition(".")[0] in FORBIDDEN_MODULES and not may_pickle:
            yield f"import of {name}"
    for call in ast.walk(module):
        if not isinstance(call, ast.Call):
            continue
        keywords = {k.arg: k.value for k in call.keywords}
        function = ast.unparse(call.func)
        attribute = function.rpartition(".")[2]
        true = {k for k, v in keywords.items() if getattr(v, "value", None) is True}
        if function in ("eval", "exec", "os.system", "os.popen", "yaml.load"):
            yield f"line {call.lineno}: {function}()"
        if attribute == "extractall" and "filter" not in keywords:
            yield f"line {call.lineno}: {function}() without a filter"
        if function == "torch.load" and "weights_only" not in true:
            yield f"line {call.lineno}: torch.load() without weights_only=True"
        for keyword in true & {"shell", "allow_pickle"}:
            yield f"line {call.lineno}: {keyword}=True"


def test_nothing_dangerous_is_called():
    found = {path: list(forbidden(tree(path), path in MAY_PICKLE)) for path in FILES}
    assert {path: calls for path, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "def f():\n    from joblib import load",
        "eval('1')",
        "exec(code)",
        "os.system('ls')",
        "tarfile.open(p).extractall(d)",
        "subprocess.run(c, shell=True)",
        "np.load(p, allow_pickle=True)",
        "yaml.load(f)",
        "torch.load(p)",
    ],
)
def test_dangerous_calls_are_seen(code):
    assert list(forbidden(ast.parse(code)))


def test_harmless_calls_are_not():
    code = "model.eval(); archive.extractall(d, filter='data'); np.load(p)"
    assert list(forbidden(ast.parse(code))) == []


def converted(module):
    """Lines with a tf.function that AutoGraph converts, which takes a second each."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tf.function":
            if "autograph" not in {keyword.arg for keyword in node.keywords}:
                yield node.lineno
        for decorator in getattr(node, "decorator_list", ()):
            if ast.unparse(decorator) == "tf.function":
                yield node.lineno


def test_no_function_is_converted_by_autograph():
    for path in FILES:
        if path.startswith("electra_tf"):
            assert list(converted(tree(path))) == [], path


def test_functions_that_are_converted_are_seen():
    code = "tf.function(f)\n@tf.function\ndef g(): ...\n@tf.function(x=1)\ndef h(): ..."
    assert len(list(converted(ast.parse(code)))) == 3
    assert not list(converted(ast.parse("tf.function(f, autograph=False)")))


def test_first_line_is_the_licence():
    for path in FILES:
        lines = source(path).splitlines()
        first = lines[1] if lines[0].startswith("#!") else lines[0]
        assert first == "# SPDX-License-Identifier: Apache-2.0", path


def test_files_and_functions_hold_one_thing():
    long = {}
    for path in FILES:
        if (count := len(source(path).splitlines())) > MAX_FILE_LINES:
            long[path] = count
        for node in ast.walk(tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                count = node.end_lineno - node.lineno + 1
                if count > MAX_FUNCTION_LINES:
                    long[f"{path}: {node.name}"] = count
    assert long == {}, "split by subject"


def test_public_names_are_documented():
    for path in FILES:
        if path.startswith(("tests", "benchmarks", "examples")):
            continue
        assert ast.get_docstring(tree(path)), path
        for node in tree(path).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                is_public = not node.name.startswith("_") and node.name != "main"
                assert not is_public or ast.get_docstring(node), f"{path}: {node.name}"


@functools.cache
def names_of(module):
    """What a module's source defines or imports, at any level; None: not ours."""
    path = f"{module.replace('.', os.sep)}.py"
    if path not in FILES:
        return None
    found = set(re.findall(r"\b(?:def|class|import|as) (\w+)", source(path)))
    for names in re.findall(r"^(\w+(?:, \w+)*)(?:: [^=\n]+)? = ", source(path), re.M):
        found |= set(names.split(", "))
    return found | set(re.findall(r"\w+", " ".join(imports(tree(path)))))


def test_what_is_asked_of_a_module_is_there():
    """`module.name` of our own modules, which ruff does not look up."""
    missing = [f"{path}: {name}" for path in FILES for name in missing_names(path)]
    assert missing == []


def missing_names(path):
    ours = {}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                if names_of(module) is not None:
                    ours[alias.asname or alias.name] = module
    bound = {
        n.id
        for n in ast.walk(tree(path))
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    bound |= {a.arg for a in ast.walk(tree(path)) if isinstance(a, ast.arg)}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = ours.get(node.value.id)
            if module and node.value.id not in bound:
                known = names_of(module) | {"__file__", "__name__", "__doc__"}
                if node.attr not in known:
                    yield f"{module} has no {node.attr}"


def test_ruff_is_content():
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("cls", [PretrainingConfig, FinetuningConfig, ModelConfig])
def test_every_hparam_is_documented(cls):
    for field in dataclasses.fields(cls):
        assert len(field.metadata["doc"]) >= 10, field.name
        assert field.metadata["doc"].endswith("."), field.name


def test_the_page_of_hparams_is_current():
    done = subprocess.run(
        [sys.executable, "-m", "electra_tf.config"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with open(os.path.join(ROOT, "docs", "hparams.md"), encoding="utf-8") as f:
        assert f.read() == done.stdout, (
            "run: python -m electra_tf.config > docs/hparams.md"
        )
    for cls in (PretrainingConfig, FinetuningConfig, ModelConfig):
        for field in dataclasses.fields(cls):
            assert f"| `{field.name}` |" in done.stdout


def pages():
    """All Markdown files of the project."""
    yield from (name for name in os.listdir(ROOT) if name.endswith(".md"))
    for folder in ("docs", "configs", "examples"):
        for directory, _, files in os.walk(os.path.join(ROOT, folder)):
            for name in files:
                if name.endswith(".md"):
                    yield os.path.relpath(os.path.join(directory, name), ROOT)


@pytest.mark.parametrize("page", sorted(pages()))
def test_links_lead_somewhere(page):
    folder = os.path.dirname(os.path.join(ROOT, page))
    for target in re.findall(r"\]\(([^)\s]+)\)", source(page)):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        path = os.path.join(folder, name) if name else os.path.join(ROOT, page)
        assert os.path.exists(path), f"{page}: {target}"
        assert not anchor or anchor in anchors(path), f"{page}: {target}"


def anchors(path):
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", source(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}


# Below these a page names files of this repository, if no other folder stands before.
PATH = re.compile(
    r"(?<![\w/.-])((?:electra_tf|tests|benchmarks|configs|docs|examples|experiments)/[\w./-]*\w)"
)
DOTTED = re.compile(r"(?<![\w/.-])electra_tf(?:\.\w+)+")


def missing(text):
    """Paths and dotted names of this repository in a text that do not exist."""
    for path in PATH.findall(text):
        if not os.path.exists(os.path.join(ROOT, path)):
            yield path
    for name in DOTTED.findall(text):
        if not importable(name):
            yield name


def importable(name):
    """Whether a dotted name is a module, or a name that one defines, by its source."""
    parent, _, attribute = name.rpartition(".")
    if name in graph() or parent == "electra_tf" and attribute in electra_tf.__all__:
        return True
    stem = parent.replace(".", os.sep)
    for path in (f"{stem}.py", os.path.join(stem, "__init__.py")):
        if path in FILES:
            names = (getattr(node, "name", None) for node in tree(path).body)
            return attribute in names
    return False


@pytest.mark.parametrize("page", sorted(pages()))
def test_what_a_page_names_exists(page):
    assert list(missing(source(page))) == []


def test_what_does_not_exist_is_seen():
    text = "`tests/no_test.py`, electra_tf.config.no, electra_tf.no, (benchmarks/no.py)"
    assert len(list(missing(text))) == 4
    text = "tests/test_style.py, electra_tf.load, electra_tf.config.model.ModelConfig, "
    assert not list(missing(text + "hub/docs/encoder.md, ../docs/no.md, `electra_tf/`"))
