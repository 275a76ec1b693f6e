"""Errors of recording and of the backward pass; each is also a ``RuntimeError``, as torch's own."""

from __future__ import annotations

from dataclasses import dataclass

from torch.autograd.gradcheck import GradcheckError as TorchGradcheckError

from ops_registry.errors import GlassgradError
from ops_registry.sites import Site


class MissingRuleError(GlassgradError):
    """Backward reached a call of a function that has no rule."""


class NoHistoryError(GlassgradError):
    """Backward was asked of a tensor that no recorded call on a tensor requiring grad has led to."""


class GradientArgumentError(GlassgradError):
    """The gradient (or the inputs) given to ``backward`` or ``grad`` do not fit the tensors."""


class UnusedInputError(GlassgradError):
    """``grad`` was asked for an input that the outputs do not depend on, without ``allow_unused``."""


class FreedGraphError(GlassgradError):
    """Backward went a second time through a graph whose saved tensors the first one released."""


class OverwrittenError(GlassgradError):
    """A tensor saved for backward was overwritten in place in between."""

    def __init__(self, message: str, site: Site | None = None) -> None:
        super().__init__(message)
        #: Where it was overwritten, if a graph with sites was open.
        self.site = site


class InferenceTensorError(GlassgradError):
    """A tensor that was made in inference mode was to be saved for backward, which torch forbids."""


class InPlaceError(GlassgradError):
    """An in-place write that torch forbids, or one whose effect on the recorded history is not supported."""


class TransformError(GlassgradError):
    """A transform (``tracer.func``, ``torch.func``) was given what it cannot differentiate, or a structure that does not fit."""


class TransformValueError(TransformError, ValueError):
    """As ``TransformError``, where torch's own transforms raise a ``ValueError``."""


class OutArgumentError(GlassgradError):
    """``out=`` with a tensor that requires grad: the write would not be part of any history."""


class AnomalyError(GlassgradError):
    """Anomaly mode found nan in a gradient."""


class FunctionError(GlassgradError):
    """A custom Function broke the contract that torch documents for it."""


class SecondDerivativeError(GlassgradError):
    """A derivative of a derivative was asked of something that can be differentiated only once."""


class BatchedGradientError(GlassgradError):
    """Gradients came as a batch of ``torch.vmap``'s to what takes one at a time; whoever started such a sweep goes row by row then."""


class NotInBackwardError(GlassgradError):
    """Something was asked that has an answer inside a backward pass only."""


class NotNotedError(GlassgradError):
    """A graph was asked about what it does not note: open it with the option that the message names."""


class MissingPackageError(GlassgradError):
    """What was asked for needs a package or a program that is not installed: the message says which, and what there is without it."""


class ReportError(GlassgradError):
    """A report was asked for what it does not have, or about what it does not take: the message says what it has and takes."""


class UnrecordedError(ReportError, NoHistoryError):
    """A report was asked about a tensor that no recorded call has led to."""


class SavedTensorHookError(GlassgradError):
    """A hook that packs or unpacks what is saved for backward broke the rules for it."""


class UnsupportedError(GlassgradError):
    """Something that torch offers and glassgrad does not, or not yet."""


class CaptureError(UnsupportedError):
    """A step does something that no graph can hold, so that it cannot be captured (``tracer.compile``, ``tracer.export_graph``)."""


class CompiledStepError(GlassgradError):
    """With ``check=True``: a compiled step and the eager one gave different losses, gradients or buffers."""


@dataclass(frozen=True)
class Mistake:
    """What a wrong Jacobian looks like, in a word and in a sentence."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


class GradcheckError(GlassgradError, TorchGradcheckError):
    """``gradcheck`` or ``gradgradcheck`` found a gradient wrong; also an error of torch's own class of that name."""

    def __init__(self, message: str, mistake: Mistake | None = None) -> None:
        super().__init__(message)
        #: What the wrong Jacobian looks like, where a Jacobian is what is wrong.
        self.mistake = mistake
