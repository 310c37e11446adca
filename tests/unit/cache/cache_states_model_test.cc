/// Random operations on caches of states against a plain model, the list of their tokens, for every kind and storage of
/// a state. After each of them everything in the pool that belongs to nobody is NaN.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <ostream>

#include "support/random.h"
#include "support/sample.h"
#include "unit/cache/cache_testing.h"

namespace heed::testing {
namespace {

constexpr std::int64_t kinds_of_state_tokens = 29, most_states = 5, most_state_tokens = 40;

struct StateSetup {
    std::string name;
    CacheConfig config;
    double tolerance = 2e-5;
    UpdateRule rule = UpdateRule::sum;
};
void PrintTo(const StateSetup& setup, std::ostream* to) { *to << setup.name; }

/// Rows of tokens by their kinds, end to end.
Tensor rows_of(const Tensor& all, const std::vector<std::int64_t>& tokens) {
    std::vector<View> rows;
    for (const std::int64_t kind : tokens) { rows.push_back(part(all, kind, kind + 1)); }
    return joined(rows);
}

class StateMachine {
public:
    explicit StateMachine(const StateSetup& setup)
        : setup_(setup),
          c_(setup.config),
          type_(c_.storage == CacheStorage::bf16  ? DType::bf16
                : c_.storage == CacheStorage::f16 ? DType::f16
                                                  : DType::f32),
          tokens_{Tokens(kinds_of_state_tokens, 1, type_), Tokens(kinds_of_state_tokens, 2, type_)},
          memory_q_(random(type_, {1, heads, kinds_of_state_tokens, key_size}, 11)),
          memory_k_(random(type_, {1, groups, kinds_of_state_tokens, key_size}, 12)),
          gates_(random(DType::f32, {heads}, 9)),
          log_decay_(random(DType::f32, {1, heads, kinds_of_state_tokens, key_size}, 13)),
          beta_(random(DType::f32, {1, heads, kinds_of_state_tokens, value_size}, 14)),
          path_(std::filesystem::temp_directory_path() / ("heed_cache_states_" + setup.name + ".safetensors")),
          pool_(poisoned(c_)) {
        for (std::int64_t n = 0; n < log_decay_.elements(); ++n) {
            set(log_decay_, n, -0.3 * std::abs(get(log_decay_, n)));
        }
        for (std::int64_t n = 0; n < beta_.elements(); ++n) { set(beta_, n, 0.3 / (1 + std::exp(-get(beta_, n)))); }
    }
    ~StateMachine() { std::filesystem::remove(path_); }

    void run() {
        const int operations = std::max(100, 600 / test_stride());
        for (int n = 0; n < operations && !::testing::Test::HasFatalFailure(); ++n) {
            operation();
            std::vector<const Cache*> all;
            for (const Pair& x : caches_) { all.push_back(&x.cache); }
            poison(pool_, all);
        }
        caches_.clear();
        EXPECT_EQ(pool_.free_pages(), c_.pages) << "every page came back";
        for (const char* name : {"create", "attend", "fork", "truncate", "free", "save", "full"}) {
            EXPECT_GT(counts_[name], 0) << name;
        }
    }

private:
    struct Pair {
        Cache cache;
        std::vector<std::int64_t> tokens{};
    };
    Pair& any() { return caches_[static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(caches_.size())))]; }

    void operation() {
        const std::int64_t die = random_.below(100);
        if (caches_.empty() || (die < 10 && caches_.size() < most_states)) {
            ++counts_["create"];
            caches_.push_back({pool_.create()});
        } else if (die < 65) {
            attend_some();
        } else if (die < 75 && caches_.size() < most_states) {
            ++counts_["fork"];
            const Pair& x = any();
            caches_.push_back({x.cache.fork(), x.tokens});
        } else if (die < 80) {
            ++counts_["truncate"];
            Pair& x = any();
            x.cache.truncate(0);
            x.tokens.clear();
        } else if (die < 90) {
            ++counts_["free"];
            std::swap(any(), caches_.back());
            caches_.pop_back();
        } else {
            save(any());
        }
    }

    void save(Pair& x) {
        ++counts_["save"];
        x.cache.save(path_);
        try {
            x.cache = pool_.restore(path_);
        } catch (const CacheFull&) { ++counts_["full"]; }
        EXPECT_EQ(x.cache.length(), static_cast<std::int64_t>(x.tokens.size()));
    }

    void attend_some() {
        ++counts_["attend"];
        std::vector<Pair*> chosen;
        for (Pair& x : caches_) {
            const bool room = static_cast<std::int64_t>(x.tokens.size()) < most_state_tokens;
            if (room && (chosen.empty() || random_.below(2) == 0)) { chosen.push_back(&x); }
        }
        CacheBatch batch;
        std::vector<std::int64_t> fresh;
        for (const Pair* x : chosen) {
            batch.caches.push_back(const_cast<Cache*>(&x->cache));
            batch.tokens.push_back(1 + random_.below(random_.below(3) == 0 ? 9 : 2));
            for (std::int64_t n = 0; n < batch.tokens.back(); ++n) {
                fresh.push_back(random_.below(kinds_of_state_tokens));
            }
        }
        if (chosen.empty()) { return; }
        Tensor outs[2];
        try {
            for (const std::int64_t layer : {0, 1}) {
                batch.layer = layer;
                outs[layer] = cached(batch, fresh);
            }
        } catch (const CacheFull&) {  // by the first layer, and nothing has changed
            ++counts_["full"];
            for (const Pair* x : chosen) { ASSERT_EQ(x->cache.length(), static_cast<std::int64_t>(x->tokens.size())); }
            return;
        }
        std::int64_t at = 0;
        for (std::size_t n = 0; n < chosen.size(); ++n) {
            const std::int64_t count = batch.tokens[n];
            std::vector<std::int64_t>& tokens = chosen[n]->tokens;
            tokens.insert(tokens.end(), fresh.begin() + at, fresh.begin() + at + count);
            const auto length = static_cast<std::int64_t>(tokens.size());
            ASSERT_EQ(chosen[n]->cache.length(), length);
            for (const std::int64_t layer : {0, 1}) {
                expect_near(part(outs[layer], at, at + count), part(whole(layer, tokens), length - count, length),
                            setup_.tolerance, setup_.name);
            }
            at += count;
        }
    }

    LinearAttentionOptions linear_options(const Tensor& log_decay, const Tensor& beta) const {
        LinearAttentionOptions options;
        options.normalise = c_.normalise;
        options.rule = setup_.rule;
        if (setup_.rule == UpdateRule::delta) {
            options.feature = FeatureMap::identity;
            options.log_decay = log_decay;
            options.beta = beta;
        }
        return options;
    }

    Tensor cached(const CacheBatch& batch, const std::vector<std::int64_t>& tokens) {
        const Tokens& all = tokens_[batch.layer];
        const Tensor q = rows_of(all.q, tokens), k = rows_of(all.k, tokens), v = rows_of(all.v, tokens);
        Tensor out(type_, {1, heads, static_cast<std::int64_t>(tokens.size()), value_size});
        if (c_.kind == CacheKind::linear) {
            const Tensor log_decay = rows_of(log_decay_, tokens), beta = rows_of(beta_, tokens);
            cached_linear_attend(context_, batch, q, k, v, out, linear_options(log_decay, beta));
        } else {
            const Tensor memory_q = rows_of(memory_q_, tokens), memory_k = rows_of(memory_k_, tokens);
            cached_infini_attend(context_, batch, q, k, v, gates_, out, infini_options(memory_q, memory_k));
        }
        return out;
    }

    /// The operation over all tokens of a cache at once.
    Tensor whole(std::int64_t layer, const std::vector<std::int64_t>& tokens) {
        const Tokens& all = tokens_[layer];
        const Tensor q = rows_of(all.q, tokens), k = rows_of(all.k, tokens), v = rows_of(all.v, tokens);
        Tensor out(type_, {1, heads, static_cast<std::int64_t>(tokens.size()), value_size});
        if (c_.kind == CacheKind::linear) {
            const Tensor log_decay = rows_of(log_decay_, tokens), beta = rows_of(beta_, tokens);
            linear_attend(context_, q, k, v, out, linear_options(log_decay, beta));
        } else {
            InfiniMemory memory;
            const Tensor memory_q = rows_of(memory_q_, tokens), memory_k = rows_of(memory_k_, tokens);
            infini_attend(context_, q, k, v, gates_, out, memory, infini_options(memory_q, memory_k));
        }
        return out;
    }

    InfiniOptions infini_options(const Tensor& memory_q, const Tensor& memory_k) const {
        InfiniOptions options{.segment = c_.segment};
        if (c_.memory_keys) {
            options.memory_q = memory_q;
            options.memory_k = memory_k;
        }
        return options;
    }

    const StateSetup& setup_;
    const CacheConfig c_;
    const DType type_;
    Random random_{1};
    Context context_{1};
    Tokens tokens_[2];
    Tensor memory_q_, memory_k_, gates_, log_decay_, beta_;
    std::filesystem::path path_;
    CachePool pool_;
    std::vector<Pair> caches_;
    std::map<std::string, int> counts_;
};

class CacheStates : public ::testing::TestWithParam<StateSetup> {};

TEST_P(CacheStates, RandomOperations) { StateMachine(GetParam()).run(); }

std::vector<StateSetup> state_setups() {
    CacheConfig linear = small_config(4, 3);
    linear.kind = CacheKind::linear;
    linear.layers = 2;
    CacheConfig bare = linear, delta = linear, infini = linear;
    bare.normalise = delta.normalise = false;
    delta.states = heads;
    infini.kind = CacheKind::infini;
    infini.segment = 4;
    CacheConfig keys = infini, half = infini, narrow = infini;
    keys.memory_keys = true;
    half.storage = CacheStorage::f16;
    narrow.storage = CacheStorage::bf16;
    return {
        {"linear", linear},           {"linear_without_z", bare},   {"linear_delta", delta, 2e-5, UpdateRule::delta},
        {"infini", infini},           {"infini_memory_keys", keys}, {"infini_f16", half, 2e-3},
        {"infini_bf16", narrow, 2e-2}};
}

INSTANTIATE_TEST_SUITE_P(Cache, CacheStates, ::testing::ValuesIn(state_setups()),
                         [](const auto& parameter) { return parameter.param.name; });

}  // namespace
}  // namespace heed::testing
