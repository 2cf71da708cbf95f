"""Asking an authorisation server for a token (RFC 6749 §4.4.2)."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote_plus

import requests
import urllib3

from outfall.errors import ConfigurationError, TransientError
from outfall.http.headers import checked
from outfall.http.options import HttpOptions
from outfall.http.tls import client_certificate, trusted
from outfall.location import masked
from outfall.options import resolve_secret

_LONGEST = 1 << 16


class TokenRequest:
    """Fetches a token with the client's credentials, by HTTP Basic as §2.3.1 asks of every server.

    Args:
        options: where and who.
    """

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._place = masked(str(options.oauth2_token_url))

    def __call__(self) -> tuple[str, float | None]:
        """Return a token and the seconds for which it is good, `None` where the server does not say.

        Raises:
            ConfigurationError: the server refuses the client, or its token makes no header.
            TransientError: it does not answer, or is in trouble.
        """
        status, answer = self._ask()
        if status >= 500 or status in (408, 429):
            raise self._failed(f"it answered {status}")
        token = answer.get("access_token")
        kind = str(answer.get("token_type", "Bearer"))
        if status != 200 or not isinstance(token, str) or kind.lower() != "bearer":
            # Of the answer only the code: what else it holds may be a token.
            code = answer.get("error") if isinstance(answer.get("error"), str) else None
            raise ConfigurationError(
                f"{self._place} gives no bearer token",
                why=f"it answered {status}" + (f", {str(code)[:100]!r}" if code else ""),
                do="correct oauth2_client_id, oauth2_client_secret, oauth2_scope and oauth2_token_url",
            )
        checked(f"the token of {self._place}", f"Bearer {token}")
        seconds = answer.get("expires_in")
        try:
            return token, None if seconds is None else float(seconds)
        except (TypeError, ValueError):
            return token, None

    def _ask(self) -> tuple[int, dict[str, Any]]:
        options = self._options
        form = {"grant_type": "client_credentials"} | ({"scope": options.oauth2_scope} if options.oauth2_scope else {})
        secret = resolve_secret(options.oauth2_client_secret) if options.oauth2_client_secret else ""
        try:
            with requests.post(
                str(options.oauth2_token_url),
                data=form,
                auth=(quote_plus(options.oauth2_client_id or ""), quote_plus(secret)),
                headers={"Accept": "application/json"},
                timeout=(options.connect_timeout.total_seconds(), options.read_timeout.total_seconds()),
                verify=trusted(options) if options.verify else False,
                cert=client_certificate(options),
                allow_redirects=False,
                stream=True,
            ) as response:
                # At most so much, whatever comes.
                response._content = response.raw.read(_LONGEST, decode_content=True)
                answer = response.json()
                return response.status_code, answer if isinstance(answer, dict) else {}
        except requests.exceptions.JSONDecodeError:
            return response.status_code, {}
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            # Without the cause, whose text holds the address with its query.
            raise self._failed(type(error).__name__) from None

    def _failed(self, why: str) -> TransientError:
        return TransientError(
            f"{self._place} gave no token",
            why=why,
            do="nothing, if it passes: the task is tried again; else see why it does not answer",
        )
