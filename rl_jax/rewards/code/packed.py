"""LiveCodeBench's private tests: base64 of zlib of a pickle of JSON text.

Nothing is ever unpickled, as that would run whatever the file says. A pickle of one
text, and of nothing else, has a layout that can be read by eye: that is read, and any
other is refused.
"""

import base64
import binascii
import struct
import zlib

# Of the tests of one row, unpacked: LiveCodeBench's largest are a tenth of this.
MAX_BYTES = 512 << 20


def unpack(text: str) -> str:
    """The JSON text inside.

    Raises:
        ValueError: it is nothing of the kind, too large, or a pickle of anything but
            one text.
    """
    try:
        packed = base64.b64decode(text, validate=True)
        unzip = zlib.decompressobj()
        data = unzip.decompress(packed, MAX_BYTES)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ValueError("neither JSON nor base64 of compressed text") from error
    if unzip.unconsumed_tail:
        raise ValueError(f"more than {MAX_BYTES >> 20} MiB of tests")
    try:
        return (_pickled_text(data) if data[:1] == b"\x80" else data).decode()
    except UnicodeDecodeError as error:
        raise ValueError("compressed data that is no text") from error


# Opcode -> struct format of the length that follows. protocol 2 to 5.
_TEXT = {b"X": "<I", b"\x8c": "<B", b"\x8d": "<Q"}
_FRAME = b"\x95"  # with 8 bytes of length, before what it frames
_ENDS = (b"\x94.", b"q\x00.", b".")  # kept for later, or not; then the end


def _pickled_text(data: bytes) -> bytes:
    """The text of a pickle that holds one text.

    Raises:
        ValueError: for any other pickle.
    """
    at = 2  # the mark and the protocol's number
    if data[at : at + 1] == _FRAME:
        at += 9
    length = _TEXT.get(data[at : at + 1])
    if length is not None and len(data) >= at + 1 + struct.calcsize(length):
        (size,) = struct.unpack_from(length, data, at + 1)
        start = at + 1 + struct.calcsize(length)
        if data[start + size :] in _ENDS:
            return data[start : start + size]
    raise ValueError(
        "a pickle of more than one text: it is never unpickled, because that runs "
        "whatever it says; store the tests as JSON"
    )
