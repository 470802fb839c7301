"""One error family. Every error says what was seen, what was expected and what to change."""

from __future__ import annotations

from typing import Any


class InterventionError(Exception):
    """Base of all errors raised by this package.

    Args:
        message: what was seen and what was expected.
        hint: what to change, naming the config key where there is one.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} Hint: {hint}" if hint else message)
        self.message = message
        self.hint = hint

    def __reduce__(self):  # keeps both arguments when Ray pickles the error across processes
        return type(self), (self.message, self.hint)


class ConfigError(InterventionError):
    """The configuration cannot be run as written."""


class DataError(InterventionError):
    """A dataset row, a reward or a rollout row breaks the contract it is read under."""


class TrajectoryError(InterventionError):
    """Token book-keeping was asked for something impossible (cut out of range, lengths that disagree)."""


class ReplayError(InterventionError):
    """An environment did not return to the state a session had before; the intervention is given up, the session is not."""


class EnvironmentFailure(InterventionError):
    """An environment raised while a session was played. There is no reward, which is not a reward of 0."""


class JudgeError(InterventionError):
    """A judge gave no usable answer. Never a verdict; what follows is decided by ``intervention.judge.on_error``.

    Args:
        kind: short machine-readable cause, one of :data:`JUDGE_ERROR_KINDS`; becomes part of a metric name.

    Attributes:
        usage: :class:`verl_mintrl.judges.protocol.Usage` of the calls that were paid for although they gave nothing;
            None where no call was made or its cost is unknown.
    """

    usage: Any = None

    def __init__(self, message: str, hint: str = "", kind: str = "exception") -> None:
        super().__init__(message, hint)
        if kind not in JUDGE_ERROR_KINDS:
            raise ValueError(f"unknown judge error kind {kind!r}; known: {sorted(JUDGE_ERROR_KINDS)}")
        self.kind = kind

    def __reduce__(self):
        return type(self), (self.message, self.hint, self.kind), {"usage": self.usage}


JUDGE_ERROR_KINDS = frozenset(
    {
        "exception",  # the judge raised
        "timeout",  # no answer within the deadline of a call
        "session_timeout",  # the session's judge time is used up; it goes on without a judge
        "unavailable",  # transport error, server gone, circuit open
        "http",  # the server answered with an error status, or with something that is no chat completion
        "unparseable",  # no verdict could be read from the answer
        "refused",  # the model declined to answer, or answered with nothing
        "truncated",  # the answer ended at its length limit
        "step_range",  # REVISE without a step, or a step that does not exist
        "empty_correction",  # REVISE with nothing to insert
        "same_correction",  # the correction equals what it would replace
        "too_long",  # the correction exceeds max_insertion_tokens
        "unencodable",  # the tokenizer cannot write the correction without a special token
        "evidence",  # the dataset row lacks what the role should see
        "context",  # the question does not fit into the judge's context
        "unrecorded",  # a recording holds no answer to this question: the rollout diverged from the recorded one
    }
)
