"""Cleaning of untrusted text: characters that hide or reorder text, and control strings of chat templates."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: NUL and other control characters (tab and newline stay), bidi controls, invisible marks, lone surrogates.
#: Zero-width (non-)joiners stay: scripts and emoji need them.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ud800-\udfff"
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)

#: Characters that are shown as nothing: Unicode's Default_Ignorable_Code_Point, and the empty Braille pattern.
_BLANK = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

#: Openers, closers and whole strings that some chat template gives a meaning to. [inf] The list covers the families in
#: use (ChatML, Llama, Mistral, Gemma, DeepSeek, GLM, T5). A tokenizer's own special tokens are passed in; tags that are
#: part of an answer's form (``<answer>``, ``<tool_call>``) stay, for a correction must be able to imitate them.
_TEMPLATE = re.compile(
    r"<[|｜]|[|｜]>|</?s>|</?(?:bos|eos|pad|unk|sop|eop|mask|think|thinking)>"
    r"|<(?:start|end)_of_(?:turn|image)>|<extra_id_[0-9]{1,3}>|<</?SYS>>|\[/?(?:INST|SYSTEM_PROMPT|TOOL_CALLS"
    r"|AVAILABLE_TOOLS|TOOL_RESULTS)\]|\[gMASK\]",
    re.IGNORECASE,
)


def clean(text: str) -> str:
    """``text`` without hidden characters and with ``\\n`` as its only line ending. Always encodable as UTF-8."""
    return _HIDDEN.sub(
        "", text.replace("\r\n", "\n").replace("\r", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    )


def without_blanks(text: str) -> str:
    """``text`` without characters that are shown as nothing: what a reader would see of it."""
    return _BLANK.sub("", text)


def collapse(text: str) -> str:
    """``text`` with every run of whitespace made one space and none at its ends."""
    return " ".join(text.split())


def defang(text: str, control_strings: Iterable[str] = ()) -> str:
    """``text`` with a space put inside every control string, so that no tokenizer reads it as one.

    Args:
        control_strings: special tokens of the reading model, beyond the common ones known here.
    """
    for control in control_strings:
        if len(control) > 1 and control in text:
            text = text.replace(control, f"{control[0]} {control[1:]}")
    return _TEMPLATE.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
