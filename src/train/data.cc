#include <heed/random.h>
#include <heed/train.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "io/file.h"

namespace heed {
namespace {

constexpr std::int64_t no_label = -100;
constexpr std::uint64_t longest_file = std::uint64_t{1} << 33;

// Bytes as tokens, where there is no tokenizer: 256 of them, then four of our own.
constexpr std::int64_t byte_pad = 256, byte_start = 257, byte_end = 258, byte_mask = 259, byte_vocab = 260;

/// The n-th of `count` in an order that looks random and repeats nothing: a Feistel network on the next power of four,
/// walked until it lands inside. No list is kept, however many there are.
std::int64_t shuffled(std::int64_t n, std::int64_t count, std::uint64_t seed, std::uint32_t round_of_data) {
    int half = 1;
    while ((std::int64_t{1} << (2 * half)) < count) { ++half; }
    const std::uint32_t mask = (std::uint32_t{1} << half) - 1U;
    auto value = static_cast<std::uint64_t>(n);
    do {
        auto left = static_cast<std::uint32_t>(value >> half), right = static_cast<std::uint32_t>(value) & mask;
        for (std::uint32_t round = 0; round < 4; ++round) {
            const std::uint32_t mixed = left ^ (philox4x32({right, round, round_of_data, 0x73687566U}, seed)[0] & mask);
            left = right;
            right = mixed;
        }
        value = (static_cast<std::uint64_t>(left) << half) | right;
    } while (value >= static_cast<std::uint64_t>(count));
    return static_cast<std::int64_t>(value);
}

/// Which example is the k-th that a run sees: every one once a round, each round in an order of its own.
std::int64_t example_at(std::int64_t k, std::int64_t count, std::uint64_t seed) {
    return shuffled(k % count, count, seed, static_cast<std::uint32_t>(k / count));
}

/// Rows of ids, filled up to the longest.
struct Rows {
    std::vector<std::vector<std::int64_t>> ids;

    std::int64_t longest() const {
        std::size_t most = 1;
        for (const auto& row : ids) { most = std::max(most, row.size()); }
        return static_cast<std::int64_t>(most);
    }
    Tensor filled(std::int64_t with) const {
        const std::int64_t columns = longest();
        Tensor tensor(DType::i64, {static_cast<std::int64_t>(ids.size()), columns});
        std::fill_n(tensor.as<std::int64_t>(), tensor.elements(), with);
        for (std::size_t r = 0; r < ids.size(); ++r) {
            std::copy(ids[r].begin(), ids[r].end(), tensor.as<std::int64_t>() + static_cast<std::int64_t>(r) * columns);
        }
        return tensor;
    }
    /// Absent where every row is full.
    Tensor mask() const {
        const std::int64_t columns = longest();
        if (std::ranges::all_of(ids,
                                [&](const auto& row) { return static_cast<std::int64_t>(row.size()) == columns; })) {
            return {};
        }
        Tensor tensor(DType::u8, {static_cast<std::int64_t>(ids.size()), columns});
        for (std::size_t r = 0; r < ids.size(); ++r) {
            std::fill_n(tensor.as<std::uint8_t>() + static_cast<std::int64_t>(r) * columns, ids[r].size(), 1);
        }
        return tensor;
    }
};

/// Labels that count: of a decoder the one at the first place does not, as nothing comes before it.
std::int64_t count_targets(const Tensor& labels, ModelKind kind) {
    const std::int64_t columns = labels.shape()[1];
    std::int64_t count = 0;
    for (std::int64_t n = 0; n < labels.elements(); ++n) {
        const bool first = n % columns == 0 && kind == ModelKind::decoder;
        count += !first && labels.as<std::int64_t>()[n] != no_label ? 1 : 0;
    }
    return count;
}

TrainBatch batch_of(const Rows& inputs, const Rows& labels, std::int64_t padding, ModelKind kind) {
    TrainBatch batch;
    batch.input_ids = inputs.filled(padding);
    batch.attention_mask = inputs.mask();
    batch.labels = labels.filled(no_label);
    batch.targets = count_targets(batch.labels, kind);
    return batch;
}

/// A question and an answer in ids, as each kind of model wants them.
struct Special {
    std::int64_t start, end;
};
void add_pair(Rows& inputs, Rows& labels, ModelKind kind, const std::vector<std::int64_t>& source,
              const std::vector<std::int64_t>& target, std::int64_t longest, const Special& special) {
    std::vector<std::int64_t> in, out;
    if (kind == ModelKind::encoder_decoder) {
        in = source;
        in.push_back(special.end);
        out = target;
        out.push_back(special.end);
    } else {
        in.push_back(special.start);
        in.insert(in.end(), source.begin(), source.end());
        out.assign(in.size(), no_label);
        in.insert(in.end(), target.begin(), target.end());
        out.insert(out.end(), target.begin(), target.end());
        in.push_back(special.end);
        out.push_back(special.end);
    }
    const auto cut = [&](std::vector<std::int64_t>& ids) {
        if (static_cast<std::int64_t>(ids.size()) > longest) { ids.resize(static_cast<std::size_t>(longest)); }
    };
    cut(in);
    cut(out);
    inputs.ids.push_back(std::move(in));
    labels.ids.push_back(std::move(out));
}

// ---- Built-in tasks ------------------------------------------------------------------------------------------------

class TaskData final : public TrainData {
public:
    explicit TaskData(const TrainConfig& config)
        : task_(config.data.task), options_(config.options), kind_(config.model.kind) {
        static_cast<void>(task_example(task_, 0, 0, false));  // refuses a task that is none
        for (const TaskInfo& info : tasks()) {
            if (info.name == task_ && (info.kind == ModelKind::encoder) != (kind_ == ModelKind::encoder)) {
                throw Error("[open_data] task: expected one for this kind of model, got " + task_);
            }
        }
    }
    std::int64_t vocab() const override { return task_vocab(); }
    TrainBatch batch(std::int64_t number) const override {
        return make(number * options_.batch, options_.batch, false);
    }
    TrainBatch validation(std::int64_t number) const override {
        return make(number * options_.batch, options_.batch, true);
    }

private:
    TrainBatch make(std::int64_t first, std::int64_t count, bool held_out) const {
        Rows inputs, labels;
        for (std::int64_t n = first; n < first + count; ++n) {
            // Held-out examples are the same whatever the seed of the run: scores of two runs can be compared.
            const TaskExample example = task_example(task_, held_out ? 0 : options_.seed, n, held_out);
            if (kind_ == ModelKind::encoder) {
                inputs.ids.push_back(task_encode(example.source));
                labels.ids.push_back(task_encode(example.target));
                for (std::size_t t = 0; t < example.target.size(); ++t) {
                    if (example.target[t] == '.') { labels.ids.back()[t] = no_label; }
                }
            } else {
                add_pair(inputs, labels, kind_, task_encode(example.source), task_encode(example.target),
                         options_.tokens, {1, 2});
                // The answer stands at the end, with the end token behind it.
                std::vector<std::int64_t>& row = labels.ids.back();
                const std::size_t length = example.asked.size() + 1;
                for (std::size_t t = 0; t < example.asked.size() && row.size() >= length; ++t) {
                    if (example.asked[t] != '1') { row[row.size() - length + t] = no_label; }
                }
            }
        }
        return batch_of(inputs, labels, 0, kind_);
    }

    std::string task_;
    TrainOptions options_;
    ModelKind kind_;
};

// ---- Tokens of files -----------------------------------------------------------------------------------------------

std::string read_text(const std::filesystem::path& path) {
    InputFile file("open_data", path);
    if (file.size() > longest_file) {
        throw FileError("[open_data] " + path.string() + ": expected at most 8 GiB, got " +
                        std::to_string(file.size()) + " bytes");
    }
    std::string text(file.size(), '\0');
    file.read(0, std::as_writable_bytes(std::span(text)));
    return text;
}

class Coder {
public:
    explicit Coder(const std::filesystem::path& tokenizer) {
        if (!tokenizer.empty()) { tokenizer_.emplace(tokenizer); }
    }
    std::int64_t vocab() const { return tokenizer_ ? tokenizer_->id_limit() + 4 : byte_vocab; }
    std::int64_t padding() const { return vocab() - 4; }
    std::int64_t start() const { return vocab() - 3; }
    std::int64_t end() const { return vocab() - 2; }
    std::int64_t mask() const { return vocab() - 1; }

    std::vector<std::int64_t> encode(std::string_view text) const {
        if (tokenizer_) { return tokenizer_->encode(text, {.add_special_tokens = false, .allow_special = false}); }
        std::vector<std::int64_t> ids;
        ids.reserve(text.size());
        for (const char c : text) { ids.push_back(static_cast<unsigned char>(c)); }
        return ids;
    }

private:
    static_assert(byte_pad == byte_vocab - 4 && byte_start == byte_vocab - 3 && byte_end == byte_vocab - 2 &&
                  byte_mask == byte_vocab - 1);
    std::optional<Tokenizer> tokenizer_;
};

/// Ids end to end, in 32 bits.
using Tokens = std::vector<std::int32_t>;

Tokens tokens_of(const DataConfig& data, const std::filesystem::path& path, const Coder& coder) {
    Tokens tokens;
    if (!data.token_file.empty()) {
        const std::string bytes = read_text(path);
        if (bytes.size() % 2 != 0) {
            throw FileError("[open_data] " + path.string() + ": expected 16-bit ids, got an odd number of bytes, " +
                            std::to_string(bytes.size()));
        }
        tokens.reserve(bytes.size() / 2);
        for (std::size_t n = 0; n < bytes.size(); n += 2) {
            tokens.push_back(static_cast<unsigned char>(bytes[n]) |
                             static_cast<std::int32_t>(static_cast<unsigned char>(bytes[n + 1])) << 8);
        }
        return tokens;
    }
    for (const std::int64_t id : coder.encode(read_text(path))) { tokens.push_back(static_cast<std::int32_t>(id)); }
    return tokens;
}

/// Windows of a long text: the next token (decoder) or masked ones (encoder).
class TextData final : public TrainData {
public:
    explicit TextData(const TrainConfig& config)
        : options_(config.options), kind_(config.model.kind), coder_(config.data.tokenizer) {
        if (kind_ == ModelKind::encoder_decoder) {
            throw Error("[open_data] text: expected a decoder or an encoder for plain text, got an encoder-decoder");
        }
        const DataConfig& data = config.data;
        const std::filesystem::path& path = data.token_file.empty() ? data.text : data.token_file;
        training_ = tokens_of(data, path, coder_);
        std::size_t bytes = training_.size();
        if (data.tokenizer.empty()) {
            bytes_per_token_ = data.token_file.empty() ? 1 : 0;
        } else if (data.token_file.empty() && !training_.empty()) {
            bytes_per_token_ = static_cast<double>(read_text(path).size()) / static_cast<double>(bytes);
        }
        if (!data.validation.empty()) {
            held_out_ = tokens_of(data, data.validation, coder_);
        } else {
            const auto keep = static_cast<std::size_t>(static_cast<double>(bytes) * (1 - data.validation_share));
            held_out_.assign(training_.begin() + static_cast<std::ptrdiff_t>(keep), training_.end());
            training_.resize(keep);
        }
        if (!data.token_file.empty()) {
            std::int32_t most = 0;
            for (const Tokens* list : {&training_, &held_out_}) {
                for (const std::int32_t id : *list) { most = std::max(most, id); }
            }
            vocab_ = std::max<std::int64_t>(most + 1, config.model.vocab);
        } else {
            vocab_ = coder_.vocab();
        }
        for (const Tokens* list : {&training_, &held_out_}) {
            if (static_cast<std::int64_t>(list->size()) < options_.tokens) {
                throw Error("[open_data] " + path.string() + ": expected at least " + std::to_string(options_.tokens) +
                            " tokens for training and for validation each, got " + std::to_string(list->size()));
            }
        }
    }
    std::int64_t vocab() const override { return vocab_; }
    double bytes_per_token() const override { return bytes_per_token_; }
    TrainBatch batch(std::int64_t number) const override {
        Rows inputs, labels;
        const std::int64_t count = static_cast<std::int64_t>(training_.size()) / options_.tokens;
        for (std::int64_t n = 0; n < options_.batch; ++n) {
            const std::int64_t k = number * options_.batch + n;
            // Windows begin elsewhere in every round, so that no two tokens are always cut apart.
            const std::int64_t slack = static_cast<std::int64_t>(training_.size()) - count * options_.tokens;
            const std::int64_t spare =
                std::min<std::int64_t>(slack + (count > 1 ? options_.tokens : 0), options_.tokens);
            const auto draw = philox4x32({static_cast<std::uint32_t>(k / count), 0, 0, 0x6f666673U}, options_.seed)[0];
            const std::int64_t shift = spare > 0 ? static_cast<std::int64_t>(draw) % spare : 0;
            const std::int64_t most = static_cast<std::int64_t>(training_.size()) - options_.tokens;
            add(inputs, labels, training_,
                std::min(most, example_at(k, count, options_.seed) * options_.tokens + shift), k, options_.seed);
        }
        return batch_of(inputs, labels, 0, kind_);
    }
    TrainBatch validation(std::int64_t number) const override {
        Rows inputs, labels;
        const std::int64_t count = static_cast<std::int64_t>(held_out_.size()) / options_.tokens;
        for (std::int64_t n = 0; n < options_.batch; ++n) {
            const std::int64_t k = number * options_.batch + n;
            add(inputs, labels, held_out_, k % count * options_.tokens, k, 0);
        }
        return batch_of(inputs, labels, 0, kind_);
    }

private:
    void add(Rows& inputs, Rows& labels, const Tokens& from, std::int64_t begin, std::int64_t k,
             std::uint64_t seed) const {
        std::vector<std::int64_t> ids(from.begin() + begin, from.begin() + begin + options_.tokens);
        labels.ids.push_back(ids);
        if (kind_ == ModelKind::encoder) {
            for (std::int64_t t = 0; t < options_.tokens; ++t) { mask(ids, labels.ids.back(), t, k, seed); }
        }
        inputs.ids.push_back(std::move(ids));
    }
    /// BERT's rule: of the tokens asked for, eight in ten are hidden, one is another, one stays.
    void mask(std::vector<std::int64_t>& ids, std::vector<std::int64_t>& labels, std::int64_t t, std::int64_t k,
              std::uint64_t seed) const {
        const auto words = philox4x32({static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(k),
                                       static_cast<std::uint32_t>(k >> 32), 0x6d61736bU},
                                      seed);
        const auto at = static_cast<std::size_t>(t);
        if (words[0] >= dropout_threshold(options_.mask_share)) {
            labels[at] = no_label;
        } else if (words[1] % 10 < 8) {
            ids[at] = vocab_ - 1;
        } else if (words[1] % 10 == 8) {
            ids[at] = words[2] % static_cast<std::uint32_t>(vocab_);
        }
    }

    TrainOptions options_;
    ModelKind kind_;
    Coder coder_;
    Tokens training_, held_out_;
    std::int64_t vocab_ = 0;
    double bytes_per_token_ = 0;
};

/// Documents end to end without an end: all of them once a round, in an order of its own each round.
class DocumentStream {
public:
    struct Piece {
        std::int64_t document;
        std::int64_t begin, end;  ///< tokens of it
    };

    DocumentStream(std::vector<std::int64_t> lengths, std::uint64_t seed, std::int64_t longest, bool shuffle)
        : lengths_(std::move(lengths)), seed_(seed), longest_(longest), shuffle_(shuffle) {
        for (const std::int64_t length : lengths_) { round_ += length; }
    }

    /// Tokens `begin` up to `begin + count` of the stream, none of them longer than `longest`.
    std::vector<Piece> pieces(std::int64_t begin, std::int64_t count) const {
        std::vector<Piece> result;
        for (std::int64_t left = count; left > 0;) {
            const std::vector<std::int64_t>& ends = ends_of(begin / round_);
            const std::int64_t at = begin % round_;
            const auto n = std::ranges::upper_bound(ends, at) - ends.begin();
            const std::int64_t document = at_place(begin / round_, n);
            const std::int64_t length = lengths_[static_cast<std::size_t>(document)];
            const std::int64_t from = at - (ends[static_cast<std::size_t>(n)] - length);
            const std::int64_t to = std::min({length, from + left, from + longest_});
            result.push_back({document, from, to});
            begin += to - from;
            left -= to - from;
        }
        return result;
    }

private:
    std::int64_t at_place(std::int64_t round, std::int64_t n) const {
        const auto count = static_cast<std::int64_t>(lengths_.size());
        return shuffle_ ? shuffled(n, count, seed_, static_cast<std::uint32_t>(round)) : n;
    }
    /// Where the documents of a round end, in its order. Kept for the round that was asked for last.
    const std::vector<std::int64_t>& ends_of(std::int64_t round) const {
        if (kept_ != round) {
            ends_.clear();
            std::int64_t end = 0;
            for (std::int64_t n = 0; n < static_cast<std::int64_t>(lengths_.size()); ++n) {
                end += lengths_[static_cast<std::size_t>(at_place(round, n))];
                ends_.push_back(end);
            }
            kept_ = round;
        }
        return ends_;
    }

    std::vector<std::int64_t> lengths_;
    std::uint64_t seed_;
    std::int64_t longest_;
    bool shuffle_;
    std::int64_t round_ = 0;
    mutable std::int64_t kept_ = -1;
    mutable std::vector<std::int64_t> ends_;
};

/// JSON lines: a document, or a source and its target, a line; padded to the longest of a batch.
class LineData final : public TrainData {
public:
    explicit LineData(const TrainConfig& config)
        : options_(config.options),
          kind_(config.model.kind),
          coder_(config.data.tokenizer),
          packed_(config.data.packed) {
        if (kind_ == ModelKind::encoder) {
            throw Error("[open_data] lines: expected a decoder or an encoder-decoder, got an encoder");
        }
        if (packed_ && kind_ != ModelKind::decoder) {
            throw Error("[open_data] packed: expected false for a model that is no decoder, got true");
        }
        read(config.data.lines, training_);
        if (!config.data.validation.empty()) {
            read(config.data.validation, held_out_);
        } else {
            const auto keep =
                static_cast<std::size_t>(static_cast<double>(training_.size()) * (1 - config.data.validation_share));
            held_out_.assign(training_.begin() + static_cast<std::ptrdiff_t>(keep), training_.end());
            training_.resize(keep);
        }
        if (training_.empty() || held_out_.empty()) {
            throw Error("[open_data] " + config.data.lines.string() +
                        ": expected lines for training and for validation, got " + std::to_string(training_.size()) +
                        " and " + std::to_string(held_out_.size()));
        }
        if (packed_) {
            training_stream_.emplace(lengths_of(training_), options_.seed, options_.tokens, true);
            held_out_stream_.emplace(lengths_of(held_out_), options_.seed, options_.tokens, false);
        }
    }
    std::int64_t vocab() const override { return coder_.vocab(); }
    TrainBatch batch(std::int64_t number) const override {
        if (packed_) { return make_packed(training_, *training_stream_, number); }
        return make(training_, number, [&](std::int64_t k) {
            return example_at(k, static_cast<std::int64_t>(training_.size()), options_.seed);
        });
    }
    TrainBatch validation(std::int64_t number) const override {
        if (packed_) { return make_packed(held_out_, *held_out_stream_, number); }
        return make(held_out_, number, [&](std::int64_t k) { return k % static_cast<std::int64_t>(held_out_.size()); });
    }

private:
    struct Pair {
        std::vector<std::int64_t> source, target;
    };
    void read(const std::filesystem::path& path, std::vector<Pair>& into) const {
        const std::string text = read_text(path);
        std::size_t number = 0;
        for (std::size_t begin = 0; begin < text.size();) {
            const std::size_t end = std::min(text.find('\n', begin), text.size());
            const std::string_view line = std::string_view(text).substr(begin, end - begin);
            begin = end + 1;
            ++number;
            if (line.find_first_not_of(" \t\r") == std::string_view::npos) { continue; }
            const auto json = nlohmann::json::parse(line, nullptr, false);
            const auto field = [&](const char* name) -> std::optional<std::string> {
                if (!json.is_object() || !json.contains(name) || !json[name].is_string()) { return std::nullopt; }
                return json[name].get<std::string>();
            };
            const auto whole = field("text"), source = field("source"), target = field("target");
            if (!(whole || (source && target)) || (kind_ == ModelKind::encoder_decoder && !source)) {
                throw FileError("[open_data] " + path.string() + ": line " + std::to_string(number) + ": expected " +
                                (kind_ == ModelKind::encoder_decoder ? "" : "\"text\", or ") +
                                "\"source\" and \"target\", got " + in_quotes(line.substr(0, 60)));
            }
            into.push_back(source ? Pair{coder_.encode(*source), coder_.encode(*target)}
                                  : Pair{{}, coder_.encode(*whole)});
        }
    }
    /// With a start and an end token around each.
    static std::vector<std::int64_t> lengths_of(const std::vector<Pair>& list) {
        std::vector<std::int64_t> lengths;
        for (const Pair& pair : list) {
            lengths.push_back(static_cast<std::int64_t>(pair.source.size() + pair.target.size()) + 2);
        }
        return lengths;
    }
    TrainBatch make_packed(const std::vector<Pair>& from, const DocumentStream& stream, std::int64_t number) const {
        std::vector<std::int64_t> bounds = {0};
        Rows inputs{{{}}}, labels{{{}}};
        const std::int64_t tokens = options_.batch * options_.tokens;
        for (const DocumentStream::Piece& piece : stream.pieces(number * tokens, tokens)) {
            Rows in, out;
            const Pair& pair = from[static_cast<std::size_t>(piece.document)];
            add_pair(in, out, kind_, pair.source, pair.target, std::numeric_limits<std::int64_t>::max(),
                     {coder_.start(), coder_.end()});
            out.ids[0][static_cast<std::size_t>(piece.begin)] = no_label;  // nothing comes before it
            const auto append = [&](std::vector<std::int64_t>& to, const std::vector<std::int64_t>& whole) {
                to.insert(to.end(), whole.begin() + piece.begin, whole.begin() + piece.end);
            };
            append(inputs.ids[0], in.ids[0]);
            append(labels.ids[0], out.ids[0]);
            bounds.push_back(bounds.back() + piece.end - piece.begin);
        }
        TrainBatch batch = batch_of(inputs, labels, coder_.padding(), kind_);
        batch.cu_seqlens = Tensor(DType::i64, {static_cast<std::int64_t>(bounds.size())});
        std::ranges::copy(bounds, batch.cu_seqlens.as<std::int64_t>());
        return batch;
    }
    template <class Which>
    TrainBatch make(const std::vector<Pair>& from, std::int64_t number, const Which& which) const {
        Rows inputs, labels;
        for (std::int64_t n = 0; n < options_.batch; ++n) {
            const Pair& pair = from[static_cast<std::size_t>(which(number * options_.batch + n))];
            add_pair(inputs, labels, kind_, pair.source, pair.target, options_.tokens, {coder_.start(), coder_.end()});
        }
        return batch_of(inputs, labels, coder_.padding(), kind_);
    }

    TrainOptions options_;
    ModelKind kind_;
    Coder coder_;
    bool packed_;
    std::vector<Pair> training_, held_out_;
    std::optional<DocumentStream> training_stream_, held_out_stream_;
};

}  // namespace

std::unique_ptr<TrainData> open_data(const TrainConfig& config) {
    const DataConfig& data = config.data;
    const int sources = (data.task.empty() ? 0 : 1) + (data.text.empty() ? 0 : 1) + (data.lines.empty() ? 0 : 1) +
                        (data.token_file.empty() ? 0 : 1);
    if (sources != 1) {
        throw Error("[open_data] data: expected one of task, text, lines and token_file, got " +
                    std::to_string(sources));
    }
    if (!(data.validation_share > 0 && data.validation_share < 1)) {
        throw Error("[open_data] validation_share: expected more than 0 and less than 1, got " +
                    std::to_string(data.validation_share));
    }
    if (data.packed && data.lines.empty()) {
        throw Error("[open_data] packed: expected false for data that are no lines, got true");
    }
    if (!data.task.empty()) { return std::make_unique<TaskData>(config); }
    if (!data.lines.empty()) { return std::make_unique<LineData>(config); }
    return std::make_unique<TextData>(config);
}

}  // namespace heed
