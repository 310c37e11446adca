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


def write_model(folder, shapes, config, seed, width):
    """Random weights under the names of `shapes`; those of norms are 1."""
    dice = random.Random(seed)
    header, data = {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        norm = ("ln_" in name or "norm" in name) and name.endswith("weight")
        numbers = [1.0] * count if norm else [dice.gauss(0, width) for _ in range(count)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += struct.pack(f"<{count}f", *numbers)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    return folder


def make_llama(folder, d=32, heads=2, layers=2, vocab=64, seed=9, **config):
    """A decoder with rotated positions, so that texts may be long; without a tokenizer. `config`: more of config.json."""
    shapes = {"model.embed_tokens.weight": [vocab, d], "model.norm.weight": [d], "lm_head.weight": [vocab, d]}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        shapes |= {at + f"self_attn.{x}_proj.weight": [d, d] for x in "qkvo"}
        shapes |= {at + "mlp.gate_proj.weight": [2 * d, d], at + "mlp.up_proj.weight": [2 * d, d], at + "mlp.down_proj.weight": [d, 2 * d],
                   at + "input_layernorm.weight": [d], at + "post_attention_layernorm.weight": [d]}
    return write_model(folder, shapes, {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": d, "num_attention_heads": heads, "num_key_value_heads": heads,
        "num_hidden_layers": layers, "intermediate_size": 2 * d, "max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0,
        "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0, **config}, seed, 0.3)


def make_gpt2(folder, d=24, heads=3, layers=2, positions=256, seed=5):
    """A GPT-2 with random weights over the golden GPT-2 tokenizer's 900 tokens."""
    vocab = 900
    shapes = {"transformer.wte.weight": [vocab, d], "transformer.wpe.weight": [positions, d],
              "transformer.ln_f.weight": [d], "transformer.ln_f.bias": [d]}
    for layer in range(layers):
        at = f"transformer.h.{layer}."
        shapes |= {at + "ln_1.weight": [d], at + "ln_1.bias": [d], at + "ln_2.weight": [d], at + "ln_2.bias": [d],
                   at + "attn.c_attn.weight": [d, 3 * d], at + "attn.c_attn.bias": [3 * d],
                   at + "attn.c_proj.weight": [d, d], at + "attn.c_proj.bias": [d],
                   at + "mlp.c_fc.weight": [d, 4 * d], at + "mlp.c_fc.bias": [4 * d],
                   at + "mlp.c_proj.weight": [4 * d, d], at + "mlp.c_proj.bias": [d]}
    write_model(folder, shapes, {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": vocab, "n_embd": d, "n_head": heads,
        "n_layer": layers, "n_positions": positions, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0}, seed, 0.35)
    shutil.copy(os.path.join(DATA, "tokenizers", "gpt2", "tokenizer.json"), folder)
    return folder
