#!/usr/bin/env python3
"""Keeps the first entry along the batch axis of a golden attention file, in place, to save space.

    tests/golden/first_entry.py FILE...

Entries of a batch do not know of each other, so the rest of the file stays what other software computed. A file with a
result summed over the batch (dbias of a bias that all entries share, dsinks) is refused: its sum would lose terms.
"""
import json
import pathlib
import struct
import sys


def first_entry(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    body = data[8 + size:]
    batch = header["q"]["shape"][0]
    if "dsinks" in header or "dbias" in header and header["dbias"]["shape"][0] != batch:
        raise SystemExit(f"{path}: has results that are summed over the batch")
    tensors = []
    offset = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        content = body[begin:end]
        if name != "alibi_slopes" and entry["shape"][0] == batch:
            content = content[:len(content) // batch]
            entry["shape"][0] = 1
        entry["data_offsets"] = [offset, offset + len(content)]
        offset += len(content)
        tensors.append(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    for argument in sys.argv[1:]:
        first_entry(pathlib.Path(argument))
