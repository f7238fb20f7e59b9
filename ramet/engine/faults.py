"""Faults: what a request whose round failed gets, and what a device that failed leaves."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager
from typing import Any

import torch

from ramet.engine.finite import NotFinite
from ramet.engine.job import Job
from ramet.errors import EngineFault, RametError

_LOGGER = logging.getLogger(__name__)


def round_fault(n_tokens: int, error: Exception) -> EngineFault:
    """For a request whose own round of so many tokens failed."""
    if isinstance(error, torch.OutOfMemoryError):
        what = f"a round of {n_tokens} tokens needs more of the device's memory than is free"
        fault = EngineFault(f"{what}: {error}; a smaller cache_bytes or max_round_tokens leaves more of it")
    elif isinstance(error, NotFinite):
        fault = EngineFault(f"{error}: the model's numbers overflow on this request")
    else:
        fault = EngineFault(f"a round failed: {type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault


def not_finite(name: str) -> EngineFault:
    """For all requests to a model that has no finite logits."""
    return EngineFault(
        f"logits are not finite, whatever is asked: the weights of {name} overflow or were damaged after they were "
        "loaded; load sound ones"
    )


def device_lost(error: Exception) -> EngineFault:
    """For all requests to a device that has failed."""
    fault = EngineFault(f"the device failed, and the engine must be started anew: {error}")
    fault.__cause__ = error
    return fault


@contextmanager
def as_fault(what: str) -> Iterator[None]:
    """Turn a fault of our own in what is done for one request into an EngineFault, and log it whole."""
    try:
        yield
    except RametError:
        raise
    except Exception as error:
        _LOGGER.exception("%s cannot be made", what)
        raise EngineFault(f"{what} cannot be made: {type(error).__name__}: {error}") from error


def keep_for_ever(*things: object) -> None:
    """Nothing of a device that has failed may be freed: torch ends the process where freeing fails, and whoever waits
    would get no answer."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(things))


def settle(job: Job, outcome: object) -> None:
    """Give a job its outcome or its error. Where its caller has cancelled, whoever waits for its future learns that."""
    future: Future[Any] = job.future
    try:
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
    except InvalidStateError:
        if future.cancelled():
            future.set_running_or_notify_cancel()
