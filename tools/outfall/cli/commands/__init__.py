"""The commands of `outfall`. They require the extra `cli`."""

from outfall.errors import require_extra

require_extra("cli", "click", "rich")
