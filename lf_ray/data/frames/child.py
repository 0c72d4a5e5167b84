"""A decoding process: requests in by stdin, replies out by stdout, ends when stdin does.

Started as a plain command, because multiprocessing would import the parent's main module, and with
it torch and Ray, into every worker.
"""

import pickle
import struct
import sys
from typing import BinaryIO

from lf_ray.data.frames.request import Answerer

LENGTH = struct.Struct("<Q")


def send(stream: BinaryIO, value: object) -> None:
    """Writes a value with its length before it."""
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: BinaryIO) -> object:
    """Returns the next value.

    Raises:
        EOFError: the other side is gone.
    """
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    (num_bytes,) = LENGTH.unpack(head)
    data = stream.read(num_bytes)
    if len(data) < num_bytes:
        raise EOFError
    return pickle.loads(data)


def main() -> None:
    """Answers until the parent goes away."""
    answerer = Answerer(threads=int(sys.argv[1]))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    # Whatever else prints must not end up between the replies.
    sys.stdout = sys.stderr
    while True:
        try:
            request = receive(source)
            send(sink, answerer.answer(request))  # type: ignore[arg-type]
        except (EOFError, BrokenPipeError, KeyboardInterrupt):
            return


if __name__ == "__main__":
    main()
