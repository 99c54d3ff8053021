# SPDX-License-Identifier: Apache-2.0
"""Resumable work that local processes or Apache Beam share.

Which task makes which files is fixed before any starts.
"""
