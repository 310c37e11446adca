"""Small models of Hugging Face transformers, one of every type, with random weights, and something for each to read."""

import copy
import inspect
import pathlib
import re

import torch
import transformers

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
    r"(n_group|num_group)": 2,
    r"topk_group": 1,
    r"n_groups": 1,
    r"(num_experts|num_local_experts|n_routed_experts|moe_num_experts)": 4,
    r"(num_experts_per_tok|num_experts_per_token|top_k|moe_k|moe_top_k)": 2,
    r"num_kv_shared_layers": 0,
    r"sliding_window": 8,
    r"image_size": 32,
    r"patch_size": 8,
}
# Sizes that many configurations want to agree with others of their own, and those that only save time.
OF_HEADS = r"(rotary_dim|index_head_dim|head_dim|d_kv|kv_channels|kv_lora_rank|q_lora_rank)"
FEW = r"(num_hidden_layers|n_layers?|num_layers|(en|de)coder_layers|num_decoder_layers|num_encoder_layers|vocab_size|" + (
    r"num_experts|num_local_experts|n_routed_experts|moe_num_experts|sliding_window|n_group|topk_group)"
)
MISSING = {
    "head_dim": 16,
    "num_key_value_heads": 2,
    "n_head_kv": 2,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "vocab_size": 96,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
}
# What is made small, one after the other until a model can be made and run.
WAYS = (
    {name: size for name, size in SMALL.items()},
    {name: size for name, size in SMALL.items() if not re.fullmatch(OF_HEADS, name.split("|")[0].strip("("))},
    {FEW: None},
)
MOST_PARAMETERS = 80_000_000
IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id", "cls_token_id")

# A convolution in the place of a backbone from the timm library.
BACKBONE = {
    "model_type": "resnet",
    "embedding_size": 16,
    "hidden_sizes": [16, 16, 24, 32],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_features": ["stage4"],
}
SCALES = {**BACKBONE, "out_features": ["stage2", "stage3", "stage4"]}
# A Swin transformer of four small stages.
SWIN = {
    "model_type": "swin",
    "image_size": 64,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [1, 1, 1, 1],
    "num_heads": [2, 2, 4, 4],
    "window_size": 2,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
# A series of numbers, so many of them known and so many to be said.
SERIES = {"prediction_length": 4, "context_length": 12, "lags_sequence": [1, 2], "num_time_features": 1, "feature_size": 5}
# What encoders and decoders over three scales agree on.
PYRAMID = {
    "backbone_config": SCALES,
    "encoder_in_channels": [16, 24, 32],
    "decoder_in_channels": [64, 64, 64],
    "encoder_hidden_dim": 64,
    "num_queries": 10,
}
VIT = {"num_hidden_layers": 2, "out_features": ["stage1", "stage2"], "window_block_indices": [0], "num_windows": 4}
# Half of a head turns, by positions of three kinds.
HALF_TURNED = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}
TURNED = {"rope_type": "default", "rope_theta": 1e4}
MIXED = ["linear_attention", "full_attention"]
# What the configuration of a type needs beside, of its parts by their names.
SETTINGS = {
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}, "ffn_config": {"hidden_size": 64}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "mamba_dt_rank": 4},
    "granitemoehybrid": {"layer_types": MIXED, "mamba_n_heads": 4, "mamba_expand": 2, "mamba_d_head": 32},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"is_decoder": True},
    "mamba2": {"num_heads": 8, "expand": 2, "head_dim": 16, "n_groups": 1, "state_size": 16},
    "detr": {"use_timm_backbone": False, "backbone": None, "backbone_config": BACKBONE},
    "conditional_detr": {"use_timm_backbone": False, "backbone": None, "backbone_config": BACKBONE},
    "dab-detr": {"use_timm_backbone": False, "backbone": None, "backbone_config": BACKBONE},
    "table-transformer": {"use_timm_backbone": False, "backbone": None, "backbone_config": BACKBONE},
    "deformable_detr": {"use_timm_backbone": False, "backbone": None, "backbone_config": SCALES},
    "esm": {"pad_token_id": 0, "mask_token_id": 2},
    "paligemma": {"text_config": {"num_key_value_heads": 2}},
    "owlvit": {"text_config": {"max_position_embeddings": 32}},
    "owlv2": {"text_config": {"max_position_embeddings": 32}},
    "qwen2_audio_encoder": {"max_source_positions": 50},
    "voxtral_encoder": {"max_source_positions": 50},
    "moss_transcribe_diarize_audio": {"max_source_positions": 50},
    "autoformer": SERIES,
    "informer": SERIES,
    "time_series_transformer": SERIES,
    "patchtst": {"context_length": 32, "patch_length": 8, "patch_stride": 8},
    "patchtsmixer": {"context_length": 32, "patch_length": 8, "patch_stride": 8},
    "audio-spectrogram-transformer": {"max_length": 64, "num_mel_bins": 32, "patch_size": 16},
    "mask2former": {"backbone_config": SWIN, "feature_size": 64, "mask_feature_size": 64},
    "grounding-dino": {"backbone_config": {**SWIN, "out_features": ["stage2", "stage3", "stage4"]}, "num_queries": 10},
    "mm-grounding-dino": {"backbone_config": {**SWIN, "out_features": ["stage2", "stage3", "stage4"]}, "num_queries": 10},
    "bailing_hybrid": {"n_group": 2, "topk_group": 1, "num_experts": 4},
    "nemotron_h": {"n_groups": 1, "mamba_num_heads": 8, "mamba_head_dim": 16},
    "zamba2": {"mamba_ngroups": 1, "n_mamba_heads": 8, "attention_hidden_size": 128, "attention_head_dim": 32},
    "audioflamingo3_encoder": {"max_source_positions": 50},
    "kosmos-2": {"latent_query_num": 4},
    "blip-2": {"image_token_index": 95, "num_query_tokens": 4},
    "instructblip": {"image_token_index": 95, "num_query_tokens": 4},
    "rt_detr": PYRAMID,
    "rt_detr_v2": PYRAMID,
    "d_fine": PYRAMID,
    "lw_detr": {"backbone_config": VIT, "num_queries": 10, "projector_scale_factors": [1.0]},
    "rf_detr": {"backbone_config": VIT, "num_queries": 10},
    "glm4v_moe": {"text_config": {"rope_parameters": HALF_TURNED}},
    "glm4v_moe_text": {"rope_parameters": HALF_TURNED},
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [3, 3, 2]}}},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "step3p7": {"text_config": {"sliding_window": 8}},
    "t5gemma2_encoder": {"text_config": {"dropout_rate": 0.0}},
    "unlimited_ocr": {"text_config": {"num_key_value_heads": 4}},
    "chameleon": {"vocabulary_map": {"<image>": 95, "IMGIMGA": 94}},
    "cosmos3_edge_text": {"head_dim": 16},
    "cosmos3_edge": {"text_config": {"head_dim": 16}},
    "esmc": {"num_key_value_heads": 4, "vocab_size": 96},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": TURNED, "sliding_attention": TURNED}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": TURNED, "sliding_attention": TURNED}}},
    "helium": {"head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2},
}


def merged(arguments, settings):
    """`arguments` with `settings`, part by part."""
    result = dict(arguments)
    for name, value in settings.items():
        part = result.get(name)
        whole = value.get("model_type") if isinstance(value, dict) else None
        result[name] = merged(part, value) if isinstance(part, dict) and isinstance(value, dict) and not whole else value
    return result

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
            kept = getattr(value, "out_features", None)
            if kept and "num_hidden_layers" not in arguments[name]:  # stages of a convolution, not layers
                arguments[name]["out_features"] = kept
        elif name == "rope_parameters" and isinstance(value, dict) and value and turns_by_axes(config) and FEW not in way:
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
        arguments["num_key_value_heads"] = arguments.get("num_attention_heads", vars(config).get("num_attention_heads"))
    for name in ("layer_types", "mlp_layer_types", "layers_block_type"):
        kinds = vars(config).get(name)
        if isinstance(kinds, list) and layers:
            arguments[name] = (sorted(set(kinds)) * layers)[:layers]
    return arguments


def small_config(model_type, config_class, way):
    return config_class(**merged(small_arguments(config_class(), way), SETTINGS.get(model_type, {})))


def is_small(kind, config):
    with torch.device("meta"):
        model = kind._from_config(copy.deepcopy(config), attn_implementation="eager")
    return sum(parameter.numel() for parameter in model.parameters()) <= MOST_PARAMETERS


def random_weights(model):
    """Large enough for attention to have something to choose from; convolutions so that they keep the size of what they
    get. The same for the same shapes."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point() or parameter.dim() < 2:
                continue
            inputs = parameter.shape[1:].numel() if parameter.dim() > 2 else 0
            scale = inputs**-0.5 if inputs else 0.4 / parameter.shape[-1] ** 0.25
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return model.eval()


IN_ROWS, IN_COLUMNS = 4, 4


def first(config, names, default):
    return next((getattr(config, name) for name in names if getattr(config, name, None) is not None), default)


def patches(config, takes):
    """An image as a row of numbers for each of its patches, as Qwen's vision models take it, and the grid of these."""
    size = first(config, ("patch_size", "spatial_patch_size"), 8)
    columns = first(config, ("in_channels", "num_channels", "in_chans"), 3) * first(config, ("temporal_patch_size",), 1)
    rows = torch.randn(IN_ROWS * IN_COLUMNS, columns * size * size)
    grid = torch.tensor([[1, IN_ROWS, IN_COLUMNS]])
    given = {"hidden_states" if "hidden_states" in takes else "pixel_values": rows}
    given["grid_thw" if "grid_thw" in takes else "image_grid_thw"] = grid
    if "merge_sizes" in takes:
        given["merge_sizes"] = torch.tensor([2])
    return given


def ids(*shape):
    return torch.randint(3, 90, shape)


def series(config):
    known = config.context_length + max(config.lags_sequence)
    return {
        "past_values": torch.randn(2, known),
        "past_time_features": torch.randn(2, known, config.num_time_features),
        "past_observed_mask": torch.ones(2, known),
        "future_values": torch.randn(2, config.prediction_length),
        "future_time_features": torch.randn(2, config.prediction_length, config.num_time_features),
    }


def small_patches(config):
    vision = getattr(config, "vision_config", config)
    return {
        "pixel_values": torch.randn(2, IN_ROWS * IN_COLUMNS, 3 * vision.patch_size**2),
        "pixel_attention_mask": torch.ones(2, IN_ROWS * IN_COLUMNS, dtype=torch.int64),
        "spatial_shapes": torch.tensor([[IN_ROWS, IN_COLUMNS]] * 2),
    }


def heard(config):
    """Sound that is longer in the first entry."""
    features = sound(config, False)
    there = torch.ones(2, features.shape[-1], dtype=torch.int64)
    there[1, -20:] = 0
    return {"input_features": features, "input_features_mask": there}


def with_image_tokens(config):
    """A text that begins with the places of an image."""
    text = ids(2, 20)
    text[:, : config.num_query_tokens] = config.image_token_index
    return {"input_ids": text}


def places(count, length=20):
    """The first of a text are an image's."""
    return torch.arange(length).expand(2, length) < count


def square(size, *leading):
    return torch.randn(*leading, 3, size, size)


# What the forward of a type takes beside, or in the place of, what is found below.
INPUTS = {
    "musicgen": lambda config: {"input_ids": ids(2 * config.num_codebooks, 20)},
    "musicgen_melody": lambda config: {"input_ids": ids(2 * config.num_codebooks, 20)},
    "idefics": lambda config: {
        "pixel_values": torch.randn(2, 1, 3, config.vision_config.image_size, config.vision_config.image_size),
        "image_attention_mask": torch.ones(2, 20, 1, dtype=torch.int64),
    },
    "perceiver": lambda config: {"inputs": torch.randn(2, 20, config.d_model)},
    "speecht5": lambda config: {
        "input_values": torch.randn(2, 20, config.hidden_size),
        "decoder_input_values": torch.randn(2, 7, config.hidden_size),
    },
    "blip_2_qformer": lambda config: {
        "query_embeds": torch.randn(2, 8, config.hidden_size),
        "encoder_hidden_states": torch.randn(2, 12, config.encoder_hidden_size),
    },
    "lxmert": lambda config: {
        "visual_feats": torch.randn(2, 6, config.visual_feat_dim),
        "visual_pos": torch.rand(2, 6, config.visual_pos_dim),
    },
    "audio-spectrogram-transformer": lambda config: {
        "input_values": torch.randn(2, config.max_length, config.num_mel_bins)
    },
    "autoformer": series,
    "informer": series,
    "time_series_transformer": series,
    "patchtst": lambda config: {"past_values": torch.randn(2, config.context_length, config.num_input_channels)},
    "patchtsmixer": lambda config: {"past_values": torch.randn(2, config.context_length, config.num_input_channels)},
    "siglip2": small_patches,
    "siglip2_vision_model": small_patches,
    "vilt": lambda config: {"pixel_values": square(config.image_size, 2)},
    "detr": lambda config: {"pixel_values": square(64, 2)},
    "conditional_detr": lambda config: {"pixel_values": square(64, 2)},
    "dab-detr": lambda config: {"pixel_values": square(64, 2)},
    "table-transformer": lambda config: {"pixel_values": square(64, 2)},
    "deformable_detr": lambda config: {"pixel_values": square(64, 2)},
    "mask2former": lambda config: {"pixel_values": square(64, 2)},
    "grounding-dino": lambda config: {"pixel_values": square(64, 2), "input_ids": ids(2, 20)},
    "mm-grounding-dino": lambda config: {"pixel_values": square(64, 2), "input_ids": ids(2, 20)},
    "rt_detr": lambda config: {"pixel_values": square(64, 2)},
    "rt_detr_v2": lambda config: {"pixel_values": square(64, 2)},
    "d_fine": lambda config: {"pixel_values": square(64, 2)},
    "blip-2": with_image_tokens,
    "lw_detr": lambda config: {"pixel_values": square(64, 2)},
    "rf_detr": lambda config: {"pixel_values": square(64, 2)},
    "dia": lambda config: {"decoder_input_ids": ids(2, 7, config.decoder_config.num_channels)},
    "udop": lambda config: {"bbox": torch.tensor([0.1, 0.2, 0.3, 0.4]).expand(2, 20, 4).contiguous()},
    "kosmos-2": lambda config: {"image_embeds_position_mask": places(config.latent_query_num)},
    "instructblip": lambda config: {"qformer_input_ids": ids(2, 8), **with_image_tokens(config)},
    "kimi_k25_vision": lambda config: {"pixel_values": square(config.patch_size, IN_ROWS * IN_COLUMNS)},
    "wav2vec2-bert": lambda config: {"input_features": torch.randn(2, 40, config.feature_projection_input_dim)},
    "depth_pro": lambda config: {"pixel_values": square(config.patch_size * 4, 2)},
    "voxtral_realtime": lambda config: {"input_features": torch.randn(1, config.audio_config.num_mel_bins, 160)},
    "seggpt": lambda config: {
        "pixel_values": square(config.image_size[1], 2),
        "prompt_pixel_values": square(config.image_size[1], 2),
        "prompt_masks": square(config.image_size[1], 2),
    },
    "xmod": lambda config: {"lang_ids": torch.zeros(2, dtype=torch.int64)},
    "gemma4_audio": lambda config: {
        "input_features": torch.randn(2, 40, 128),
        "attention_mask": torch.ones(2, 40, dtype=torch.bool),
    },
    "audioflamingo3_encoder": heard,
    "fun_asr_nano_encoder": heard,
    "qwen3_asr_encoder": heard,
    "decision_transformer": lambda config: {
        "states": torch.randn(2, 6, config.state_dim),
        "actions": torch.randn(2, 6, config.act_dim),
        "rewards": torch.randn(2, 6, 1),
        "returns_to_go": torch.randn(2, 6, 1),
        "timesteps": torch.arange(6).expand(2, 6),
        "attention_mask": torch.ones(2, 6, dtype=torch.int64),
    },
}


def image(config, turned):
    """Of a batch of films where `turned`."""
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", 32)
    size = size if isinstance(size, (list, tuple)) else (size, size)
    pixels = torch.randn(2, getattr(vision, "num_channels", 3), *size)
    return pixels[:, None].repeat(1, getattr(vision, "num_frames", 2), 1, 1, 1) if turned else pixels


def sound(config, turned):
    """Features as Whisper has them; the other way round where `turned`."""
    parts = (config, *(getattr(config, x, None) for x in ("audio_config", "encoder_config")))
    names = ("num_mel_bins", "input_feat_per_channel", "input_dim")
    bins = next((getattr(part, x) for part in parts for x in names if hasattr(part, x)), 80)
    features = torch.randn(2, bins, min(200, 2 * getattr(config, "max_source_positions", 50)))
    return features.transpose(1, 2) if turned else features


def inputs_of(model_type, model, turned):
    torch.manual_seed(1)
    config, takes = model.config, inspect.signature(model.forward).parameters
    own = INPUTS[model_type](config) if model_type in INPUTS else {}
    given = {}
    required = {name for name, value in takes.items() if value.default is inspect.Parameter.empty}
    if required & {"grid_thw", "image_grid_thw"}:
        return {**patches(config, takes), **own}
    if model.main_input_name in own and not required & {"pixel_values", "input_ids"} - own.keys():
        return own
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
    given.update(own)
    if not given:
        raise NotImplementedError(f"inputs are {model.main_input_name}")
    return given


def make(kind, config, implementation):
    config = copy.deepcopy(config)
    torch.manual_seed(0)
    return random_weights(kind._from_config(config, attn_implementation=implementation))
