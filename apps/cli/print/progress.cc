#include "print/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace heed::cli {

ProgressLine::ProgressLine(bool quiet) : active_(!quiet && isatty(STDERR_FILENO) != 0) {}
ProgressLine::~ProgressLine() { clear(); }

void ProgressLine::show(double share, const std::string& text) {
    if (!active_) { return; }
    const auto now = std::chrono::steady_clock::now();
    if (shown_ && now - last_ < std::chrono::milliseconds(100)) { return; }
    last_ = now;
    shown_ = true;
    winsize size{};
    const int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    constexpr int bar = 20;
    const int full = std::clamp(static_cast<int>(share * bar), 0, bar);
    std::string line(static_cast<std::size_t>(full), '#');
    line.resize(bar, '-');
    line = "[" + line + "] " + text;
    if (static_cast<int>(line.size()) >= columns) { line.resize(static_cast<std::size_t>(std::max(0, columns - 1))); }
    fmt::print(stderr, "\r\x1b[K{}", line);
    std::fflush(stderr);
}

void ProgressLine::lasting(const std::string& text) {
    clear();
    fmt::print("{}\n", text);
    std::fflush(stdout);
}

void ProgressLine::clear() {
    if (!shown_) { return; }
    fmt::print(stderr, "\r\x1b[K");
    std::fflush(stderr);
    shown_ = false;
}

std::string duration_text(double seconds) {
    if (!(seconds >= 0) || seconds > 1e7) { return "?"; }
    const auto whole = static_cast<std::int64_t>(std::lround(seconds));
    if (whole < 60) { return fmt::format("{} s", whole); }
    if (whole < 3600) { return fmt::format("{} min {:02} s", whole / 60, whole % 60); }
    return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

}  // namespace heed::cli
