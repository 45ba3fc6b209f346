"""Files and folders that change in one step: durable renames, and two folders that change places."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

Exchange = Callable[[Path, Path], None]

AT_FDCWD, RENAME_EXCHANGE = -100, 2


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or a link to one, for reading. ``OSError`` for anything else, without opening it."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # the file was replaced meanwhile
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file")
    return file


def fsync(path: Path) -> None:
    """Make a file's content, or the renames in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_text(path: Path, text: str) -> None:
    """Replace a file's text: a reader sees the old text or the new one, never a part. ``OSError`` names the file."""
    draft = path.with_name(f".{path.name}.part")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    except OSError as error:
        error.filename = str(path)
        raise


def put(source: Path, target: Path) -> None:
    """Move a finished file to its path, atomically and durably; replaces an existing file."""
    os.replace(source, target)
    fsync(target.parent)


def exchange(one: Path, other: Path) -> None:
    """Swap two paths atomically; ``OSError`` if the system or the file system cannot (NFS, macOS)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, "no renameat2 here")
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(other))


def swap_folder(new: Path, target: Path, spare: Path, exchange: Exchange) -> None:
    """Replace the folder ``target`` by the folder ``new``, and remove the old one.

    ``exchange`` swaps the two at once. If it cannot, there are two renames, and after a crash between them ``target``
    is missing: ``finish_swap`` then puts ``new`` there.
    """
    try:
        exchange(new, target)
        old = new
    except OSError:
        os.rename(target, spare)
        try:
            os.rename(new, target)
        except OSError:
            os.rename(spare, target)
            raise
        old = spare
    fsync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def finish_swap(new: Path, target: Path, spare: Path) -> None:
    """Complete a ``swap_folder`` that a crash interrupted, whichever rename was the last."""
    if spare.exists() and not target.exists():
        os.rename(new if new.exists() else spare, target)
        fsync(target.parent)
