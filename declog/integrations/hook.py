"""Wrapped methods and added callbacks of one trainer; ``detach`` removes both.

A hook is a generator. The code before its ``yield`` runs before the method, and the code after it gets the method's
result. If a hook yields a function, that function is called instead of the method. This module calls the method
exactly once, even if the hook fails: hooks are guarded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

import declog

Guard = Callable[..., AbstractContextManager[None]]  # the recorder's `guard`
Part = Generator[Callable[..., Any] | None, Any, Any]
"""A hook. It returns the value that replaces the method's result; None keeps the result."""


class Hooks:
    """The changes that one attachment makes to a trainer. While the recorder is closed, all hooks pass through.

    ``start`` returns the recorder, and starts it if need be: the first hook that runs calls it.
    """

    def __init__(self, trainer: Any, start: Callable[[], declog.Recorder]) -> None:
        self._start = start
        self._trainer = trainer
        self._methods: list[tuple[Any, str, Any, Any]] = []  # owner, name, the owner's attribute before, and the hook
        self._callbacks: list[Any] = []

    @property
    def recorder(self) -> declog.Recorder:
        """The recorder, which is started if need be."""
        return self._start()

    def add(self, name: str, around: Callable[..., Part], owner: Any = None) -> None:
        """Run ``around(*args, **kwargs)`` around each call of the trainer's method ``name``.

        The hook is an attribute of the trainer, which hides the class's method. ``owner`` is an object of the trainer
        that has the method instead, such as its accelerator. A method that the trainer does not have gets no hook.
        """
        owner = self._trainer if owner is None else owner
        if not hasattr(owner, name):
            return
        hooked = self._hooked(getattr(owner, name), name, around)
        self._methods.append((owner, name, vars(owner).get(name), hooked))
        setattr(owner, name, hooked)

    def callback(self, callback: Any, *, first: bool = False) -> None:
        """Give the trainer a callback, after all others or (``first``) before them.

        The list of callbacks is replaced, as in ``remove``: transformers may be iterating over the old list.
        """
        self._callbacks.append(callback)
        handler = self._trainer.callback_handler
        handler.callbacks = [callback, *handler.callbacks] if first else [*handler.callbacks, callback]

    def remove(self) -> None:
        """Remove the callbacks, and the hooks that nobody has wrapped since.

        The other hooks stay, and pass through, because the recorder is closed.
        """
        for owner, name, before, hooked in reversed(self._methods):
            if vars(owner).get(name) is not hooked:
                continue
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        handler = self._trainer.callback_handler
        handler.callbacks = [callback for callback in handler.callbacks if callback not in self._callbacks]

    def _hooked(self, original: Callable[..., Any], name: str, around: Callable[..., Part]) -> Callable[..., Any]:
        @functools.wraps(original)
        def hooked(*args: Any, **kwargs: Any) -> Any:
            recorder = self.recorder
            if recorder.closed:
                return original(*args, **kwargs)
            guard = recorder.guard(f"declog's part of `{name}` failed")
            part: Part | None = None
            method = original
            with guard:
                part = around(*args, **kwargs)
                method = next(part, None) or original
            try:
                result = method(*args, **kwargs)
            except BaseException as error:
                trace = error.__traceback__
                with guard:
                    _thrown(part, error)
                error.__traceback__ = trace  # hides that the error passed through the hook
                raise
            with guard:
                if part is not None:
                    try:
                        part.send(result)
                    except StopIteration as end:
                        return result if end.value is None else end.value
            return result

        return hooked


def _thrown(part: Part | None, error: BaseException) -> None:
    """End the hook by throwing the method's own error into it."""
    try:
        if part is not None:
            part.throw(error)
    except StopIteration:
        pass
    except BaseException as raised:
        if raised is not error:
            raise
