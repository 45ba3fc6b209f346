"""A store of bytes by key. One process serves it; others that know the secret reach it over TCP. No torch, no pickle.

Both sides prove that they know the secret before either reads anything else. Every frame is signed, with its number in
the conversation. Nothing is encrypted.

    the server sends    nonce
    the client sends    nonce  hmac(secret, "client" nonces)
    the server sends    hmac(secret, "server" nonces)
    then both send      length:u32  hmac(session key, number of the frame, body)  body
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

MOST = 16 * 2**20  # the most bytes of a frame
GREETING_S = 5.0  # seconds in which a new connection must prove that it knows the secret
STRANGERS = 64  # the most connections that have not proved yet that they know the secret
ROOM_S = 0.02  # seconds that a further connection waits for one of them; then the oldest of them is closed
_SIZE, _TAG, _NONCE = struct.Struct("!I"), 32, 32
_YES, _NO = b"\1", b"\0"
# the errors that malformed data raises
_SENSELESS = (struct.error, ValueError, TypeError, OverflowError, RecursionError)

# a forked child closes its copies: they would keep connections open that its parent has closed
_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _in_child() -> None:
    for one in list(_sockets):
        one.close()


os.register_at_fork(after_in_child=_in_child)


class Store:
    """Bytes by key, in memory, for the threads of one process."""

    serves = False  # whether other processes can connect to it

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def set(self, key: str, value: bytes) -> None:
        """Store a value under a key."""
        with self._lock:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes | None:
        """Return the value of a key; None if the key is not in the store."""
        return self._values.get(key)

    def pop(self, key: str) -> bytes | None:
        """Delete a key and return its value; None if the key is not in the store."""
        with self._lock:
            return self._values.pop(key, None)

    def wait(self, keys: Sequence[str], seconds: float, *, every: bool = True) -> bool:
        """Wait until the store has all ``keys``, or with ``every=False`` one of them; return whether it has.

        Waits for at most ``seconds``.
        """
        enough = all if every else any
        with self._lock:
            return self._changed.wait_for(lambda: enough(key in self._values for key in keys), seconds)

    def interrupt(self) -> None:
        """Do nothing: no call waits for another process."""

    def close(self) -> None:
        """Do nothing: this store opened no connection."""

    def __len__(self) -> int:
        return len(self._values)


class Server(Store):
    """A store for this process and for the processes that connect to it.

    It listens on the first of ``hosts`` that works; ``::`` means every address, including IPv4 addresses.
    """

    serves = True

    def __init__(self, secret: bytes, hosts: Sequence[str]) -> None:
        super().__init__()
        self._secret = secret
        self._strangers: dict[socket.socket, None] = {}  # the oldest connection is first
        self._greeted = threading.Condition(self._lock)
        self._peers: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._listener = _listen(hosts)
        self.host, self.port = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="declog-store", daemon=True).start()

    def close(self) -> None:
        """Stop listening and end every connection; idempotent."""
        with self._lock:
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
                    return  # the server was closed
                time.sleep(0.05)  # no file descriptor is free now; try again
                continue
            self._make_room(peer)
            threading.Thread(target=self._serve, args=(peer,), name="declog-store-peer", daemon=True).start()

    def _make_room(self, peer: socket.socket) -> None:
        """Admit one more unproven connection; first close the oldest one if there are ``STRANGERS`` for too long.

        A client that knows the secret proves it at once, so others that do not cannot keep it out.
        """
        with self._lock:
            if not self._greeted.wait_for(lambda: len(self._strangers) < STRANGERS, ROOM_S):
                slowest = next(iter(self._strangers))
                del self._strangers[slowest]
                shut(slowest)  # its own thread closes it
            self._strangers[peer] = None

    def _serve(self, peer: socket.socket) -> None:
        """Serve one connection until it ends; malformed data ends this connection only."""
        with contextlib.suppress(OSError, *_SENSELESS), peer:
            try:
                line = _greet(peer, self._secret, serves=True, seconds=GREETING_S)
            finally:
                with self._lock:
                    self._strangers.pop(peer, None)
                    self._greeted.notify()
            self._peers.add(peer)
            _sockets.add(peer)
            while True:
                line.write(self._answer(line.read()))

    def _answer(self, body: bytes) -> bytes:
        """Answer a request. Its bytes: a letter for the call, the length of the key, the key, and a value."""
        size = _SIZE.unpack_from(body, 1)[0]
        key, value = body[5 : 5 + size].decode(), body[5 + size :]
        match body[:1]:
            case b"s":
                self.set(key, value)
                return _YES
            case b"g" | b"p":
                kept = self.get(key) if body[:1] == b"g" else self.pop(key)
                return _NO if kept is None else _YES + kept
            case b"w":
                keys, seconds, every = json.loads(value)
                return _YES if self.wait(keys, seconds, every=every) else _NO
        raise ValueError("a letter that stands for no call")


class Client:
    """The store of another process. One call at a time; calls raise ``OSError`` if the connection is lost.

    Tries ``hosts`` in turn until a server there proves that it knows the secret. After ``seconds`` raises the last
    host's ``OSError``.
    """

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

    def set(self, key: str, value: bytes) -> None:
        """As ``Store.set``."""
        self._ask(b"s", key, value)

    def get(self, key: str) -> bytes | None:
        """As ``Store.get``."""
        return self._value(b"g", key)

    def pop(self, key: str) -> bytes | None:
        """As ``Store.pop``."""
        return self._value(b"p", key)

    def wait(self, keys: Sequence[str], seconds: float, *, every: bool = True) -> bool:
        """As ``Store.wait``; the process that serves the store does the waiting."""
        return self._ask(b"w", "", json.dumps([keys, seconds, every]).encode()) == _YES

    def interrupt(self) -> None:
        """Make the waiting call and all later calls fail. May be called from any thread."""
        shut(self._line.peer)

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._line.peer.close()

    def _value(self, letter: bytes, key: str) -> bytes | None:
        answer = self._ask(letter, key)
        return answer[1:] if answer[:1] == _YES else None

    def _ask(self, letter: bytes, key: str, value: bytes = b"") -> bytes:
        name = key.encode()
        self._line.write(b"".join([letter, _SIZE.pack(len(name)), name, value]))
        return self._line.read()


class _Line:
    """A connection whose two sides have proved that they know the secret; carries signed, numbered frames."""

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
    """Prove to the other side that this side knows the secret, and check that the other side knows it.

    Raises ``OSError`` if the other side's proof is wrong, or late by the deadline of ``seconds``.
    """
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
    """Read exactly ``size`` bytes; raises ``OSError`` if the time ``end`` passes first (None: no deadline).

    Allocates memory only as the bytes arrive.
    """
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
    """Shut down both directions of one of our sockets, so that a thread that waits on it returns."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
