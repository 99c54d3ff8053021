# SPDX-License-Identifier: Apache-2.0
"""What model lies at this path? What does a run begin with? Others' formats, both ways.

Nothing is skipped: a name that is missing or left over is an error.
"""
