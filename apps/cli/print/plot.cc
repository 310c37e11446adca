#include "print/plot.h"

#include "print/numbers.h"

namespace heed::cli {
namespace {

constexpr double left = 84, right = 30, top = 44, bottom = 46;

// Told apart by people who see colours differently, too (Okabe and Ito), and by their dashes.
constexpr std::array<const char*, 8> colours = {"#000000", "#0072b2", "#d55e00", "#009e73",
                                                "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"};
constexpr std::array<const char*, 4> dashes = {"none", "7 3", "2 2", "9 3 2 3"};

std::string tick_text(double value) {
    if (value >= 1e7) { return numbers::short_count(static_cast<std::int64_t>(std::min(value, 9e18))); }
    return value >= 1000 ? numbers::grouped(std::llround(value)) : fmt::format("{:.4g}", value);
}

}  // namespace

std::string escaped(const std::string& text) {
    std::string result;
    for (const char c : text) {
        switch (c) {
            case '<': result += "&lt;"; break;
            case '>': result += "&gt;"; break;
            case '&': result += "&amp;"; break;
            case '"': result += "&quot;"; break;
            default: result += c;
        }
    }
    return result;
}

std::string label(double x, double y, const char* anchor, const std::string& text, const char* more) {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                       escaped(text));
}

double Axis::operator()(double value) const {
    const auto at = [&](double x) { return logarithmic ? std::log2(std::max(x, 1e-300)) : x; };
    return begin + (end - begin) * std::clamp((at(value) - at(low)) / (at(high) - at(low)), -0.02, 1.02);
}
std::vector<double> Axis::ticks(int n) const {
    std::vector<double> result;
    if (logarithmic) {
        const double first = std::ceil(std::log2(low) - 1e-9);
        const double last = std::floor(std::log2(high) + 1e-9);
        const double step = std::max(1.0, std::ceil((last - first) / n));
        for (int tick = 0; first + tick * step <= last; ++tick) { result.push_back(std::exp2(first + tick * step)); }
        return result;
    }
    const double rough = (high - low) / n;
    const double power = std::pow(10, std::floor(std::log10(rough)));
    double step = power;
    for (const double factor : {2.0, 5.0, 10.0}) {
        if (step < rough) { step = factor * power; }
    }
    const double first = std::ceil(low / step - 1e-9);
    for (int tick = 0; first + tick <= high / step + 1e-9; ++tick) { result.push_back((first + tick) * step); }
    return result;
}

Panel::Panel(double offset, double x_low, double x_high, bool x_log, double y_low, double y_high, bool y_log)
    : x{x_low, x_high, left, picture_width - right, x_log},
      y{y_low, y_high, offset + panel_height - bottom, offset + top, y_log} {}

void Panel::frame(const std::string& title, const std::string& x_name, const std::string& y_name) {
    body += label(left, y.end - 14, "start", title, " font-weight=\"bold\"");
    for (const double value : x.ticks(9)) {
        body += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" stroke=\"#e4e4e4\"/>\n", x(value), y.begin, y.end);
        body += label(x(value), y.begin + 15, "middle", tick_text(value));
    }
    for (const double value : y.ticks(6)) {
        body += fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"#e4e4e4\"/>\n", x.begin, y(value), x.end);
        body += label(x.begin - 6, y(value) + 4, "end", y_text ? y_text(value) : tick_text(value));
    }
    body += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\" fill=\"none\" stroke=\"#333\"/>\n", x.begin, y.end,
                        y.begin, x.end);
    body += label((x.begin + x.end) / 2, y.begin + 34, "middle", x_name);
    const double middle = (y.begin + y.end) / 2;
    body += label(18, middle, "middle", y_name, fmt::format(" transform=\"rotate(-90 18 {:.1f})\"", middle).c_str());
}

void Panel::upright(double value, const std::string& text) {
    body += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}\" stroke=\"#999\" stroke-dasharray=\"3 3\"/>\n", x(value),
                        y.begin, y.end);
    body += label(x(value) - 4, y.end + 10, "end", text, " fill=\"#555\"");
}

void Panel::level(double value, const std::string& text) {
    body += fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"#999\" stroke-dasharray=\"3 3\"/>\n", x.begin,
                        y(value), x.end);
    body += label(x.begin + 6, y(value) - 4, "start", text, " fill=\"#555\"");
}

void Panel::line(std::size_t which, std::size_t points,
                 const std::function<std::pair<double, double>(std::size_t)>& point) {
    std::string path;
    for (std::size_t n = 0; n < points; ++n) {
        const auto [a, b] = point(n);
        path += fmt::format("{}{:.1f} {:.1f}", n == 0 ? "M" : "L", x(a), y(b));
    }
    body += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" stroke-dasharray=\"{}\"/>\n",
                        path, colours[which % colours.size()], dashes[which % dashes.size()]);
}

std::string picture_head(const std::string& title, const std::vector<std::string>& lines, int panels) {
    const double height = title_height + legend_height + panels * panel_height;
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" "
        "fill=\"#fff\"/>\n",
        picture_width, height);
    svg += label(left, 22, "start", title, " font-size=\"14\" font-weight=\"bold\"");
    double at = left;
    for (std::size_t n = 0; n < lines.size(); ++n) {
        const double y = title_height + legend_height / 2;
        svg +=
            fmt::format("<path d=\"M{:.1f} {:.1f}h26\" stroke=\"{}\" stroke-width=\"2.4\" stroke-dasharray=\"{}\"/>\n",
                        at, y - 4, colours[n % colours.size()], dashes[n % dashes.size()]);
        svg += label(at + 31, y, "start", lines[n]);
        at += 48 + 7.0 * static_cast<double>(lines[n].size());
    }
    return svg;
}

}  // namespace heed::cli
