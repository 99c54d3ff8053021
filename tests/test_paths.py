# SPDX-License-Identifier: Apache-2.0
"""Paths and lists of globs, as users write them."""

import pytest

from electra_tf import paths


@pytest.mark.parametrize(
    "path", ["ftp://host/x", "file:///tmp/x", "http://x", "a\0b", "s3://b/../../x"]
)
def test_unsupported_paths_are_refused(path):
    with pytest.raises(ValueError):
        paths.local_of(path)


def test_paths_in_buckets_have_a_local_copy(tmp_path, monkeypatch):
    monkeypatch.setenv("ELECTRA_TF_CACHE", str(tmp_path))
    assert paths.local_of("/tmp/a:b/c//d") == "/tmp/a:b/c//d"
    assert paths.url_of("/tmp/a:b/c//d") is None
    place = paths.local_of("s3://bucket/a/b.txt")
    assert place == f"{tmp_path}/files/s3/bucket/a/b.txt"
    assert paths.url_of(place) == "s3://bucket/a/b.txt"
    here = paths.not_mirrored(place)
    assert here == f"{tmp_path}/local/s3/bucket/a/b.txt" and not paths.url_of(here)
    assert paths.not_mirrored("/tmp/files") == "/tmp/files"
    assert paths.shown(f"no {place}: '{place}'") == (
        "no s3://bucket/a/b.txt: 's3://bucket/a/b.txt'"
    )
    globs = paths.local_of("gs://b/x*,/y/[,]*,s3://b/z?")
    root = f"{tmp_path}/files"
    assert paths.globs_in(globs) == [f"{root}/gs/b/x*", "/y/[,]*", f"{root}/s3/b/z?"]


def test_paths_that_have_to_be_local():
    assert paths.local_of("/tmp/x", here=True) == "/tmp/x"
    with pytest.raises(ValueError, match="on this machine"):
        paths.local_of("s3://bucket/x", here=True)
