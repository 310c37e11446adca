#include <heed/train.h>

#include <nlohmann/json.hpp>

namespace heed {

Tokenizer task_tokenizer(ModelKind kind) {
    using Json = nlohmann::ordered_json;
    const std::vector<std::string> special = {"<pad>", "<s>", "</s>"};
    Json vocabulary = Json::object(), added = Json::array();
    for (std::int64_t id = 0; id < task_vocab(); ++id) {
        const bool letter = id >= static_cast<std::int64_t>(special.size());
        const std::int64_t one[] = {id};
        vocabulary[letter ? task_decode(one) : special[static_cast<std::size_t>(id)]] = id;
        if (letter) { continue; }
        added.push_back({{"id", id},
                         {"content", special[static_cast<std::size_t>(id)]},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", true}});
    }
    const Json file = {{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", added},
                       {"normalizer", {{"type", "Lowercase"}}},
                       {"pre_tokenizer", nullptr},
                       {"post_processor", nullptr},
                       {"decoder", {{"type", "Fuse"}}},
                       {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}}};
    SpecialTokens around;
    if (kind == ModelKind::decoder) { around.before = {special[1]}; }
    if (kind == ModelKind::encoder_decoder) { around.after = {special[2]}; }
    return with_special_tokens(Tokenizer::from_json(file.dump()), around);
}

}  // namespace heed
