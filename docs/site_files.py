# SPDX-License-Identifier: Apache-2.0
"""A hook of mkdocs: the site has the pages and the addresses of the repository.

Every page, picture, and file that a page links to stands where it does in the
checkout, so the same relative links serve a reader of the files, of GitHub and of the
site.
"""

import os
import re
from pathlib import Path

from mkdocs.structure.files import File, Files

LINK = re.compile(r"\]\(([^)\s#]+)|(?:src|srcset)=\"([^\"]+)\"")
PAGES = ("*.md", "docs/**/*.md", "configs/*.md", "examples/**/*.md")


def on_files(files: Files, config, **_) -> Files:
    """The pages, and the files that they link to, in place of docs/ alone."""
    root = Path(config.config_file_path).parent
    pages = sorted({path for pattern in PAGES for path in root.glob(pattern)})
    found = set(pages)
    for page in pages:
        for names in LINK.findall(page.read_text(encoding="utf-8")):
            path = Path(os.path.normpath(page.parent / "".join(names)))
            if path.is_file() and root in path.parents:
                found.add(path)
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    names = {path.relative_to(root).as_posix(): str(path) for path in sorted(found)}
    own = [File.generated(config, name, abs_src_path=p) for name, p in names.items()]
    return Files([*of_theme, *own])
