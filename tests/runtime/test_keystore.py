"""The store of rank 0's port: who does not know the secret gets nothing and harms nobody; what is said is whole."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declog.runtime.ranks import keystore
from declog.runtime.ranks.keystore import Client, Server
from tests.conftest import examples

SECRET = b"s" * 32
CALLS = st.tuples(st.sampled_from([b"s", b"g", b"p", b"h", b"w", b"x"]), st.binary(max_size=9)).map(
    lambda call: call[0] + struct.pack("!I", len(call[1]) // 2) + call[1]
)
LOOPBACK = ("127.0.0.1", "::1")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A store that listens on loopback."""
    made = Server(SECRET, LOOPBACK)
    yield made
    made.close()


def client(server: Server, secret: bytes = SECRET, seconds: float = 5.0) -> Client:
    """A connection to it."""
    return Client(secret, [server.host], server.port, seconds)


def stranger(server: Server) -> socket.socket:
    """Somebody who reaches the port, and has read its first words."""
    made = socket.create_connection((server.host, server.port), 5.0)
    made.recv(32)
    return made


def test_what_one_sets_all_get(server: Server) -> None:
    """Values are bytes of any length, under any key."""
    one, other = client(server), client(server)
    for size in (0, 1, 2**16 + 1, 5 * 2**20):
        one.set("ké/y", bytes([size % 251]) * size)
        assert other.get("ké/y") == server.get("ké/y") == bytes([size % 251]) * size
    one.set("ké/y", b"last")
    assert (other.get("ké/y"), other.get("no"), server.get("no")) == (b"last", None, None)
    assert (other.pop("ké/y"), other.pop("ké/y"), one.get("ké/y")) == (b"last", None, None)
    one.close()
    other.close()


def test_waiting_ends_when_the_keys_are_there_or_time_is_over(server: Server) -> None:
    """All of them, or one: another connection may set them meanwhile."""
    one, other = client(server), client(server)
    heard: list[bool] = []
    for keys, every in ((["later"], True), (["never", "sooner"], False)):
        wait = partial(one.wait, keys, 20.0, every=every)
        waits = threading.Thread(target=lambda wait=wait: heard.append(wait()))
        waits.start()
        other.set(keys[-1], b"now")
        waits.join(20.0)
    assert heard == [True, True]
    assert not one.wait(["later", "never"], 0.05) and not one.wait(["never", "nobody"], 0.05, every=False)
    assert one.get("later") == b"now"  # the connection is as good as before
    one.close()
    other.close()


def test_another_secret_is_refused_on_both_sides(server: Server) -> None:
    """A client learns that it is not let in; one that reached a false server tells it nothing either."""
    with pytest.raises(OSError):
        client(server, b"x" * 32, 0.2)
    heard: list[bytes] = []

    def pretend(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(bytes(32))
            heard.append(peer.recv(64))
            peer.sendall(bytes(32))
            heard.append(peer.recv(64))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=pretend, args=(listener,))
        thread.start()
        with pytest.raises(OSError):
            Client(SECRET, ["127.0.0.1"], listener.getsockname()[1], 0.05)
        thread.join(10.0)
    assert [len(text) for text in heard] == [64, 0] and SECRET not in heard[0]


def test_strangers_do_not_keep_others_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-open connections, as many as there may be: the slowest goes, and who knows the secret comes in."""
    monkeypatch.setattr(keystore, "GREETING_S", 600.0)  # none of them goes by itself
    strangers = [stranger(server) for _ in range(keystore.STRANGERS)]
    known = client(server, seconds=20.0)
    known.set("a", b"b")
    assert known.get("a") == b"b"
    for one in strangers:
        one.close()
    known.close()


@examples(50)
@given(st.lists(st.binary(max_size=200), max_size=4))
def test_any_bytes_of_a_stranger_are_harmless(server: Server, written: list[bytes]) -> None:
    """They change no key, and the next one is answered."""
    before = len(server)
    with stranger(server) as one:
        for part in written:
            try:
                one.sendall(part)
            except OSError:
                break  # it was hung up on
    known = client(server)
    assert len(server) == before
    known.close()


@examples(50)
@given(st.binary(max_size=64) | st.binary(max_size=40).map(lambda tail: struct.pack("!I", 2**32 - 1) + tail))
def test_any_bytes_of_one_who_knows_the_secret_end_its_own_connection_only(server: Server, written: bytes) -> None:
    """Frames that are not signed, of lengths that cannot be, of calls that there are not."""
    bad, good = client(server), client(server)
    bad._line.peer.sendall(written)
    keystore.shut(bad._line.peer)
    with pytest.raises(OSError):
        bad._line.read()
    good.set("good", b"1")
    assert good.get("good") == b"1"
    bad.close()
    good.close()


@examples(50)
@given(st.binary(max_size=64) | CALLS)
def test_any_signed_frame_is_answered_or_ends_its_connection(server: Server, body: bytes) -> None:
    """Nothing that a rank could ask harms another."""
    bad, good = client(server), client(server)
    bad._line.write(body)
    with contextlib.suppress(OSError):  # where it was hung up on
        bad._line.read()
    good.set("good", b"1")
    assert good.get("good") == b"1"
    bad.close()
    good.close()


def test_a_frame_cannot_be_said_twice(server: Server) -> None:
    """Its number is signed with it: who records a connection cannot play it again."""
    one = client(server)
    frame = b"p" + struct.pack("!I", 1) + b"k"
    signed = struct.pack("!I", len(frame)) + keystore._sign(one._line._writes, 0, frame) + frame
    server.set("k", b"1")
    one._line.peer.sendall(signed)
    assert one._line.read() == b"\1" + b"1"
    server.set("k", b"2")
    one._line.peer.sendall(signed)
    with pytest.raises(OSError):
        one._line.read()
    assert server.get("k") == b"2"
    one.close()


def recorded(server: Server) -> list[bytes]:
    """What a client of a relay sends, part by part: its greeting, and a frame that deletes a key."""
    heard: list[bytes] = []

    def relay(listener: socket.socket) -> None:
        near, _ = listener.accept()
        with near, socket.create_connection((server.host, server.port), 5.0) as far:
            near.sendall(far.recv(32))  # the server's nonce
            heard.append(near.recv(64))
            far.sendall(heard[-1])
            near.sendall(far.recv(32))
            heard.append(near.recv(4096))
            far.sendall(heard[-1])
            near.sendall(far.recv(4096))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=relay, args=(listener,))
        thread.start()
        known = Client(SECRET, ["127.0.0.1"], listener.getsockname()[1], 5.0)
        known.pop("k")
        known.close()
        thread.join(10.0)
    return heard


def test_a_recorded_conversation_is_no_use(server: Server) -> None:
    """Who has heard all of it, played again to the same server, is a stranger; a frame of it within another, too."""
    greeting, frame = recorded(server)
    server.set("k", b"1")
    with stranger(server) as one:
        one.sendall(greeting + frame)
        with contextlib.suppress(ConnectionError):  # it may be reset
            assert one.recv(32) == b""
    known = client(server)
    known._line.peer.sendall(frame)
    with pytest.raises(OSError):
        known._line.read()
    known.close()
    assert server.get("k") == b"1"


def test_frames_in_another_order_are_of_nobody(server: Server) -> None:
    """Each is right, and signed for its place: the second before the first ends the connection, and does nothing."""
    one = client(server)
    bodies = [b"s" + struct.pack("!I", 1) + b"p" + value for value in (b"1", b"2")]
    signed = [
        struct.pack("!I", len(body)) + keystore._sign(one._line._writes, number, body) + body
        for number, body in enumerate(bodies)
    ]
    server.set("p", b"0")
    one._line.peer.sendall(signed[1] + signed[0])
    with pytest.raises(OSError):
        one._line.read()
    assert server.get("p") == b"0"
    one.close()


def threads() -> int:
    """How many connections are served in this process."""
    return sum(thread.name == "declog-store-peer" for thread in threading.enumerate())


def served(most: int) -> None:
    """Wait until no more connections than that are served."""
    end = time.monotonic() + 20.0
    while threads() > most and time.monotonic() < end:
        time.sleep(0.01)
    assert threads() <= most


def test_a_frame_that_is_cut_does_nothing(server: Server) -> None:
    """At any byte: what its sender began is not done, its connection ends, and nothing of it is left."""
    before = threads()
    body = b"s" + struct.pack("!I", 3) + b"cut" + b"value"
    for length in range(len(body) + 36):
        one = client(server)
        frame = struct.pack("!I", len(body)) + keystore._sign(one._line._writes, 0, body) + body
        one._line.peer.sendall(frame[:length])
        one.close()
    served(before)
    assert server.get("cut") is None


def test_who_asks_and_does_not_read_keeps_nobody_waiting(server: Server) -> None:
    """Answers of many megabytes, and frames whose second half does not come: others are answered meanwhile."""
    before = threads()
    server.set("large", bytes(8 * 2**20))
    slow = [client(server) for _ in range(8)]
    for place, one in enumerate(slow):
        if place % 2:
            one._line.peer.sendall(struct.pack("!I", 1000) + b"half")
        else:
            one._line.write(b"g" + struct.pack("!I", 5) + b"large")
    quick = client(server)
    for number in range(100):
        quick.set("quick", b"%d" % number)
        assert quick.get("quick") == b"%d" % number
    for one in (*slow, quick):
        one.close()
    served(before)


def test_a_client_that_is_slow_is_answered_all_the_same(server: Server) -> None:
    """A frame that comes byte by byte is a frame."""
    one = client(server)
    body = b"s" + struct.pack("!I", 4) + b"slow" + b"1"
    for byte in struct.pack("!I", len(body)) + keystore._sign(one._line._writes, 0, body) + body:
        one._line.peer.sendall(bytes([byte]))
        time.sleep(0.001)
    assert one._line.read() == b"\1" and server.get("slow") == b"1"
    one.close()


def test_slow_strangers_that_come_again_and_again_keep_nobody_out(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many as there may be, each of which calls again as soon as it is hung up on."""
    monkeypatch.setattr(keystore, "GREETING_S", 600.0)
    stop = threading.Event()

    def bother() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError), stranger(server) as one:
                one.settimeout(1.0)
                one.sendall(b"x")
                one.recv(1)

    crowd = [threading.Thread(target=bother) for _ in range(2 * keystore.STRANGERS)]
    for thread in crowd:
        thread.start()
    try:
        for _ in range(3):
            known = client(server, seconds=60.0)
            known.set("a", b"b")
            known.close()
    finally:
        stop.set()
        for thread in crowd:
            thread.join(20.0)


def test_five_hundred_connections_at_once() -> None:
    """All come in, each hears what the others said, and when they have gone no thread of theirs is left."""
    before, count = threads(), 500
    store = Server(SECRET, LOOPBACK)
    start, problems = threading.Barrier(count), list[BaseException]()

    def rank(number: int) -> None:
        try:
            start.wait(60.0)
            known = Client(SECRET, [store.host], store.port, 60.0)
            known.set(f"rank/{number}", b"%d" % number)
            known.wait([f"rank/{(number + 1) % count}"], 60.0)
            assert known.get(f"rank/{(number + 1) % count}") == b"%d" % ((number + 1) % count)
            known.close()
        except BaseException as error:  # noqa: BLE001  it is raised again in the thread of the test
            problems.append(error)

    ranks = [threading.Thread(target=rank, args=(number,)) for number in range(count)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(120.0)
    assert problems == []
    assert len(store) == count
    served(before)
    store.close()


def test_it_listens_where_it_can() -> None:
    """A host without IPv4, or without IPv6, uses what it has; one that has both is reached by both."""
    only = Server(SECRET, ("198.51.100.7", "::1"))  # an address that this host has not
    assert only.host == "::1"
    reached = Client(SECRET, ["198.51.100.7.invalid", "127.0.0.1", "::1"], only.port, 5.0)
    reached.set("a", b"b")
    reached.close()
    only.close()
    both = Server(SECRET, ("::", "0.0.0.0"))
    for host in LOOPBACK:
        made = Client(SECRET, [host], both.port, 5.0)
        made.set("a", b"b")
        made.close()
    both.close()


def test_who_waits_is_interrupted_and_nobody_else(server: Server) -> None:
    """Another connection, also one to the same port, goes on."""
    one, other = client(server), client(server)
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            one.wait(["never"], 60.0)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    one.interrupt()
    thread.join(10.0)
    assert len(failed) == 1
    other.set("a", b"b")
    assert other.get("a") == b"b"
    one.close()
    other.close()


def test_a_forked_child_keeps_no_connection_open(server: Server) -> None:
    """When the parent hangs up, the other side learns it, though a child lives."""
    ready, go = os.pipe(), os.pipe()
    one = Server(SECRET, LOOPBACK)
    known = Client(SECRET, [one.host], one.port, 5.0)
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"1")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    one.close()
    with pytest.raises(OSError):
        known.get("a")
    with pytest.raises(OSError):
        socket.create_connection((one.host, one.port), 5.0)
    os.write(go[1], b"1")
    os.waitpid(child, 0)
    known.close()
