# SPDX-License-Identifier: Apache-2.0
"""Measures how many small faults in core modules the tests notice.

  python tests/mutants.py --count 150
  python tests/mutants.py --count 150 --thorough --only survivors.json

Each mutant changes one operator or constant. It is killed if a test of its room or the
parity tests fail. Which mutants there are depends on the seed and the sources alone.
"""

import argparse
import ast
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Core modules -> the tests that should notice their faults.
CORE = {
    "pretrain/masking.py": "pretrain/test_mask* pretrain/test_word* parity",
    "pretrain/generators.py": "pretrain/test_[go]* parity",
    "pretrain/objectives.py": "pretrain/test_[hmop]* inference/test_sc* parity",
    "pretrain/pretraining.py": "pretrain/test_[emp]* test_keras.py parity",
    "model/heads.py": "model/test_heads.py pretrain/test_[egop]* parity",
    "train/optimization.py": "train/test_opt* train/test_loop* parity",
    "data/record_making.py": "data parity scripts/test_build_pretraining_dataset.py",
    "text/tokenization.py": "text/test_tok* inference/test_det* parity",
    "storage/checkpoints.py": "storage/test_check* faults/test_check* faults/test_res*",
    "train/loop.py": "train/test_[elsw]* pretrain/test_run* faults/test_r*",
    "finetune/qa_answers.py": "finetune/test_qa* finetune/test_t[ar]* parity",
    "interop/huggingface.py": "interop export/test_finetuned_task_in*",
}
SWAPS = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult},
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And},
}


def mutate(node: ast.AST) -> bool:
    """Changes a node in place; returns whether there is something to change."""
    if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPS:
        node.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.Compare):
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        node.operand = ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        node.value += 1
    else:
        return False
    return True


def choose(count: int, seed: int) -> list[dict]:
    """As many mutants of each module, as far as it has them."""
    chosen, share = [], -(-count // len(CORE))
    for module in CORE:
        source = (ROOT / "electra_tf" / module).read_text()
        every = [i for i, n in enumerate(ast.walk(ast.parse(source))) if mutate(n)]
        picked = random.Random(f"{seed} {module}").sample(every, min(share, len(every)))
        for index in sorted(picked):
            tree = ast.parse(source)
            node = next(n for i, n in enumerate(ast.walk(tree)) if i == index)
            before = ast.unparse(node)
            mutate(node)
            change = f"{node.lineno}: {before} -> {ast.unparse(node)}"
            changed = ast.unparse(ast.fix_missing_locations(tree))
            chosen.append({"module": module, "change": change, "source": changed})
    return chosen


def run_tests(copy: Path, paths: list[str], marks: str) -> None:
    """Runs in a process of its own, forked from one that has TensorFlow imported."""
    os.setsid()
    os.chdir(copy)
    sys.path[:0] = [str(copy)]
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    import pytest

    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", marks]
    os._exit(int(pytest.main([*options, *paths])))


def main() -> None:
    """Prints each mutant that survives, and the share that was killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--thorough", action="store_true")
    parser.add_argument("--only", help="survivors of an earlier run, a JSON file")
    parser.add_argument("--output", default="survivors.json")
    args = parser.parse_args()
    marks = "not slow" if args.thorough else "not thorough and not slow"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tensorflow", "keras"])
    chosen = choose(args.count, args.seed)
    if args.only:
        kept = [(m["module"], m["change"]) for m in json.load(open(args.only))]
        chosen = [m for m in chosen if (m["module"], m["change"]) in kept]
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder, str(i)) for i in range(2)]
        for copy in copies:
            names = shutil.ignore_patterns(".git", ".venv*")
            shutil.copytree(ROOT, copy, ignore=names, symlinks=True)
        free = list(copies)

        def is_killed(mutant: dict) -> bool:
            copy = free.pop()
            path = copy / "electra_tf" / mutant["module"]
            original = path.read_text()
            path.write_text(mutant["source"])
            patterns = CORE[mutant["module"]].split()
            tests = [str(p) for q in patterns for p in sorted((copy / "tests").glob(q))]
            process = context.Process(target=run_tests, args=(copy, tests, marks))
            process.start()
            process.join(400)
            if process.exitcode is None:
                process.kill()
            path.write_text(original)
            free.append(copy)
            return process.exitcode != 0

        began, survivors = time.time(), []
        with ThreadPoolExecutor(len(copies)) as pool:
            for mutant, killed in zip(chosen, pool.map(is_killed, chosen), strict=True):
                if not killed:
                    survivors.append(mutant)
                    print("{module}:{change}".format(**mutant), flush=True)
    Path(args.output).write_text(json.dumps(survivors))
    killed = len(chosen) - len(survivors)
    minutes = (time.time() - began) / 60
    print(f"{killed} of {len(chosen)} killed ({minutes:.0f} min, {marks})")


if __name__ == "__main__":
    main()
