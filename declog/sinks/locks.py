"""A lock file that one process holds until the process ends, however it ends.

On one machine the kernel knows the holder (``flock``). On file systems that machines share, ``flock`` may work on one
machine only or not at all. So the file also contains the host and process of the holder. The file and its content
appear in one step: of two processes that start at once, one gets the lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import socket
import time
import weakref
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NoReturn

from declog.sinks._files import open_regular

UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})


@dataclass(frozen=True)
class Holder:
    """The holder of a lock, and the time since when it holds it (in seconds since 1970)."""

    host: str
    pid: int
    since: float

    @property
    def here(self) -> bool:
        """Whether the holder is a process of this machine."""
        return self.host == socket.gethostname()

    @property
    def is_this_process(self) -> bool:
        """Whether the holder is this process."""
        return self.here and self.pid == os.getpid()

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host}, since {when}"


class Held(Exception):
    """Another process has the lock. ``holder`` is None if the file does not name it."""

    def __init__(self, holder: Holder | None) -> None:
        self.holder = holder
        super().__init__(str(holder or "another process"))


class Lock:
    """Holds ``file`` until ``release``, or the end of this process. Raises ``Held``, or an ``OSError`` of the disk.

    The lock of a dead process of this machine is taken over. The lock of another machine is taken over only with
    ``takeover``, because this machine cannot see whether its process lives.
    """

    def __init__(self, file: Path, *, takeover: bool = False) -> None:
        self._file = file
        self._process = os.getpid()
        self._descriptor: int | None = None
        self._descriptor = self._new() if not file.exists() else None
        while self._descriptor is None:  # until the file is created here, taken over, or refused
            try:
                self._descriptor = self._old(takeover)
            except FileNotFoundError:
                self._descriptor = self._new()
        _held.add(self)

    def release(self) -> None:
        """Release the lock and remove its file; idempotent. In a fork of the holder this does nothing."""
        if self._descriptor is None or os.getpid() != self._process:
            return
        descriptor, self._descriptor = self._descriptor, None
        with suppress(OSError):
            if self._is_at_its_place(descriptor):
                self._file.unlink()
        os.close(descriptor)

    def __del__(self) -> None:
        self.release()

    def __reduce__(self) -> NoReturn:
        """Refuse copies: a copy would close the same descriptor and remove the file when it is collected."""
        raise TypeError("a lock cannot be copied")

    def forget(self) -> None:
        """In a fork: close the descriptor, so that the lock ends with the process that took it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _new(self) -> int | None:
        """Create the file with its holder in it; None if it exists."""
        draft = self._file.with_name(f"{self._file.name}.{secrets.token_hex(6)}")
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with ExitStack() as refused:
            refused.callback(os.close, descriptor)
            try:
                _flock(descriptor)
                _write(descriptor)
                self._appear(draft)
            except FileExistsError:
                return None
            finally:
                draft.unlink(missing_ok=True)
            refused.pop_all()
        return descriptor

    def _appear(self, draft: Path) -> None:
        """Give a complete file the lock's name; ``FileExistsError`` if the name is taken."""
        try:
            os.link(draft, self._file)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            os.close(os.open(self._file, os.O_CREAT | os.O_EXCL, 0o644))
            os.replace(draft, self._file)

    def _old(self, takeover: bool) -> int | None:
        """Take over the existing file; None if it changed meanwhile."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
        with ExitStack() as refused:
            refused.callback(os.close, descriptor)
            holder = _read(descriptor)
            locked = _flock(descriptor)
            if locked == "held":
                raise Held(holder)
            if not self._is_at_its_place(descriptor):
                return None
            if holder is not None and not holder.here and not takeover:
                raise Held(holder)
            if holder is not None and holder.here and locked == "unsupported" and _alive(holder.pid):
                raise Held(holder)
            _write(descriptor)
            refused.pop_all()
        return descriptor

    def _is_at_its_place(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._file))
        except FileNotFoundError:
            return False


def alive(file: Path) -> bool:
    """Whether the lock may be held: by a live process of this machine, or by any process of another machine.

    The file stays untouched.
    """
    try:
        with open_regular(file) as opened:
            holder = _read(opened.fileno())
    except OSError as error:
        return error.errno == errno.EACCES  # the file exists, and only its owner may read it
    return holder is None or not holder.here or _alive(holder.pid)


def _flock(descriptor: int) -> Literal["taken", "held", "unsupported"]:
    """Take the kernel's lock, unless another process holds it or the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "held"
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        return "unsupported"
    return "taken"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _write(descriptor: int) -> None:
    text = json.dumps(asdict(Holder(socket.gethostname(), os.getpid(), time.time())))
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{text}\n".encode(), 0)


def _read(descriptor: int) -> Holder | None:
    try:
        holder = Holder(**json.loads(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError, RecursionError):
        return None
    return holder if type(holder.pid) is int and holder.pid > 0 and isinstance(holder.since, int | float) else None


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forget() -> None:
    for lock in list(_held):
        lock.forget()


os.register_at_fork(after_in_child=_forget)
