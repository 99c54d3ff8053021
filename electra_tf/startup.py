# SPDX-License-Identifier: Apache-2.0
"""Imports TensorFlow for a script, without the notices it prints whatever one does."""

from __future__ import annotations

import os
import re
import sys
import tempfile

# Printed by C++ code on every start, before any log level applies.
_NOTICES = re.compile(
    r"absl::InitializeLog|oneDNN custom operations are on|Could not find cuda drivers"
    r"|optimized to use available CPU instructions|rebuild TensorFlow with"
    r"|failed call to cuInit: (UNKNOWN ERROR \(303\)|INTERNAL: .*UNKNOWN ERROR \(303\))"
)


def import_tensorflow() -> None:
    """Imports tensorflow and finds its devices; passes on what is worth reading.

    What is known to say nothing is dropped: notices of how TensorFlow was built, and
    that a machine without a GPU driver has none.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            import tensorflow as tf

            tf.config.list_physical_devices()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            captured.seek(0)
            text = captured.read().decode(errors="replace")
            lines = [line for line in text.splitlines() if not _NOTICES.search(line)]
            if lines:
                print("\n".join(lines), file=sys.stderr, flush=True)
