#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include <heed/train.h>

/// What training shows: curves, answers, comparisons.
namespace heed::cli {

struct LossPoint {
    std::int64_t step = 0;
    double loss = 0;
    double validation = 0;  ///< NaN where there was none
};

/// An SVG of the loss by step.
void write_loss_chart(const std::filesystem::path& path, const std::vector<LossPoint>& curve);

/// Held-out questions of a built-in task and what the model answers; of an encoder-decoder, where it looked for the
/// first answer.
void show_answers(Context& context, const Model& model, const TrainConfig& config, std::int64_t count);

/// What decoding keeps: bytes that every token adds, and bytes that stay the same, in 16-bit numbers (states in f32).
struct CacheBytes {
    std::int64_t per_token = 0;
    std::int64_t fixed = 0;
};
CacheBytes cache_bytes(const ModelConfig& config);

/// Mean loss by position, in eight equal parts of twice the trained length. Empty where the data is no text.
std::vector<double> loss_beyond(Context& context, const Model& model, const TrainConfig& config);

struct ComparedRun {
    std::string kind;
    std::int64_t parameters = 0;
    RunResult result{};
    CacheBytes cache{};
    std::vector<double> far{};
    std::vector<LossPoint> curve{};
};
void print_comparison(const std::vector<ComparedRun>& runs);
/// compare.json and compare.svg in a folder.
void write_comparison(const std::filesystem::path& folder, const std::vector<ComparedRun>& runs);

}  // namespace heed::cli
