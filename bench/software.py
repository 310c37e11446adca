"""What is measured. Each software prepares a case into a Runner, or raises Unsupported and says why."""

import importlib
import time


class Unsupported(Exception):
    pass


class Runner:
    """One case in one software: run(iterations) gives seconds, error() that of the latest result against float64."""

    def __init__(self, run, error):
        self.run, self.error = run, error


def timed(call, copies):
    """A Runner.run that calls call(copy) with the copies of k and v in turn."""

    def run(iterations):
        turns = [n % copies for n in range(iterations)]
        start = time.perf_counter()
        for copy in turns:
            call(copy)
        return time.perf_counter() - start

    return run


class Native:
    """heed and the compositions of bench/compositions.h: the C++ side loops by itself."""

    def __init__(self, name, version):
        self.name, self.version = name, version

    def prepare(self, problem):
        reason = problem.declines(self.name)
        if reason:
            raise Unsupported(reason)
        return Runner(lambda iterations: problem.run(self.name, iterations), problem.error)


class Torch:
    name = "torch"

    def __init__(self, threads):
        self.torch = importlib.import_module("torch")
        self.version = self.torch.__version__
        self.torch.set_num_threads(threads)

    def _tensor(self, problem, name, shape, copy=0, dtype=None):
        torch = self.torch
        dtype = dtype or {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[problem.case.dtype]
        return torch.frombuffer(problem.buffer(name, copy), dtype=dtype).view(shape)

    def _mask(self, problem):
        """What scaled_dot_product_attention takes as attn_mask: booleans, or a bias in the type of q."""
        torch, case, options = self.torch, problem.case, problem.case.options
        _, h, _, t, s, _ = case.shape
        dtype = self._tensor(problem, "q", -1).dtype
        if "bias" in options:
            heads = h if options["bias"] == "per_head" else 1
            return self._tensor(problem, "bias", (1, heads, t, s), dtype=torch.float32).to(dtype)
        position = torch.arange(t)[:, None] + (s - t)
        key = torch.arange(s)[None, :]
        if options.get("alibi"):
            slopes = self._tensor(problem, "slopes", (1, h, 1, 1), dtype=torch.float32)
            return (-slopes * (position - key).abs()).to(dtype)
        if "window" in options:
            return (key <= position) & (key > position - options["window"])
        if "key_length" in options:
            return (key < options["key_length"])[None, None].expand(1, 1, t, s)
        return None

    def prepare(self, problem):
        torch, case, options = self.torch, problem.case, problem.case.options
        for name, reason in {
            "softcap": "no soft-cap",
            "dropout": "draws its own random numbers: no result to check",
            "query_length": "no query lengths",
        }.items():
            if name in options:
                raise Unsupported(reason)
        if "bias" in options and case.dtype != "f32":
            raise Unsupported("takes the bias rounded to the type of q")
        b, h, g, t, s, d = case.shape
        q = self._tensor(problem, "q", (b, h, t, d))
        k = [self._tensor(problem, "k", (b, g, s, d), copy) for copy in range(problem.copies)]
        v = [self._tensor(problem, "v", (b, g, s, d), copy) for copy in range(problem.copies)]
        mask = self._mask(problem)
        keywords = {"attn_mask": mask, "is_causal": mask is None and bool(options.get("causal")), "enable_gqa": h != g}
        attend = torch.nn.functional.scaled_dot_product_attention
        results = []

        if case.backward:
            leaves = [tensor.detach().requires_grad_() for tensor in (q, k[0], v[0])]
            out = attend(*leaves, **keywords)
            dout = self._tensor(problem, "dout", (b, h, t, d))

            def call(_):
                results[:] = torch.autograd.grad(out, leaves, dout, retain_graph=True)

        else:

            def call(copy):
                with torch.inference_mode():
                    results[:] = [attend(q, k[copy], v[copy], **keywords)]

        def error():
            kept = [tensor.contiguous() for tensor in results]
            return problem.error(*(tensor.data_ptr() for tensor in kept))

        return Runner(timed(call, problem.copies), error)


class OnnxRuntime:
    """MultiHeadAttention, and GroupQueryAttention where key heads are shared, a cache is decoded from, or a window
    is asked for: the contrib operators that exported models use. They take [B,T,H*D], so the same numbers are laid
    out that way before anything is timed; outputs are bound once."""

    name = "onnxruntime"

    def __init__(self, threads):
        self.ort = importlib.import_module("onnxruntime")
        self.onnx = importlib.import_module("onnx")
        self.numpy = importlib.import_module("numpy")
        self.version = self.ort.__version__
        self.threads = threads

    def _array(self, problem, name, shape, copy=0):
        return self.numpy.frombuffer(problem.buffer(name, copy), dtype=self.numpy.float32).reshape(shape)

    def _rows(self, array):
        """[B,N,L,D] as [B,L,N*D]."""
        b, n, length, d = array.shape
        return self.numpy.ascontiguousarray(array.transpose(0, 2, 1, 3)).reshape(b, length, n * d)

    def _session(self, operator, inputs, outputs, attributes):
        """A model of one operator; `inputs` in its order, None where an optional one is left out."""
        onnx, ort = self.onnx, self.ort
        helper = onnx.helper
        node = helper.make_node(
            operator, [name or "" for name in inputs], outputs, domain="com.microsoft", **attributes
        )
        integers = {"seqlens_k", "total_sequence_length", "key_padding_mask"}
        float32, int32 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32
        values = [
            helper.make_tensor_value_info(name, int32 if name in integers else float32, None) for name in inputs if name
        ]
        results = [helper.make_tensor_value_info(name, float32, None) for name in outputs]
        model = helper.make_model(
            helper.make_graph([node], "attention", values, results),
            opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
            ir_version=8,
        )
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def prepare(self, problem):
        case, options = problem.case, problem.case.options
        if case.backward:
            raise Unsupported("no backward")
        if case.dtype != "f32":
            raise Unsupported(f"no {case.dtype} on the CPU")
        for name in ("dropout", "query_length"):
            if name in options:
                raise Unsupported(f"no {name.replace('_', ' ')}")
        _, h, g, t, s, _ = case.shape
        if h != g or "window" in options or "softcap" in options:
            return self._group_query(problem)
        return self._multi_head(problem)

    def _runner(self, problem, session, bindings, out):
        b, h, _, t, _, d = problem.case.shape

        def call(copy):
            session.run_with_iobinding(bindings[copy])

        def error():
            kept = self.numpy.ascontiguousarray(out.numpy().reshape(b, t, h, d).transpose(0, 2, 1, 3))
            return problem.error(kept.ctypes.data)

        return Runner(timed(call, problem.copies), error)

    def _bind(self, session, inputs, outputs):
        binding = session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, value)
        return binding

    def _value(self, array):
        return self.ort.OrtValue.ortvalue_from_numpy(array)

    def _multi_head(self, problem):
        np, case, options = self.numpy, problem.case, problem.case.options
        b, h, _, t, s, d = case.shape
        inputs = {"query": self._value(self._rows(self._array(problem, "q", (b, h, t, d))))}
        names = ["query", "key", "value", None, None, None]
        if "key_length" in options:
            names[4] = "key_padding_mask"
            inputs["key_padding_mask"] = self._value(np.full(b, options["key_length"], np.int32))
        if "bias" in options:
            names[5] = "attention_bias"
            heads = h if options["bias"] == "per_head" else 1
            inputs["attention_bias"] = self._value(self._array(problem, "bias", (1, heads, t, s)))
        if options.get("alibi"):
            names[5] = "attention_bias"
            slopes = self._array(problem, "slopes", (1, h, 1, 1))
            distance = np.abs(np.arange(t)[:, None] + (s - t) - np.arange(s)[None, :])
            inputs["attention_bias"] = self._value((-slopes * distance).astype(np.float32))
        attributes = {"num_heads": h, "unidirectional": int(bool(options.get("causal")))}
        session = self._session("MultiHeadAttention", names, ["output"], attributes)
        out = self._value(np.zeros((b, t, h * d), np.float32))
        bindings = []
        for copy in range(problem.copies):
            key_value = {
                long: self._value(self._rows(self._array(problem, short, (b, h, s, d), copy)))
                for long, short in (("key", "k"), ("value", "v"))
            }
            bindings.append(self._bind(session, {**inputs, **key_value}, {"output": out}))
        return self._runner(problem, session, bindings, out)

    def _group_query(self, problem):
        np, case, options = self.numpy, problem.case, problem.case.options
        b, h, g, t, s, d = case.shape
        decode = t == 1
        attributes = {"num_heads": h, "kv_num_heads": g}
        if not decode and not options.get("causal"):
            attributes["causal"] = 0  # known to newer versions only; older ones refuse the model, and that is said
        if "window" in options:
            attributes["local_window_size"] = options["window"]
        if "softcap" in options:
            attributes["softcap"] = options["softcap"]
        past = ["past_key", "past_value"] if decode else [None, None]
        session = self._session(
            "GroupQueryAttention",
            ["query", "key", "value", *past, "seqlens_k", "total_sequence_length"],
            ["output", "present_key", "present_value"],
            attributes,
        )
        shared = {
            "query": self._value(self._rows(self._array(problem, "q", (b, h, t, d)))),
            "seqlens_k": self._value(np.full(b, s - 1, np.int32)),
            "total_sequence_length": self._value(np.array([s], np.int32)),
        }
        out = self._value(np.zeros((b, t, h * d), np.float32))
        bindings = []
        for copy in range(problem.copies):
            k = self._array(problem, "k", (b, g, s, d), copy)
            v = self._array(problem, "v", (b, g, s, d), copy)
            new = slice(s - t, s)
            inputs = dict(shared)
            inputs["key"] = self._value(self._rows(k[:, :, new]))
            inputs["value"] = self._value(self._rows(v[:, :, new]))
            # The cache in and out is one buffer, as a decoder has it: only the new key and value are written.
            caches = {"key": self._value(k.copy()), "value": self._value(v.copy())}
            if decode:
                inputs.update({f"past_{name}": cache for name, cache in caches.items()})
            outputs = {"output": out, **{f"present_{name}": cache for name, cache in caches.items()}}
            bindings.append(self._bind(session, inputs, outputs))
        return self._runner(problem, session, bindings, out)


def installed(wanted, library, threads):
    """The software that is there, and for what is not, why: {name: reason}."""
    found, absent = [], {}
    makers = {
        "heed": lambda: Native("heed", library.isa),
        "torch": lambda: Torch(threads),
        "onnxruntime": lambda: OnnxRuntime(threads),
        "blocked": lambda: Native("blocked", "oneDNN " + library.onednn_version),
        "naive": lambda: Native("naive", "oneDNN " + library.onednn_version if library.onednn_version else "loops"),
    }
    for name in wanted:
        if name not in makers:
            raise SystemExit(f"bench/run: no software {name}; known are {', '.join(makers)}")
        if name == "blocked" and not library.onednn_version:
            absent[name] = "oneDNN was not found when heed was built"
            continue
        try:
            found.append(makers[name]())
        except ImportError as error:
            absent[name] = f"not installed ({error.name or error})"
    return found, absent


ALL = ("heed", "torch", "onnxruntime", "blocked", "naive")
