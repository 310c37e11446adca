#include "print/walkthrough_words.h"

#include <map>
#include <vector>

#include <fmt/format.h>

#include "commands/options.h"
#include "print/text.h"

namespace heed::cli {
namespace {

class EnglishWalkthrough final : public WalkthroughWords {
public:
    std::string two_tokens() const override { return "two tokens, identity projections"; }
    std::string random(std::uint64_t seed) const override { return fmt::format("random, seed {}", seed); }
    std::string heading(const std::string& example) const override { return "Attention, step by step: " + example; }
    std::string sizes(const WalkthroughSizes& s, const AttentionOptions& options) const override {
        return fmt::format("{} of {} of size {}; {} of size {}{}; options: {}", plural(s.sequences, "sequence"),
                           plural(s.tokens, "token"), s.size, plural(s.heads, "head"), s.head_size,
                           s.kv_heads == s.heads ? "" : fmt::format(", {} for keys and values", s.kv_heads),
                           to_words(options));
    }
    std::string entry(std::int64_t number) const override {
        return fmt::format("numbers are those of sequence {}; shapes are those of all", number);
    }
    std::string without_scale() const override { return "Without the scale"; }
    std::string with_scale() const override { return "With the scale"; }
    std::string step(const Walkthrough&, const WalkthroughStep& step, const AttentionOptions&) const override {
        return step.title;
    }
    std::string identity(const std::string& matrix) const override { return matrix + " is the identity"; }
    std::string head(std::int64_t number) const override { return fmt::format("head {}", number); }
    std::string more_heads(std::int64_t count) const override {
        return fmt::format("... and {} (--head N shows one)", plural(count, "more head"));
    }
    std::string whole_map() const override { return "all of it; columns are keys"; }
    std::string hidden() const override { return "hidden"; }
    std::string dropped() const override { return "dropped"; }
    std::string shapes() const override { return "Shapes: "; }
    std::string checked(double difference) const override {
        return fmt::format("Checked: heed::attend and heed::attention_weights give the same numbers, {}",
                           difference == 0 ? "bit for bit" : fmt::format("within {:.1e}", difference));
    }
    std::string scale_matters(double scale, const std::string& token, double without, double with) const override {
        return fmt::format(
            "The scale is {:.4f}: {} gives itself {:.4f} without it and {:.4f} with it. Scores grow with the head "
            "size;\nthe scale keeps them near 1, where softmax still listens to more than one key.",
            scale, token, without, with);
    }

private:
    static std::string plural(std::int64_t n, const char* what) {
        return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
    }
};

class ChineseWalkthrough final : public WalkthroughWords {
public:
    std::string two_tokens() const override { return "两个词元，投影都是单位矩阵"; }
    std::string random(std::uint64_t seed) const override { return fmt::format("随机生成，种子 {}", seed); }
    std::string heading(const std::string& example) const override { return "一步一步算注意力：" + example; }
    std::string sizes(const WalkthroughSizes& s, const AttentionOptions& options) const override {
        return fmt::format("{} 个序列，每个 {} 个词元，词元维数 {}；{} 个头，每个头 {} 维{}；选项：{}", s.sequences,
                           s.tokens, s.size, s.heads, s.head_size,
                           s.kv_heads == s.heads ? "" : fmt::format("，键和值只有 {} 个头", s.kv_heads),
                           chosen(options));
    }
    std::string entry(std::int64_t number) const override {
        return fmt::format("下面的数来自第 {} 个序列（从 0 数起），形状则是整批的", number);
    }
    std::string without_scale() const override { return "不缩放"; }
    std::string with_scale() const override { return "缩放"; }
    std::string step(const Walkthrough& w, const WalkthroughStep& step, const AttentionOptions& o) const override {
        if (step.name == "scaled") {
            if (o.scale) { return w.scale == 1 ? "不缩放" : "乘以你指定的缩放系数"; }
            return fmt::format("乘以 1/sqrt({})，也就是除以头维数的平方根", w.find("query_heads")->shape[3]);
        }
        if (step.name == "softcap") { return fmt::format("软上限：分数保持在 -{0} 与 {0} 之间", o.softcap); }
        if (step.name == "weights" && o.sinks) { return "softmax：每行变成权重，剩下的份额归汇点（sink）"; }
        static const std::map<std::string, const char*> titles{
            {"input", "输入：每个词元一行"},
            {"queries", "查询：每个词元在找什么"},
            {"keys", "键：每个词元凭什么被找到"},
            {"values", "值：每个词元被找到后交出什么"},
            {"query_heads", "切成多个头：每个头只看自己的那几列"},
            {"key_heads", "切成多个头"},
            {"value_heads", "切成多个头"},
            {"scores", "每个查询与每个键做点积，得到分数"},
            {"bias", "加上偏置"},
            {"mask", "遮住查询不能看的位置"},
            {"weights", "softmax：每行分数变成相加为 1 的权重"},
            {"dropout", "随机失活（dropout）：划掉一些权重，其余放大 1/(1-p) 倍"},
            {"mixed", "每个词元按权重汇总各个值"},
            {"joined", "把各个头拼回一行"},
            {"output", "输出投影"}};
        const auto found = titles.find(step.name);
        return found == titles.end() ? step.title : found->second;
    }
    std::string identity(const std::string& matrix) const override { return matrix + " 是单位矩阵"; }
    std::string head(std::int64_t number) const override { return fmt::format("第 {} 个头", number); }
    std::string more_heads(std::int64_t count) const override {
        return fmt::format("…… 还有 {} 个头（用 --head N 看其中一个）", count);
    }
    std::string whole_map() const override { return "完整的图；每列是一个键"; }
    std::string hidden() const override { return "被遮住"; }
    std::string dropped() const override { return "被丢弃"; }
    std::string shapes() const override { return "形状："; }
    std::string checked(double difference) const override {
        return fmt::format("已核对：heed::attend 和 heed::attention_weights 给出同样的数，{}",
                           difference == 0 ? "每一位都相同" : fmt::format("误差不超过 {:.1e}", difference));
    }
    std::string scale_matters(double scale, const std::string& token, double without, double with) const override {
        return fmt::format(
            "缩放系数是 {:.4f}：不缩放时 {} 给自己的权重是 {:.4f}，缩放后是 {:.4f}。头的维数越大，分数越大；\n"
            "缩放让分数保持在 1 附近，softmax 才不会只听一个键的。",
            scale, token, without, with);
    }

private:
    static std::string chosen(const AttentionOptions& o) {
        std::vector<std::string> words;
        if (o.causal) { words.emplace_back("因果掩码"); }
        if (o.align == Align::top_left) { words.emplace_back("左上对齐"); }
        if (o.window.left >= 0 || o.window.right >= 0) {
            words.push_back(fmt::format("窗口 {},{}", o.window.left, o.window.right));
        }
        if (o.scale) { words.push_back(fmt::format("缩放系数 {}", *o.scale)); }
        if (o.softcap > 0) { words.push_back(fmt::format("软上限 {}", o.softcap)); }
        if (o.bias) { words.push_back("偏置 " + compact(o.bias.shape())); }
        if (o.alibi_slopes) { words.emplace_back("ALiBi"); }
        if (o.allow) { words.push_back("掩码 " + compact(o.allow.shape())); }
        if (o.key_lengths || o.query_lengths) { words.emplace_back("各序列长度"); }
        if (o.sinks) { words.emplace_back("汇点（sink）"); }
        if (o.dropout.p > 0) {
            words.push_back(fmt::format("随机失活 {}，种子 {}，偏移 {}", o.dropout.p, o.dropout.seed.value_or(0),
                                        o.dropout.offset));
        }
        return words.empty() ? "无" : fmt::format("{}", fmt::join(words, "；"));
    }
};

}  // namespace

const WalkthroughWords& walkthrough_words(const std::string& language) {
    static const EnglishWalkthrough english;
    static const ChineseWalkthrough chinese;
    if (language == "en") { return english; }
    if (language == "zh") { return chinese; }
    throw UsageError("--lang: expected en or zh, got '" + language + "'");
}

}  // namespace heed::cli
