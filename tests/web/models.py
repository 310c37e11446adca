"""Models for the tests of the server: golden ones, and a small random GPT-2 with a real tokenizer, made here."""
import json
import os
import random
import shutil
import struct

DATA = os.path.join(os.environ["HEED_SOURCE_DIR"], "tests", "golden", "data")


def golden(name):
    return os.path.join(DATA, "models", name)


def read_safetensors(path):
    """name -> (shape, flat list of numbers)"""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    result = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in ("F32", "I64"):
            continue
        begin, end = entry["data_offsets"]
        letter, size = ("f", 4) if entry["dtype"] == "F32" else ("q", 8)
        result[name] = (entry["shape"], struct.unpack(f"<{(end - begin) // size}{letter}", data[begin:end]))
    return result


def make_gpt2(folder, d=24, heads=3, layers=2, positions=256, seed=5):
    """A GPT-2 with random weights over the golden GPT-2 tokenizer's 900 tokens."""
    vocab = 900
    dice = random.Random(seed)
    shapes = {"transformer.wte.weight": [vocab, d], "transformer.wpe.weight": [positions, d],
              "transformer.ln_f.weight": [d], "transformer.ln_f.bias": [d]}
    for layer in range(layers):
        at = f"transformer.h.{layer}."
        shapes |= {at + "ln_1.weight": [d], at + "ln_1.bias": [d], at + "ln_2.weight": [d], at + "ln_2.bias": [d],
                   at + "attn.c_attn.weight": [d, 3 * d], at + "attn.c_attn.bias": [3 * d],
                   at + "attn.c_proj.weight": [d, d], at + "attn.c_proj.bias": [d],
                   at + "mlp.c_fc.weight": [d, 4 * d], at + "mlp.c_fc.bias": [4 * d],
                   at + "mlp.c_proj.weight": [4 * d, d], at + "mlp.c_proj.bias": [d]}
    header, data = {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        norm = ".ln_" in name and name.endswith("weight")
        numbers = [1.0] * count if norm else [dice.gauss(0, 0.35) for _ in range(count)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += struct.pack(f"<{count}f", *numbers)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": vocab, "n_embd": d, "n_head": heads,
                   "n_layer": layers, "n_positions": positions, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
                   "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0}, file)
    shutil.copy(os.path.join(DATA, "tokenizers", "gpt2", "tokenizer.json"), folder)
    return folder
