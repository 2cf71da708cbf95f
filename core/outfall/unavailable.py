"""What Debezium's PostgreSQL connector sends for a value that the source's log does not contain ("Toasted values").

Strings and bytes are the placeholder. Of an array, the elements are (`UnchangedToastedPlaceholder`): the text, its UUID
where they are UUIDs, its bytes, or each byte as a number.
"""

from __future__ import annotations

import hashlib
import uuid

UNAVAILABLE = "__debezium_unavailable_value"
UNAVAILABLE_UUID = str(uuid.UUID(bytes=hashlib.md5(UNAVAILABLE.encode(), usedforsecurity=False).digest(), version=3))
UNAVAILABLE_NUMBERS = tuple(UNAVAILABLE.encode())
