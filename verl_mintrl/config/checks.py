"""Checks of single config values. Pure."""

from __future__ import annotations

import difflib
import math
import re

from verl_mintrl.errors import ConfigError

NODE = "intervention"

_SECRETS = ("apikey", "accesskey", "accesstoken", "hftoken", "authorization", "bearer", "password", "passwd", "secret")


def is_secret(name: str) -> bool:
    """Whether a config key or a field of a request looks like one that holds a secret."""
    plain = "".join(c for c in name.lower() if c.isalnum())
    return plain.endswith(_SECRETS) or plain in ("key", "token")


def looks_like_secret(value: str) -> bool:
    """Whether a value is spelled like an API key."""
    keys = r"(sk-|gsk_|hf_|nvapi-|gh[pous]_|xox[bp]-|AKIA|AIza)[\w-]{16}|(?i:(authorization:\s*)?bearer\s+\S{8})"
    return bool(re.match(keys, value.strip()))


def choice(key: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raises ConfigError unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        near = difflib.get_close_matches(str(value), allowed, n=1)
        raise ConfigError(
            f"{NODE}.{key} is {value!r}; expected one of {', '.join(allowed)}.",
            f"did you mean {near[0]!r}?" if near else f"set {NODE}.{key} to one of them.",
        )


def at_least(key: str, value: float | None, low: float, *, optional: bool = False) -> None:
    """Raises ConfigError unless ``value`` is a number >= ``low``, or None where it is optional."""
    if value is None and optional:
        return
    if value is None or not math.isfinite(value) or value < low:
        raise ConfigError(f"{NODE}.{key} is {value}; expected a number >= {low}.", f"change {NODE}.{key}.")


def above(key: str, value: float | None, low: float, *, optional: bool = False) -> None:
    """Raises ConfigError unless ``value`` is a number > ``low``, or None where it is optional."""
    if value is None and optional:
        return
    if value is None or not math.isfinite(value) or value <= low:
        raise ConfigError(f"{NODE}.{key} is {value}; expected a number > {low}.", f"change {NODE}.{key}.")
