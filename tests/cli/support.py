"""What the tests of the command line share: running `heed`, and safetensors files written by other code than heed's."""
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

HEED = os.environ["HEED"]
DATA = pathlib.Path(os.environ["HEED_TEST_DATA"])
FORMATS = {"F32": "f", "F64": "d", "I64": "q", "I32": "i", "U8": "B", "BOOL": "?", "F16": "e"}


def run(*arguments, env=None, **options):
    environment = {key: value for key, value in os.environ.items() if key not in ("HEED_KERNEL", "NO_COLOR")}
    environment.update(env or {})
    return subprocess.run([HEED, *map(str, arguments)], capture_output=True, text=True, timeout=120, env=environment,
                          stdin=subprocess.DEVNULL, **options)


def count(shape):
    result = 1
    for extent in shape:
        result *= extent
    return result


class Tensor:
    def __init__(self, dtype, shape, values):
        self.dtype, self.shape, self.values = dtype, list(shape), list(values)
        assert len(self.values) == count(shape), (shape, len(self.values))

    def bytes(self):
        if self.dtype == "BF16":
            return b"".join(struct.pack("<f", value)[2:] for value in self.values)
        return struct.pack(f"<{len(self.values)}{FORMATS[self.dtype]}", *self.values)


def write(path, tensors, spec=None, metadata=None):
    header, data = {}, b""
    metadata = dict(metadata or {})
    if spec is not None:
        metadata["spec"] = spec if isinstance(spec, str) else json.dumps(spec)
    if metadata:
        header["__metadata__"] = metadata
    for name, tensor in tensors.items():
        raw = tensor.bytes()
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def read(path):
    raw = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        body = raw[8 + length + begin:8 + length + end]
        code = FORMATS[entry["dtype"]]
        tensors[name] = Tensor(entry["dtype"], entry["shape"], struct.unpack(f"<{count(entry['shape'])}{code}", body))
    return tensors, metadata


def largest_error(got, expected):
    """Relative to the largest expected number; infinities must agree, and NaN is an error."""
    scale = max([abs(e) for e in expected if abs(e) != float("inf")], default=0)
    worst = 0.0
    for g, e in zip(got, expected, strict=True):
        if g == e:
            continue
        error = abs(g - e) / max(scale, 1e-300)
        if not error <= worst:
            worst = error if error == error else float("inf")
    return worst


class CliTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def succeed(self, *arguments, **options):
        result = run(*arguments, **options)
        self.assertEqual(result.returncode, 0, f"{arguments}: {result.stderr}")
        self.assertEqual(result.stderr, "")
        return result.stdout

    def refuse(self, *arguments, saying, **options):
        """Exit code 2, nothing on stdout, one line on stderr that holds `saying` and nothing a terminal would obey."""
        result = run(*arguments, **options)
        self.assertEqual(result.returncode, 2, f"{arguments}: {result.stdout}{result.stderr}")
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("heed"), result.stderr)
        self.assertTrue(result.stderr.rstrip("\n").isprintable(), result.stderr)
        self.assertIn(saying, result.stderr)
        return result.stderr
