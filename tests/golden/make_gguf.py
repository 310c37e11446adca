"""Writes data/gguf_blocks.json: blocks of every quantised type of GGUF that heed reads, and the numbers that the package gguf makes of them.

Needs the package gguf. The bytes are random; those of half-precision scales stay finite.
"""
import json
import pathlib

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

# Where in a block its half-precision numbers are.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}


def main():
    rng = np.random.default_rng(1)
    cases = []
    for name, halves in HALVES.items():
        kind = GGMLQuantizationType[name]
        numbers, size = GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (512 // numbers, size), dtype=np.uint8)
        for at in halves:
            blocks[:, at + 1] &= 0xBF
        if name == "MXFP4":
            blocks[:, 0] = rng.integers(100, 150, len(blocks))
        values = dequantize(blocks.reshape(1, -1), kind).ravel()
        cases.append({"name": name, "type": int(kind), "bytes": blocks.tobytes().hex(), "values": [float(x) for x in values]})
    target = pathlib.Path(__file__).parent / "data" / "gguf_blocks.json"
    target.write_text(json.dumps(cases) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
