import json
import random
import unittest

import plain_attention
from support import DATA, CliTest, Tensor, count, largest_error, read, run, write

RESULTS = ["out", "lse", "weights", "dq", "dk", "dv", "dbias", "dsinks"]


def normal(seed, *shape, dtype="F64"):
    source = random.Random(seed)
    # Multiples of 1/1024: exact in f32 too.
    return Tensor(dtype, shape, [round(source.gauss(0, 1) * 1024) / 1024 for _ in range(count(shape))])


def inputs(B=2, H=4, G=2, T=5, S=7, D=6, E=3):
    return {"q": normal(1, B, H, T, D), "k": normal(2, B, G, S, D), "v": normal(3, B, G, S, E)}


class Golden(CliTest):
    def compare(self, dtype, tolerance):
        files = sorted((DATA / "attention").glob("*.safetensors"))
        self.assertEqual(len(files), 28)
        for file in files:
            with self.subTest(file=file.stem, dtype=dtype):
                target = self.folder / "out.safetensors"
                arguments = ["attend", file, "--out", target, "--weights"]
                self.succeed(*arguments, *(["--dtype", dtype] if dtype else []))
                got, _ = read(target)
                expected, _ = read(file)
                for name in RESULTS:
                    self.assertEqual(name in got, name in expected or name == "weights", name)
                    if name not in expected:
                        continue
                    self.assertEqual(got[name].shape, expected[name].shape)
                    self.assertEqual(got[name].dtype, "F64" if dtype == "f64" else "F32")
                    # The golden weights themselves are stored in f32.
                    limit = max(tolerance, 2e-7) if name == "weights" else tolerance
                    error = largest_error(got[name].values, expected[name].values)
                    self.assertLessEqual(error, limit, f"{file.stem}: {name}")

    def test_all_in_f64(self):
        self.compare("f64", 1e-9)

    def test_all_as_stored(self):
        self.compare(None, 1e-5)

    def test_narrow_types_are_close(self):
        # Rounding the inputs to 8 or 11 bits moves results by about that much.
        for dtype, tolerance in (("bf16", 0.03), ("f16", 0.004)):
            file = DATA / "attention" / "gqa.safetensors"
            target = self.folder / "out.safetensors"
            self.succeed("attend", file, "--out", target, "--dtype", dtype)
            got, _ = read(target)
            expected, _ = read(file)
            for name in ("out", "lse", "dq", "dk", "dv"):
                self.assertEqual(got[name].dtype, "F32")
                error = largest_error(got[name].values, expected[name].values)
                self.assertLess(error, tolerance, f"{dtype} {name}")
                self.assertGreater(error, 1e-6, f"{dtype} {name}: was it rounded at all?")


class Options(CliTest):
    def check(self, tensors, *flags, spec=None, **plain):
        source, target = self.folder / "in.safetensors", self.folder / "out.safetensors"
        write(source, tensors, spec)
        packed = "cu_seqlens_q" in tensors
        text = self.succeed("attend", source, "--out", target, *flags, *([] if packed else ["--weights"]))
        got, metadata = read(target)
        for name, expected in zip(("out", "lse", "weights"), plain_attention.attend(tensors, **plain)):
            if not packed:
                self.assertLessEqual(largest_error(got[name].values, expected), 1e-12, f"{flags} {spec} {name}")
        return got, metadata, text

    def test_flags(self):
        slopes = plain_attention.usual_slopes(4)
        self.check(inputs())
        self.check(inputs(), "--causal", causal=True)
        self.check(inputs(), "--causal", "--align", "top-left", causal=True, top_left=True)
        self.check(inputs(), "--window", "2,1", window=(2, 1))
        self.check(inputs(), "--window", "-1,0", window=(-1, 0))
        self.check(inputs(), "--scale", "0.3", "--softcap", "2.5", scale=0.3, softcap=2.5)
        self.check(inputs(), "--scale", "-1", scale=-1)
        self.check(inputs(), "--alibi", "--causal", alibi=slopes, causal=True)
        self.check(inputs(), "--dropout", "0.4", "--seed", "18446744073709551615", "--offset", "4294967295",
                   dropout=0.4, seed=2**64 - 1, offset=2**32 - 1)
        self.check(inputs(), "--kernel", "reference", "--threads", "1", "--dtype", "f64")

    def test_slopes_of_any_number_of_heads(self):
        self.assertEqual(plain_attention.usual_slopes(6), [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8])
        for heads in (1, 3, 6, 12):
            self.check(inputs(H=heads, G=1, T=3, S=3, D=2, E=1), "--alibi", alibi=plain_attention.usual_slopes(heads))

    def test_spec_and_flags_win(self):
        self.check(inputs(), spec={"causal": True, "window": [1, 0], "scale": 0.7}, causal=True, window=(1, 0), scale=0.7)
        self.check(inputs(), "--no-causal", "--scale", "0.2", "--window", "-1,-1", spec={"causal": True, "scale": 0.7,
                   "window": [1, 0]}, scale=0.2)
        self.check(inputs(), spec={"causal": None, "softcap": None, "dropout": None, "bias": None, "window": None})
        _, metadata, _ = self.check(inputs(), "--softcap", "3", spec={"alibi": True},
                                    softcap=3, alibi=plain_attention.usual_slopes(4))
        self.assertEqual(json.loads(metadata["spec"]),
                         {"causal": False, "align": "bottom-right", "softcap": 3.0, "alibi": True})
        self.assertEqual(metadata["kernel"], "reference")

    def test_broadcast_shapes(self):
        for shape in ([2, 4, 5, 7], [1, 4, 5, 7], [2, 1, 1, 7], [4, 5, 7], [5, 7], [7], [1], [], [2, 1, 5, 1]):
            tensors = {**inputs(), "bias": normal(9, *shape), "dout": normal(10, 2, 4, 5, 3)}
            got, _, _ = self.check(tensors)
            self.assertEqual(got["dbias"].shape, shape)
            # The sum of a row's score gradients is 0, so the whole sum is, however it is broadcast.
            self.assertAlmostEqual(sum(got["dbias"].values), 0, places=12)
            allow = Tensor("U8", shape, [n % 3 != 1 for n in range(count(shape))])
            self.check({**inputs(), "mask": allow}, "--causal", causal=True)
            self.check({**inputs(), "mask": Tensor("BOOL", shape, [bool(a) for a in allow.values])})

    def test_tensors_together(self):
        tensors = {**inputs(), "sinks": normal(4, 4), "key_lengths": Tensor("I64", [2], [3, 7]),
                   "query_lengths": Tensor("I32", [2], [5, 2]), "bias": normal(5, 1, 4, 5, 7, dtype="F32"),
                   "alibi_slopes": normal(6, 4)}
        self.check(tensors, "--softcap", "4", alibi=tensors["alibi_slopes"].values, softcap=4)
        positions = {**inputs(), "query_positions": Tensor("I64", [2, 5], [0, 3, 1, 9, 4, 5, 5, 2, 8, 7]),
                     "key_positions": Tensor("I32", [1, 7], [6, 0, 2, 4, 3, 1, 5])}
        self.check(positions, "--causal", "--window", "3,0", "--alibi", causal=True, window=(3, 0),
                   alibi=plain_attention.usual_slopes(4))

    def test_a_tensor_is_left_out_where_the_spec_says_so(self):
        tensors = {**inputs(), "bias": normal(5, 7), "sinks": normal(4, 4), "alibi_slopes": normal(6, 4),
                   "key_lengths": Tensor("I64", [2], [3, 7]), "mask": Tensor("U8", [5, 1], [1, 0, 1, 0, 1])}
        off = {"bias": False, "sinks": False, "alibi": False, "lengths": False, "mask": False}
        write(self.folder / "in", tensors, off)
        text = self.succeed("attend", self.folder / "in", "--out", self.folder / "out")
        expected = plain_attention.attend(inputs())[0]
        self.assertLessEqual(largest_error(read(self.folder / "out")[0]["out"].values, expected), 1e-12)
        for name in ("bias", "sinks", "alibi_slopes", "key_lengths", "mask"):
            self.assertIn(f"not used  {name}\n", text)

    def test_packed_is_the_padded_batch(self):
        padded = inputs(B=2, H=2, G=1, T=3, S=4, D=2, E=2)
        tensors = dict(padded, query_lengths=Tensor("I64", [2], [3, 1]), key_lengths=Tensor("I64", [2], [2, 4]))
        expected, _, _ = self.check(tensors, "--align", "top-left", "--causal", "--dropout", "0.3",
                                    causal=True, top_left=True, dropout=0.3)

        def pack(tensor, lengths):
            _, heads, rows, size = tensor.shape
            values = [tensor.values[((b * heads + h) * rows + i) * size + c] for h in range(heads)
                      for b, length in enumerate(lengths) for i in range(length) for c in range(size)]
            return Tensor("F64", [1, heads, sum(lengths), size], values)
        packed = {"q": pack(padded["q"], [3, 1]), "k": pack(padded["k"], [2, 4]), "v": pack(padded["v"], [2, 4]),
                  "cu_seqlens_q": Tensor("I32", [3], [0, 3, 4]), "cu_seqlens_k": Tensor("I32", [3], [0, 2, 6])}
        got, _, _ = self.check(packed, "--align", "top-left", "--causal", "--dropout", "0.3")
        self.assertEqual(got["out"].values, pack(expected["out"], [3, 1]).values)

    def test_empty_sizes(self):
        for sizes in (dict(T=0), dict(S=0), dict(B=0), dict(T=0, S=0)):
            tensors = inputs(**sizes)
            tensors["dout"] = normal(7, *tensors["q"].shape[:3], 3)
            got, _, _ = self.check(tensors, "--causal", causal=True)
            self.assertEqual(set(got["out"].values) - {0.0}, set())
            self.assertEqual(set(got["dk"].values) - {0.0}, set())

    def test_keep_mask_or_generator(self):
        keep = Tensor("U8", [2, 4, 5, 7], [n % 2 for n in range(280)])
        tensors = {**inputs(), "dropout_keep": keep}
        self.check(tensors, "--dropout", "0.25", "--seed", "5", dropout=0.25, seed=5)
        self.check(tensors)  # no probability: no dropout
        write(self.folder / "in", tensors, {"dropout": 0.25})
        self.succeed("attend", self.folder / "in", "--out", self.folder / "out", "--weights")
        got, _ = read(self.folder / "out")
        weights, v = got["weights"].values, inputs()["v"]
        first = sum(weights[j] * keep.values[j] / 0.75 * v.values[j * 3] for j in range(7))
        self.assertAlmostEqual(got["out"].values[0], first, places=14)

    def test_gradients_by_differences(self):
        """dlse, dalibi_slopes and dsinks, which no golden file has together."""
        tensors = {**inputs(B=1, H=2, G=1, T=2, S=3, D=2, E=2), "sinks": normal(4, 2), "alibi_slopes": normal(6, 2),
                   "dout": normal(7, 1, 2, 2, 2), "dlse": normal(8, 1, 2, 2)}

        def loss(changed):
            out, lse, _ = plain_attention.attend(changed, alibi=changed["alibi_slopes"].values, softcap=2)
            pairs = [*zip(out, tensors["dout"].values), *zip(lse, tensors["dlse"].values)]
            return sum(a * b for a, b in pairs)
        got, _, _ = self.check(tensors, "--softcap", "2", alibi=tensors["alibi_slopes"].values, softcap=2)
        for name in ("q", "k", "v", "sinks", "alibi_slopes"):
            tensor = tensors[name]
            for n in range(len(tensor.values)):
                sides = []
                for step in (1e-5, -1e-5):
                    values = list(tensor.values)
                    values[n] += step
                    sides.append(loss({**tensors, name: Tensor("F64", tensor.shape, values)}))
                self.assertAlmostEqual(got["d" + name].values[n], (sides[0] - sides[1]) / 2e-5, places=8, msg=name)

    def test_types_of_small_tensors(self):
        tensors = {**inputs(), "sinks": Tensor("F16", [4], [0.5, -1, 2, 0]), "bias": Tensor("BF16", [7], [0.5] * 7)}
        self.check(tensors)
        mixed = dict(inputs(), k=normal(2, 2, 2, 7, 6, dtype="F32"))
        write(self.folder / "in", mixed)
        self.refuse("attend", self.folder / "in", "--out", self.folder / "o", saying="one type for q, k and v")
        self.succeed("attend", self.folder / "in", "--out", self.folder / "o", "--dtype", "f64")


class Refusals(CliTest):
    def setUp(self):
        super().setUp()
        self.source, self.target = self.folder / "in.safetensors", self.folder / "out.safetensors"

    def no(self, saying, tensors=None, *flags, spec=None):
        write(self.source, inputs() if tensors is None else tensors, spec)
        self.refuse("attend", self.source, "--out", self.target, *flags, saying=saying)
        self.assertFalse(self.target.exists())

    def test_spec(self):
        self.no("unknown key 'casual'", spec={"casual": True})
        self.no("unknown key '\\x1b]0;x\\x07'", spec={"\x1b]0;x\x07": True})
        self.no("spec: causal: expected true or false, got 1", spec={"causal": 1})
        self.no("spec: window: expected [left, right], got an array of 3", spec={"window": [1, 2, 3]})
        self.no("expected whole numbers, -1 or more, got -2", spec={"window": [-2, 0]})
        self.no("expected whole numbers", spec={"window": [1e300, 0]})
        self.no("spec: dropout: expected 0 <= p < 1, got 1", spec={"dropout": 1})
        self.no("spec: softcap: expected 0 (none) or more, got -1", spec={"softcap": -1})
        self.no("spec: align: expected bottom-right or top-left, got 'left'", spec={"align": "left"})
        self.no("spec: expected a JSON object, got an array of 0", spec=[])
        self.no("spec: parse error", spec="{")
        self.no("spec: parse error", spec="[" * 100000)
        self.no("asks for a tensor mask, which is not there", spec={"mask": "random"})
        self.no("asks for a tensor key_lengths", spec={"lengths": True})

    def test_tensors(self):
        good = inputs()
        self.no("got no q", {"k": good["k"], "v": good["v"]})
        self.no("q: expected 4 axes", {**good, "q": normal(1, 2, 4)})
        self.no("q: expected f32, bf16, f16 or f64, got i64", {**good, "q": Tensor("I64", [1, 1, 1, 1], [1])})
        self.no("k: expected 4, 2 or 1 heads for the 4 of q, got 3",
                {**good, "k": normal(2, 2, 3, 7, 6), "v": normal(3, 2, 3, 7, 3)})
        self.no("bias: expected each axis of [2, 4, 5, 7] or 1, got [1, 1, 1, 6]", {**good, "bias": normal(5, 6)})
        self.no("bias: expected at most 4 axes", {**good, "bias": normal(5, 1, 1, 1, 1, 1)})
        self.no("allow: expected u8 or bool, got i64", {**good, "mask": Tensor("I64", [7], [1] * 7)})
        self.no("dout: expected [2, 4, 5, 3], got [1]", {**good, "dout": normal(5, 1)})
        self.no("key_lengths", {**good, "key_lengths": Tensor("I64", [2], [3, 8])})
        self.no("kernel: expected one of", None, "--kernel", "warp")

    def test_files(self):
        self.refuse("attend", self.folder / "none", "--out", self.target, saying="cannot open")
        self.refuse("attend", self.folder, "--out", self.target, saying="expected a regular file")
        write(self.source, inputs())
        self.refuse("attend", self.source, "--out", self.source, saying="another file than the input")
        self.refuse("attend", self.source, "--out", self.folder / "no" / "x", saying="No such file")
        whole = self.source.read_bytes()
        for length in (0, 7, 8, 100, len(whole) - 1):
            self.source.write_bytes(whole[:length])
            self.refuse("attend", self.source, "--out", self.target, saying="in.safetensors")
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["in.safetensors"])

    def test_names_from_files_are_escaped(self):
        write(self.source, {**inputs(), "\x1b[31mred\n": normal(1, 1)})
        text = self.succeed("attend", self.source, "--out", self.target)
        self.assertIn("not used  \\x1b[31mred\\x0a\n", text)

    def test_forced_by_the_environment(self):
        write(self.source, inputs())
        self.refuse("attend", self.source, "--out", self.target, env={"HEED_KERNEL": "warp"}, saying="HEED_KERNEL")
        self.assertEqual(run("attend", self.source, "--out", self.target, env={"HEED_KERNEL": "reference"}).returncode, 0)


if __name__ == "__main__":
    unittest.main()
