"""Compiled functions inside a model, which `torch.compile` cannot trace under rules."""

from __future__ import annotations

from torch import nn

from ..errors import NotApplicable
from .coverage import MODULE_CALL

_COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch")


def refusal(model: nn.Module, error: Exception) -> NotApplicable | None:
    """Return the error to raise instead if `error` comes from torch's compiler; None if it does not.

    The error is recognised by module names, so that the compiler is not imported: its own exception classes, and any
    exception raised in its code, such as the AssertionErrors of older versions.
    """
    names = {module: name for name, module in model.named_modules()}
    where, raised_in, trace = "", "", error.__traceback__
    while trace is not None:
        raised_in = trace.tb_frame.f_globals.get("__name__", "")
        if trace.tb_frame.f_code is MODULE_CALL:
            where = names.get(trace.tb_frame.f_locals["self"], where)
        trace = trace.tb_next
    origins = (raised_in, *(kind.__module__ for kind in type(error).__mro__))
    if not any(module.startswith(_COMPILERS) for module in origins):
        return None
    called = f"A function that module {where!r} calls" if where else "A function that the model calls"
    return NotApplicable(
        f"{called} is compiled (torch.compile), so rules cannot be applied inside it. Run it as plain PyTorch: explain "
        'inside `with torch.compiler.set_stance("force_eager"):`, or remove torch.compile.'
    )
