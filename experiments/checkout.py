# SPDX-License-Identifier: Apache-2.0
"""Imported first, it puts this checkout before an installed electra_tf."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
