# SPDX-License-Identifier: Apache-2.0
"""Pictures of a trial."""

import json

import pytest

from electra_tf.finetune import results


def colours(path):
    """How many different colours a picture has."""
    from matplotlib import image

    return len({tuple(pixel) for row in image.imread(path) for pixel in row})


@pytest.mark.parametrize("count", [2, pytest.param(80, marks=pytest.mark.thorough)])
def test_confusion_matrix_of_any_size(tmp_path, count):
    labels = [f"a class of a long name, number {n}" for n in range(count)]
    matrix = [[9 * (i == j) for j in range(count)] for i in range(count - 1)]
    found = {"labels": labels, "matrix": [*matrix, [0] * count]}
    results.draw_confusion(found, tmp_path / "c.png", "mine")
    assert colours(tmp_path / "c.png") > 20


def test_curves_of_existing_files(tmp_path):
    path = tmp_path / "curves.png"
    results.draw_curves(tmp_path, path, "title")
    assert not path.exists()
    rows = [{"step": n, "loss": 1.0, "mine_loss": 1.0 / n} for n in range(1, 9)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "metrics.jsonl").write_text(lines)
    results.draw_curves(tmp_path, path, "title")
    alone = path.read_bytes()
    scores = {"mine": {"f1": 50.0, "loss": None, "mse": 0.1}}
    rows = [{"step": n, "score": 1.0, "scores": scores} for n in (4, 8)]
    (tmp_path / "evaluations.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )
    results.draw_curves(tmp_path, path, "title")
    assert path.read_bytes() != alone and colours(path) > 20
