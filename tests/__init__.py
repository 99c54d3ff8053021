# SPDX-License-Identifier: Apache-2.0
"""A folder for each room of electra_tf; what crosses rooms stands beside them."""
