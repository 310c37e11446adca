"""A GPT-2 with random weights and a tokenizer of 256 bytes, written by other code than heed's."""
import json
import random

from support import Tensor, write

VOCABULARY, WIDTH, POSITIONS = 257, 16, 64


def write_tiny_model(folder, seed=1):
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)

    def noise(*shape):
        size = 1
        for extent in shape:
            size *= extent
        return Tensor("F32", shape, [rng.gauss(0, 0.3) for _ in range(size)])

    def ones(size):
        return Tensor("F32", [size], [1.0] * size)

    tensors = {"wte.weight": noise(VOCABULARY, WIDTH), "wpe.weight": noise(POSITIONS, WIDTH), "ln_f.weight": ones(WIDTH), "ln_f.bias": noise(WIDTH)}
    for name, rows, columns in (("attn.c_attn", WIDTH, 3 * WIDTH), ("attn.c_proj", WIDTH, WIDTH), ("mlp.c_fc", WIDTH, 4 * WIDTH),
                                ("mlp.c_proj", 4 * WIDTH, WIDTH)):
        tensors[f"h.0.{name}.weight"] = noise(rows, columns)
        tensors[f"h.0.{name}.bias"] = noise(columns)
    for norm in ("ln_1", "ln_2"):
        tensors[f"h.0.{norm}.weight"], tensors[f"h.0.{norm}.bias"] = ones(WIDTH), noise(WIDTH)
    write(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCABULARY, "n_embd": WIDTH, "n_head": 2, "n_layer": 1,
        "n_positions": POSITIONS, "n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "eos_token_id": 256}))
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    other = iter(range(256, 512))
    vocabulary = {chr(b if b in printable else next(other)): b for b in range(256)}
    vocabulary["<end>"] = 256
    stage = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [{"id": 256, "content": "<end>", "special": True, "normalized": False}], "normalizer": None,
        "pre_tokenizer": stage, "post_processor": None, "decoder": stage,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}))
    return folder
