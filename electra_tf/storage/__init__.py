# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all: locks, checkpoints, manifests.

Every path that a user may give is opened here.
"""
