"""heed as the attention function of Hugging Face transformers models."""

from __future__ import annotations

from typing import Any, Optional

import torch

from ._torch_attention import attend


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
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls: query [B,H,T,D], key [B,G,S,D], value [B,G,S,E] to [B,T,H,E].

    Soft-caps (Gemma 2), sinks (s_aux: gpt-oss) and position biases (T5) stay with the fast kernels. A mask, where there
    is one, says all of who sees whom, sliding windows included; where there is none, is_causal does, or the module.
    """
    options: dict[str, Any] = {}
    bias = position_bias
    if attention_mask is not None:
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
    return out.transpose(1, 2).contiguous(), None


def register_transformers(name: str = "heed") -> str:
    """Makes heed known to transformers: from then on attn_implementation="heed" runs a model on it. Returns the name.

    >>> heed.torch.register_transformers()  # doctest: +SKIP
    'heed'
    >>> model = AutoModelForCausalLM.from_config(config, attn_implementation="heed")  # doctest: +SKIP
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(name, transformers_attention)
    AttentionMaskInterface.register(name, sdpa_mask)
    return name
