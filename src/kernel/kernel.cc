#include "kernel/kernel.h"

#include "base/refuse.h"

namespace heed::detail {

void refuse_kernels(const Asking& asking, const Forced& forced, std::string_view name,
                    std::span<const Verdict> verdicts) {
    std::string names, reasons;
    for (const Verdict& verdict : verdicts) {
        names += (names.empty() ? "" : ", ") + std::string(verdict.name);
        if (!name.empty() && !carries(verdict.name, name)) { continue; }
        reasons += (reasons.empty() ? "" : "; ") + std::string(verdict.name) + " does not: " + verdict.declined;
    }
    if (forced.name.empty()) {
        refuse(asking.function, "kernel", "a call that one of the kernels takes",
               "one that none does (" + reasons + ")");
    }
    const std::string expected = reasons.empty() ? "one of " + names : "a kernel that fits (" + reasons + ")";
    refuse(asking.function, forced.by, expected, std::string(forced.name));
}

Explanation explanation_of(const Asking& asking, std::string_view chosen, std::span<const Verdict> verdicts) {
    Explanation explanation;
    explanation.operation = asking.function;
    explanation.kernel = chosen;
    bool chosen_seen = false;
    for (const Verdict& verdict : verdicts) {
        const bool fits = verdict.declined == nullptr;
        const bool runs = verdict.name == chosen;
        chosen_seen = chosen_seen || runs;
        std::string reason = !fits         ? std::string(verdict.declined)
                             : runs        ? "runs: " + std::string(verdict.what)
                             : chosen_seen ? "fits, but " + explanation.kernel + " comes first"
                                           : "fits, but " + explanation.kernel + " was asked for";
        explanation.verdicts.push_back({std::string(verdict.name), fits, std::move(reason)});
    }
    return explanation;
}

}  // namespace heed::detail

namespace heed {

std::vector<Explanation> explain(Context& context, const std::function<void(Context&)>& calls) {
    std::vector<Explanation> explained;
    struct Explaining {
        detail::Place& place;
        Explaining(detail::Place& on, std::vector<Explanation>* to) : place(on) { place.explained = to; }
        ~Explaining() { place.explained = nullptr; }
        Explaining(const Explaining&) = delete;
        Explaining& operator=(const Explaining&) = delete;
    };
    const Explaining meanwhile(detail::place_of(context), &explained);
    calls(context);
    return explained;
}

}  // namespace heed
