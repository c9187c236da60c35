"""Compile a function with numba, and keep the machine code for the next process where there is a place for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from threading import RLock
from types import FunctionType
from typing import Any

_ONE_AT_A_TIME = RLock()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function when it is first called, and load numba no earlier: that takes as long as all else of a look.

    The code is kept in NUMBA_CACHE_DIR, beside the source, or in the user's home. An executor may have none of them: a
    service user has no home and may not write to what is installed. It then compiles in every process. What is compiled
    can call by name what is `inlined`, `always_inlined` or `emitted`; of such a file, where it is another one, numba
    sees no change. It leaves Python to other threads while it runs. An index is unsigned where that pays: a signed
    one is asked at each use whether it counts from the end.
    """
    return _compiled(function)


def compiled_in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that fills the arrays it is given and makes none, as `compiled` does.

    It need not count who holds an array, which in a loop over tuples of arrays takes ten times what the loop does.
    """
    return _compiled(function, _nrt=False)


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    @cache
    def machine_code() -> Callable[..., Any]:
        from numba import njit

        source = _knowing(function)
        try:
            return njit(cache=True, nogil=True, **options)(source)
        except RuntimeError:  # numba finds no place that it can write to
            return njit(nogil=True, **options)(source)

    @wraps(function)
    def call(*values: Any) -> Any:
        with _ONE_AT_A_TIME:  # or two threads would compile the same
            ready = machine_code()
        return ready(*values)

    return call


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function to what is `compiled`. It makes no arrays, so it need not count who holds them.

    To count takes longer than what such a function does. Whether it is worth a call is left to the compiler.
    """
    return _inlined(function)


def always_inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function to what is `compiled`, as `inlined` does, in place of each call.

    That is for what is called once for a row and too long for the compiler to do so by itself.
    """
    return _inlined(function, forceinline=True)


def _inlined(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    @cache
    def machine_code() -> Callable[..., Any]:
        from numba import njit

        return njit(_nrt=False, **options)(_knowing(function))  # type: ignore[call-overload, no-any-return, unused-ignore]

    function.__dict__["machine_code"] = machine_code
    return function


def emitted(instructions: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a function to what is `compiled`, where it is `instructions`, an intrinsic of numba. Else it is itself."""

    @cache
    def machine_code() -> Callable[..., Any]:
        from numba.extending import intrinsic

        return intrinsic(instructions)

    def given(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__dict__["machine_code"] = machine_code
        return function

    return given


def _knowing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that knows the machine code of what it calls."""
    named: dict[str, Any] = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    known = {name: one.machine_code() for name, one in named.items() if hasattr(one, "machine_code")}
    if not known:
        return function
    return wraps(function)(FunctionType(function.__code__, function.__globals__ | known, function.__name__))
