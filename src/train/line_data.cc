#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/refuse.h"
#include "io/file.h"
#include "train/coder.h"
#include "train/data.h"
#include "train/rows.h"

namespace heed {
namespace {

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
    /// Where the documents of a round end, in its order. Kept for the latest round.
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

/// Calls `take` with every line of a file and its number, without having all of the file in memory.
template <class Take>
void for_each_line(const std::filesystem::path& path, const Take& take) {
    constexpr std::uint64_t at_once = std::uint64_t{1} << 20;
    const InputFile file("open_data", path);
    std::string text, block;
    std::int64_t number = 0;
    for (std::uint64_t offset = 0; offset < file.size(); offset += at_once) {
        block.resize(static_cast<std::size_t>(std::min(at_once, file.size() - offset)));
        file.read(offset, std::as_writable_bytes(std::span(block)));
        text += block;
        std::size_t begin = 0;
        for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
            take(std::string_view(text).substr(begin, end - begin), ++number);
            begin = end + 1;
        }
        text.erase(0, begin);
    }
    if (!text.empty()) { take(std::string_view(text), ++number); }
}

/// Examples end to end in one list.
class Examples {
public:
    std::int64_t size() const { return static_cast<std::int64_t>(bounds_.size()); }
    void add(const Example& example) {
        ids_.insert(ids_.end(), example.source.begin(), example.source.end());
        const std::size_t middle = ids_.size();
        ids_.insert(ids_.end(), example.target.begin(), example.target.end());
        bounds_.push_back({middle - example.source.size(), middle, ids_.size()});
    }
    Example operator[](std::int64_t n) const {
        const Bounds& b = bounds_[static_cast<std::size_t>(n)];
        const auto at = [&](std::size_t k) { return ids_.begin() + static_cast<std::ptrdiff_t>(k); };
        return {{at(b.begin), at(b.middle)}, {at(b.middle), at(b.end)}};
    }
    /// Tokens of each example [begin, end).
    std::vector<std::int64_t> lengths(std::int64_t begin, std::int64_t end) const {
        std::vector<std::int64_t> result;
        for (auto n = static_cast<std::size_t>(begin); n < static_cast<std::size_t>(end); ++n) {
            result.push_back(static_cast<std::int64_t>(bounds_[n].end - bounds_[n].begin));
        }
        return result;
    }

private:
    struct Bounds {
        std::size_t begin, middle, end;
    };
    std::vector<std::uint32_t> ids_;
    std::vector<Bounds> bounds_;
};

/// JSON lines: a document, or a source and its target, a line; padded to the longest of a batch, or packed.
class LineData final : public TrainData {
public:
    explicit LineData(const TrainConfig& config)
        : options_(config.options),
          kind_(config.model.kind),
          coder_(config, DataForm::documents),
          packed_(config.data.packed) {
        if (kind_ == ModelKind::encoder) {
            refuse("open_data", "lines", "a decoder or an encoder-decoder", "an encoder");
        }
        if (packed_ && kind_ != ModelKind::decoder) {
            refuse("open_data", "packed", "false for a model that is no decoder", "true");
        }
        read(config.data.lines);
        if (!config.data.validation.empty()) {
            training_count_ = examples_.size();
            read(config.data.validation);
        } else {
            training_count_ =
                static_cast<std::int64_t>(static_cast<double>(examples_.size()) * (1 - config.data.validation_share));
        }
        const std::int64_t held_out = examples_.size() - training_count_;
        if (training_count_ == 0 || held_out == 0) {
            refuse("open_data", config.data.lines.string(), "lines for training and for validation",
                   std::to_string(training_count_) + " and " + std::to_string(held_out));
        }
        if (packed_) {
            training_stream_.emplace(examples_.lengths(0, training_count_), options_.seed, options_.tokens, true);
            held_out_stream_.emplace(examples_.lengths(training_count_, examples_.size()), options_.seed,
                                     options_.tokens, false);
        }
    }
    std::int64_t vocab() const override { return coder_.vocab(); }
    const Tokenizer* tokenizer() const override { return &coder_.tokenizer(); }
    void complete(ModelConfig& model) const override { coder_.complete(model); }
    TrainBatch batch(std::int64_t number) const override {
        if (packed_) { return make_packed(*training_stream_, 0, number); }
        return make(number, [&](std::int64_t k) { return example_at(k, training_count_, options_.seed); });
    }
    TrainBatch validation(std::int64_t number) const override {
        if (packed_) { return make_packed(*held_out_stream_, training_count_, number); }
        const std::int64_t count = examples_.size() - training_count_;
        return make(number, [&](std::int64_t k) { return training_count_ + k % count; });
    }

private:
    void read(const std::filesystem::path& path) {
        for_each_line(path, [&](std::string_view line, std::int64_t number) {
            if (line.find_first_not_of(" \t\r") == std::string_view::npos) { return; }
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
            examples_.add(source ? example_of(*source, *target) : example_of("", *whole));
        });
    }
    /// The source is what the model will be given later, as a prompt.
    Example example_of(const std::string& source, const std::string& target) const {
        if (kind_ == ModelKind::encoder_decoder) {
            return {coder_.encode_prompt(source), coder_.encode_prompt(target)};
        }
        Example example{coder_.encode_prompt(source), coder_.encode(target)};
        example.target.push_back(coder_.end());
        return example;
    }
    TrainBatch make_packed(const DocumentStream& stream, std::int64_t first, std::int64_t number) const {
        std::vector<std::int64_t> bounds = {0};
        Rows inputs{{{}}}, labels{{{}}};
        const std::int64_t tokens = options_.batch * options_.tokens;
        for (const DocumentStream::Piece& piece : stream.pieces(number * tokens, tokens)) {
            Rows in, out;
            add_example(in, out, kind_, examples_[first + piece.document], std::numeric_limits<std::int64_t>::max());
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
    TrainBatch make(std::int64_t number, const Which& which) const {
        Rows inputs, labels;
        for (std::int64_t n = 0; n < options_.batch; ++n) {
            add_example(inputs, labels, kind_, examples_[which(number * options_.batch + n)], options_.tokens);
        }
        return batch_of(inputs, labels, coder_.padding(), kind_);
    }

    TrainOptions options_;
    ModelKind kind_;
    Coder coder_;
    bool packed_;
    Examples examples_;  ///< those for training, then the held-out ones
    std::int64_t training_count_ = 0;
    std::optional<DocumentStream> training_stream_, held_out_stream_;
};

}  // namespace

std::unique_ptr<TrainData> open_lines(const TrainConfig& config) { return std::make_unique<LineData>(config); }

}  // namespace heed
