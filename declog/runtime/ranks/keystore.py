"""A store of bytes by key that one process serves and others reach over TCP, with a secret. No torch, no pickle.

It has the calls of a ``TCPStore`` that ranks need, and answers nobody who does not know the secret: both sides prove it
before anything else is read, and every frame is signed, with its place in the conversation. It does not encrypt.

    the server says     nonce
    the client says     nonce  hmac(secret, "client" nonces)
    the server says     hmac(secret, "server" nonces)
    then, both          length:u32  hmac(session key, number of the frame, body)  body

Standard library only.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta

MOST = 16 * 2**20  # bytes of a frame
POLL = 0.001  # seconds between two questions of a process that waits
GREETING_S = 5.0  # for a stranger to prove that it is none
STRANGERS = 64  # connections that have not proved it yet
ROOM_S = 0.02  # for one of them to do so where they are that many: then the one that takes longest is hung up on
_SIZE, _TAG, _NONCE = struct.Struct("!I"), 32, 32
_YES, _NO = b"\1", b"\0"
_SENSELESS = (struct.error, ValueError, TypeError, OverflowError, RecursionError)  # what reading nonsense raises

# a fork's copies would keep connections open that its parent has closed
_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _in_child() -> None:
    for one in list(_sockets):
        one.close()


os.register_at_fork(after_in_child=_in_child)


class Store:
    """Bytes by key, in memory: for the threads of one process. ``changes`` counts the calls of ``set``."""

    def __init__(self) -> None:
        self.changes = 0
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes | str) -> None:
        with self._changed:
            self._values[key] = value.encode() if isinstance(value, str) else bytes(value)
            self.changes += 1
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            return self._values[key]

    def check(self, keys: list[str]) -> bool:
        with self._changed:
            return all(key in self._values for key in keys)

    def delete_key(self, key: str) -> bool:
        with self._changed:
            return self._values.pop(key, None) is not None

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: all(key in self._values for key in keys), timeout.total_seconds()):
                raise TimeoutError(f"no {keys} in {timeout.total_seconds():g} s")

    def pause(self, changes: int, seconds: float) -> None:
        """Wait until there are more changes than these, and no longer than some seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.changes != changes, seconds)

    def num_keys(self) -> int:
        with self._changed:
            return len(self._values)


class Server(Store):
    """A store for this process and for those that connect.

    ``hosts`` are tried in turn until one can be listened on: ``::`` stands for every address, of IPv4 too.
    """

    def __init__(self, secret: bytes, hosts: Sequence[str]) -> None:
        super().__init__()
        self._secret = secret
        self._strangers: dict[socket.socket, None] = {}  # the one that came first is first
        self._greeted = threading.Condition()
        self._peers: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._listener = _listen(hosts)
        self.host, self.port = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="declog-store", daemon=True).start()

    def close(self) -> None:
        """Listen no more, and end every connection; idempotent."""
        with self._greeted:
            strangers = list(self._strangers)
        for one in (self._listener, *strangers, *self._peers):
            shut(one)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return  # closed
                time.sleep(0.05)  # no descriptor is free: somebody will close one
                continue
            self._make_room(peer)
            threading.Thread(target=self._serve, args=(peer,), name="declog-store-peer", daemon=True).start()

    def _make_room(self, peer: socket.socket) -> None:
        """One more that has to prove itself: who knows the secret does so at once, however many do not."""
        with self._greeted:
            if not self._greeted.wait_for(lambda: len(self._strangers) < STRANGERS, ROOM_S):
                slowest = next(iter(self._strangers))
                del self._strangers[slowest]
                shut(slowest)  # its thread closes it
            self._strangers[peer] = None

    def _serve(self, peer: socket.socket) -> None:
        """One connection, to its end: whatever it says, nobody else notices."""
        with contextlib.suppress(OSError, *_SENSELESS), peer:
            try:
                line = _greet(peer, self._secret, serves=True, seconds=GREETING_S)
            finally:
                with self._greeted:
                    self._strangers.pop(peer, None)
                    self._greeted.notify()
            self._peers.add(peer)
            _sockets.add(peer)
            while True:
                line.write(self._answer(line.read()))

    def _answer(self, body: bytes) -> bytes:
        """What is asked: a letter, a key's length, the key, and a value."""
        size = _SIZE.unpack_from(body, 1)[0]
        key, value = body[5 : 5 + size].decode(), body[5 + size :]
        match body[:1]:
            case b"s":
                self.set(key, value)
            case b"g":
                with self._changed:
                    return _YES + self._values[key] if key in self._values else _NO
            case b"c":
                return _YES if self.check(json.loads(value)) else _NO
            case b"d":
                return _YES if self.delete_key(key) else _NO
            case b"n":
                return str(self.num_keys()).encode()
            case b"w":
                keys, seconds = json.loads(value)
                try:
                    self.wait(keys, timedelta(seconds=seconds))
                except TimeoutError:
                    return _NO
            case _:
                raise ValueError("nothing that is known is asked")
        return _YES


class Client:
    """The store of a process that serves it. One call at a time; raises ``OSError`` where the connection is lost.

    ``hosts`` are tried in turn, again and again until ``seconds`` are over: who listens there proves who it is. It does
    not hear of ``changes``.
    """

    changes = 0

    def __init__(self, secret: bytes, hosts: Sequence[str], port: int, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            for host in hosts:
                try:
                    self._line = _call(secret, host, port, max(0.1, min(GREETING_S, end - time.monotonic())))
                except OSError as error:
                    failed = error
                else:
                    return
            if time.monotonic() > end:
                raise failed
            time.sleep(0.1)

    def set(self, key: str, value: bytes | str) -> None:
        self._ask(b"s", key, value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        answer = self._ask(b"g", key)
        if answer[:1] != _YES:
            raise KeyError(key)
        return answer[1:]

    def check(self, keys: list[str]) -> bool:
        return self._ask(b"c", "", json.dumps(keys).encode()) == _YES

    def delete_key(self, key: str) -> bool:
        return self._ask(b"d", key) == _YES

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        seconds = timeout.total_seconds()
        if self._ask(b"w", "", json.dumps([keys, seconds]).encode()) != _YES:
            raise TimeoutError(f"no {keys} in {seconds:g} s")

    def pause(self, changes: int, seconds: float) -> None:
        """Wait a moment: who asks again finds out what has changed."""
        time.sleep(min(POLL, seconds))

    def num_keys(self) -> int:
        return int(self._ask(b"n", ""))

    def interrupt(self) -> None:
        """Make the call that waits fail, and all later ones. From any thread."""
        shut(self._line.peer)

    def close(self) -> None:
        """Hang up; idempotent."""
        self._line.peer.close()

    def _ask(self, what: bytes, key: str, value: bytes = b"") -> bytes:
        name = key.encode()
        self._line.write(b"".join([what, _SIZE.pack(len(name)), name, value]))
        return self._line.read()


class _Line:
    """A connection whose both sides have proved who they are: signed frames, each counted."""

    def __init__(self, peer: socket.socket, reads: bytes, writes: bytes) -> None:
        self.peer = peer
        self._reads, self._writes = reads, writes
        self._read = self._written = 0

    def write(self, body: bytes) -> None:
        if len(body) > MOST:
            raise ValueError(f"{len(body)} bytes are more than a frame holds")
        self.peer.sendall(_SIZE.pack(len(body)) + _sign(self._writes, self._written, body) + body)
        self._written += 1

    def read(self) -> bytes:
        size = _SIZE.unpack(_exactly(self.peer, _SIZE.size))[0]
        if size > MOST:
            raise ValueError(f"a frame of {size} bytes is announced")
        tag, body = _exactly(self.peer, _TAG), _exactly(self.peer, size)
        if not hmac.compare_digest(tag, _sign(self._reads, self._read, body)):
            raise ConnectionAbortedError("a frame is not signed by who it should be of")
        self._read += 1
        return body


def _sign(key: bytes, number: int, body: bytes) -> bytes:
    signer = hmac.new(key, struct.pack("!Q", number), "sha256")
    signer.update(body)
    return signer.digest()


def _listen(hosts: Sequence[str]) -> socket.socket:
    failed: OSError | None = None
    for host in hosts:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        both = host == "::" and socket.has_dualstack_ipv6()
        try:
            server = socket.create_server((host, 0), family=family, dualstack_ipv6=both, backlog=1024)
        except OSError as error:  # a host without this family of addresses
            failed = error
        else:
            _sockets.add(server)
            return server
    raise failed or OSError("no host was given")


def _call(secret: bytes, host: str, port: int, seconds: float) -> _Line:
    peer = socket.create_connection((host, port), seconds)
    try:
        line = _greet(peer, secret, serves=False, seconds=seconds)
    except BaseException:
        peer.close()
        raise
    _sockets.add(peer)
    return line


def _greet(peer: socket.socket, secret: bytes, *, serves: bool, seconds: float) -> _Line:
    """Prove that both know the secret, in bounded time; raises ``OSError`` where one does not."""
    end = time.monotonic() + seconds
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.settimeout(seconds)
    nonce = secrets.token_bytes(_NONCE)
    if serves:
        peer.sendall(nonce)
        theirs = _exactly(peer, _NONCE, end)
        _prove(secret, b"client", nonce + theirs, _exactly(peer, _TAG, end))
        both = nonce + theirs
        peer.sendall(hmac.digest(secret, b"server" + both, "sha256"))
    else:
        theirs = _exactly(peer, _NONCE, end)
        both = theirs + nonce
        peer.sendall(nonce + hmac.digest(secret, b"client" + both, "sha256"))
        _prove(secret, b"server", both, _exactly(peer, _TAG, end))
    peer.settimeout(None)
    asks, answers = (hmac.digest(secret, what + both, "sha256") for what in (b"asks", b"answers"))
    return _Line(peer, asks, answers) if serves else _Line(peer, answers, asks)


def _prove(secret: bytes, who: bytes, nonces: bytes, proof: bytes) -> None:
    if not hmac.compare_digest(proof, hmac.digest(secret, who + nonces, "sha256")):
        raise ConnectionRefusedError("the other side does not know the secret")


def _exactly(peer: socket.socket, size: int, end: float | None = None) -> bytes:
    """So many bytes, before a moment; memory is taken as they come."""
    parts, missing = [], size
    while missing:
        if end is not None:
            peer.settimeout(max(0.001, end - time.monotonic()))
        part = peer.recv(min(missing, 2**20))
        if not part:
            raise ConnectionResetError("the connection was closed")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def shut(one: socket.socket) -> None:
    """End both directions of a socket of ours: who waits in it returns."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
