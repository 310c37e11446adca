"""The cases of the benchmark, as data. Shapes are B, H, G, T, S, D; see docs/benchmarks.md."""

from dataclasses import dataclass, field, replace

# Fields of Case.options, with the meaning of heed's AttentionOptions:
#   causal       True
#   window       keys a query sees, itself included (with causal)
#   key_length   keys from here on are padding        query_length  likewise queries
#   bias         "per_head" [1,H,T,S] or "shared" [1,1,T,S]
#   alibi        True          softcap  the cap          dropout  the probability


@dataclass(frozen=True)
class Case:
    name: str
    shape: tuple
    dtype: str = "f32"
    backward: bool = False
    options: dict = field(default_factory=dict)
    limit: str = "compute"  # what percentages are of: "compute" (multiply-adds) or "read" (k and v from memory)
    section: str = ""
    group: str = ""  # cases of one group are measured in the same rounds
    base: str = ""  # name of the case in the group that this one's cost is set against
    bar: float = 0  # percent of the limit that heed is to reach; 0: none set
    ratio_bar: float = 0  # times the fastest other software
    cost_bar: float = 0  # at most so many times the base, per visible tile
    quick: bool = False  # part of --quick

    @property
    def key(self):
        return f"{self.name} {self.dtype} {'backward' if self.backward else 'forward'}"

    @property
    def flops(self):
        """4 operations per visible (query, key) pair, head and element of D; 2.5 times that backward."""
        b, h, _, _, _, d = self.shape
        return 4.0 * b * h * d * self.visible_pairs() * (2.5 if self.backward else 1.0)

    @property
    def kv_bytes(self):
        b, _, g, _, s, d = self.shape
        return 2.0 * b * g * s * d * (4 if self.dtype == "f32" else 2)

    def visible_range(self, i):
        """Keys [first, last) that query i sees."""
        _, _, _, t, s, _ = self.shape
        position = i + s - t
        first, last = 0, s
        if self.options.get("causal"):
            last = min(last, position + 1)
        if "window" in self.options:
            first = max(first, position - self.options["window"] + 1)
        last = min(last, self.options.get("key_length", s))
        if i >= self.options.get("query_length", t):
            last = first
        return first, max(first, last)

    def visible_pairs(self):
        t, s = self.shape[3], self.shape[4]
        if self.options.get("causal") and not self.options.keys() - {"causal", "bias", "alibi", "softcap", "dropout"}:
            return t * s / 2  # half by convention, as other benchmarks count it
        return sum(last - first for first, last in map(self.visible_range, range(t)))

    def visible_tiles(self, tile=64):
        """Tiles of tile x tile in which any pair is visible: the work that cannot be skipped."""
        total = 0
        for begin in range(0, self.shape[3], tile):
            ranges = [self.visible_range(i) for i in range(begin, min(begin + tile, self.shape[3]))]
            ranges = [(first, last) for first, last in ranges if last > first]
            if ranges:
                total += (max(r[1] for r in ranges) - 1) // tile - min(r[0] for r in ranges) // tile + 1
        return total


TEACHING = Case("teaching", (32, 8, 8, 20, 20, 64), quick=True)
BERT = Case("BERT", (8, 12, 12, 512, 512, 64), quick=True)
GPT2 = Case("GPT-2 causal", (1, 12, 12, 1024, 1024, 64), options={"causal": True}, quick=True)
LLAMA = Case("Llama-3 GQA causal", (1, 32, 8, 2048, 2048, 128), options={"causal": True})
LONG = Case("long", (1, 16, 16, 8192, 8192, 64))
LONG_CAUSAL = replace(LONG, name="long causal", options={"causal": True})


def _with(section, ratio_bar, rows, **changes):
    return [replace(case, section=section, bar=bar, ratio_bar=ratio_bar, **changes) for case, bar in rows]


FORWARD = _with(
    "forward, f32", 1.1, [(TEACHING, 50), (BERT, 82), (GPT2, 80), (LLAMA, 85), (LONG, 85), (LONG_CAUSAL, 83)]
)
FORWARD_BF16 = _with(
    "forward, bf16", 1.3, [(BERT, 65), (GPT2, 0), (LLAMA, 65), (LONG, 70), (LONG_CAUSAL, 0)], dtype="bf16"
)
DECODE = [
    Case(
        f"decode S={keys}", (1, 32, 8, 1, keys, 128), dtype, limit="read", section=f"decode, {dtype}", bar=80,
        ratio_bar=1.3, quick=keys == 4096,
    )  # fmt: skip
    for dtype in ("f32", "bf16")
    for keys in (4096, 32768)
]
BACKWARD = _with(
    "backward, f32", 1.3, [(BERT, 75), (GPT2, 75), (LLAMA, 75), (LONG, 75), (LONG_CAUSAL, 0)], backward=True
)
BACKWARD_BF16 = [
    replace(case, section="backward, bf16", dtype="bf16", bar=55 if case.bar else 0) for case in BACKWARD
]

SHORT = [
    replace(case, section="short sequences, f32", quick=True)
    for case in (
        Case("one head, T=16", (1, 1, 1, 16, 16, 64)),
        Case("8 heads, T=20", (1, 8, 8, 20, 20, 64)),
        Case("8 heads, T=64 causal", (1, 8, 8, 64, 64, 64), options={"causal": True}),
        Case("12 heads, T=128", (1, 12, 12, 128, 128, 64)),
        Case("decode S=64", (1, 12, 12, 1, 64, 64)),
    )
]


def _options_cost(dtype, backward, quick):
    plain = Case("plain", (1, 12, 12, 1024, 1024, 64), dtype, backward, quick=quick)
    pass_name = "backward" if backward else "forward"
    section = f"cost of options, {pass_name}, {dtype}"
    variants = [
        plain,
        replace(plain, name="dropout 0.1", options={"dropout": 0.1}, base="plain", cost_bar=1.30),
        replace(plain, name="bias per head", options={"bias": "per_head"}, base="plain", cost_bar=1.15),
        replace(plain, name="bias shared", options={"bias": "shared"}, base="plain", cost_bar=1.15),
        replace(plain, name="soft-cap 30", options={"softcap": 30.0}, base="plain", cost_bar=1.15),
        replace(plain, name="ALiBi", options={"alibi": True}, base="plain", cost_bar=1.15),
    ]
    return [replace(case, section=section, group=section) for case in variants]


OPTIONS = _options_cost("f32", False, True) + _options_cost("bf16", False, False) + _options_cost("f32", True, False)


def _visible(plain, variants, section):
    rows = [plain] + [replace(plain, base=plain.name, cost_bar=1.25, **changes) for changes in variants]
    return [replace(case, section=section, group=section) for case in rows]


VISIBLE = _visible(
    Case("T=8192 causal", (1, 8, 8, 8192, 8192, 64), options={"causal": True}),
    [{"name": "T=8192 window 512", "options": {"causal": True, "window": 512}}],
    "cost of a window, f32",
) + _visible(
    Case("BERT full length", BERT.shape),
    [
        {"name": "BERT keys padded to half", "options": {"key_length": 256}},
        {"name": "BERT padded to half", "options": {"key_length": 256, "query_length": 256}},
    ],
    "cost of padding, f32",
)

CASES = FORWARD + FORWARD_BF16 + DECODE + BACKWARD + BACKWARD_BF16 + SHORT + OPTIONS + VISIBLE


@dataclass(frozen=True)
class MemoryCase:
    """Peak memory above inputs and outputs, measured in a process of its own."""

    name: str
    shape: tuple
    arguments: tuple  # of `heed_bench memory`
    bar_mb: float


MEMORY = [
    MemoryCase("T=S=65,536 forward", (1, 1, 1, 65536, 65536, 64), (), 100),
    MemoryCase("T=S=65,536 backward", (1, 1, 1, 65536, 65536, 64), ("--backward",), 100),
]


def groups(cases):
    """Cases in the order of the table, those of one group together."""
    result = {}
    for case in cases:
        result.setdefault(case.group or case.section + case.key, []).append(case)
    return list(result.values())
