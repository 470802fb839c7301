"""Prompts of the four roles: templates beside this file, replaceable one by one.

A template is text with ``{{placeholders}}``; a line of ``=====`` parts the system message from the user message
(without one, all is the user message). Placeholders are filled in one pass, so text that looks like a placeholder
stays text.

Layout: instructions, problem, evidence, steps in order, question. What changes last comes last, so that the reviews
of one session share the longest prefix in the server's cache. For the same reason the fence code depends on
problem and evidence alone.

Policy, problem and evidence are untrusted. Each stands between lines that carry the fence code, which is chosen so
that no text inside contains it; hidden characters are dropped, control strings broken, long lines and steps shortened
visibly. The wording is ours; the prompts of MInTRL (arXiv 2609.12419) and RTI (arXiv 2610.13438) are unpublished
[inf].
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from verl_mintrl.errors import ConfigError
from verl_mintrl.judges.protocol import Evidence, ReviewRequest
from verl_mintrl.judges.text import clean, defang

MAX_LINE_CHARS = 4_000
MAX_STEP_CHARS = 24_000

_SEEN_BY_ALL = frozenset({"problem", "evidence", "steps", "step_count", "nonce", "state"})
_SEEN_WITH_STEP = _SEEN_BY_ALL | {"step_number", "step"}
#: role -> placeholders that its template may use
PLACEHOLDERS: dict[str, frozenset[str]] = {
    "reviewer": _SEEN_BY_ALL,
    "validator": _SEEN_BY_ALL,
    "corrector": _SEEN_WITH_STEP,
    "verifier": _SEEN_WITH_STEP | {"correction"},
    "steering": _SEEN_WITH_STEP,  # no question: the context in which the policy's own log-probs of a correction are taken
}
#: role -> placeholders without which the role could not be played
REQUIRED: dict[str, frozenset[str]] = {
    "reviewer": frozenset({"steps"}),
    "validator": frozenset({"steps"}),
    "corrector": frozenset({"step"}),
    "verifier": frozenset({"correction"}),
    "steering": frozenset({"step"}),
}

_PLACEHOLDER = re.compile(r"\{\{[ \t]{0,8}([A-Za-z_][A-Za-z0-9_]{0,39})[ \t]{0,8}\}\}")
_DIVIDER = re.compile(r"^={5,}[ \t]*$\n?", re.MULTILINE)

_EVIDENCE_TITLES = {
    Evidence.NONE: "No reference is given; judge by your own reasoning.",
    Evidence.OUTCOME: "How the finished response was scored (confidential):",
    Evidence.RUBRIC: "What the response is scored by (confidential):",
    Evidence.GOLD: "The required result (confidential):",
}


class PromptSet:
    """The templates of all roles, checked.

    Args:
        paths: role -> file that replaces the packaged template; None keeps it.
        control_strings: special tokens of the judge model, broken wherever untrusted text contains them.
        informed: roles that are to see evidence, so that their templates must have a place for it.

    Raises:
        ConfigError: unknown role, missing or undecodable file, unknown or missing placeholder, an empty message.
    """

    def __init__(
        self,
        paths: Mapping[str, str | Path | None] | None = None,
        control_strings: Collection[str] = (),
        informed: Collection[str] = (),
    ) -> None:
        chosen = {role: path for role, path in (paths or {}).items() if path is not None}
        unknown = sorted(set(chosen) - set(PLACEHOLDERS))
        if unknown:
            raise ConfigError(
                f"intervention.judge.prompts has no role {', '.join(unknown)}",
                f"known roles: {', '.join(PLACEHOLDERS)}",
            )
        self._control_strings = tuple(control_strings)
        self._templates = {role: _read(role, chosen.get(role), role in informed) for role in PLACEHOLDERS}

    def messages(
        self, role: str, request: ReviewRequest, *, step: int | None = None, correction: str | None = None
    ) -> list[dict[str, Any]]:
        """The chat messages of one question. ``steps`` are those before ``step`` where a role looks at one step."""
        fence = _Fence(request, correction, self._control_strings)
        shown = request.steps if step is None else request.steps[: step - 1]
        values: dict[str, Callable[[], str]] = {
            "problem": lambda: fence.around("problem", _problem_text(request.problem)),
            "evidence": lambda: _evidence_text(request, fence),
            "steps": lambda: _steps_text(shown, request.observations, fence),
            "step_count": lambda: str(len(request.steps)),
            "step_number": lambda: str(step),
            "step": lambda: fence.around(f"step {step}", _shorten(request.steps[step - 1])) if step else "",
            "correction": lambda: fence.around("proposed rewrite", _shorten(correction or "")),
            "nonce": lambda: fence.nonce,
            "state": lambda: _state_text(request),
        }
        return [
            {"role": name, "content": _PLACEHOLDER.sub(lambda match: values[match[1]](), template)}
            for name, template in self._templates[role]
        ]


class _Fence:
    """Delimiters that the text inside cannot forge."""

    def __init__(self, request: ReviewRequest, correction: str | None, control_strings: Collection[str]) -> None:
        self._control_strings = control_strings
        stable = json.dumps([*request.problem, request.privileged], sort_keys=True, default=str)
        inside = "\n".join((stable, request.privileged or "", *request.steps, *request.observations, correction or ""))
        salt = 0
        while True:
            self.nonce = hashlib.sha256(f"{salt}|{stable}".encode("utf-8", "replace")).hexdigest()[:12]
            if self.nonce not in inside:
                break
            salt += 1

    def around(self, title: str, text: str) -> str:
        # Cleaning may join the halves of a code that a hidden character parted.
        body = defang(clean(text), self._control_strings).replace(self.nonce, "[...]")
        return f"<<<{title} {self.nonce}>>>\n{body}\n<<<end of {title} {self.nonce}>>>"


def _read(role: str, path: str | Path | None, informed: bool) -> list[tuple[str, str]]:
    key = f"intervention.judge.prompts.{role}"
    if path is None:
        name = f"{role}.txt"
        text = (resources.files("verl_mintrl.judges") / "prompts" / name).read_text(encoding="utf-8")
    else:
        name = str(path)
        try:
            text = Path(path).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{key}: cannot read {name!r}: {type(error).__name__}",
                f"point {key} to a UTF-8 text file, or leave it out",
            ) from error
    used = {match[1] for match in _PLACEHOLDER.finditer(text)}
    known = ", ".join(sorted(PLACEHOLDERS[role]))
    if used - PLACEHOLDERS[role]:
        raise ConfigError(
            f"{key}: {name} uses unknown placeholders {', '.join(sorted(used - PLACEHOLDERS[role]))}",
            f"placeholders of this role: {known}",
        )
    required = REQUIRED[role] | ({"evidence"} if informed else frozenset())
    if required - used:
        raise ConfigError(
            f"{key}: {name} lacks the placeholders {', '.join(sorted(required - used))}",
            f"write them as {{{{name}}}}; placeholders of this role: {known}",
        )
    if (rest := _PLACEHOLDER.sub("", text)).find("{{") >= 0:
        raise ConfigError(
            f"{key}: {name} has a {rest[rest.index('{{') :][:40]!r} that is no placeholder",
            f"write placeholders as {{{{name}}}}, other braces apart; placeholders of this role: {known}",
        )
    parts = _DIVIDER.split(text, maxsplit=1)
    names = ("system", "user") if len(parts) == 2 else ("user",)
    if not all(part.strip() for part in parts):
        raise ConfigError(
            f"{key}: {name} has an empty message", "write something on both sides of the line of =====, or drop it"
        )
    return [(name, part.strip()) for name, part in zip(names, parts, strict=True)]


def _state_text(request: ReviewRequest) -> str:
    state = "The response is finished." if request.finished else "The response is still being written."
    if request.focus is not None:
        state += f" Only step {request.focus} is in question; the steps before it have been accepted."
    return state


def _problem_text(problem: tuple[dict[str, Any], ...]) -> str:
    return "\n\n".join(f"[{message.get('role', 'user')}]\n{content_text(message)}" for message in problem)


def content_text(message: dict[str, Any]) -> str:
    """Text of a chat message, its tool calls as JSON."""
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        parts = [part if isinstance(part, dict) else {"type": "text", "text": str(part)} for part in content]
        content = "\n".join(str(part.get("text", f"({part.get('type', 'part')} not shown)")) for part in parts)
    calls = message.get("tool_calls")
    shown = "" if content is None else str(content)
    return f"{shown}\n{json.dumps(calls, default=str)}".strip() if calls else shown


def _evidence_text(request: ReviewRequest, fence: _Fence) -> str:
    if request.privileged is None or request.evidence is Evidence.NONE:
        return _EVIDENCE_TITLES[Evidence.NONE]
    return f"{_EVIDENCE_TITLES[request.evidence]}\n{fence.around('evidence', request.privileged)}"


def _steps_text(steps: tuple[str, ...], observations: tuple[str, ...], fence: _Fence) -> str:
    blocks = []
    for number, step in enumerate(steps, 1):
        if number <= len(observations) and observations[number - 1]:
            blocks.append(fence.around(f"seen before step {number}", _shorten(observations[number - 1])))
        blocks.append(fence.around(f"step {number}", _shorten(step)))
    return "\n".join(blocks) or "(none)"


def _shorten(text: str) -> str:
    """``text`` without the middle of its long lines, and without its own middle if it is long."""
    text = "\n".join(_elide(line, MAX_LINE_CHARS) for line in text[: 4 * MAX_STEP_CHARS].split("\n")) + (
        f"\n[... {len(text) - 4 * MAX_STEP_CHARS} characters left out ...]" if len(text) > 4 * MAX_STEP_CHARS else ""
    )
    return _elide(text, MAX_STEP_CHARS)


def _elide(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 4
    return f"{text[:head]} [... {len(text) - head - tail} characters left out ...] {text[-tail:]}"
