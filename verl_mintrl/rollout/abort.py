"""verl adapter: a cancelled ``generate`` stops the request on its server.

Cancelling the coroutine of verl's client only stops the waiting: the server goes on to the last token of a request nobody
reads. Here the server's task is cancelled too, which makes its engine drop the request.

Leans on ``verl.workers.rollout.llm_server.LLMServerClient``: ``_acquire_server`` returns ``(server id, actor handle)``,
``_release_server`` takes the id back, and ``generate`` calls the handle's ``generate.remote``.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from contextvars import ContextVar
from typing import Any

logger = logging.getLogger(__name__)

#: message of the CancelledError of a request that its server confirmed to have dropped
ABORTED = "aborted on the server"
_CONFIRM_S = 5.0


#: requests that the ``generate`` running in this context has sent to servers
_sent: ContextVar[list[Any]] = ContextVar("intervention_sent")


class AbortingClient:
    """verl's server client whose cancelled requests are aborted. A client without servers of its own is left as it is.

    No dataclass: Hydra, which makes the agent loops, would turn it into a config.

    Args:
        client: hands out recorded actor handles from now on; nothing else of it changes.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        acquire = getattr(client, "_acquire_server", None)
        if acquire is not None:

            async def acquire_recorded(request_id: str, **extra: Any) -> tuple[str, _Recorded]:
                routing = asyncio.ensure_future(acquire(request_id, **extra))
                try:
                    server_id, server = await asyncio.shield(routing)
                except asyncio.CancelledError:  # verl would never give back the place the balancer is about to count
                    routing.add_done_callback(functools.partial(_give_back, client, request_id))
                    raise
                return server_id, _Recorded(server)

            client._acquire_server = acquire_recorded

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **kwargs: Any):
        """As verl's.

        Raises:
            asyncio.CancelledError: cancelled; with the message ``ABORTED`` if the request ran and its server dropped it.
        """
        sent: list[Any] = []
        token = _sent.set(sent)
        try:
            return await self.client.generate(
                request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **kwargs
            )
        except asyncio.CancelledError:
            if sent and await _abort(sent[-1]):
                raise asyncio.CancelledError(ABORTED) from None
            raise
        finally:
            _sent.reset(token)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by copies that have no client yet
            raise AttributeError(name)
        return getattr(self.client, name)


class _Recorded:
    """A server's actor handle that remembers what ``handle.generate.remote(...)`` it was sent."""

    def __init__(self, server: Any) -> None:
        self._server = server

    @property
    def generate(self) -> _Recorded:
        return self

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        reference = self._server.generate.remote(*args, **kwargs)
        _sent.get([]).append(reference)
        return reference


def _give_back(client: Any, request_id: str, routed: asyncio.Future[Any]) -> None:
    if not routed.cancelled() and routed.exception() is None:
        client._release_server(routed.result()[0], request_id=request_id)


async def _abort(reference: Any) -> bool:
    """Cancel a server's task; whether it ended by that."""
    import ray
    from ray.exceptions import TaskCancelledError

    try:
        ray.cancel(reference)
        await asyncio.wait_for(asyncio.wrap_future(reference.future()), _CONFIRM_S)
    except TaskCancelledError:
        return True
    except Exception as error:  # the server is gone, or does not answer: nothing is lost but its time
        logger.warning("a request could not be aborted: %s: %s", type(error).__name__, error)
    return False
