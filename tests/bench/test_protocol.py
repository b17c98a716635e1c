"""The conversation over pipes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from bench.protocol import Channel, WorkerGoneError


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel, int]]:
    """Returns both ends of a conversation, and the descriptor that the second writes to."""
    (a_reads, b_writes), (b_reads, a_writes) = os.pipe(), os.pipe()
    a, b = Channel(a_reads, a_writes), Channel(b_reads, b_writes)
    yield a, b, b_writes
    for descriptor in (a_reads, a_writes, b_reads, b_writes):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def test_messages_arrive_in_order(ends):
    a, b, _ = ends
    a.send({"do": "load", "text": "ä\n"})
    a.send({"do": "block"})
    assert b.receive(1) == {"do": "load", "text": "ä\n"}
    assert b.receive(1) == {"do": "block"}


def test_a_message_larger_than_the_pipe_arrives_whole(ends):
    a, b, _ = ends
    message = {"times_ns": list(range(200_000))}
    thread = threading.Thread(target=a.send, args=[message])
    thread.start()
    assert b.receive(60) == message
    thread.join()


@pytest.mark.parametrize("garbage", [b"garbage\n", b"\xff\xfe\n", b"[1, 2]\n", b"\n"])
def test_garbage_is_reported(ends, garbage):
    a, _, writes = ends
    os.write(writes, garbage)
    with pytest.raises(WorkerGoneError, match="sent something that is no message"):
        a.receive(1)


def test_silence_and_half_a_message_end_with_the_timeout(ends):
    a, _, writes = ends
    with pytest.raises(WorkerGoneError, match=r"gave no answer within 0\.01 s"):
        a.receive(0.01)
    os.write(writes, b'{"half": ')
    with pytest.raises(WorkerGoneError, match=r"gave no answer within 0\.01 s"):
        a.receive(0.01)
    os.write(writes, b"1}\n")
    assert a.receive(1) == {"half": 1}


def test_an_end_that_is_closed_is_noticed_on_both_sides(ends):
    a, b, _ = ends
    b.close()
    with pytest.raises(WorkerGoneError, match="ended before its work was done"):
        a.receive(1)
    with pytest.raises(WorkerGoneError, match="ended before its work was done"):
        a.send({"do": "block"})


def test_a_peer_that_has_ended_is_noticed_though_its_pipe_is_open():
    reads, writes = os.pipe()
    peer = subprocess.Popen([sys.executable, "-c", ""])
    pidfd = os.pidfd_open(peer.pid)
    channel = Channel(reads, writes, pidfd)
    with pytest.raises(WorkerGoneError, match="ended before its work was done"):
        channel.receive(60)
    peer.wait()
    channel.close()
    os.close(pidfd)
