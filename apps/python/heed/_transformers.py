"""heed as the attention function of Hugging Face transformers models."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any, Callable, Optional

import torch

from . import _core
from ._core import Error
from ._torch_attention import attend, in_autocast
from ._torch_op import is_watched


class Mask(torch.Tensor):
    """A boolean mask [B,1,T,S] as what it means: heed.attend's options (causal, window, lengths), which kernels know how
    to use, instead of T x S numbers. Whoever computes with it gets the numbers."""

    options: dict[str, Any]
    make: Callable[[], torch.Tensor]

    @staticmethod
    def __new__(cls, shape: tuple[int, ...], options: dict[str, Any], make: Callable[[], torch.Tensor]) -> Mask:
        mask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool)  # type: ignore[attr-defined]
        mask.options, mask.make, mask.numbers = options, make, None
        return mask  # type: ignore[no-any-return]

    def materialise(self) -> torch.Tensor:
        if self.numbers is None:
            self.numbers = self.make()
        return self.numbers

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"heed.Mask({tuple(self.shape)}, {self.options})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        def plain(x: Any) -> Any:
            return x.materialise() if isinstance(x, Mask) else x

        args, kwargs = torch.utils._pytree.tree_map(plain, (args, kwargs or {}))
        return func(*args, **kwargs)


def _said_by(mask_function: Callable[..., Any]) -> Optional[dict[str, Any]]:
    """What one of transformers' mask functions says of indices: causal, left and right (how far a query sees), documents
    (which one each token is of) and positions (by which the rest counts); None of any that says something else."""
    from transformers import masking_utils

    if mask_function is masking_utils.causal_mask_function:
        return {"right": 0}
    if mask_function is masking_utils.bidirectional_mask_function:
        return {}
    code = getattr(mask_function, "__code__", None)
    if code is None or mask_function.__module__ != masking_utils.__name__:
        return None
    captured = dict(zip(code.co_freevars, (cell.cell_contents for cell in mask_function.__closure__ or ())))
    maker = mask_function.__qualname__.partition(".")[0]
    if maker == "sliding_window_overlay":
        return {"left": captured["sliding_window"] - 1}
    if maker == "sliding_window_bidirectional_overlay":
        return {"left": captured["sliding_window"], "right": captured["sliding_window"]}
    if maker == "packed_sequence_mask_function":
        return {"documents": captured["packed_sequence_mask"]}
    if maker == "remap_positions_for_packed_sequence":
        said = _said_by(captured["mask_function"])
        return None if said is None else {**said, "positions": captured["position_ids"]}
    if maker != "and_masks":
        return None
    whole: dict[str, Any] = {}
    for part in map(_said_by, captured["mask_functions"]):
        if part is None or part.keys() & whole.keys() & {"documents", "positions"}:
            return None
        for name, value in part.items():
            whole[name] = min(value, whole.get(name, value)) if name in ("left", "right") else value
    return whole


def _borders(said: dict[str, Any]) -> Optional[torch.Tensor]:
    """Where the documents of a packed sequence begin and end; None where they are not one sequence's, or where positions
    do not count the tokens of each."""
    documents, positions = said["documents"], said.get("positions")
    if documents.shape[0] != 1 or positions is None or positions.shape != documents.shape:
        return None
    same = documents[0].diff() == 0
    if not torch.equal(same, positions[0].diff() == 1):
        return None
    inner = (~same).nonzero()[:, 0] + 1
    ends = torch.tensor([0, documents.shape[1]], device=inner.device)
    return torch.cat((ends[:1], inner, ends[1:])).to(torch.int32)


def _meaning(
    mask_function: Callable[..., Any], padding: Optional[torch.Tensor], sizes: tuple[int, int], offset: int
) -> Optional[dict[str, Any]]:
    """What a mask says, as heed.attend's options; None where it says more than they can. `offset` is the position of
    query 0 if that of key 0 is 0."""
    said = _said_by(mask_function)
    if said is None:
        return None
    queries, keys = sizes
    options: dict[str, Any] = {}
    if "documents" in said:
        borders = _borders(said) if padding is None and offset == 0 and queries == keys else None
        if borders is None:
            return None
        options["cu_seqlens"] = borders
    elif "positions" in said:
        return None
    if said.get("right") == 0:
        options["causal"] = True
    if "left" in said or said.get("right", 0) > 0:
        right = said.get("right", -1)
        options["window"] = (said.get("left", -1), -1 if right == 0 else right)
    if options and "cu_seqlens" not in options:  # something counts from where a query stands
        if offset == 0:
            options["align"] = "top_left"
        elif offset != keys - queries:
            options["query_positions"] = torch.arange(offset, offset + queries)[None]
    if padding is not None and not bool(padding.all()):
        lengths = padding.sum(-1)
        if bool((padding[:, 1:] <= padding[:, :-1]).all()):  # tokens first, padding behind them
            options["key_lengths"] = lengths
        else:
            options["allow"] = padding[:, None, None, :]
    return options


def transformers_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Optional[Callable[..., Any]] = None,
    attention_mask: Optional[torch.Tensor] = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    **others: Any,
) -> Optional[torch.Tensor]:
    """What transformers asks for a mask: one that says causal, window and lengths where it is no more than that."""
    from transformers.masking_utils import causal_mask_function, eager_mask, prepare_padding_mask, sdpa_mask

    mask_function = causal_mask_function if mask_function is None else mask_function
    given = dict(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        use_vmap=use_vmap,
        **others,
    )
    if getattr(others.get("config"), "model_type", "").startswith("deepseek_v4"):
        return eager_mask(**given)  # its attention appends a bias of its own
    skips = {"allow_is_causal_skip": allow_is_causal_skip, "allow_is_bidirectional_skip": allow_is_bidirectional_skip}
    if use_vmap or is_watched():
        return sdpa_mask(**given, **skips)
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset : kv_offset + kv_length].bool()
    options = _meaning(mask_function, padding, (q_length, kv_length), int(q_offset) - kv_offset)
    if options is None:
        return sdpa_mask(**given, **skips)
    # What attention does without a mask: some models compute with those that they get.
    left, _ = options.get("window", (-1, -1))
    if allow_is_causal_skip and options.get("causal") and not 0 <= left < kv_length:
        at_the_end = "query_positions" not in options and int(q_offset) - kv_offset == kv_length - q_length
        rest = options.keys() - {"causal", "align", "window"}
        if not rest and at_the_end and q_length in (1, kv_length):
            return None
    if allow_is_bidirectional_skip and not options:
        return None

    def make() -> torch.Tensor:
        return sdpa_mask(**given, allow_is_causal_skip=False, allow_is_bidirectional_skip=False).expand(
            batch_size, 1, q_length, kv_length
        )

    return Mask((batch_size, 1, q_length, kv_length), options, make)


def _weights_are_asked_for(others: dict[str, Any]) -> bool:
    """By output_attentions=True, which reaches the layers as an argument or as a collector of what they return."""
    if others.get("output_attentions"):
        return True
    capturing = sys.modules.get("transformers.utils.output_capturing")
    collector = getattr(capturing, "_active_collector", None)
    collected = collector.get() if collector is not None else None
    return bool(collected) and any(key.endswith("attentions") for key in collected)


def transformers_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Optional[torch.Tensor],
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    is_causal: Optional[bool] = None,
    softcap: Optional[float] = None,
    s_aux: Optional[torch.Tensor] = None,
    position_bias: Optional[torch.Tensor] = None,
    cache: Any = None,
    **others: Any,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """What transformers calls: query [B,H,T,D], key [B,G,S,D], value [B,G,S,E] to [B,T,H,E].

    Soft-caps (Gemma 2), sinks (s_aux: gpt-oss) and position biases (T5) stay with the fast kernels, and so do masks that
    transformers_mask made. Another mask says all of who sees whom; where there is none, is_causal does, or the module.
    The weights are returned, without a gradient, where output_attentions asks for them. `cache` is the paged one of
    transformers' continuous batching, which takes the keys and values of this call and returns those of all before.
    """
    if cache is not None:
        key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=others)
    query, key, value = in_autocast(query, key, value)
    options: dict[str, Any] = {}
    bias = position_bias
    wants_weights = _weights_are_asked_for(others) and not is_watched()
    if isinstance(attention_mask, Mask) and "cu_seqlens" in attention_mask.options:
        if bias is not None or wants_weights:  # [T,S] of the whole sequence
            attention_mask = attention_mask.materialise()
    if isinstance(attention_mask, Mask) and attention_mask.shape[-2:] == (query.shape[2], key.shape[2]):
        options.update(attention_mask.options)
    elif attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            options["allow"] = attention_mask[..., : key.shape[2]]
        else:
            mask = attention_mask[..., : key.shape[2]]
            bias = mask if bias is None else bias + mask
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if causal and query.shape[2] > 1:
            options["causal"] = True
            options["align"] = "top_left"
    if scaling is not None:
        options["scale"] = scaling
    if softcap is not None:
        options["softcap"] = softcap
    sinks = None if s_aux is None else s_aux.to(torch.float64 if query.dtype == torch.float64 else torch.float32)
    out = attend(query, key, value, bias=bias, sinks=sinks, dropout=dropout, **options)
    weights = None
    if wants_weights:
        with torch.no_grad():
            weights = _core.attention_weights(query, key, bias=bias, sinks=sinks, **options).to(query.dtype)
    return out.transpose(1, 2).contiguous(), weights


def _attention_of_its_own(model: type) -> list[str]:
    """Classes beside the model's that compute attention themselves, instead of by the function that is asked for."""
    module = sys.modules[model.__module__]
    found = []
    for name, value in vars(module).items():
        is_layer = inspect.isclass(value) and issubclass(value, torch.nn.Module) and value.__module__ == module.__name__
        if is_layer and re.search("Attention|Attn", name):
            source = inspect.getsource(value)
            if re.search(r"softmax\(|MultiheadAttention\(", source, re.IGNORECASE) and "get_interface" not in source:
                found.append(name)
    return found


def _leaves_attention_to_parts(model: type) -> bool:
    """No layer of its module is attention, and nothing there is normalised over keys. So it has none (a convolution,
    say, as the backbone of a detector), and no mask would reach it; or it puts models together that are asked
    themselves (an encoder and a decoder), and says of these that they may be exchanged."""
    module = sys.modules[model.__module__]
    classes = ((name, value) for name, value in vars(module).items() if inspect.isclass(value))
    layers = (name for name, value in classes if issubclass(value, torch.nn.Module))
    if any(re.search("Attention|Attn", name) for name in layers):
        return False
    source = inspect.getsource(module)
    if getattr(model, "_supports_sdpa", False) and "get_interface" not in source:
        return True
    takes_a_mask = "attention_mask" in inspect.signature(model.forward).parameters
    return not re.search("softmax|get_interface", source, re.IGNORECASE) and not takes_a_mask


def _denies_it(model: type) -> bool:
    """Does its class say that no other attention fits it? Many say nothing of it, as their attention does not mind."""
    from transformers import PreTrainedModel

    says = (vars(base).get("_supports_sdpa") for base in model.__mro__ if base is not PreTrainedModel)
    return next((said for said in says if said is not None), None) is False


def check_model(model: type) -> None:
    """Throws Error, naming the model, where its attention would not be heed's or would get masks that it does not
    expect: it has to declare _supports_attention_backend, or to ask transformers' AttentionInterface for the function
    in all of its layers, or to have no attention beside that of its parts."""
    if getattr(model, "_supports_attention_backend", False) or _leaves_attention_to_parts(model):
        return
    own = _attention_of_its_own(model)
    asks = "get_interface" in inspect.getsource(sys.modules[model.__module__])
    if asks and not own and not _denies_it(model):
        return
    why = f"code of its own in {', '.join(own)}" if own else "no _supports_attention_backend"
    raise Error(
        f'[transformers] attn_implementation="heed": expected a model whose attention is exchangeable, '
        f"got {model.__name__} with {why}"
    )


def _check_models(name: str) -> None:
    """transformers asks a model whether it supports one of its own implementations, but not of those registered."""
    from transformers import PreTrainedModel

    ask = PreTrainedModel.get_correct_attn_implementation
    known = getattr(ask, "heed_names", None)
    if known is not None:
        known.add(name)
        return
    names = {name}

    def get_correct_attn_implementation(self: Any, requested_attention: Optional[str], *rest: Any, **more: Any) -> Any:
        if requested_attention in names:
            check_model(type(self))
        return ask(self, requested_attention, *rest, **more)

    get_correct_attn_implementation.heed_names = names  # type: ignore[attr-defined]
    PreTrainedModel.get_correct_attn_implementation = get_correct_attn_implementation


def register_transformers(name: str = "heed") -> str:
    """Makes heed known to transformers: from then on attn_implementation="heed" runs a model on it. Returns the name.

    Models whose attention is code of their own, and so not heed's whatever is asked for, are refused by name.

    >>> heed.torch.register_transformers()  # doctest: +SKIP
    'heed'
    >>> model = AutoModelForCausalLM.from_config(config, attn_implementation="heed")  # doctest: +SKIP
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(name, transformers_attention)
    AttentionMaskInterface.register(name, transformers_mask)
    _check_models(name)
    return name
