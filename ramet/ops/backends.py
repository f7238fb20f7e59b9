"""Backends: each computes ops on some devices. To add one is to write its class and a line of BACKENDS."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec

import torch

from ramet.errors import InvalidRequest
from ramet.ops import kernels
from ramet.ops.attention.native import NativeAttention
from ramet.ops.contracts import Variant
from ramet.ops.conv.native import NativeConv
from ramet.ops.experts.native import NativeExperts
from ramet.ops.gated_delta.native import NativeDelta
from ramet.ops.head.native import NativeHead
from ramet.ops.linear.native import NativeProducts
from ramet.ops.native import NativeOp, library, status
from ramet.ops.norm.native import NativeNorm
from ramet.ops.route.native import NativeRoute

_LEAST_CAPABILITY = (8, 0)  # bfloat16 products
_NATIVE: dict[str, type[NativeOp]] = {
    "attention": NativeAttention,
    "norm": NativeNorm,
    "linear": NativeProducts,
    "head": NativeHead,
    "conv": NativeConv,
    "gated_delta": NativeDelta,
    "experts": NativeExperts,
    "route": NativeRoute,
}


class Backend:
    """The variants of ops in the modules ramet/ops/OP/NAME.py, as far as there are such.

    devices: the kinds on which it is chosen by itself; empty: all. how: by what it computes, for people; a variant may
    have a `how` of its own. is_invariant: whether the bits of a row do not depend on what else is in the round.
    is_recordable: whether its launches depend on a round's capacity alone, so that a pass of them can be recorded.
    """

    is_invariant = False
    is_recordable = False

    def __init__(self, name: str, how: str, devices: tuple[str, ...] = ()) -> None:
        self.name, self.how, self.devices = name, how, devices

    def suits(self, device: torch.device) -> bool:
        """Whether it is chosen for this device by default."""
        return not self.devices or device.type in self.devices

    def lacks(self, device: torch.device) -> str | None:
        """None, or why it computes nothing on this device."""
        return None if self.suits(device) else f"does not run on {device}"

    def start(self, device: torch.device) -> None:
        """Prepare the device, before a variant is taken. Raises InvalidRequest where that fails."""

    def variant(self, op: str) -> Variant | None:
        """None where it leaves the op to other backends."""
        module = f"ramet.ops.{op}.{self.name}"
        return import_module(module) if find_spec(module) is not None else None


class Native(Backend):
    """The kernels in C++, of the library that is compiled for the machine."""

    is_invariant = True

    def lacks(self, device: torch.device) -> str | None:
        """See `Backend`."""
        if not self.suits(device):
            return super().lacks(device)
        available, reason = status()
        return None if available else f"is {reason}"

    def variant(self, op: str) -> Variant | None:
        """See `Backend`."""
        found = library()
        assert found is not None
        return _NATIVE[op](found)


class Triton(Backend):
    """The kernels in Triton, on CUDA; elsewhere they are interpreted, where the environment says so."""

    is_invariant = is_recordable = True

    def lacks(self, device: torch.device) -> str | None:
        """See `Backend`."""
        is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own switch
        return None if is_interpreted else super().lacks(device)

    def start(self, device: torch.device) -> None:
        """See `Backend`."""
        if device.type == "cuda":
            check_card(device)
            kernels.use(device)

    def variant(self, op: str) -> Variant | None:
        """See `Backend`."""
        try:
            return super().variant(op)
        except ModuleNotFoundError as error:
            raise InvalidRequest(f"needs {error.name}, which is not installed: pip install {error.name}") from error


# By name. A device's ops are computed by the first that is there for it and takes their shape.
BACKENDS: dict[str, Backend] = {
    "triton": Triton("triton", "own kernels, compiled for this card", ("cuda",)),
    "native": Native("native", "kernels in C++", ("cpu",)),
    "torch": Backend("torch", "plain torch", ("cpu",)),
    "reference": Backend("reference", "plain torch"),
}


def check_card(device: torch.device) -> None:
    """Raise InvalidRequest for a CUDA card that the kernels do not support."""
    capability = torch.cuda.get_device_capability(device)
    if capability < _LEAST_CAPABILITY:
        name = torch.cuda.get_device_name(device)
        found, least = (".".join(map(str, version)) for version in (capability, _LEAST_CAPABILITY))
        raise InvalidRequest(
            f"{name} has compute capability {found}; the kernels need {least} or newer. --device cpu works",
            field="device",
        )
