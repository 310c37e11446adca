/// A hundred thousand random operations against a plain model: lists of tokens.
#include <algorithm>
#include <filesystem>
#include <map>

#include "cache/cache_state.h"
#include "support/random.h"
#include "support/sample.h"
#include "unit/cache/cache_testing.h"

namespace heed::testing {
namespace {

constexpr std::int64_t kinds = 61;  // of tokens: their keys, values and queries
constexpr std::int64_t page_size = 3, pages = 40, most_caches = 7;

struct Token {
    std::int64_t kind, position;
};
struct Model {
    std::vector<Token> tokens{};
    std::int64_t next = 0;
};

class Machine {
public:
    explicit Machine(std::uint64_t seed)
        : random_(seed),
          q_(random_tensor(random_, DType::f32, {1, heads, kinds, key_size})),
          k_(random_tensor(random_, DType::f32, {1, groups, kinds, key_size})),
          v_(random_tensor(random_, DType::f32, {1, groups, kinds, value_size})),
          path_(std::filesystem::temp_directory_path() /
                ("heed_cache_model_" + std::to_string(seed) + ".safetensors")) {}
    ~Machine() { std::filesystem::remove(path_); }

    void run(int operations) {
        for (int n = 0; n < operations && !::testing::Test::HasFatalFailure(); ++n) {
            operation();
            if (n % 16 == 0) { check_pages(); }
        }
        caches_.clear();
        EXPECT_EQ(pool_.free_pages(), pages) << "every page came back";
        EXPECT_GT(full_, 100) << "the pool was full now and then";
        for (const char* name : {"create", "append", "attend", "fork", "truncate", "drop", "window", "free", "save"}) {
            EXPECT_GT(counts_[name], 30) << name;
        }
    }

private:
    struct Pair {
        Cache cache;
        Model model;
    };

    void operation() {
        const std::int64_t die = random_.below(1000);
        if (caches_.empty() || (die < 40 && caches_.size() < most_caches)) {
            ++counts_["create"];
            caches_.push_back({pool_.create(), {}});
        } else if (die < 700) {
            attend_some(die % 8 != 0);
        } else if (die < 770) {
            fork();
        } else if (die < 830) {
            ++counts_["truncate"];
            Pair& x = any();
            const std::int64_t length = random_.below(size(x) + 1);
            x.cache.truncate(length);
            x.model.tokens.resize(static_cast<std::size_t>(length));
            x.model.next = length == 0 ? 0 : x.model.tokens.back().position + 1;
        } else if (die < 890) {
            ++counts_["drop"];
            Pair& x = any();
            const std::int64_t begin = random_.below(size(x) + 1), end = begin + random_.below(size(x) - begin + 1);
            x.cache.drop(begin, end);
            x.model.tokens.erase(x.model.tokens.begin() + begin, x.model.tokens.begin() + end);
        } else if (die < 940) {
            ++counts_["window"];
            Pair& x = any();
            const std::int64_t sinks = random_.below(4), recent = random_.below(20);
            x.cache.keep_window(sinks, recent);
            if (size(x) > sinks + recent) {
                x.model.tokens.erase(x.model.tokens.begin() + sinks, x.model.tokens.end() - recent);
            }
        } else if (die < 998) {
            remove();
        } else {
            ++counts_["save"];
            Pair& x = any();
            x.cache.save(path_);
            const std::int64_t before = pool_.free_pages();
            try {
                x.cache = pool_.restore(path_);
            } catch (const CacheFull&) {
                EXPECT_EQ(pool_.free_pages(), before);
                check_tokens(x);
            }
        }
    }

    void fork() {
        if (caches_.size() >= most_caches) { return; }
        ++counts_["fork"];
        const Pair& x = any();
        Pair copy{x.cache.fork(), x.model};
        caches_.push_back(std::move(copy));
    }

    void remove() {
        ++counts_["free"];
        const auto n = static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(caches_.size())));
        if (random_.below(2) == 0) {
            caches_[n].cache.free();
            EXPECT_THROW(caches_[n].cache.free(), Error);
        }
        caches_[n] = std::move(caches_.back());
        caches_.pop_back();
    }

    void attend_some(bool append) {
        ++counts_[append ? "append" : "attend"];
        std::vector<std::size_t> chosen;
        for (std::size_t n = 0; n < caches_.size(); ++n) {
            if (random_.below(2) == 0) { chosen.push_back(n); }
        }
        if (chosen.empty()) { return; }
        CacheBatch batch;
        batch.share = static_cast<SharedPrefix>(random_.below(3));
        std::vector<std::int64_t> new_kinds;
        std::vector<std::vector<std::int64_t>> positions;
        for (const std::size_t n : chosen) {
            const std::int64_t count = random_.below(4) == 0 ? random_.below(9) : 1;
            batch.caches.push_back(&caches_[n].cache);
            batch.tokens.push_back(count);
            positions.emplace_back();
            for (std::int64_t i = 0; i < count; ++i) { new_kinds.push_back(random_.below(kinds)); }
        }
        const Tensor q = rows(q_, new_kinds), k = rows(k_, new_kinds), v = rows(v_, new_kinds);
        Answer got(static_cast<std::int64_t>(new_kinds.size()));
        const AttentionOptions options{.causal = true, .window = {.left = random_.below(3) == 0 ? 9 : -1, .right = -1}};
        const std::int64_t before = pool_.free_pages();
        try {
            cached_attend(context_, batch, q, append ? View(k) : View(), append ? View(v) : View(), got.out, options,
                          got.lse);
        } catch (const CacheFull& full) {
            ++full_;
            EXPECT_EQ(pool_.free_pages(), before);
            EXPECT_EQ(full.free, before);
            EXPECT_GT(full.needed, before);
            for (const std::size_t n : chosen) { check_tokens(caches_[n]); }
            remove();
            return;
        }
        std::int64_t at = 0;
        for (std::size_t c = 0; c < chosen.size(); ++c) {
            Model& model = caches_[chosen[c]].model;
            const std::int64_t count = batch.tokens[c];
            const std::int64_t first = append ? model.next : 0;
            if (append) {
                for (std::int64_t i = 0; i < count; ++i) {
                    model.tokens.push_back({new_kinds[static_cast<std::size_t>(at + i)], model.next++});
                }
            }
            const auto length = static_cast<std::int64_t>(model.tokens.size());
            for (std::int64_t i = 0; i < count; ++i, ++at) {
                std::int64_t position = first + i;
                if (!append) {
                    const std::int64_t j = length - count + i;
                    position = j >= 0 ? model.tokens[static_cast<std::size_t>(j)].position
                                      : (length > 0 ? model.tokens[0].position + j : j);
                }
                check_row(model, new_kinds[static_cast<std::size_t>(at)], position, options.window.left, got, at);
            }
            if (random_.below(8) == 0) { check_tokens(caches_[chosen[c]]); }
        }
    }

    /// One query by the definition.
    void check_row(const Model& model, std::int64_t kind, std::int64_t position, std::int64_t left, const Answer& got,
                   std::int64_t row) {
        const double scale = 1 / std::sqrt(static_cast<double>(key_size));
        const std::int64_t rows_of_got = got.out.shape()[2];
        for (std::int64_t h = 0; h < heads; ++h) {
            const std::int64_t g = h / (heads / groups);
            double sum = 0;
            std::vector<double> out(static_cast<std::size_t>(value_size), 0);
            for (const Token& token : model.tokens) {
                if (token.position > position || (left >= 0 && token.position < position - left)) { continue; }
                double x = 0;
                for (std::int64_t d = 0; d < key_size; ++d) {
                    x += double{q_.as<float>()[(h * kinds + kind) * key_size + d]} *
                         double{k_.as<float>()[(g * kinds + token.kind) * key_size + d]};
                }
                const double weight = std::exp(scale * x);
                sum += weight;
                for (std::int64_t e = 0; e < value_size; ++e) {
                    out[static_cast<std::size_t>(e)] +=
                        weight * double{v_.as<float>()[(g * kinds + token.kind) * value_size + e]};
                }
            }
            const double lse = double{got.lse.as<float>()[h * rows_of_got + row]};
            if (sum == 0) {
                ASSERT_EQ(lse, -infinity);
            } else {
                ASSERT_NEAR(lse, std::log(sum), 1e-4);
            }
            for (std::int64_t e = 0; e < value_size; ++e) {
                const double expected = sum == 0 ? 0 : out[static_cast<std::size_t>(e)] / sum;
                ASSERT_NEAR(double{got.out.as<float>()[(h * rows_of_got + row) * value_size + e]}, expected, 1e-4);
            }
        }
    }

    void check_tokens(const Pair& x) {
        ASSERT_EQ(x.cache.length(), size(x));
        ASSERT_EQ(x.cache.next_position(), x.model.next);
        const Tensor k = x.cache.keys(0, 0, size(x)), v = x.cache.values(0, 0, size(x));
        const std::vector<std::int64_t> positions = x.cache.positions();
        for (std::int64_t j = 0; j < size(x); ++j) {
            const Token& token = x.model.tokens[static_cast<std::size_t>(j)];
            ASSERT_EQ(positions[static_cast<std::size_t>(j)], token.position);
            for (std::int64_t g = 0; g < groups; ++g) {
                ASSERT_EQ(k.as<float>()[(g * size(x) + j) * key_size],
                          k_.as<float>()[(g * kinds + token.kind) * key_size]);
                ASSERT_EQ(v.as<float>()[(g * size(x) + j + 1) * value_size - 1],
                          v_.as<float>()[(g * kinds + token.kind + 1) * value_size - 1]);
            }
        }
    }

    /// Every reference is some cache's, and a page is free exactly where nobody has it.
    void check_pages() {
        std::vector<std::int32_t> expected(static_cast<std::size_t>(pages), 0), all;
        for (const Pair& x : caches_) {
            for (const std::int32_t page : x.cache.state()->table) { ++expected[static_cast<std::size_t>(page)]; }
        }
        for (std::int32_t page = 0; page < pages; ++page) { all.push_back(page); }
        Cache probe = pool_.create();
        ASSERT_EQ(probe.state()->pool->references(all), expected);
        ASSERT_EQ(pool_.free_pages(), std::ranges::count(expected, 0));
    }

    Pair& any() { return caches_[static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(caches_.size())))]; }
    static std::int64_t size(const Pair& x) { return static_cast<std::int64_t>(x.model.tokens.size()); }
    static Tensor rows(const Tensor& all, const std::vector<std::int64_t>& which) {
        const std::int64_t h = all.shape()[1], size = all.shape()[3], count = static_cast<std::int64_t>(which.size());
        Tensor result(DType::f32, {1, h, count, size});
        for (std::int64_t n = 0; n < h * count * size; ++n) {
            const std::int64_t kind = which[static_cast<std::size_t>(n / size % count)];
            result.as<float>()[n] = all.as<float>()[(n / size / count * kinds + kind) * size + n % size];
        }
        return result;
    }

    Random random_;
    Context context_{1};
    Tensor q_, k_, v_;
    std::filesystem::path path_;
    CachePool pool_{small_config(page_size, pages)};
    std::vector<Pair> caches_;
    std::map<std::string, int> counts_;
    int full_ = 0;
};

TEST(CacheModel, AHundredThousandRandomOperations) {
    Sample sample;
    for (const std::uint64_t seed : {1, 2, 3, 4}) {
        if (!sample.takes()) { continue; }
        SCOPED_TRACE("seed " + std::to_string(seed));
        Machine(seed).run(25000);
    }
}

}  // namespace
}  // namespace heed::testing
