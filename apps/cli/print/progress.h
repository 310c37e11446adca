#pragma once
#include <chrono>
#include <string>

namespace heed::cli {

/// One line on a terminal that is written over again and again; nothing where the output is no terminal.
class ProgressLine {
public:
    explicit ProgressLine(bool quiet);
    ~ProgressLine();
    ProgressLine(const ProgressLine&) = delete;
    ProgressLine& operator=(const ProgressLine&) = delete;

    /// A bar of `share` (0 to 1) and text, at most ten times a second.
    void show(double share, const std::string& text);
    /// A line that stays, on the standard output.
    void lasting(const std::string& text);
    void clear();

private:
    bool active_;
    bool shown_ = false;
    std::chrono::steady_clock::time_point last_{};
};

/// "1 h 05 min", "3 min 20 s", "12 s"
std::string duration_text(double seconds);

}  // namespace heed::cli
