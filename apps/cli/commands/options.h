#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <heed/attention.h>
#include <heed/tensor.h>

namespace heed::cli {

/// Options of attention that are words and numbers; absent: not said. From flags, or from a file's `spec`.
struct Settings {
    std::optional<double> scale;
    std::optional<bool> causal;
    std::optional<Align> align;
    std::optional<Window> window;
    std::optional<double> softcap;
    std::optional<double> dropout;
    std::optional<std::uint64_t> seed;
    std::optional<std::uint32_t> offset;
    std::optional<bool> alibi;
    // Whether to use the file's tensors of that name; only a spec speaks of them.
    std::optional<bool> bias, mask, lengths, sinks;

    /// What `stronger` says wins.
    void override_with(const Settings& stronger);
    /// Everything but `alibi` and the tensors.
    void apply(AttentionOptions& options) const;
};

/// --causal, --window L,R and the others, in a group of their own in the help.
void add_settings(CLI::App& command, Settings& settings);
void add_kernel(CLI::App& command, std::string& kernel);

/// One key of a `spec` or an example file. False where `key` is none of an option's; UsageError, naming `source`, where
/// the value does not suit it.
bool read_setting(const std::string& source, const std::string& key, const nlohmann::ordered_json& value,
                  Settings& settings);

/// [H] f64.
Tensor default_slopes(std::int64_t heads);

/// The options in use: as a `spec`, and in words.
nlohmann::ordered_json to_spec(const AttentionOptions& options);
std::string to_words(const AttentionOptions& options);

}  // namespace heed::cli
