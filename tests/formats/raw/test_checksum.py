import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.formats.raw.checksum import checksum

MOST = 2**64 - 1
PRIMES = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


@pytest.mark.parametrize(
    ("content", "known"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_known(content, known):
    """It is XXH64: what is published of it comes out."""
    assert checksum(content) == known


def turned(number, by):
    return (number << by | number >> (64 - by)) & MOST


def oracle(data):
    """Follow the specification, word by word."""
    first, second, third, fourth, fifth = PRIMES
    length = len(data)

    def mixed(queue, word):
        return turned((queue + word * second) & MOST, 31) * first & MOST

    total = fifth
    if length >= 32:
        queues = [(first + second) & MOST, second, 0, -first & MOST]
        while len(data) >= 32:
            queues = [mixed(queue, int.from_bytes(data[8 * n : 8 * n + 8], "little")) for n, queue in enumerate(queues)]
            data = data[32:]
        total = sum(turned(queue, by) for queue, by in zip(queues, (1, 7, 12, 18), strict=True)) & MOST
        for queue in queues:
            total = ((total ^ mixed(0, queue)) * first + fourth) & MOST
    total = (total + length) & MOST
    while len(data) >= 8:
        total = (turned(total ^ mixed(0, int.from_bytes(data[:8], "little")), 27) * first + fourth) & MOST
        data = data[8:]
    if len(data) >= 4:
        total = (turned(total ^ int.from_bytes(data[:4], "little") * first & MOST, 23) * second + third) & MOST
        data = data[4:]
    for byte in data:
        total = turned(total ^ byte * fifth & MOST, 11) * first & MOST
    total = (total ^ total >> 33) * second & MOST
    total = (total ^ total >> 29) * third & MOST
    return total ^ total >> 32


@given(st.binary(max_size=150), st.integers(0, 9))
def test_oracle(data, offset):
    """Bytes of any length, wherever they are in memory, have the checksum that the specification gives them."""
    view = memoryview(bytes(offset) + data)[offset:]
    assert checksum(view) == checksum(data) == oracle(data)
