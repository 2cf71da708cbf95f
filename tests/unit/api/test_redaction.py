"""Secrets that somebody else says back, in whatever way."""

from __future__ import annotations

import base64
import html
import json
import quopri
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outfall.redaction import Redaction

SECRET = "Gä/heim<&>\"+x=1 €😀ü'"


def lower_percent(text: str) -> str:
    return quote(text, safe="").lower()


def all_percent(text: str) -> str:
    return "".join(f"%{byte:02x}" if byte % 2 else f"%{byte:02X}" for byte in text.encode())


WRITINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "percent": lambda text: quote(text, safe=""),
    "form": quote_plus,
    "percent, mixed case": all_percent,
    "JSON": lambda text: json.dumps(text)[1:-1],
    "PHP's JSON": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "JSON, all escaped": lambda text: "".join(f"\\u{ord(c):04X}" for c in text if ord(c) < 65536),
    "HTML": html.escape,
    "HTML, decimal": lambda text: "".join(f"&#{ord(c)};" for c in text),
    "HTML, hexadecimal": lambda text: "".join(f"&#x{ord(c):X};" for c in text),
    "quoted-printable": lambda text: quopri.encodestring(text.encode()).decode(),
    "Python's bytes": lambda text: repr(text.encode())[2:-1],
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="),
    "base64 in lines": lambda text: base64.encodebytes((text * 5).encode()).decode(),
    "hexadecimal": lambda text: text.encode().hex(),
    "percent in percent": lambda text: quote(quote(text, safe=""), safe=""),
    "percent in HTML in JSON": lambda text: json.dumps(html.escape(all_percent(text)))[1:-1].replace("%", "\\u0025"),
    "base64 in percent": lambda text: quote(base64.b64encode(text.encode()), safe=""),
}


@pytest.mark.parametrize("writing", WRITINGS)
def test_a_secret_is_hidden_however_it_is_written(writing: str) -> None:
    secret = SECRET.replace("😀", "") if writing == "JSON, all escaped" else SECRET
    written = WRITINGS[writing](secret)
    shown = Redaction([secret]).hide(f"it was <{written}> that you said")
    assert shown.startswith("it was <***")
    assert shown.endswith("> that you said")
    assert not any(piece in shown for piece in (written[:8], written[-8:], written[8:16]))


@given(st.text(max_size=12), st.text(min_size=6, max_size=12), st.text(max_size=12))
def test_a_secret_is_hidden_in_the_base64_of_what_surrounds_it(before: str, secret: str, behind: str) -> None:
    raw = secret.encode("utf-8", "surrogatepass")
    whole = before.encode("utf-8", "surrogatepass") + raw + behind.encode("utf-8", "surrogatepass")
    written = base64.b64encode(whole).decode()
    left = Redaction([secret]).hide(written).replace("***", "")
    assert len(left) <= len(written) - len(raw) * 8 // 6


@pytest.mark.parametrize("writing", ["plain", "percent", "PHP's JSON", "HTML", "base64"])
def test_a_secret_at_the_end_of_a_text_that_was_cut_off_is_hidden(writing: str) -> None:
    written = WRITINGS[writing]("Gehei/m<&>-and-more-of-it")
    for length in range(12, len(written)):
        shown = Redaction(["Gehei/m<&>-and-more-of-it"]).hide(f"said: {written[:length]}")
        assert shown.startswith("said: ***")
        assert len(shown) <= len("said: ***") + 2


def test_what_holds_no_secret_stays_as_it_is() -> None:
    text = '{"a": "100%25 &amp; =3D \\/ \\u00e4 +", "b": "R2Vi"}\r\n <p>&nbsp;</p>'
    assert Redaction(["geheim", "", "x1/y2"]).hide(text) == text
    assert Redaction([]).hide(text) == text


def test_secrets_in_one_another_and_side_by_side_leave_nothing() -> None:
    hidden = Redaction(["abcdef", "cdefgh", "abcdefghij"])
    assert hidden.hide("xabcdefghijx abcdefgh", ["zwei"]) == "x***x ***"
    assert hidden.hide("abcdefzwei", ["zwei"]) == "******"


def test_a_page_full_of_escapes_is_read_in_time() -> None:
    page = "%41\\u0042&#67;=44+\r\n " * 200
    assert Redaction(["a secret that is not there"]).hide(page) == page


def test_an_error_and_its_causes_are_cleaned() -> None:
    inner, outer = OSError(5, "AUTH hunter2-word refused"), ValueError("hunter2-word", 3)
    outer.__cause__ = inner
    Redaction(["hunter2-word"]).clean(outer)
    assert (outer.args, inner.args) == (("***", 3), (5, "AUTH *** refused"))
