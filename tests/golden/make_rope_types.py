"""Makes data/rope_types.json: how every model type of transformers rotates, asked of its own code.

    python make_rope_types.py            (PyTorch and transformers; the versions are written into the file)

For each model type, with its configuration as it comes by default: the module of its models is searched for a rotary
embedding and for the function that applies it, which rotates single numbers at some position. What comes out says how
many numbers of a head turn, which two belong together and by what angles. A type is written down only where all of this
could be asked; rope_from_config refuses every other one. The configuration is stored as far as rope_from_config looks
at it, and `rope` as what it has to answer.
"""

import importlib
import inspect
import json
import math
import pathlib

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, CONFIG_MAPPING

POSITION = 5

# What rope_from_config reads, and what a wrong reading would fall for.
KEYS = (
    "model_type hidden_size n_embd num_attention_heads n_head head_dim global_head_dim attention_head_dim kv_channels "
    "qk_rope_head_dim qk_nope_head_dim rope_interleave rope_theta rope_scaling rope_parameters rotary_dim rotary_pct "
    "rotary_emb_base partial_rotary_factor rope_local_base_freq max_position_embeddings n_positions "
    "original_max_position_embeddings layer_types v_head_dim d_model n_heads alibi position_embedding_type "
    "per_layer_config"
).split()

# Types whose configuration is one of no rotation, or of none that can be, until it says otherwise.
SET = {
    "esm": {"position_embedding_type": "rotary"},
    "granitemoehybrid": {"position_embedding_type": "rope"},
    "glm4_moe": {"head_dim": 128},
}
# Types that say more than rope_from_config understands: it refuses them.
BEYOND = {
    "granite_swa": "a theta for each layer",
    "granitemoe_swa": "a theta for each layer",
    "muse_glimmer_text": "a theta for each layer",
    "muse_spark_text": "a theta for each layer",
    "molmo2_text": "a list of layers that are scaled",
    "moonshine": "encoder and decoder with heads of their own",
    "moonshine_streaming": "encoder and decoder with heads of their own",
    "nanochat": "turns the other way",
    "cosmos3_edge_text": "positions of three kinds",
    "dots3_note_text": "heads of another size in some layers",
    "ministral3": "queries that grow with their position",
    "mistral4": "queries that grow with their position",
    "zaya": "settings for kinds of layers that it does not list",
    "minimax_m3_vl_text": "a rotary_dim that its code does not read",
}


def text_part(config):
    return config.get_text_config(decoder=True)


def modules_of(config):
    package = type(config).__module__.rsplit(".", 1)[0]
    name = type(config).__module__.rsplit(".configuration_", 1)[-1]
    return importlib.import_module(f"{package}.modeling_{name}")


def embeddings_of(module):
    """Classes that make cosines and sines for the text model."""
    found = []
    for name, value in vars(module).items():
        if inspect.isclass(value) and name.endswith("RotaryEmbedding") and value.__module__ == module.__name__:
            if not any(word in name for word in ("Vision", "Audio", "Speech", "DiT")):
                found.append(value)
    return found


def tables(embedding, config, layer_type, position):
    """cos and sin (or one complex tensor) at a position, as the model's own class makes them."""
    parameters = inspect.signature(embedding.__init__).parameters
    made = embedding(config=config) if "config" in parameters else embedding(config)
    asked = inspect.signature(made.forward).parameters
    x, where = torch.zeros(1, 1, 1), torch.tensor([[position]])
    if layer_type is None:
        result = made(x, where)
    elif "layer_type" in asked:
        result = made(x, where, layer_type)
    else:
        raise ValueError("kinds of layers, but no word for them")
    return result if isinstance(result, tuple) else (result,)


class Sinusoids(torch.nn.Module):
    """GPT-J and CodeGen have a table instead of a class."""

    def __init__(self, config):
        super().__init__()
        module = modules_of(config)
        self.table = module.create_sinusoidal_positions(POSITION + 1, config.rotary_dim)

    def forward(self, x, where):
        sine, cosine = torch.split(self.table[where], self.table.shape[-1] // 2, dim=-1)
        return sine, cosine


def applying_function(module, config):
    names = ["apply_rotary_pos_emb", "apply_rotary_emb"]
    if getattr(config, "rope_interleave", False) or not any(hasattr(module, name) for name in names):
        names.insert(0, "apply_rotary_pos_emb_interleave")
    for name in names:
        if hasattr(module, name):
            return getattr(module, name)
    raise ValueError("no function that applies it")


def rotate(apply, made, numbers):
    """[numbers, numbers]: row n is what becomes of number n alone."""
    q = torch.eye(numbers).reshape(1, 1, numbers, numbers)
    wide = [part.expand(1, numbers, -1) for part in made]
    asked = list(inspect.signature(apply).parameters)
    if asked[:4] == ["q", "k", "cos", "sin"]:
        return apply(q, q, *wide)[0][0, 0]
    if asked[:3] == ["tensor", "sin", "cos"]:
        return apply(q.transpose(1, 2), *wide).transpose(1, 2)[0, 0]
    if asked[:3] == ["x", "cos", "sin"]:
        return apply(q, *wide)[0, 0]
    if asked[:3] == ["xq", "xk", "freqs_cis"]:
        swapped = q.transpose(1, 2)
        return apply(swapped, swapped, wide[0])[0].transpose(1, 2)[0, 0]
    raise ValueError(f"applied by a function of {asked}")


def rope_of(module, config, embedding, layer_type):
    made = tables(embedding, config, layer_type, POSITION)
    apply = applying_function(module, config)
    size = made[0].shape[-1] * (2 if made[0].is_complex() else 1)
    try:
        turned = rotate(apply, made, size)
    except RuntimeError:  # cosines and sines of the pairs, not of the numbers
        size *= 2
        turned = rotate(apply, made, size)
    # Scores against position 0: some models sort the numbers of queries and keys alike as they turn them.
    scores = turned @ rotate(apply, tables(embedding, config, layer_type, 0), size).T
    partners = scores.abs().fill_diagonal_(0).argmax(-1)
    if partners[0] == 1 and size > 2:
        pairing, pairs = "interleaved", [(n, n + 1) for n in range(0, size, 2)]
    elif partners[0] == size // 2:
        pairing, pairs = "halves", [(n, n + size // 2) for n in range(size // 2)]
    else:
        raise ValueError("neither neighbours nor halves")
    factor = math.hypot(scores[0, 0], scores[0, pairs[0][1]])
    turns, expected = [], torch.zeros_like(scores)
    for a, b in pairs:
        cosine, sine = scores[a, a].item(), scores[a, b].item()
        expected[a, a] = expected[b, b] = cosine
        expected[a, b], expected[b, a] = sine, -sine
        turns.append([round(cosine / factor, 6), round(sine / factor, 6)])
    if (scores - expected).abs().max() > 1e-6:
        raise ValueError("no rotation of pairs")
    shown = {0, 1, len(pairs) // 3, len(pairs) // 2, len(pairs) - 1} & set(range(len(pairs)))
    return {
        "layer_type": layer_type or "",
        "size": size,
        "pairing": pairing,
        "attention_factor": round(math.sqrt(factor), 6),
        "turns": {str(n): turns[n] for n in sorted(shown)},
    }


def plain(value):
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return value


def describe(model_type):
    config = CONFIG_MAPPING[model_type](**SET.get(model_type, {}))
    text = text_part(config)
    if text.model_type in BEYOND:
        raise ValueError(BEYOND[text.model_type])
    module = modules_of(text)
    classes = embeddings_of(module)
    if not classes and hasattr(module, "create_sinusoidal_positions") and hasattr(text, "rotary_dim"):
        classes = [Sinusoids]
    if len(classes) != 1:
        raise ValueError(f"{len(classes)} rotary embeddings in its module")
    whole = json.loads(text.to_json_string(use_diff=False))
    nested = getattr(text, "rope_parameters", None) or {}
    kinds = [key for key, entry in nested.items() if isinstance(entry, dict)] if nested else []
    kinds = [key for key in kinds if key in set(getattr(text, "layer_types", None) or [])]
    ropes = [rope_of(module, text, classes[0], kind) for kind in kinds or [None]]
    stored = {key: plain(whole[key]) for key in KEYS if whole.get(key) is not None}
    stored["model_type"] = text.model_type
    if "per_layer_config" in stored:
        stored["per_layer_config"] = {
            key: {name: size for name, size in entry.items() if name == "head_dim"}
            for key, entry in stored["per_layer_config"].items()
        }
    elif "layer_types" in stored:
        stored["layer_types"] = sorted(set(stored["layer_types"]))
    return text.model_type, {"config": stored, "rope": ropes}


def main():
    types, refused = {}, {}
    for model_type in sorted(CONFIG_MAPPING_NAMES):
        try:
            name, found = describe(model_type)
            if name == model_type or name not in types:
                types[name] = found
        except Exception as error:  # whatever its code says: it was not asked, so it is not known
            refused[model_type] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:100]
    out = pathlib.Path(__file__).parent / "data" / "rope_types.json"
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(types.items()))
    out.write_text(
        f'{{"transformers": {json.dumps(transformers.__version__)}, "position": {POSITION}, "types": {{\n{lines}\n}}}}\n'
    )
    print(len(types), "types;", len(refused), "not asked:")
    for name, why in refused.items():
        print(" ", name, why)


main()
