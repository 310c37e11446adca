/// Random operations against a plain model, a list of tokens, for every storage, kind and kernel. After each of them
/// everything in the pool that holds no token is NaN.
#include <algorithm>
#include <filesystem>
#include <map>
#include <ostream>

#include "base/access.h"
#include "support/kernels.h"
#include "support/random.h"
#include "support/sample.h"
#include "unit/cache/cache_testing.h"

namespace heed::testing {
namespace {

constexpr std::int64_t kinds = 61;  // of tokens: their keys, values and queries
constexpr std::int64_t most_caches = 7, most_tokens = 90;

struct Setup {
    std::string name;
    CacheConfig config;
    std::int64_t heads = 4;
    int operations = 3000;
};
void PrintTo(const Setup& setup, std::ostream* to) { *to << setup.name; }

struct Token {
    std::int64_t kind, position;
};
struct Model {
    std::vector<Token> tokens{};
    std::int64_t next = 0;
};

/// One query over a list of tokens, as the definition has it.
struct Question {
    std::int64_t kind = 0, position = 0, layer = 0;
    const AttentionOptions& options;
    const float* slopes = nullptr;
};

class Machine {
public:
    Machine(const Setup& setup, std::uint64_t seed)
        : setup_(setup),
          c_(setup.config),
          latent_(c_.kind == CacheKind::latent),
          plain_(latent_ ? 5 : 0),
          query_size_(latent_ ? plain_ + c_.head_size - c_.value_size : c_.head_size),
          out_size_(latent_ ? 6 : c_.value_size),
          random_(seed),
          q_(random_tensor(random_, DType::f32, {1, setup.heads, kinds, query_size_})),
          k_(random_tensor(random_, DType::f32, {1, c_.kv_heads, kinds, c_.head_size})),
          v_(random_tensor(random_, DType::f32, {1, c_.kv_heads, kinds, c_.value_size})),
          up_key_(
              random_tensor(random_, DType::f32, {setup.heads, std::max<std::int64_t>(1, plain_), c_.value_size}, 0.3)),
          up_value_(random_tensor(random_, DType::f32, {setup.heads, out_size_, c_.value_size}, 0.4)),
          slopes_(random_tensor(random_, DType::f32, {setup.heads}, 0.1)),
          stored_k_(as_stored(k_)),
          stored_v_(as_stored(v_)),
          path_(std::filesystem::temp_directory_path() / ("heed_cache_model_" + setup.name + ".safetensors")),
          pool_(poisoned(c_)) {
        if (c_.rope) { table_ = rope_table(*c_.rope); }
        for (const std::string& kernel : testing::runnable_kernels()) { kernels_.push_back(kernel); }
    }
    ~Machine() { std::filesystem::remove(path_); }

    void run() {
        for (int n = 0; n < setup_.operations && !::testing::Test::HasFatalFailure(); ++n) {
            operation();
            std::vector<const Cache*> all;
            for (const Pair& x : caches_) { all.push_back(&x.cache); }
            poison(pool_, all);
            if (n % 16 == 0) { check_pages(); }
        }
        caches_.clear();
        EXPECT_EQ(pool_.free_pages(), c_.pages) << "every page came back";
        EXPECT_GT(full_, setup_.operations / 200) << "the pool was full now and then";
        for (const char* name : {"create", "append", "attend", "fork", "truncate", "drop", "window", "free", "save"}) {
            EXPECT_GT(counts_[name], testing::test_stride() == 1 ? setup_.operations / 200 : 0) << name;
        }
    }

private:
    struct Pair {
        Cache cache;
        Model model;
    };

    bool slots() const { return c_.positions == CachePositions::slots; }

    /// What the pool keeps of rows, as numbers.
    Tensor as_stored(const Tensor& rows) const {
        Tensor result(DType::f32, rows.shape());
        const std::int64_t columns = rows.shape()[3];
        const KvRowLayout layout = kv_row_layout(c_.storage, columns);
        std::vector<char> row(static_cast<std::size_t>(layout.bytes));
        std::vector<float> scales(static_cast<std::size_t>(layout.scales));
        for (std::int64_t n = 0; n < rows.elements(); n += columns) {
            write_kv_row(layout, rows.as<float>() + n, row.data(), scales.data());
            read_kv_row(layout, row.data(), scales.data(), columns, result.as<float>() + n);
        }
        return result;
    }
    static std::int64_t in_layer(std::int64_t kind, std::int64_t layer) { return (kind + 7 * layer) % kinds; }

    void operation() {
        const std::int64_t die = random_.below(1000);
        if (caches_.empty() || (die < 40 && caches_.size() < most_caches)) {
            ++counts_["create"];
            caches_.push_back({pool_.create(), {}});
        } else if (die < 650) {
            attend_some(die % 6 != 0);
        } else if (die < 720) {
            fork();
        } else if (die < 780) {
            truncate(any());
        } else if (die < 880) {
            drop(any());
        } else if (die < 930) {
            keep_window(any());
        } else if (die < 980) {
            remove();
        } else {
            save(any());
        }
    }

    void fork() {
        if (caches_.size() >= most_caches) { return; }
        ++counts_["fork"];
        const Pair& x = any();
        Pair copy{x.cache.fork(), x.model};
        caches_.push_back(std::move(copy));
    }

    void truncate(Pair& x) {
        ++counts_["truncate"];
        const std::int64_t length = random_.below(4) == 0 ? size(x) : random_.below(size(x) + 1);
        const bool shorter = length < size(x);
        x.cache.truncate(length);
        x.model.tokens.resize(static_cast<std::size_t>(length));
        if (shorter) { x.model.next = length == 0 ? 0 : x.model.tokens.back().position + 1; }
        check_tokens(x);
    }

    void drop(Pair& x) {
        const std::int64_t begin = random_.below(size(x) + 1);
        const std::int64_t most = random_.below(2) == 0 ? std::min<std::int64_t>(1, size(x) - begin) : size(x) - begin;
        const std::int64_t end = begin + random_.below(most + 1);
        forget("drop", x, begin, end, [&] { x.cache.drop(begin, end); });
    }

    void keep_window(Pair& x) {
        const std::int64_t sinks = random_.below(4), recent = random_.below(25);
        const std::int64_t end = std::max(size(x) - recent, std::min(sinks, size(x)));
        forget("window", x, std::min(sinks, size(x)), end, [&] { x.cache.keep_window(sinks, recent); });
    }

    template <class Function>
    void forget(const char* name, Pair& x, std::int64_t begin, std::int64_t end, Function function) {
        ++counts_[name];
        try {
            function();
        } catch (const CacheFull&) {  // rows that move need pages of their own
            ++full_;
            check_tokens(x);
            remove();
            return;
        }
        std::vector<Token>& tokens = x.model.tokens;
        tokens.erase(tokens.begin() + begin, tokens.begin() + end);
        check_tokens(x);
    }

    void save(Pair& x) {
        ++counts_["save"];
        x.cache.save(path_);
        const std::int64_t before = pool_.free_pages();
        try {
            x.cache = pool_.restore(path_);
        } catch (const CacheFull&) { EXPECT_EQ(pool_.free_pages(), before); }
        check_tokens(x);
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
        for (const std::size_t n : chosen) {
            const std::int64_t room = append ? most_tokens - size(caches_[n]) : most_tokens;
            const std::int64_t count = std::min(room, random_.below(4) == 0 ? random_.below(20) : 1);
            batch.caches.push_back(&caches_[n].cache);
            batch.tokens.push_back(count);
            for (std::int64_t i = 0; i < count; ++i) { new_kinds.push_back(random_.below(kinds)); }
        }
        AttentionOptions options{.causal = random_.below(4) != 0};
        if (random_.below(4) == 0) { options.window.left = 9; }
        if (random_.below(4) == 0) { options.alibi_slopes = slopes_; }
        options.kernel = kernels_[static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(kernels_.size())))];
        SCOPED_TRACE(options.kernel + (append ? ", append " : ", no append ") + std::to_string(new_kinds.size()));
        std::vector<std::vector<std::int64_t>> positions;
        for (batch.layer = 0; batch.layer < c_.layers; ++batch.layer) {
            Answer got(static_cast<std::int64_t>(new_kinds.size()), DType::f32, out_size_, setup_.heads);
            const std::int64_t before = pool_.free_pages();
            try {
                call(batch, new_kinds, append, options, got);
            } catch (const CacheFull& full) {
                ++full_;
                ASSERT_EQ(batch.layer, 0) << "the first layer takes the pages";
                EXPECT_EQ(pool_.free_pages(), before);
                for (const std::size_t n : chosen) { check_tokens(caches_[n]); }
                remove();
                return;
            }
            if (batch.layer == 0) { positions = move_on(batch, chosen, new_kinds, append); }
            std::int64_t at = 0;
            for (std::size_t c = 0; c < chosen.size(); ++c) {
                for (std::int64_t i = 0; i < batch.tokens[c]; ++i, ++at) {
                    check_row(caches_[chosen[c]].model,
                              {new_kinds[static_cast<std::size_t>(at)], positions[c][static_cast<std::size_t>(i)],
                               batch.layer, options, options.alibi_slopes ? slopes_.as<float>() : nullptr},
                              got, at);
                    if (::testing::Test::HasFatalFailure()) { return; }
                }
            }
        }
    }

    void call(const CacheBatch& batch, const std::vector<std::int64_t>& new_kinds, bool append,
              const AttentionOptions& options, Answer& got) {
        const Tensor q = rows(q_, new_kinds, batch.layer), k = rows(k_, new_kinds, batch.layer),
                     v = rows(v_, new_kinds, batch.layer);
        if (latent_) {
            cached_mla_attend(context_, batch, q, append ? View(k) : View(), {up_key_, up_value_},
                              {.out = got.out, .lse = got.lse}, options);
        } else {
            cached_attend(context_, batch, q, append ? View(k) : View(), append ? View(v) : View(),
                          {.out = got.out, .lse = got.lse}, options);
        }
    }

    /// The new tokens join the models. Positions of the queries.
    std::vector<std::vector<std::int64_t>> move_on(const CacheBatch& batch, const std::vector<std::size_t>& chosen,
                                                   const std::vector<std::int64_t>& new_kinds, bool append) {
        std::vector<std::vector<std::int64_t>> positions(chosen.size());
        std::int64_t at = 0;
        for (std::size_t c = 0; c < chosen.size(); ++c) {
            Model& model = caches_[chosen[c]].model;
            for (std::int64_t i = 0; append && i < batch.tokens[c]; ++i, ++at) {
                model.tokens.push_back({new_kinds[static_cast<std::size_t>(at)], model.next++});
            }
            const auto length = static_cast<std::int64_t>(model.tokens.size());
            for (std::int64_t i = 0; i < batch.tokens[c]; ++i) {
                const std::int64_t j = length - batch.tokens[c] + i;
                std::int64_t position = j;
                if (!slots() && j >= 0) { position = model.tokens[static_cast<std::size_t>(j)].position; }
                if (!slots() && j < 0 && length > 0) { position = model.tokens[0].position + j; }
                if (!slots() && length == 0) { position = j; }
                positions[c].push_back(position);
            }
        }
        return positions;
    }

    /// A row of numbers at a position, rotated where the pool rotates.
    std::vector<double> rotated(const float* x, std::int64_t count, std::int64_t begin, std::int64_t position) const {
        std::vector<double> row(x, x + count);
        if (!c_.rope) { return row; }
        const std::size_t pairs = table_.frequencies.size();
        for (std::size_t n = 0; n < pairs; ++n) {
            const double angle = static_cast<double>(position) * table_.frequencies[n];
            double& a = row[static_cast<std::size_t>(begin) + n];
            double& b = row[static_cast<std::size_t>(begin) + n + pairs];
            const double first = a, second = b;
            a = first * std::cos(angle) - second * std::sin(angle);
            b = first * std::sin(angle) + second * std::cos(angle);
        }
        return row;
    }

    /// The query of head h, absorbed where keys are latents.
    std::vector<double> query(std::int64_t h, const Question& question) const {
        const std::int64_t kind = in_layer(question.kind, question.layer);
        const std::vector<double> q =
            rotated(q_.as<float>() + (h * kinds + kind) * query_size_, query_size_, plain_, question.position);
        if (!latent_) { return q; }
        std::vector<double> absorbed(static_cast<std::size_t>(c_.value_size), 0);
        for (std::int64_t n = 0; n < plain_ * c_.value_size; ++n) {
            absorbed[static_cast<std::size_t>(n % c_.value_size)] +=
                q[static_cast<std::size_t>(n / c_.value_size)] *
                double{up_key_.as<float>()[h * plain_ * c_.value_size + n]};
        }
        absorbed.insert(absorbed.end(), q.begin() + plain_, q.end());
        return absorbed;
    }

    void check_row(const Model& model, const Question& question, const Answer& got, std::int64_t row) {
        // Some sets multiply i8 by whole numbers of 16 bits.
        const double tolerance = c_.storage == CacheStorage::i8 ? 1e-3 : 3e-4;
        const double scale = 1 / std::sqrt(static_cast<double>(query_size_));
        const std::int64_t rows_of_got = got.out.shape()[2], d = c_.head_size, e = c_.value_size;
        for (std::int64_t h = 0; h < setup_.heads; ++h) {
            const std::int64_t g = h / (setup_.heads / c_.kv_heads);
            const std::vector<double> q = query(h, question);
            double sum = 0;
            std::vector<double> out(static_cast<std::size_t>(e), 0);
            for (std::size_t j = 0; j < model.tokens.size(); ++j) {
                const std::int64_t at = slots() ? static_cast<std::int64_t>(j) : model.tokens[j].position;
                const Window& window = question.options.window;
                if (question.options.causal && at > question.position) { continue; }
                if (window.left >= 0 && at < question.position - window.left) { continue; }
                const std::int64_t kind = in_layer(model.tokens[j].kind, question.layer);
                const std::vector<double> k =
                    rotated(stored_k_.as<float>() + (g * kinds + kind) * d, d, latent_ ? e : 0, at);
                double x = 0;
                for (std::size_t n = 0; n < k.size(); ++n) { x += q[n] * k[n]; }
                x *= scale;
                if (question.slopes != nullptr) {
                    x -= double{question.slopes[h]} * std::abs(static_cast<double>(question.position - at));
                }
                const double weight = std::exp(x);
                sum += weight;
                const float* v = latent_ ? stored_k_.as<float>() + (g * kinds + kind) * d
                                         : stored_v_.as<float>() + (g * kinds + kind) * e;
                for (std::int64_t n = 0; n < e; ++n) { out[static_cast<std::size_t>(n)] += weight * double{v[n]}; }
            }
            for (double& x : out) { x = sum == 0 ? 0 : x / sum; }
            const double lse = double{got.lse.as<float>()[h * rows_of_got + row]};
            if (sum == 0) {
                ASSERT_EQ(lse, -infinity);
            } else {
                ASSERT_NEAR(lse, std::log(sum), tolerance);
            }
            for (std::int64_t n = 0; n < out_size_; ++n) {
                ASSERT_NEAR(double{got.out.as<float>()[(h * rows_of_got + row) * out_size_ + n]}, output(h, n, out),
                            tolerance)
                    << "head " << h << " column " << n << " of " << model.tokens.size() << " tokens";
            }
        }
    }
    double output(std::int64_t h, std::int64_t n, const std::vector<double>& weighed) const {
        if (!latent_) { return weighed[static_cast<std::size_t>(n)]; }
        double sum = 0;
        for (std::int64_t r = 0; r < c_.value_size; ++r) {
            sum += double{up_value_.as<float>()[(h * out_size_ + n) * c_.value_size + r]} *
                   weighed[static_cast<std::size_t>(r)];
        }
        return sum;
    }

    void check_tokens(const Pair& x) {
        ASSERT_EQ(x.cache.length(), size(x));
        ASSERT_EQ(x.cache.next_position(), slots() ? size(x) : x.model.next);
        const std::vector<std::int64_t> positions = x.cache.positions();
        for (std::int64_t layer = 0; layer < c_.layers; ++layer) {
            const Tensor k = x.cache.keys(layer, 0, size(x)), v = x.cache.values(layer, 0, size(x));
            for (std::int64_t j = 0; j < size(x); ++j) {
                const Token& token = x.model.tokens[static_cast<std::size_t>(j)];
                ASSERT_EQ(positions[static_cast<std::size_t>(j)], slots() ? j : token.position);
                for (std::int64_t g = 0; g < c_.kv_heads; ++g) {
                    const std::int64_t kind = g * kinds + in_layer(token.kind, layer);
                    if (!c_.rope) {
                        ASSERT_EQ(k.as<float>()[(g * size(x) + j) * c_.head_size],
                                  stored_k_.as<float>()[kind * c_.head_size]);
                    }
                    if (latent_) { continue; }
                    ASSERT_EQ(v.as<float>()[(g * size(x) + j + 1) * c_.value_size - 1],
                              stored_v_.as<float>()[(kind + 1) * c_.value_size - 1]);
                }
            }
        }
    }

    /// Every reference is some cache's, and a page is free exactly where nobody has it.
    void check_pages() {
        std::vector<std::int32_t> expected(static_cast<std::size_t>(c_.pages), 0), all;
        for (const Pair& x : caches_) {
            for (const std::int32_t page : detail::Access::state(x.cache)->table) {
                ++expected[static_cast<std::size_t>(page)];
            }
        }
        for (std::int32_t page = 0; page < c_.pages; ++page) { all.push_back(page); }
        const Cache probe = pool_.create();
        ASSERT_EQ(detail::Access::state(probe)->pool->references(all), expected);
        ASSERT_EQ(pool_.free_pages(), std::ranges::count(expected, 0));
    }

    Pair& any() { return caches_[static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(caches_.size())))]; }
    static std::int64_t size(const Pair& x) { return static_cast<std::int64_t>(x.model.tokens.size()); }
    static Tensor rows(const Tensor& all, const std::vector<std::int64_t>& which, std::int64_t layer) {
        const std::int64_t h = all.shape()[1], size = all.shape()[3], count = static_cast<std::int64_t>(which.size());
        Tensor result(DType::f32, {1, h, count, size});
        for (std::int64_t n = 0; n < h * count * size; ++n) {
            const std::int64_t kind = in_layer(which[static_cast<std::size_t>(n / size % count)], layer);
            result.as<float>()[n] = all.as<float>()[(n / size / count * kinds + kind) * size + n % size];
        }
        return result;
    }

    const Setup setup_;
    const CacheConfig c_;
    const bool latent_;
    const std::int64_t plain_, query_size_, out_size_;
    Random random_;
    Context context_{1};
    Tensor q_, k_, v_, up_key_, up_value_, slopes_, stored_k_, stored_v_;
    RopeTable table_{};
    std::filesystem::path path_;
    CachePool pool_;
    std::vector<std::string> kernels_;
    std::vector<Pair> caches_;
    std::map<std::string, int> counts_;
    int full_ = 0;
};

class CacheModel : public ::testing::TestWithParam<Setup> {};

TEST_P(CacheModel, RandomOperations) { Machine(GetParam(), 1).run(); }

std::vector<Setup> setups() {
    std::vector<Setup> all;
    const CacheConfig small{.layers = 2, .kv_heads = 2, .head_size = 6, .value_size = 5, .page_size = 3, .pages = 40};
    // Sizes of whole vectors, which some kernels read where they lie; pages that hold several groups of 16 keys.
    const CacheConfig whole{.kv_heads = 2, .head_size = 64, .value_size = 64, .page_size = 32, .pages = 11};
    const CacheConfig latent{.kind = CacheKind::latent, .head_size = 11, .value_size = 7, .page_size = 3, .pages = 40};
    const CacheConfig whole_latent{
        .kind = CacheKind::latent, .head_size = 128, .value_size = 64, .page_size = 32, .pages = 11};
    for (const CacheStorage storage :
         {CacheStorage::f32, CacheStorage::bf16, CacheStorage::f16, CacheStorage::i8, CacheStorage::i4}) {
        const auto add = [&](const std::string& name, CacheConfig config, std::int64_t query_heads) {
            config.storage = storage;
            all.push_back({name + "_" + std::string(name_of(storage)), config, query_heads});
        };
        add("small", small, 4);
        add("whole", whole, 4);
        add("whole_one_head", whole, 2);
        add("latent", latent, 3);
        add("whole_latent", whole_latent, 4);
        CacheConfig short_of_pages = small;
        short_of_pages.pages_per_cache = 14;
        add("few_pages", short_of_pages, 4);
    }
    for (const CachePositions positions : {CachePositions::original, CachePositions::slots}) {
        const std::string name = positions == CachePositions::slots ? "slots" : "original";
        CacheConfig config = small, rows = latent;
        config.positions = rows.positions = positions;
        all.push_back({name, config});
        config.rope = Rope{.size = 4, .theta = 100};
        rows.rope = Rope{.size = 4, .theta = 100};
        all.push_back({name + "_rope", config});
        all.push_back({name + "_rope_latent", rows, 3});
        if (positions == CachePositions::original) { continue; }
        config.sinks = rows.sinks = 3;
        all.push_back({"slots_rope_sinks", config});
        all.push_back({"slots_rope_sinks_latent", rows, 3});
        config.pages_per_cache = 14;
        all.push_back({"slots_rope_sinks_few_pages", config});
    }
    for (Setup& setup : all) { setup.operations = std::max(200, setup.operations / test_stride()); }
    return all;
}

INSTANTIATE_TEST_SUITE_P(Cache, CacheModel, ::testing::ValuesIn(setups()),
                         [](const auto& parameter) { return parameter.param.name; });

}  // namespace
}  // namespace heed::testing
