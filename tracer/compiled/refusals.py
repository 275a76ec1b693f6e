"""What a graph cannot hold: refused by name while the step is captured, with the user's line and what to do instead."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode

from ops_registry.errors import GlassgradError
from ops_registry.sites import is_users
from ops_registry.torch_private import (
    NO_DATA_ERRORS,
    NO_SHAPE_ERRORS,
    UNKNOWN_TO_FAKE,
    is_functional,
)
from tracer.backprop.api import backward, grad
from tracer.compiled.memory_order import MemoryOrder
from tracer.compiled.telling import users_line
from tracer.earlier_uses import native_leaves
from tracer.errors import CaptureError, UnsupportedError
from tracer.naming import qualified
from tracer.node import tensors_in
from tracer.recording.levels import physical
from tracer.tracked_tensor import Tensor

#: torch hands out memory here that nobody has written while a step is captured.
_MEMORY = frozenset(
    {"numpy", "__array__", "__deepcopy__", "is_set_to", "is_shared", "is_pinned", "tolist", "data_ptr", "__dlpack__", "to_dlpack",
     "storage", "untyped_storage", "_typed_storage"}
)  # fmt: skip
#: What an input of the graph may be at each call, and is not while the step is captured.
_TORCHS: Any = torch.Tensor
_PLACE = {_TORCHS._version.__get__: "_version", _TORCHS._base.__get__: "_base", _TORCHS._is_view: "_is_view"}
#: A tensor as text.
_TEXT = frozenset({"__repr__", "__format__"})
#: torch's C++ reads a tensor of sizes or indices here without asking whether it has values: the process would end.
_UNGUARDED = frozenset({"tensor_split"})
_OURS = frozenset({"tracer", "ops_registry"})

#: What starts a backward pass, as a tracked tensor answers it.
_BACKWARD: dict[Any, Any] = {
    torch.autograd.backward: backward,
    torch.autograd.grad: grad,
    torch.Tensor.backward: lambda tensor, gradient=None, **options: backward(tensor, gradient, **options),
}

_STRANGER = "its gradient would be lost. Pass it as an argument, make it a parameter of a module, or name its module (modules=[...])."

_GRAD: Any = torch.Tensor.grad
_GRAD_PROPERTY: Any = vars(Tensor)["grad"]
#: Reading and writing ``.grad`` of a tracked tensor goes through these frames.
_GRAD_CODES = frozenset({_GRAD_PROPERTY.fget.__code__, _GRAD_PROPERTY.fset.__code__})


class Watch(TorchFunctionMode):
    """Sees every call of the step while it is captured: refuses those that read values, and notes whether ``.grad`` is looked at."""

    def __init__(self, inputs: frozenset[int], order: MemoryOrder, handed: set[int]) -> None:
        super().__init__()
        self._inputs = inputs
        self._handed = handed
        self._order = order
        #: Whether the step, not the backward pass, has read or set ``.grad`` of a leaf that is an input.
        self.looked_at_grad = False
        #: Whether it has asked where in its memory a tensor begins.
        self.looked_at_offset = False
        #: The last refusal, which code of the step may catch (`try: x.item()`) and go another way than with values.
        self.refused: BaseException | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            return self._answer(func, args, kwargs or {})
        except (CaptureError, NO_DATA_ERRORS, NO_SHAPE_ERRORS, *UNKNOWN_TO_FAKE) as error:
            self.refused = error
            raise

    def _answer(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if name in _MEMORY:
            self._refuse_memory(name, args, sys._getframe(2))
        elif name in _TEXT and args and _is_captured(args[0]):
            raise CaptureError(
                f"a tensor is made text ({name}) in a step that is captured, {users_line()}: it has no values then, and a "
                f"graph does not print. Return the tensor, and print it outside."
            )
        elif name == "as_strided_":
            raise CaptureError(
                f"as_strided_() lays a tensor out anew in a step that is captured, {users_line()}, and a graph would not know its size any "
                f"more. Use as_strided()."
            )
        elif name in _UNGUARDED and any(map(_is_captured, (*args[1:], *kwargs.values()))):
            raise CaptureError(
                f"{qualified(func)} reads the values of a tensor of indices in a step that is captured, {users_line()}: there are none "
                f"then, and the shapes of its results depend on them. Give it numbers."
            )
        elif name in ("__get__", "__set__") and func in (_GRAD.__get__, _GRAD.__set__):
            self._note_grad(args[0], sys._getframe(2))
        elif func in _PLACE and id(args[0]) in self._inputs:
            self._refuse_place(_PLACE[func], sys._getframe(2))
        self.looked_at_offset |= name == "storage_offset"
        bridged = func in _BACKWARD and _is_bridge(sys._getframe(2))
        if bridged and any(id(leaf) not in self._inputs for leaf in native_leaves(_nodes_of(args[0]))):
            raise CaptureError(
                f"the step makes a tensor that requires grad in torch's own autograd (a module, a parameter), {users_line()}, and goes "
                f"back to it: its gradient would be lost. Make it outside of the step, or as a tracked tensor (tracer.tensor(..., "
                f"requires_grad=True))."
            )
        # A mode does not see what is called inside of what it sees, and hooks run there.
        if func in _BACKWARD and not bridged:
            with self:
                return _BACKWARD[func](*args, **kwargs)
        stranger = next(filter(_is_stranger, tensors_in((args, tuple(kwargs.values())))), None)
        if stranger is not None:
            raise CaptureError(
                f"{qualified(func)} got a tensor of shape {tuple(stranger.shape)} that requires grad and is neither an argument of the "
                f"step nor in a module that it is known to reach, {users_line()}: {_STRANGER}"
            )
        with self._order.kept(func, args, kwargs):
            return func(*args, **kwargs)

    def _refuse_memory(self, name: str, args: tuple[Any, ...], frame: FrameType) -> None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package in _OURS and name != "numpy":
            return
        if args and _is_captured(args[0]):
            raise CaptureError(
                f"{name}() reads the memory of a tensor in a step that is captured, {users_line()}: there are no values then, and what "
                f"is made of them would stay what it was at the first call. Return the tensor and read it outside, or pass what you need "
                f"as an argument."
            )

    def _refuse_place(self, name: str, frame: FrameType) -> None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _OURS:
            raise CaptureError(
                f"the step asks for {name} of a tensor from outside, {users_line()}: the answer differs from call to call, and a graph "
                f"would keep the first. Ask outside, and pass the answer as an argument."
            )

    def _note_grad(self, leaf: Any, frame: FrameType) -> None:
        if frame.f_code in _GRAD_CODES and frame.f_back is not None:
            asks = frame.f_back.f_globals.get("__name__", "")
            if asks.startswith("tracer.backprop"):
                return
            # Of a leaf that the step makes itself there is none at the start, whenever it is called.
            self.looked_at_grad |= id(leaf) in self._inputs
            if id(leaf) in self._handed:
                raise CaptureError(
                    f"a step that is captured looks at .grad of a parameter of shape {tuple(leaf.shape)}, {users_line()}, after a backward "
                    f"pass whose gradients are exchanged with other processes: that is done when the graph has run. Read, clip and clear "
                    f".grad outside of the step, or before the backward pass."
                )


def _is_bridge(frame: FrameType | None) -> bool:
    """Whether our backward pass has handed a gradient on to torch's: nearer than the step, it stands among torch's frames."""
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "torch":
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "") == "tracer.backprop.bridge"


def _nodes_of(roots: Sequence[Any]) -> Iterator[Any]:
    """torch's nodes of tensors and gradient edges."""
    for root in roots:
        yield (root if isinstance(root, GradientEdge) else get_gradient_edge(root)).node


def _is_captured(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and is_functional(physical(value))


def _is_stranger(value: Any) -> bool:
    """Whether it is a real tensor that wants a gradient: those of the step's inputs are captured ones meanwhile."""
    return type(value) is Tensor and value._node is not None and not is_functional(physical(value))


def _line_in(trace: TracebackType | None) -> str:
    """The same for an error that has come up already."""
    line = "at an unknown line"
    while trace is not None:
        if is_users(trace.tb_frame):
            line = f"at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def _validation(trace: TracebackType | None) -> str:
    """The remedy where one of torch's distributions looks at its arguments."""
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith("torch.distributions"):
            return " This is a distribution that checks what it is given: make it with validate_args=False."
        trace = trace.tb_next
    return ""


@contextmanager
def refusing(inputs: Sequence[torch.Tensor], order: MemoryOrder, handed: set[int]) -> Iterator[Watch]:
    """While the step is captured: what no graph can hold raises ``CaptureError``.

    ``inputs`` come from outside of it. ``order`` learns which calls write in place. ``handed``: leaves, by id, whose ``.grad`` somebody
    fills after the graph.
    """
    watch, drawn = Watch(frozenset(map(id, inputs)), order, handed), _python_randomness()
    try:
        with watch:
            yield watch
        if watch.refused is not None:
            raise watch.refused
        if _python_randomness() != drawn:
            raise CaptureError(
                "the step draws random numbers from Python's random or from NumPy, or another thread does so while it is captured: a graph "
                "would have the same ones for ever. Draw them outside and pass them as tensors, or use torch's; let other threads begin "
                "after the first call."
            )
    except NO_DATA_ERRORS as error:
        raise CaptureError(
            f"the step asks for the value of a tensor ({error.func}) {_line_in(error.__traceback__)}: by item(), float(), int(), bool(), a "
            f"branch (`if loss > 0`) or a comparison of whole tensors. A graph has no values to answer with: use torch.where for a "
            f"branch, keep numbers in tensors, or do it outside of the step.{_validation(error.__traceback__)}"
        ) from error
    except GuardOnDataDependentSymNode as error:
        raise CaptureError(
            f"the step branches on a number of an optimiser (lr, betas), {_line_in(error.__traceback__)}, or makes another number of it "
            f"(float, math): it is an input of the graph, which differs from call to call. Compute with it outside of the "
            f"step, and pass what comes of it as a tensor."
        ) from error
    except NO_SHAPE_ERRORS as error:
        raise CaptureError(
            f"{error.func} gives a result whose shape depends on values, {_line_in(error.__traceback__)}: a graph has fixed shapes. Use a "
            f"mask (torch.where, multiplication by 0 and 1) in place of nonzero, unique, masked_select and boolean indices."
        ) from error
    except UnsupportedError as error:
        if "make_fx" not in str(error):
            raise
        raise CaptureError(
            f"a tracked tensor that is neither an argument of the step nor in a module that it is known to reach came into it, "
            f"{_line_in(error.__traceback__)}: {_STRANGER}"
        ) from error
    except UNKNOWN_TO_FAKE as error:
        raise CaptureError(
            f"torch cannot tell the result of a call without running it, {_line_in(error.__traceback__)}: {error}. Leave it out of the "
            f"step, or run the step eagerly."
        ) from error
    except (RuntimeError, AssertionError, ArithmeticError) as error:
        if not isinstance(error, GlassgradError) and ("functionaliz" in str(error) or "non-ATen" in str(error)):
            raise _refused_write(error) from error
        call = _torchs_call(error)
        if call is None:
            raise
        raise CaptureError(
            f"{call} raises in a step that is captured, {_line_in(error.__traceback__)}: {_first_line(error)}. If the "
            f"eager step raises it as well, mend it there. If not, the call reads values, and there are none in a capture, or it knows "
            f"no tensor without elements there: give it numbers in place of a tensor of sizes or of indices, or keep it out of the step."
        ) from error
    finally:
        _put_python_randomness(drawn)


def _refused_write(error: Exception) -> CaptureError:
    """For a write in place that torch cannot make a value of."""
    line = _line_in(error.__traceback__)
    if "non-ATen" in str(error):
        return CaptureError(
            f"{_torchs_call(error)} writes in place, {line}, and torch has no graph for that. Use the form that returns a tensor "
            f"(x = x.op() in place of x.op_()); torch says: {_first_line(error)}"
        )
    return CaptureError(
        f"a write in place cannot be part of a graph, {line}: it goes into memory that several elements share (expand, unfold), or takes a "
        f"tensor from an object that the step is not known to reach. Write into a clone, or pass the tensor as an argument; torch says: "
        f"{_first_line(error)}"
    )


def _put_python_randomness(drawn: tuple[Any, ...]) -> None:
    """Python's and NumPy's random numbers go on as if nothing had been drawn."""
    if _python_randomness() == drawn:
        return
    state, *rest = drawn
    random.setstate(state)
    if rest:
        import numpy as np

        kind, keys, *others = rest
        np.random.set_state((kind, np.frombuffer(keys, dtype=np.uint32), *others))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".") or type(error).__name__


def _torchs_call(error: Exception) -> str | None:
    """The call of the step out of which torch raised; None where the step's own code raised, or we did."""
    if isinstance(error, GlassgradError):
        return None
    call, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is Watch.__torch_function__.__code__:
            call = qualified(trace.tb_frame.f_locals["func"])
        elif is_users(trace.tb_frame):
            call = None
        trace = trace.tb_next
    return call


def _python_randomness() -> tuple[Any, ...]:
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return (random.getstate(),)
    kind, keys, *rest = numpy_random.get_state()
    return random.getstate(), kind, keys.tobytes(), *rest
