#include "module.h"

NB_MODULE(_core, m) {
    using namespace heed::python;
    m.attr("__version__") = HEED_VERSION;
    bind_error(m);
    bind_context(m);
    bind_pattern(m);
    bind_attention(m);
    bind_inspect(m);
    bind_positions(m);
    bind_rotary(m);
    bind_linear_attention(m);
    bind_infini_attention(m);
    bind_mla(m);
    bind_cache(m);
    bind_merge(m);
    bind_matmul(m);
    bind_layers(m);
    bind_convert_heads(m);
    bind_random(m);
    bind_safetensors(m);
    bind_model(m);
    bind_train(m);
    bind_generate(m);
    bind_sizes(m);
    bind_tokenizer(m);
    bind_chat(m);
    bind_walkthrough(m);
}
