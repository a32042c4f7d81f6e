"""What a subcommand raises when its user can mend it."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in how a command was called: the text says what was needed, what was found and what to change."""
