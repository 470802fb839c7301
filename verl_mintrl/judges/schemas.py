"""JSON schemas of the answers, for backends with structured output. :mod:`.parsing` checks every answer anyway.

``reason`` comes first so that a model without a thinking phase still reasons before its verdict; it is never read. Only
keywords that strict structured-output modes accept are used, so ranges and lengths are left to the checks. The
wording of the answers is ours: the prompts of both papers are unpublished [inf].
"""

from __future__ import annotations

from typing import Any


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_REASON = {"type": "string", "description": "One or two sentences."}
_VERDICT = {"type": "string", "enum": ["keep", "revise"]}
_STEP = {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "Number of the first harmful step."}
_CORRECTION = {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "Text that replaces that step."}
_BOOLEAN = {"type": "boolean"}

#: role -> schema of its answer
SCHEMAS: dict[str, dict[str, Any]] = {
    "reviewer": _object(reason=_REASON, verdict=_VERDICT, step=_STEP, correction=_CORRECTION),
    "validator": _object(reason=_REASON, verdict=_VERDICT, step=_STEP),
    "corrector": _object(reason=_REASON, correction={"type": "string"}),
    "verifier": _object(reason=_REASON, agrees=_BOOLEAN, leak_free=_BOOLEAN, plausible=_BOOLEAN),
}
