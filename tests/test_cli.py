# SPDX-License-Identifier: Apache-2.0
"""The command line of every script, as a user types it."""

import ast
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from electra_tf import errors

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

SCRIPT = '''
"""Does a thing.

Example:
  python3 script.py --data-dir D
"""
import atexit
import os

from absl import flags
from electra_tf import cli, console, errors

_DATA = cli.define_path("data_dir", None, "Where the data is.", required=True)
_COUNT = flags.DEFINE_integer("num_processes", 1, "How many.")
_BLANKS = flags.DEFINE_boolean("blanks_separate_docs", True, "Blank lines count.")
_LOWER = cli.define_pair("do_lower_case", "no_lower_case", True, "Lower-case.")
_ACCENTS = flags.DEFINE_boolean("strip_accents", True, "Strip accents.")


def main(argv):
    what = _DATA.value
    if what == "user-error":
        raise errors.UserError("the file is odd\\nmend it", errors.EXIT_DAMAGED)
    if what == "defect":
        raise ValueError("boom")
    if what == "interrupt":
        raise KeyboardInterrupt
    if what == "full":
        with open("/dev/full", "w") as f:
            f.write("x")
    if what == "memory":
        raise MemoryError("Unable to allocate 9 EiB for an array")
    if what == "file":
        with open("file", "w") as f:
            f.write("ours")
            f.flush()
            os.system("echo theirs; echo theirs >&2")  # as TensorFlow prints
        console.Console().log("printed")
    if what == "code":
        atexit.register(print, "clearing up")
        print("saved", end=" ")  # stays in the buffer
        return 42
    print([what, _COUNT.value, _BLANKS.value, _LOWER.value, _ACCENTS.value, argv[1:]])


if __name__ == "__main__":
    cli.run(main)
'''


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "script.py"
    path.write_text(textwrap.dedent(SCRIPT).lstrip())
    return path


def run(command, **env):
    return subprocess.run(
        list(map(str, command)),
        env={**os.environ, "PYTHONPATH": ROOT, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def start(script, *args, **env):
    return run([sys.executable, script, *args], **env)


@pytest.mark.parametrize(
    "args, expected",
    [
        ("--data-dir D", ["D", 1, True, True, True]),
        ("--data_dir=D --num_processes=3", ["D", 3, True, True, True]),
        ("--data-dir D --blanks-separate-docs False", ["D", 1, False, True, True]),
        ("--blanks_separate_docs=false --data-dir D", ["D", 1, False, True, True]),
        ("--blanks-separate-docs --data-dir D", ["D", 1, True, True, True]),
        ("--noblanks-separate-docs --data-dir D", ["D", 1, False, True, True]),
        ("--data-dir D --no-lower-case", ["D", 1, True, False, True]),
        ("--data-dir D --no-lower-case --do-lower-case", ["D", 1, True, True, True]),
        ("--data-dir D --no-strip-accents", ["D", 1, True, True, False]),
        ("--data-dir --no-lower-case", ["--no-lower-case", 1, True, True, True]),
    ],
)
def test_spellings(script, args, expected):
    done = start(script, *args.split())
    assert done.returncode == 0, done.stderr
    # data_dir, num_processes, blanks_separate_docs, do_lower_case, strip_accents
    assert ast.literal_eval(done.stdout) == [*expected, []]


@pytest.mark.parametrize("flag", ["--drop_near_duplicates", "--languages=de"])
def test_a_flag_that_left_is_refused_with_its_replacement(script, flag):
    done = start(script, "--data-dir", "D", flag)
    assert done.returncode == errors.EXIT_FLAGS and not done.stdout
    assert "left in version 0.2: filter with datatrove first" in done.stderr


@pytest.mark.parametrize(
    "args, expected",
    [
        ("", ["--data-dir must be given"]),
        ("--data-dri D", ["data-dri", "Did you mean: data_dir"]),
        ("--data-dir D stray", ["unexpected argument 'stray'"]),
        ("--data-dir D --no-lower-case=False", ["does not take"]),
        ("--data-dir=", ["data_dir", "a path is needed"]),
    ],
)
def test_wrong_command_lines(script, args, expected):
    done = start(script, *args.split())
    assert done.returncode == errors.EXIT_FLAGS
    assert done.stderr.startswith("error: ")
    assert done.stderr.strip().count("\n") <= 2
    assert done.stdout == ""
    assert all(part in done.stderr for part in expected), done.stderr


@pytest.mark.parametrize(
    "what, code, stderr",
    [
        ("user-error", 65, "error: the file is odd\nmend it\n"),
        ("interrupt", 130, "error: interrupted\n"),
        ("full", 73, "No space left"),
        ("code", 42, ""),
        ("memory", 2, "error: not enough memory: Unable to allocate 9 EiB"),
    ],
)
def test_exit_codes(script, what, code, stderr):
    done = start(script, "--data-dir", what)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert stderr in done.stderr if stderr else not done.stderr


@pytest.mark.parametrize("workers, stdout", [(1, "saved "), (2, "saved clearing up\n")])
def test_preempted_process_ends_at_once(script, workers, stdout):
    """Several workers clear up first."""
    config = {"TF_CONFIG": "{}"} if workers > 1 else {}
    done = start(script, "--data-dir", "code", **config)
    assert (done.returncode, done.stdout) == (42, stdout), done.stderr


def test_defect_keeps_its_traceback(script):
    done = start(script, "--data-dir", "defect")
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "ValueError: boom" in done.stderr


@pytest.mark.parametrize("closed", [">&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams(script, closed, tmp_path):
    """Output to a closed stream is dropped, and not written to the next open file."""
    shell = ["sh", "-c", f'cd {tmp_path}; exec "$@" {closed}', "sh", sys.executable]
    done = run([*shell, script, "--data-dir", "file"])
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert (tmp_path / "file").read_text() == "ours"
    assert ("printed" in done.stdout) == (not closed.startswith(">"))
    assert run([*shell, script, "--data-dir", "user-error"]).returncode == 65


def test_user_errors_cross_processes():
    error = pickle.loads(pickle.dumps(errors.UserError("x", errors.EXIT_LOCKED)))
    assert (str(error), error.exit_code) == ("x", errors.EXIT_LOCKED)


def scripts():
    """The top-level scripts that are run through `cli`, and the experiments."""
    for pattern in ("*.py", "experiments/*.py"):
        for path in sorted(Path(ROOT).glob(pattern)):
            text = path.read_text(encoding="utf-8")
            # Those that add an idea to the commands import its parents, with Keras.
            if "if __name__" in text and "# noqa: E402" not in text:
                yield str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def without_tensorflow(tmp_path_factory):
    """A PYTHONPATH on which importing TensorFlow or Keras fails."""
    folder = tmp_path_factory.mktemp("blocked")
    for name in ("tensorflow", "tensorflow_text", "tensorflow_datasets", "keras"):
        (folder / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')")
    return os.pathsep.join([str(folder), ROOT])


@pytest.mark.parametrize("name", [*scripts()])
def test_help_of_every_script(name, without_tensorflow):
    script = os.path.join(ROOT, name)
    done = start(script, "--help", PYTHONPATH=without_tensorflow)
    assert (done.returncode, done.stderr) == (0, "")
    assert name in done.stdout, "an example shows how the script is called"
    has_flags = name != "flops_computation.py"
    assert ("\nFlags:\n  --" in done.stdout) == has_flags
