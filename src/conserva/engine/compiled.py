"""Compiled functions inside a model: `torch.compile` cannot trace them under rules."""

from __future__ import annotations

from torch import nn

from ..errors import NotApplicable
from .coverage import MODULE_CALL

_COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch")


def refusal(model: nn.Module, error: Exception) -> NotApplicable | None:
    """Return what to raise if an error comes from torch's compiler, which is not imported for it.

    The compiler has errors of its own; older ones also raise an AssertionError in their own code.
    """
    names = {module: name for name, module in model.named_modules()}
    where, raised_in, trace = "", "", error.__traceback__
    while trace is not None:
        raised_in = trace.tb_frame.f_globals.get("__name__", "")
        if trace.tb_frame.f_code is MODULE_CALL:
            where = names.get(trace.tb_frame.f_locals["self"], where)
        trace = trace.tb_next
    if not any(one.startswith(_COMPILERS) for one in (raised_in, *(kind.__module__ for kind in type(error).__mro__))):
        return None
    called = f"A function that module {where!r} calls" if where else "A function that the model calls"
    return NotApplicable(
        f"{called} is compiled (torch.compile), so no rule reaches it. Run it as plain PyTorch: explain inside "
        '`with torch.compiler.set_stance("force_eager"):`, or leave torch.compile out.'
    )
