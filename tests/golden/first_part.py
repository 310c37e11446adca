#!/usr/bin/env python3
"""Keeps the first part of a golden attention file, in place, to save space.

    tests/golden/first_part.py [--entry] [--heads N] FILE...

--entry: the first entry along the batch axis. --heads N: the first N heads of keys and values with their query heads.
Entries and heads do not know of each other, so the rest of the file stays what other software computed. A file with a
result summed over what would be dropped (dbias of a bias that entries or heads share, dsinks) is refused: its sum would
lose terms.
"""
import argparse
import json
import pathlib
import struct

import numpy

TYPES = {"F32": "<f4", "F64": "<f8", "U8": "u1", "I64": "<i8"}
OF_KEYS = ("k", "v", "dk", "dv")
OF_HEADS = ("q", "out", "lse", "weights", "dout", "dq", "bias", "dbias", "dropout_keep")
BY_HEAD = ("alibi_slopes", "sinks", "dsinks")


def read(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensors[name] = numpy.frombuffer(data[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
    return metadata, tensors, {name: entry["dtype"] for name, entry in header.items()}


def write(path, metadata, tensors, types):
    header, body = {"__metadata__": metadata}, b""
    for name, value in tensors.items():
        content = numpy.ascontiguousarray(value).tobytes()
        header[name] = {"dtype": types[name], "shape": list(value.shape),
                        "data_offsets": [len(body), len(body) + len(content)]}
        body += content
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def first_entry(path, tensors):
    batch = tensors["q"].shape[0]
    if "dsinks" in tensors or "dbias" in tensors and tensors["dbias"].shape[0] != batch:
        raise SystemExit(f"{path}: has results that are summed over the batch")
    return {name: value[:1] if name != "alibi_slopes" and value.shape[0] == batch else value
            for name, value in tensors.items()}


def first_heads(path, tensors, count):
    group = tensors["q"].shape[1] // tensors["k"].shape[1]
    if "dbias" in tensors and tensors["dbias"].shape[1] == 1:
        raise SystemExit(f"{path}: has results that are summed over the heads")
    kept = {}
    for name, value in tensors.items():
        if name in OF_KEYS:
            value = value[:, :count]
        elif name in OF_HEADS:
            value = value[:, :count * group]
        elif name in BY_HEAD:
            value = value[:count * group]
        kept[name] = value
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entry", action="store_true")
    parser.add_argument("--heads", type=int)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    for path in arguments.files:
        metadata, tensors, types = read(path)
        if arguments.entry:
            tensors = first_entry(path, tensors)
        if arguments.heads:
            tensors = first_heads(path, tensors, arguments.heads)
        write(path, metadata, tensors, types)


if __name__ == "__main__":
    main()
