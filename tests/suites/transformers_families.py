"""Which models of Hugging Face transformers run on heed: a small model of every type with random weights, with
attn_implementation="eager" and then "heed".

    python tests/suites/transformers_families.py [TYPE ...] [--write docs/transformers.md]

Compared are all outputs (with padding where there is a mask), gradients of all weights, and for those that generate:
greedy, beams and a static cache. A type is equal, refused (heed says why), different, not asked (it has no attention, or
none that goes through transformers' interface), or not tried: the small model could not be made or run without heed
either.
"""

import argparse
import collections
import copy
import datetime
import inspect
import pathlib
import re
import signal
import sys
import textwrap
import warnings

import torch
import transformers
from transformers.models.auto import modeling_auto

import heed.torch

# What makes a model small, by the end of a name in its configuration.
SMALL = {
    r"(rotary_dim|index_head_dim)": 8,
    r"(hidden_size|d_model|n_embd|dim|embed_dim|word_embed_proj_dim|embedding_size|encoder_hidden_size)": 64,
    r"(num_hidden_layers|n_layers?|num_layers|(en|de)coder_layers|num_decoder_layers|num_encoder_layers)": 2,
    r"(num_attention_heads|n_heads?|num_heads|(en|de)coder_attention_heads)": 4,
    r"(num_key_value_heads|n_head_kv|num_kv_heads)": 2,
    r"(intermediate_size|ffn_dim|d_ff|n_inner|ffn_hidden_size|dim_ff|inner_dim|moe_intermediate_size|ffn_size)": 96,
    r"vocab_size": 96,
    r"(max_position_embeddings|n_positions|max_sequence_length|n_ctx)": 64,
    r"(head_dim|d_kv|kv_channels)": 16,
    r"(kv_lora_rank|q_lora_rank)": 24,
    r"n_group": 2,
    r"topk_group": 1,
    r"(num_experts|num_local_experts|n_routed_experts|moe_num_experts)": 4,
    r"(num_experts_per_tok|num_experts_per_token|top_k|moe_k|moe_top_k)": 2,
    r"sliding_window": 8,
    r"image_size": 32,
    r"patch_size": 8,
}
# Sizes that many configurations want to agree with others of their own, and those that only save time.
OF_HEADS = r"(rotary_dim|index_head_dim|head_dim|d_kv|kv_channels|kv_lora_rank|q_lora_rank)"
FEW = r"(num_hidden_layers|n_layers?|num_layers|(en|de)coder_layers|num_decoder_layers|num_encoder_layers|vocab_size|" + (
    r"num_experts|num_local_experts|n_routed_experts|moe_num_experts|sliding_window|n_group|topk_group)"
)
MISSING = {"head_dim": 16, "num_key_value_heads": 2, "n_head_kv": 2, "num_attention_heads": 4, "hidden_size": 64}
# What is made small, one after the other until a model can be made and run.
WAYS = (
    {name: size for name, size in SMALL.items()},
    {name: size for name, size in SMALL.items() if not re.fullmatch(OF_HEADS, name.split("|")[0].strip("("))},
    {FEW: None},
)
MOST_PARAMETERS = 80_000_000
CPU_SECONDS = 30
IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id", "cls_token_id")


class TookTooLong(BaseException):
    pass


def stop(*_):
    raise TookTooLong


def small_value(name, value, way):
    """What a number of a configuration becomes; itself where it is none of those above, or small already."""
    if FEW in way:
        way = SMALL if re.fullmatch(f"(.*_)?{FEW}", name) else {}
    small = next((size for pattern, size in way.items() if re.fullmatch(f"(.*_)?{pattern}", name)), None)
    return value if small is None or name == "qk_head_dim" else min(value, small)


def turns_by_axes(config):
    """Do its models divide a head among time, height and width, whatever its configuration says of it?"""
    folder = pathlib.Path(inspect.getfile(type(config))).parent
    return any("mrope_section" in file.read_text() for file in folder.glob("modeling_*.py"))


def small_arguments(config, way):
    """What to make a configuration of, for its class to compute the rest."""
    arguments = {}
    for name, value in vars(config).items():
        if isinstance(value, transformers.PreTrainedConfig):
            # Which class the part is of stands in the class.
            arguments[name] = {"model_type": value.model_type, **small_arguments(value, way)}
        elif name == "rope_parameters" and isinstance(value, dict) and turns_by_axes(config) and FEW not in way:
            arguments[name] = {**value, "mrope_section": [2, 3, 3]}
        elif value is None and name in MISSING and FEW not in way:
            arguments[name] = MISSING[name]
        elif name in IDS and value is not None:
            arguments[name] = {"pad_token_id": 0}.get(name, 1)
        elif isinstance(value, int) and not isinstance(value, bool) and small_value(name, value, way) != value:
            arguments[name] = small_value(name, value, way)
    layers = arguments.get("num_hidden_layers")
    if "attn_layer_indices" in vars(config):
        arguments["attn_layer_indices"] = [1]
    if "kv_lora_rank" in vars(config) and "num_key_value_heads" in arguments:
        arguments["num_key_value_heads"] = arguments.get("num_attention_heads", config.num_attention_heads)
    for name in ("layer_types", "mlp_layer_types", "layers_block_type"):
        kinds = vars(config).get(name)
        if isinstance(kinds, list) and layers:
            arguments[name] = (sorted(set(kinds)) * layers)[:layers]
    return arguments


def small_config(config_class, way):
    return config_class(**small_arguments(config_class(), way))


def is_small(kind, config):
    with torch.device("meta"):
        model = kind._from_config(copy.deepcopy(config), attn_implementation="eager")
    return sum(parameter.numel() for parameter in model.parameters()) <= MOST_PARAMETERS


def random_weights(model):
    """Large enough for attention to have something to choose from; the same for the same shapes."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4 / parameter.shape[-1] ** 0.25)
    return model.eval()


def image(config, turned):
    """Of a batch of films where `turned`."""
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", 32)
    size = size if isinstance(size, (list, tuple)) else (size, size)
    pixels = torch.randn(2, getattr(vision, "num_channels", 3), *size)
    return pixels[:, None].repeat(1, getattr(vision, "num_frames", 2), 1, 1, 1) if turned else pixels


def sound(config, turned):
    """Features as Whisper has them; the other way round where `turned`."""
    bins = next((getattr(config, x) for x in ("num_mel_bins", "input_feat_per_channel", "input_dim") if hasattr(config, x)), 80)
    features = torch.randn(2, bins, min(200, 2 * getattr(config, "max_source_positions", 50)))
    return features.transpose(1, 2) if turned else features


def inputs_of(model, turned):
    torch.manual_seed(1)
    config, takes = model.config, inspect.signature(model.forward).parameters
    given = {}
    if "input_ids" in takes:
        given["input_ids"] = torch.randint(3, 90, (2, 20))
        if "attention_mask" in takes:
            given["attention_mask"] = torch.ones(2, 20, dtype=torch.int64)
            given["attention_mask"][1, 15:] = 0
    both = getattr(config, "text_config", None) is not None and takes.get("pixel_values") is not None
    if model.main_input_name == "pixel_values" or (both and not getattr(config, "image_token_id", None)):
        given["pixel_values"] = image(config, turned)
    if model.main_input_name == "input_features":
        given["input_features"] = sound(config, turned)
    if model.main_input_name == "input_values":
        given["input_values"] = torch.randn(*((2, 1, 4000) if turned else (2, 4000)))
    if "decoder_input_ids" in takes and config.is_encoder_decoder:
        given["decoder_input_ids"] = torch.randint(3, 90, (2, 7))
    if "pixel_values" in takes and "input_ids" not in takes and "pixel_values" not in given:
        given["pixel_values"] = image(config, turned)
    if "bbox" in takes and "input_ids" in given:
        given["bbox"] = torch.tensor([1, 2, 30, 40]).expand(2, 20, 4).contiguous()
    if "pixel_values_videos" in takes and not given:
        given["pixel_values_videos"] = image(config, True)
    if not given:
        raise NotImplementedError(f"inputs are {model.main_input_name}")
    return given


def tensors(output):
    """All that a model returned, by name, caches apart."""
    for name, value in output.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            yield name, value
        elif isinstance(value, (list, tuple)):
            for n, x in enumerate(value):
                if isinstance(x, torch.Tensor) and x.is_floating_point():
                    yield f"{name}.{n}", x


def results(model, given):
    """Everything that is compared, by name."""
    torch.manual_seed(2)
    output = model(**given)
    there = given.get("attention_mask")
    found = {}
    for name, value in tensors(output):
        rows = value.dim() == 3 and there is not None and value.shape[:2] == there.shape
        found[name] = value[there.bool()] if rows else value
    total = sum(value.double().sin().sum() for value in found.values() if value.requires_grad)
    model.zero_grad()
    total.backward()
    found = {name: value.detach() for name, value in found.items()}
    found.update({f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None})
    return found


def generated(model, given, **how):
    prompt = {name: value for name, value in given.items() if name != "decoder_input_ids"}
    if "attention_mask" in prompt:
        prompt["attention_mask"] = prompt["attention_mask"].flip(1)  # padding in front
    if model.config.is_encoder_decoder:
        how["decoder_start_token_id"] = 1
    torch.manual_seed(3)
    return model.generate(**prompt, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0, **how)


GENERATION = {"greedy": {}, "beams": {"num_beams": 2}, "static cache": {"cache_implementation": "static"}}


def differences(expected, got):
    """Relative to the largest number, of all gradients where one is itself next to nothing (those of key biases are 0)."""
    steepest = max((float(x.abs().max()) for name, x in expected.items() if x.numel() and "gradient" in name), default=0)
    for name, value in expected.items():
        least = 1e-3 * steepest if "gradient" in name else 1e-3
        scale = max(least, float(value.abs().max())) if value.numel() else 1.0
        error = float((got[name] - value).abs().max()) / scale if value.numel() else 0.0
        if not error < 2e-3 and not (value.isnan().any() and torch.equal(value.isnan(), got[name].isnan())):
            yield f"{name} by {error:.1g}"


def make(kind, config, implementation):
    config = copy.deepcopy(config)
    torch.manual_seed(0)
    return random_weights(kind._from_config(config, attn_implementation=implementation))


def compare_generation(eager, ours, given):
    """(what agrees, what differs); what fails without heed is left out."""
    same, other = [], []
    for name, how in GENERATION.items():
        try:
            expected = generated(eager, given, **how)
        except Exception:  # noqa: BLE001
            continue
        (same if torch.equal(expected, generated(ours, given, **how)) else other).append(name)
    return same, other


class Counted:
    """heed's function, and how often it was called."""

    calls = 0

    def __call__(self, *arguments, **keywords):
        self.calls += 1
        return heed.torch.transformers_attention(*arguments, **keywords)


counted = Counted()


def runnable(name):
    """A model that runs without heed, what it takes and gives; the first of the ways that lead to one."""
    why = ""
    for number, way in enumerate(WAYS):
        for turned in (False, True):
            try:
                kind = getattr(transformers, name)
                config = small_config(kind.config_class, way)
                if number > 0 and not is_small(kind, config):
                    break
                eager = make(kind, config, "eager")
                given = inputs_of(eager, turned)
                return kind, config, eager, given, results(eager, given)
            except Exception as error:  # noqa: BLE001
                why = why or f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:100]
    raise NotImplementedError(why)


def verdict(model_type, name):
    counted.calls = 0
    try:
        kind, config, eager, given, expected = runnable(name)
    except NotImplementedError as error:
        return "not tried", str(error)
    try:
        ours = make(kind, config, "heed")
        got = results(ours, given)
    except heed.Error as error:
        return "refused", str(error).partition(", got ")[2] or str(error)
    wrong = list(differences(expected, got))
    if not counted.calls and not wrong:
        return "not asked", "no attention that could be exchanged"
    what = ["outputs", "gradients"]
    if hasattr(eager, "generate") and eager.can_generate():
        same, other = compare_generation(eager, ours, given)
        what += same
        wrong += other
    return ("different", "; ".join(wrong[:3])) if wrong else ("equal", ", ".join(what))


def classes():
    """type: name of a class, the one that generates where there is one."""
    found = {}
    for names in (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_MAPPING_NAMES,
    ):
        for model_type, name in names.items():
            found.setdefault(model_type, name[0] if isinstance(name, (tuple, list)) else name)
    return sorted(found.items())


def reason(error):
    """Why a model was not tried, in few words."""
    if error.startswith(("ImportError", "ModuleNotFoundError")):
        return "a package that is not installed"
    if re.search("missing|specify|inputs are|NoneType|unexpected keyword", error):
        return "other inputs than text, an image or sound, or settings without a default"
    return error if error.startswith("took") else "a small configuration does not fit together"


def page(rows):
    by = collections.defaultdict(list)
    for model_type, (kind, what) in rows.items():
        by[kind].append((model_type, what))
    lines = [
        "# Models of transformers on heed",
        "",
        f"Made by `tests/suites/transformers_families.py` with transformers {transformers.__version__} and PyTorch "
        f"{torch.__version__.split('+')[0]},",
        f"{datetime.date.today()}: a small model of every type with random weights, "
        '`attn_implementation="heed"` against `"eager"`.',
        "",
        "| | types |",
        "| --- | --- |",
        *(f"| {kind} | {len(by[kind])} |" for kind in ("equal", "refused", "different", "not asked", "not tried") if by[kind]),
    ]
    titles = {
        "equal": "Equal",
        "refused": "Refused, by name",
        "different": "Different",
        "not asked": "Equal, but heed was not called",
        "not tried": "Not tried: the small model could not be made or run without heed either",
    }
    for kind, title in titles.items():
        if not by[kind]:
            continue
        lines += ["", f"## {title}", ""]
        groups = collections.defaultdict(list)
        for model_type, what in by[kind]:
            groups[reason(what) if kind == "not tried" else what].append(model_type)
        for what, names in sorted(groups.items(), key=lambda item: -len(item[1])):
            lines += textwrap.wrap(f"- {what}: {', '.join(names)}", 140, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--write", type=pathlib.Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.AttentionInterface.register(heed.torch.register_transformers(), counted)
    signal.signal(signal.SIGPROF, stop)
    rows = {}
    for model_type, name in classes():
        if not arguments.types or model_type in arguments.types:
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            try:
                rows[model_type] = verdict(model_type, name)
            except TookTooLong:
                rows[model_type] = ("not tried", f"took more than {CPU_SECONDS} seconds")
            except Exception as error:  # noqa: BLE001
                rows[model_type] = ("different", f"{type(error).__name__}: {error}"[:300])
            print(model_type, *rows[model_type], flush=True)
    if arguments.write:
        arguments.write.write_text(page(rows))
    return 1 if any(kind == "different" for kind, _ in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
