#pragma once
/// What signatures and docstrings have in common. They are read by people, editors and type checkers; keywords.cc is
/// what takes the arguments.

#define HEED_ARRAY_OR_NONE "ArrayLike | None = None"

#define HEED_DROPOUT_OPTIONS \
    "dropout: float = 0.0, seed: int | None = None, dropout_offset: int = 0, dropout_keep: " HEED_ARRAY_OR_NONE

/// The fields of heed::AttentionOptions.
#define HEED_ATTENTION_OPTIONS                                                                                    \
    "causal: bool = False, align: Literal['bottom_right', 'top_left'] = 'bottom_right', "                         \
    "window: tuple[int, int] = (-1, -1), allow: " HEED_ARRAY_OR_NONE                                              \
    ", pattern: Pattern | str | None = None, "                                                                    \
    "bias: " HEED_ARRAY_OR_NONE ", alibi_slopes: " HEED_ARRAY_OR_NONE                                             \
    ", softcap: float = 0.0, "                                                                                    \
    "sinks: " HEED_ARRAY_OR_NONE ", scale: float | None = None, lengths: " HEED_ARRAY_OR_NONE                     \
    ", "                                                                                                          \
    "query_lengths: " HEED_ARRAY_OR_NONE ", key_lengths: " HEED_ARRAY_OR_NONE ", cu_seqlens: " HEED_ARRAY_OR_NONE \
    ", cu_seqlens_q: " HEED_ARRAY_OR_NONE ", cu_seqlens_k: " HEED_ARRAY_OR_NONE                                   \
    ", query_positions: " HEED_ARRAY_OR_NONE ", key_positions: " HEED_ARRAY_OR_NONE ", " HEED_DROPOUT_OPTIONS     \
    ", kernel: str = ''"

#define HEED_CONTEXT "context: Context | None = None"
