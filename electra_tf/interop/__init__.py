# SPDX-License-Identifier: Apache-2.0
"""What model lies at this path? And the formats of other programs, both ways.

Nothing is skipped: a name that is missing or left over is an error.
"""
