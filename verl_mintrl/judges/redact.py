"""Keeps what only the judge was shown out of messages, which end up in logs and dumps. Pure."""

from __future__ import annotations

import json
import re

_WINDOW = 12  # letters and digits in a row that are no coincidence
_LONGEST = 20_000  # of a message that is looked through
_SHORT = 6  # characters below which a copy can be told from what stands around it
_FEW = 3  # letters and digits of a secret that are found in another spelling
HIDDEN = "[hidden]"
_QUOTES = "[hidden: it quotes what only the judge was shown]"


def hide(text: str, secret: str | None) -> str:
    """``text``, which somebody else wrote, without ``secret``.

    A verbatim copy is replaced. Where the text holds a piece of the secret in another spelling (escaped, wrapped, cut off), or a
    short secret as a word of its own, all of it is replaced: what is left around a short one would tell it.
    """
    secret = (secret or "").strip()
    if not secret:
        return text
    text = text[:_LONGEST]
    escaped = {repr(secret)[1:-1], ascii(secret)[1:-1], json.dumps(secret)[1:-1]} - {secret}
    if any(spelling in text for spelling in escaped):
        return _QUOTES
    if len(secret) < _SHORT:
        return _QUOTES if re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", text, re.IGNORECASE) else text
    text = text.replace(secret, HIDDEN)
    flat, hidden = _flat(text), _flat(secret)
    if len(hidden) >= _WINDOW:
        pieces = {hidden[i : i + _WINDOW] for i in range(len(hidden) - _WINDOW + 1)}
        if any(flat[i : i + _WINDOW] in pieces for i in range(len(flat) - _WINDOW + 1)):
            return _QUOTES
    elif len(hidden) >= _FEW and hidden in flat:
        return _QUOTES
    return text


def printable(text: str, most: int) -> str:
    """One line of at most ``most`` characters without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:most]


def _flat(text: str) -> str:
    return re.sub(r"\\[abfnrtv]|\\u[0-9a-f]{4}|[\W_]+", "", text.lower())
