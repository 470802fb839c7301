"""A judge that is a Python function.

A function that blocks would stop every rollout of its process, so synchronous ones run in a small pool of threads. A
thread cannot be killed: a call that misses its deadline is abandoned and holds its thread until it returns by itself.
Abandoned calls are logged, and once they hold every thread each further call fails at once with kind ``unavailable``,
instead of waiting for a deadline. The threads are daemons, so a hung call cannot keep the interpreter from exiting.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import importlib
import importlib.util
import inspect
import logging
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from verl_mintrl.errors import ConfigError, JudgeError
from verl_mintrl.judges.parsing import check_correction, review_from_mapping, verification_from_mapping
from verl_mintrl.judges.protocol import Correction, Judge, Review, ReviewRequest, Usage, Verification
from verl_mintrl.judges.redact import hide

logger = logging.getLogger(__name__)

THREADS = 8
_KEY = "intervention.judge.function"


class PythonJudge(Judge):
    """Calls functions, plain or ``async``. What they raise passes through; :class:`.limits.GuardedJudge` wraps it.

    Args:
        function: ``function(request)`` -> a Review, a dict of ``verdict``, ``step``, ``correction``, or None to keep.
        name: name of the backend in metrics and dumps.
        in_thread: run plain functions in the pool; False calls them on the event loop, where they must be quick.
        joint: without ``correct``, ``function`` must bring the correction of every REVISE; False leaves that to another
            judge.
        correct: ``correct(request, step)`` -> a Correction or its text. Left out, :meth:`correct` asks ``function`` again.
        verify: ``verify(request, step, correction)`` -> a Verification or a dict of its three checks.
    """

    def __init__(
        self,
        function: Callable[[ReviewRequest], Any],
        name: str = "python",
        in_thread: bool = True,
        *,
        joint: bool = True,
        correct: Callable[[ReviewRequest, int], Any] | None = None,
        verify: Callable[[ReviewRequest, int, str], Any] | None = None,
    ) -> None:
        self.name = name
        self._function = function
        self._in_thread = in_thread
        self._joint = joint
        self._correct = correct
        self._verify = verify

    @property
    def threaded(self) -> bool:
        """Whether a function runs in the pool of threads."""
        functions = (self._function, self._correct, self._verify)
        return self._in_thread and any(f is not None and not inspect.iscoroutinefunction(f) for f in functions)

    async def review(self, request: ReviewRequest) -> Review:
        """Raises :class:`JudgeError` (unparseable and the kinds of :func:`.parsing.check_review`)."""
        answer = await self._run(self._function, request)
        if answer is None:
            answer = Review.keep()
        elif isinstance(answer, Review):
            fields = {
                "verdict": answer.verdict,
                "step": answer.step,
                "correction": answer.correction,
                "final": answer.final,
            }
            answer = self._checked(fields, request).with_usage(answer.usage)
        elif isinstance(answer, Mapping):
            answer = self._checked(answer, request)
        else:
            raise _wrong_type("review", answer, "Review, dict or None")
        return answer.with_usage(answer.usage + Usage(calls=1))

    async def correct(self, request: ReviewRequest, step: int) -> Correction:
        """Raises :class:`JudgeError` (unparseable and the kinds of :func:`.parsing.check_correction`)."""
        if self._correct is None:
            review = await self.review(request)
            if review.step != step or review.correction is None:
                seen = "keeps every step" if review.step is None else f"only names step {review.step}"
                raise JudgeError(
                    f"judge {self.name} was asked to correct step {step}, but it {seen}",
                    "set intervention.judge.roles.corrector.function",
                    kind="step_range",
                )
            return Correction(review.correction, review.usage)
        answer = await self._run(self._correct, request, step)
        if isinstance(answer, str):
            answer = Correction(answer)
        elif not isinstance(answer, Correction):
            raise _wrong_type("correct", answer, "Correction or str")
        usage = answer.usage + Usage(calls=1)
        return Correction(check_correction(answer, request, step).text, usage)

    async def verify(self, request: ReviewRequest, step: int, correction: str) -> Verification:
        """Raises :class:`ConfigError` without a verify function, :class:`JudgeError` (unparseable)."""
        if self._verify is None:
            raise ConfigError(
                f"judge {self.name} has no `verify` function, and nothing is accepted unseen",
                "set intervention.judge.roles.verifier.function, or intervention.verifier.enabled: false",
            )
        answer = await self._run(self._verify, request, step, correction)
        usage = Usage(calls=1)
        if isinstance(answer, Verification):
            usage += answer.usage
            answer = {"agrees": answer.agrees, "leak_free": answer.leak_free, "plausible": answer.plausible}
        elif not isinstance(answer, Mapping):
            raise _wrong_type("verify", answer, "Verification or dict")
        checks = verification_from_mapping(answer)
        return Verification(checks.agrees, checks.leak_free, checks.plausible, usage)

    def _checked(self, answer: Mapping[str, Any], request: ReviewRequest) -> Review:
        return review_from_mapping(answer, request, needs_correction=self._joint and self._correct is None)

    async def _run(self, function: Callable[..., Any], request: ReviewRequest, *arguments: Any) -> Any:
        try:
            if inspect.iscoroutinefunction(function) or not self._in_thread:
                answer = function(request, *arguments)
            else:
                answer = await _POOL.run(lambda: function(request, *arguments))
            return await answer if inspect.isawaitable(answer) else answer
        except ConfigError as error:  # the user's words
            raise ConfigError(hide(error.message, request.privileged), hide(error.hint, request.privileged)) from None
        except JudgeError as error:
            silent = JudgeError(
                hide(error.message, request.privileged), hide(error.hint, request.privileged), error.kind
            )
            silent.usage = error.usage
            raise silent from None


def load(spec: str, key: str = _KEY, takes: tuple[str, ...] = ("request",)) -> Callable[..., Any]:
    """The function named by ``package.module:function`` or ``path/to/file.py:function``.

    Args:
        key: config key that ``spec`` is the value of.
        takes: names of the arguments it is called with.

    Raises:
        ConfigError: malformed name, missing file, module that cannot be imported, missing or uncallable function.
    """
    location, _, name = spec.rpartition(":") if isinstance(spec, str) else ("", "", "")
    if not location or not name:
        raise ConfigError(f"{key} is {spec!r}", "write package.module:function or path/to/file.py:function")
    module = _load_file(location, key) if location.endswith(".py") else _load_module(location, key)
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            functions = inspect.getmembers(module, inspect.isfunction)
            known = [key for key, value in functions if value.__module__ == module.__name__]
            raise ConfigError(f"{key}: {location} has no {name}", f"functions there: {', '.join(known[:20]) or 'none'}")
        target = getattr(target, part)
    if not callable(target) or inspect.isclass(target):
        seen = "a class" if inspect.isclass(target) else f"of type {type(target).__name__}"
        raise ConfigError(f"{key}: {spec} is {seen}", f"name a function of ({', '.join(takes)})")
    try:
        inspect.signature(target, follow_wrapped=False).bind(*takes)
    except TypeError as error:
        raise ConfigError(
            f"{key}: {spec} cannot be called with ({', '.join(takes)}): {error}",
            f"name a function of ({', '.join(takes)})",
        ) from None
    except ValueError:  # nothing is known of its arguments
        pass
    return target


def _load_module(name: str, key: str) -> Any:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{key}: cannot import {name}: {type(error).__name__}: {error}",
            "the module must be importable on every node (PYTHONPATH), or be given as path/to/file.py",
        ) from error


def _load_file(location: str, key: str) -> Any:
    path = Path(location).expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"{key}: there is no file {path}", "relative paths start at the working directory of the run")
    name = f"verl_mintrl_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{key}: {path} is no Python file", "name a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and pickle look themselves up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"{key}: {path} raised {type(error).__name__}: {error}", "run the file by itself") from error
    return module


def _wrong_type(role: str, answer: object, expected: str) -> JudgeError:
    return JudgeError(f"a `{role}` function returned {type(answer).__name__}, expected {expected}", kind="unparseable")


class _Call:
    """One function call on its way through the pool."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[tuple[bool, Any]] = self.loop.create_future()
        self.started = False
        self.abandoned = False
        self.finished = False


class _Pool:
    """Daemon threads that start when first needed."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.held = 0  # threads inside abandoned calls
        self._threads = 0
        self._idle = 0
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()

    async def run(self, work: Callable[[], Any]) -> Any:
        """Run ``work`` in a thread. If the caller is cancelled the call is abandoned, or never started.

        Raises:
            JudgeError: unavailable, when abandoned calls hold every thread.
        """
        if self.held >= self.size:
            raise JudgeError(
                f"all {self.size} judge threads of this process are inside calls that missed their deadline",
                f"find out why the function at {_KEY} does not return",
                kind="unavailable",
            )
        context = contextvars.copy_context()
        call = _Call(lambda: context.run(work))
        self._submit(call)
        try:
            succeeded, result = await call.done
        except asyncio.CancelledError:
            self._abandon(call)
            raise
        if succeeded:
            return result
        if isinstance(result, KeyboardInterrupt) or (
            isinstance(result, Exception) and type(result) is not StopIteration
        ):
            raise result
        # SystemExit, CancelledError or StopIteration of a user's function would end the event loop or lie about its
        # cause.
        raise RuntimeError(f"the function raised {type(result).__name__}: {result}") from result

    def _submit(self, call: _Call) -> None:
        with self._lock:
            self._calls.put(call)
            if self._idle == 0 and self._threads < self.size:
                self._threads += 1
                threading.Thread(target=self._work, name=f"judge-{self._threads}", daemon=True).start()

    def _abandon(self, call: _Call) -> None:
        with self._lock:
            if call.finished:
                return
            call.abandoned = True
            if call.started:
                self.held += 1
                logger.warning(
                    "a Python judge call missed its deadline and still runs: %d of %d threads held",
                    self.held,
                    self.size,
                )

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            call = self._calls.get()
            with self._lock:
                self._idle -= 1
                if call.abandoned:
                    continue
                call.started = True
            try:
                outcome: tuple[bool, Any] = (True, call.work())
            except BaseException as error:
                outcome = (False, error)
            with self._lock:
                call.finished = True
                if call.abandoned:
                    self.held -= 1
                    continue
            try:
                call.loop.call_soon_threadsafe(_deliver, call.done, outcome)
            except RuntimeError:  # the event loop was closed meanwhile; nobody waits
                logger.debug("a judge call finished after its event loop was closed")


def _deliver(done: asyncio.Future[tuple[bool, Any]], outcome: tuple[bool, Any]) -> None:
    if not done.done():
        done.set_result(outcome)


_POOL = _Pool(THREADS)
