"""Netlink at the level of bytes."""

import errno
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_agent.kernel.failure import KernelRefused
from cni_agent.kernel.mint import listed_texts, saved_texts
from cni_agent.kernel.netlink import (
    ALONG,
    ATTEMPTS,
    DONE_KIND,
    ERROR_KIND,
    Channel,
    Refusal,
    attribute,
    attributes,
    message,
    messages,
    question,
)
from cni_agent.kernel.nf_changes import batch, flush_chain, new_rule, new_table
from cni_agent.kernel.nf_tables import IPV4, Table

KIND = 100


@given(st.lists(st.tuples(st.integers(1, 0x3FFF), st.binary(max_size=40))))
def test_attributes_come_back(items: list[tuple[int, bytes]]) -> None:
    buffer = b"".join(attribute(kind, value) for kind, value in items)
    assert [(s.kind, buffer[s.start : s.end]) for s in attributes(buffer, 0, len(buffer))] == items


@given(st.lists(st.binary(max_size=40).map(lambda value: attribute(1, value))))
def test_messages_come_back(payloads: list[bytes]) -> None:
    buffer = b"".join(message(KIND, 0, payload) for payload in payloads)
    assert [buffer[start + 16 : end] for _, start, end in messages(buffer)] == payloads


class Kernel:
    """The other end of a datagram socket, which answers as it was told to."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = Channel.__new__(Channel)
        self.channel.socket, self.channel.send_as_owner = ours, None

    def answers(self, *packets: bytes) -> Channel:
        for packet in packets:
            self.theirs.send(packet)
        return self.channel


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel()
    yield made
    made.theirs.close()
    made.channel.close()


DONE = message(DONE_KIND, 2, struct.pack("=i", 0))


def error(number: int, sequence: int, words: str = "") -> bytes:
    said = attribute(1, words.encode() + b"\0") if words else b""
    flags = 0x300 if words else 0x100
    return message(ERROR_KIND, flags, struct.pack("=i", -number) + message(KIND, 0, b"") + said, sequence)


def test_a_dump_is_put_together_from_its_packets(kernel: Kernel) -> None:
    parts = [message(KIND, 2, attribute(1, bytes([number] * 9))) for number in range(5)]
    channel = kernel.answers(parts[0] + parts[1], parts[2], parts[3] + parts[4] + DONE)
    assert channel.dump(KIND, b"") == b"".join(parts)


def test_a_dump_that_was_interrupted_is_taken_again(kernel: Kernel) -> None:
    broken, whole = message(KIND, 2 | 0x10, b"old!"), message(KIND, 2, b"new!")
    assert kernel.answers(broken, DONE, whole + DONE).dump(KIND, b"") == whole
    with pytest.raises(KernelRefused) as caught:
        kernel.answers(*[broken + DONE] * ATTEMPTS).dump(KIND, b"")
    assert caught.value.reason == "busy"


def test_questions_sent_along_with_a_dump_are_answered_before_it(kernel: Kernel) -> None:
    table, chain = message(KIND, 0, b"tabl", ALONG), message(KIND, 2, b"chai")
    channel = kernel.answers(table, error(errno.ENOENT, ALONG), chain, DONE)
    asked = question(KIND, b"") * 2
    assert channel.dump(KIND, b"", along=asked) == table + chain
    assert kernel.theirs.recv(4096).startswith(asked)


def test_the_first_refusal_of_a_batch_is_the_one_that_is_told(kernel: Kernel) -> None:
    channel = kernel.answers(error(errno.ENOENT, 3, "no such thing"), error(errno.EINVAL, 4), error(0, 9))
    refusal = channel.commit(b"batch", last=9)
    assert refusal is not None
    assert (refusal.errno, refusal.sequence, refusal.words) == (errno.ENOENT, 3, "no such thing")


def test_a_batch_that_is_refused_whole_or_not_answered_does_not_wait(kernel: Kernel) -> None:
    refusal = kernel.answers(error(errno.EPERM, 0)).commit(b"batch", last=9)
    assert refusal is not None
    assert refusal.errno == errno.EPERM
    refusal = kernel.answers().commit(b"batch", last=9)
    assert refusal is not None
    assert refusal.errno == errno.ENOBUFS


def test_errors_of_a_batch_name_the_object() -> None:
    made = batch([new_table((IPV4, "nat"), Table(0, b"")), flush_chain((IPV4, "nat", "ISTIO_OUTPUT"))])
    assert [made.describe(number) for number in (1, 2, 3)] == [
        "adding table ip nat",
        "deleting a rule from ip nat ISTIO_OUTPUT",
        "committing the rules",
    ]


def test_a_module_is_missed_only_where_something_is_added(kernel: Kernel) -> None:
    made = batch(
        [new_table((IPV4, "nat"), Table(0, b"")), flush_chain((IPV4, "nat", "X")), new_rule((IPV4, "nat", "X"), b"")]
    )
    told = [made.refused(Refusal(errno.ENOENT, number, "")) for number in (1, 2, 3)]
    assert [error.reason for error in told] == ["missing-in-kernel", "kernel-refused", "missing-in-kernel"]
    assert ["modprobe" in str(error) for error in told] == [True, False, True]
    with pytest.raises(KernelRefused, match="No such file") as caught:  # a set that somebody deleted, say
        kernel.answers(error(errno.ENOENT, 0)).dump(KIND, b"")
    assert caught.value.reason == "kernel-refused"
    assert "modprobe" not in str(caught.value)


def test_a_chain_or_rule_that_does_not_fit_is_no_missing_module_for_sure() -> None:
    error = batch([new_rule((IPV4, "nat", "OUTPUT"), b"")]).refused(Refusal(errno.EOPNOTSUPP, 1, ""))
    assert error.reason == "kernel-refused"
    assert "another type or hook" in str(error)


def test_texts_of_the_tools_are_found_by_chain() -> None:
    save = "# c\n*nat\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -j X\n-A X -j RETURN\nCOMMIT\n*raw\n-A OUTPUT -j Y\nCOMMIT\n"
    assert {str(place): lines for place, lines in saved_texts(lambda _: save, (4,)).items()} == {
        "ip nat OUTPUT": ["-A OUTPUT -j X"],
        "ip nat X": ["-A X -j RETURN"],
        "ip raw OUTPUT": ["-A OUTPUT -j Y"],
    }
    listing = (
        "table inet t {\n\tchain output {\n\t\ttype nat hook output priority -100; policy accept;\n"
        "\t\tcounter packets 7 bytes 9 jump x\n\t}\n\n\tchain x {\n\t\treturn\n\t}\n}\n"
    )
    assert {str(place): lines for place, lines in listed_texts(listing).items()} == {
        "inet t output": ["counter jump x"],
        "inet t x": ["return"],
    }
