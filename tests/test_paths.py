# SPDX-License-Identifier: Apache-2.0
"""Paths and lists of globs, as users write them."""

import pytest

from electra_tf import paths


def test_every_name_can_be_escaped(tmp_path):
    names = ["plain", "a[1]", "b,c", "d*?", "[,]", ",]", "[!x]"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    for name in names:
        pattern = paths.escape(str(tmp_path / name)) + "/*"
        assert paths.expand(pattern) == [str(tmp_path / name / "file")]
        both = paths.expand(f"{pattern},{paths.escape(str(tmp_path / 'plain'))}/f*,")
        assert len(both) == (1 if name == "plain" else 2)


@pytest.mark.parametrize("path", ["gs://bucket/x", "s3://b", "file:///tmp/x", "a\0b"])
def test_what_is_no_path_here(path):
    with pytest.raises(ValueError):
        paths.check_path(path)
    paths.check_path("/tmp/a:b/c//d")
