"""What may be given to librdkafka: how brokers are reached, and never what the log stands on."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

from pydantic import SecretStr

from outfall.errors import ConfigurationError
from outfall.options import resolve_secret
from outfall.redaction import MASK, Redaction

_ALLOWED = re.compile(
    r"security\.protocol|client\.(id|rack|dns\.lookup)|(sasl|ssl|enable\.ssl|socket|broker\.address|reconnect)\..+|"
    r"connections\.max\.idle\.ms|metadata\.max\.age\.ms|api\.version\.request(\.timeout\.ms)?|compression\.(codec|type)|"
    r"queue\.buffering\.max\.(messages|kbytes)|receive\.message\.max\.bytes|debug|log_level"
)
_SECRET = re.compile(r"password|passphrase|secret|private|token|oauthbearer\.config|ssl\.key\.|\.pem|\.jaas")
_HERE = (
    "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.ca.location",
    "ssl.certificate.location", "ssl.key.location", "ssl.key.password", "client.id", "socket.timeout.ms",
    "compression.type", "queue.buffering.max.messages",
)  # fmt: skip
_REFERENCE = re.compile(r"(env|file):.+")


class ClientOptions(Mapping[str, str]):
    """librdkafka's own properties, for all clients of a log. A secret is only seen by who asks for `resolved`.

    Raises:
        ConfigurationError: one is unknown, is none of those that say how to reach the brokers, or has no value.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = {name: SecretStr(_text(name, value)) for name, value in sorted(options.items())}

    def __getitem__(self, name: str) -> str:
        """Return a property as it may be shown: a literal secret is masked, `env:NAME` and `file:PATH` are not."""
        value = self._options[name].get_secret_value()
        return MASK if _SECRET.search(name) and not _REFERENCE.fullmatch(value) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClientOptions) and self._options == other._options

    def __hash__(self) -> int:
        return hash(tuple(self._options))

    def __repr__(self) -> str:
        return repr(dict(self))

    def shown(self) -> dict[str, str]:
        """Return what a URL may hold: all but literal secrets."""
        return {name: value for name, value in self.items() if value != MASK}

    def resolved(self) -> dict[str, str]:
        """Return the properties as librdkafka takes them.

        Raises:
            ConfigurationError: a secret's variable or file does not exist here.
        """
        return {
            name: resolve_secret(value) if _SECRET.search(name) else value.get_secret_value()
            for name, value in self._options.items()
        }

    def masked(self, text: str) -> str:
        """Return a text of the client without any secret in it."""
        return Redaction(value for name, value in self.resolved().items() if _SECRET.search(name)).hide(text)


def _text(name: object, value: object) -> str:
    if not isinstance(name, str) or not _ALLOWED.fullmatch(name):
        near = difflib.get_close_matches(str(name), _HERE, n=1)
        raise ConfigurationError(
            f"the client option {name!r} is not one that may be given"
            + (f", did you mean {near[0]!r}?" if near else ""),
            why="only what says how the brokers are reached; the log stands on the rest (acks, idempotence, offsets)",
            do="give librdkafka's properties of security, sasl, ssl, socket, reconnect, compression or the local queue",
        )
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if value is None or not text or text == MASK:
        raise ConfigurationError(f"the client option {name!r} has no value", do="give it, or leave the option out")
    return text
