# SPDX-License-Identifier: Apache-2.0
"""What goes into SavedModels: graphs from texts or ids to answers."""
