"""How a turn is written: a tool call, an instruction to the user, or a text that ends the conversation. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_ASK = "Please do this on your device: "
_DONE = "Everything you asked for is done. Have a nice day."
_INFO = " For your information: "


@dataclass(frozen=True)
class Call:
    """A tool call.

    Attributes:
        by: ``assistant``, or ``user`` for what the user is asked to do.
    """

    by: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def write(self) -> str:
        call = json.dumps({"name": self.name, "arguments": self.arguments}, sort_keys=True, ensure_ascii=False)
        return call if self.by == "assistant" else _ASK + call


def read(turn: str) -> Call | None:
    """The call in a turn; None for a text."""
    by, text = ("user", turn[len(_ASK) :]) if turn.startswith(_ASK) else ("assistant", turn)
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get("arguments")
    return Call(by, found["name"], arguments) if isinstance(arguments, dict) else None


def farewell(information: Sequence[str] = ()) -> str:
    """The text that ends the conversation, with what the user must be told."""
    return _DONE + (_INFO + "; ".join(information) if information else "")


def tells(turns: Sequence[str], information: Sequence[str]) -> bool:
    """Whether the texts among ``turns`` hold all of ``information``, read as tau2's evaluator reads them."""
    texts = [turn.lower().replace(",", "") for turn in turns if read(turn) is None or turn.startswith(_ASK)]
    return all(any(item.lower() in text for text in texts) for item in information)
