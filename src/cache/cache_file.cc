/// A cache in a safetensors file: numbers as they are stored, so that a restored cache goes on bit for bit.
#include <heed/safetensors.h>

#include "base/refuse.h"
#include "cache/cache_state.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numeric>

namespace heed {
namespace {

constexpr const char* format = "heed-cache";
constexpr const char* version = "1";

std::string numbered(const char* name, std::int64_t layer) { return std::string(name) + "." + std::to_string(layer); }
Tensor integer_tensor(const std::vector<std::int64_t>& numbers, const Shape& shape) {
    Tensor tensor(DType::i64, shape);
    std::ranges::copy(numbers, tensor.as<std::int64_t>());
    return tensor;
}

/// What has to agree between the pool that wrote a file and the one that reads it.
void expect_host(const char* function, const char* argument, const CacheConfig& c) {
    if (c.device.kind == DeviceKind::cpu) { return; }
    refuse(function, argument, "pages in memory of the CPU", "pages on " + to_string(c.device));
}

SafetensorsMetadata description(const CacheConfig& c) {
    SafetensorsMetadata text{{"format", format}, {"version", version}};
    const auto number = [&](const char* name, std::int64_t value) { text[name] = std::to_string(value); };
    number("kind", static_cast<int>(c.kind));
    number("layers", c.layers);
    number("kv_heads", c.kv_heads);
    number("head_size", c.head_size);
    number("value_size", c.value_size);
    text["storage"] = name_of(c.storage);
    number("positions", static_cast<int>(c.positions));
    number("sinks", c.sinks);
    if (c.kind == CacheKind::linear) {
        number("features", c.features);
        number("states", c.states);
        number("normalise", c.normalise ? 1 : 0);
    }
    if (c.kind == CacheKind::infini) {
        number("segment", c.segment);
        number("memory_keys", c.memory_keys ? 1 : 0);
    }
    return text;
}

/// The rotation of the stored keys: frequencies, factor, pairing. One that follows the length is told by a long one.
Tensor rotation(const CachePool::State& pool) {
    if (!pool.config.rope) { return Tensor(DType::f64, {0}); }
    constexpr std::int64_t long_length = 1 << 20;
    const RopeTable table = pool.table ? *pool.table : rope_table(*pool.config.rope, long_length);
    const auto pairs = static_cast<std::int64_t>(table.frequencies.size());
    Tensor numbers(DType::f64, {pairs + 3});
    std::ranges::copy(table.frequencies, numbers.as<double>());
    double* behind = numbers.as<double>() + pairs;
    behind[0] = table.attention_factor;
    behind[1] = table.pairing == Pairing::halves ? 1 : 0;
    behind[2] = pool.rotate_on_read ? 1 : 0;
    return numbers;
}

/// All stored rows of a layer, [G,S,bytes], or their scales [G,S,scales].
template <class Get>
Tensor rows_of_layer(const Cache::State& cache, std::int64_t tokens, DType dtype, std::int64_t columns, Get get) {
    const std::int64_t groups = cache.config().kv_heads;
    Tensor rows = Tensor::uninitialised(dtype, {groups, tokens, columns});
    const auto bytes = static_cast<std::size_t>(columns) * size_of(dtype);
    for (std::int64_t g = 0; g < groups; ++g) {
        for (std::int64_t j = 0; j < tokens; ++j) {
            const std::size_t run = cache.run_of(j);
            std::memcpy(static_cast<char*>(rows.data()) + static_cast<std::size_t>(g * tokens + j) * bytes,
                        get(g, cache.table[run], cache.row_of(run, j)), bytes);
        }
    }
    return rows;
}

struct Contents {
    std::vector<std::string> names{};
    std::vector<Tensor> tensors{};
    void add(std::string name, Tensor tensor) {
        names.push_back(std::move(name));
        tensors.push_back(std::move(tensor));
    }
};

void add_rows(const Cache::State& cache, Contents& contents) {
    const CachePool::State& pool = *cache.pool;
    std::vector<std::int64_t> stretches;
    for (const CacheStretch& s : cache.stretches) { stretches.insert(stretches.end(), {s.first, s.position}); }
    contents.add("stretches", integer_tensor(stretches, {static_cast<std::int64_t>(cache.stretches.size()), 2}));
    contents.add("rope", rotation(pool));
    Tensor sinks(DType::f32, {static_cast<std::int64_t>(cache.sinks.size())});
    std::ranges::copy(cache.sinks, sinks.as<float>());
    contents.add("sinks", std::move(sinks));
    if (!cache.sinks.empty()) {
        contents.add("sink_tokens",
                     integer_tensor(cache.sink_tokens, {static_cast<std::int64_t>(cache.sink_tokens.size())}));
    }
    for (std::int64_t layer = 0; layer < pool.config.layers; ++layer) {
        const std::int64_t tokens = cache.written[static_cast<std::size_t>(layer)];
        const auto side = [&](const char* name, const char* scales, const KvRowLayout& layout, auto row, auto scale) {
            contents.add(numbered(name, layer), rows_of_layer(cache, tokens, DType::u8, layout.bytes, row));
            if (layout.scales == 0) { return; }
            contents.add(numbered(scales, layer), rows_of_layer(cache, tokens, DType::f32, layout.scales, scale));
        };
        side(
            "k", "k_scales", pool.k_layout, [&](auto... at) { return pool.k_row(layer, at...); },
            [&](auto... at) { return pool.k_scales(layer, at...); });
        if (pool.config.kind == CacheKind::latent) { continue; }
        side(
            "v", "v_scales", pool.v_layout, [&](auto... at) { return pool.v_row(layer, at...); },
            [&](auto... at) { return pool.v_scales(layer, at...); });
    }
}

/// The tensors of one state, for writing and for reading. z of linear and memory_k of infini may be absent.
std::vector<std::pair<std::string, MutableView>> state_parts(CachePool::State& pool, std::int32_t page) {
    std::vector<std::pair<std::string, MutableView>> parts;
    for (std::int64_t layer = 0; layer < pool.config.layers; ++layer) {
        const auto add = [&](const char* name, Tensor& tensor, bool paged) {
            if (!tensor) { return; }
            parts.emplace_back(numbered(name, layer), paged ? tensor.view().slice(0, page, page + 1) : tensor.view());
        };
        if (pool.config.kind == CacheKind::linear) {
            add("s", pool.layers[static_cast<std::size_t>(layer)].s, true);
            add("z", pool.layers[static_cast<std::size_t>(layer)].z, true);
        } else {
            InfiniMemory& m = pool.memory(page, layer);
            add("m", m.m, false);
            add("z", m.z, false);
            add("k", m.k, false);
            add("v", m.v, false);
            add("memory_k", m.memory_k, false);
        }
    }
    return parts;
}

void add_state(const Cache::State& cache, Contents& contents) {
    if (cache.table.empty()) { return; }
    const std::int32_t page = cache.table.front();
    for (const auto& [name, view] : state_parts(*cache.pool, page)) { contents.add(name, Tensor::copy_of(view)); }
    if (cache.config().kind != CacheKind::infini) { return; }
    std::vector<std::int64_t> counters;
    for (std::int64_t layer = 0; layer < cache.config().layers; ++layer) {
        const InfiniMemory& m = cache.pool->memory(page, layer);
        counters.insert(counters.end(), {m.segments, m.pending});
    }
    contents.add("counters", integer_tensor(counters, {cache.config().layers, 2}));
}

/// A file that is being read; every complaint names it.
struct Reader {
    const SafetensorsFile& file;
    std::string path;

    [[noreturn]] void unsound(const std::string& what) const {
        throw FileError("[CachePool::restore] " + path + ": " + what);
    }
    /// A tensor of this type and shape; -1 leaves an extent open.
    Tensor tensor(const std::string& name, DType dtype, const Shape& shape) const {
        if (!file.contains(name)) { unsound("expected a tensor " + name + ", got none"); }
        const SafetensorsFile::Entry& entry = file.entry(name);
        bool right = entry.dtype == dtype && entry.shape.rank() == shape.rank();
        for (int axis = 0; right && axis < shape.rank(); ++axis) {
            right = shape[axis] < 0 || entry.shape[axis] == shape[axis];
        }
        if (!right) {
            unsound(name + ": expected " + std::string(name_of(dtype)) + " " + to_string(shape) + ", got " +
                    std::string(name_of(entry.dtype)) + " " + to_string(entry.shape));
        }
        return file.tensor(name);
    }
    std::vector<std::int64_t> integers(const std::string& name, const Shape& shape) const {
        const Tensor t = tensor(name, DType::i64, shape);
        return {t.as<std::int64_t>(), t.as<std::int64_t>() + t.elements()};
    }
    std::int64_t number(const char* name) const {
        const auto found = file.metadata().find(name);
        std::int64_t value = 0;
        if (found != file.metadata().end()) {
            const std::string& text = found->second;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            if (error == std::errc() && end == text.data() + text.size() && value >= -largest_position &&
                value <= largest_position) {
                return value;
            }
        }
        unsound(std::string(name) + ": expected a number in the metadata");
    }
};

void check_description(const Reader& reader, const CachePool::State& pool) {
    const auto says = [&](const std::string& name) {
        const auto found = reader.file.metadata().find(name);
        return found == reader.file.metadata().end() ? std::string("nothing") : found->second;
    };
    if (says("format") != format) { reader.unsound("expected the metadata of a heed-cache, got " + says("format")); }
    for (const auto& [name, value] : description(pool.config)) {
        if (says(name) != value) {
            refuse("CachePool::restore", name, value + " as in the pool", says(name) + " in " + reader.path);
        }
    }
}

/// Positions and their order, as read from the file.
void read_positions(const Reader& reader, Cache::State& cache) {
    const std::int64_t tokens = cache.tokens;
    const std::vector<std::int64_t> positions = reader.integers("stretches", {-1, 2});
    std::int64_t last = -1;
    for (std::size_t n = 0; n < positions.size(); n += 2) {
        const std::int64_t first = positions[n], position = positions[n + 1];
        if (first <= last || first >= tokens || (n == 0 && first != 0) || position < -largest_position ||
            position > largest_position) {
            reader.unsound("stretches: expected rising tokens from 0 on, with positions within 2^53");
        }
        cache.stretches.push_back({first, position});
        last = first;
    }
    const bool original = cache.config().positions == CachePositions::original;
    if (cache.stretches.empty() == (original && tokens > 0)) {
        reader.unsound("stretches: expected positions where they are kept, and only there");
    }
}

/// Unrotated keys, and the tokens that they are of.
void read_sinks(const Reader& reader, Cache::State& cache) {
    const Tensor sinks = reader.tensor("sinks", DType::f32, {static_cast<std::int64_t>(cache.sinks.size())});
    std::copy(sinks.as<float>(), sinks.as<float>() + sinks.elements(), cache.sinks.begin());
    if (cache.sinks.empty()) { return; }
    const std::int64_t most = std::min(cache.config().sinks, cache.tokens);
    std::int64_t last = -1;
    for (const std::int64_t token : reader.integers("sink_tokens", {-1})) {
        if (token <= last || token >= most) {
            reader.unsound("sink_tokens: expected rising numbers below " + std::to_string(most));
        }
        cache.sink_tokens.push_back(token);
        last = token;
    }
}

/// Tokens lie side by side, whatever gaps there were: results do not depend on where they lie.
std::vector<CacheRun> dense_runs(std::int64_t tokens, std::int64_t page_size) {
    std::vector<CacheRun> runs;
    for (std::int64_t first = 0; first < tokens; first += page_size) {
        runs.push_back({first, 0, std::min(page_size, tokens - first)});
    }
    return runs;
}

bool file_has_rows(const Reader& reader, const std::string& name, std::int64_t tokens) {
    return reader.file.contains(name) && reader.file.entry(name).shape.rank() == 3 &&
           reader.file.entry(name).shape[1] == tokens && (tokens == 0 || reader.file.entry(name).shape.elements() > 0);
}

/// A weight of 0 times a scale that is no number would not be 0: kernels count on what appending has checked.
void check_scales(const Reader& reader, const std::string& name, const KvRowLayout& layout) {
    if (layout.scales == 0) { return; }
    const Tensor scales = reader.tensor(name, DType::f32, {-1, -1, layout.scales});
    for (std::int64_t n = 0; n < scales.elements(); ++n) {
        if (!std::isfinite(scales.as<float>()[n])) { reader.unsound(name + ": expected finite numbers"); }
    }
}

void read_rows(const Reader& reader, Cache::State& cache) {
    CachePool::State& pool = *cache.pool;
    const CacheConfig& c = pool.config;
    const Tensor expected = rotation(pool);
    const Tensor found = reader.tensor("rope", DType::f64, {-1});
    if (found.elements() != expected.elements() || std::memcmp(found.data(), expected.data(), expected.bytes()) != 0) {
        refuse("CachePool::restore", "rope", "the rotation of the pool", "another in " + reader.path);
    }
    read_sinks(reader, cache);
    // Before anything is made as long as the file says: are there as many rows?
    for (std::int64_t layer = 0; layer < c.layers; ++layer) {
        const std::string name = numbered("k", layer);
        const std::int64_t tokens = cache.written[static_cast<std::size_t>(layer)];
        if (!file_has_rows(reader, name, tokens)) {
            reader.unsound(name + ": expected the rows of " + std::to_string(tokens) + " tokens");
        }
    }
    read_positions(reader, cache);
    std::vector<CacheRun> runs = dense_runs(cache.tokens, c.page_size);
    const auto count = static_cast<std::int64_t>(runs.size());
    if (c.pages_per_cache > 0 && count > c.pages_per_cache) {
        throw CacheFull("[CachePool::restore] pages_per_cache: expected " + std::to_string(count) + " pages for " +
                            std::to_string(cache.tokens) + " tokens, got " + std::to_string(c.pages_per_cache),
                        count, c.pages_per_cache);
    }
    pool.take(count, -1, "CachePool::restore", "pool", cache.table);
    cache.runs = std::move(runs);
    for (std::int64_t layer = 0; layer < c.layers; ++layer) {
        const std::int64_t tokens = cache.written[static_cast<std::size_t>(layer)];
        const auto fill = [&](const char* name, DType dtype, std::int64_t columns, auto get) {
            const Tensor rows = reader.tensor(numbered(name, layer), dtype, {c.kv_heads, tokens, columns});
            const auto bytes = static_cast<std::size_t>(columns) * size_of(dtype);
            for (std::int64_t g = 0; g < c.kv_heads; ++g) {
                for (std::int64_t j = 0; j < tokens; ++j) {
                    const std::size_t run = cache.run_of(j);
                    std::memcpy(
                        get(g, cache.table[run], cache.row_of(run, j)),
                        static_cast<const char*>(rows.data()) + static_cast<std::size_t>(g * tokens + j) * bytes,
                        bytes);
                }
            }
        };
        const auto side = [&](const char* name, const char* scales, const KvRowLayout& layout, auto row, auto scale) {
            check_scales(reader, numbered(scales, layer), layout);
            fill(name, DType::u8, layout.bytes, row);
            if (layout.scales > 0) { fill(scales, DType::f32, layout.scales, scale); }
        };
        side(
            "k", "k_scales", pool.k_layout, [&](auto... at) { return pool.k_row(layer, at...); },
            [&](auto... at) { return pool.k_scales(layer, at...); });
        if (c.kind == CacheKind::latent) { continue; }
        side(
            "v", "v_scales", pool.v_layout, [&](auto... at) { return pool.v_row(layer, at...); },
            [&](auto... at) { return pool.v_scales(layer, at...); });
    }
}

void read_state(const Reader& reader, Cache::State& cache) {
    if (cache.tokens == 0) { return; }
    CachePool::State& pool = *cache.pool;
    pool.take(1, -1, "CachePool::restore", "pool", cache.table);
    const std::int32_t page = cache.table.front();
    for (const auto& [name, view] : state_parts(pool, page)) {
        const Tensor tensor = reader.tensor(name, view.dtype(), view.shape());
        std::memcpy(view.data(), tensor.data(), tensor.bytes());
    }
    if (pool.config.kind != CacheKind::infini) { return; }
    const std::vector<std::int64_t> counters = reader.integers("counters", {pool.config.layers, 2});
    for (std::int64_t layer = 0; layer < pool.config.layers; ++layer) {
        const std::int64_t segments = counters[static_cast<std::size_t>(2 * layer)];
        const std::int64_t pending = counters[static_cast<std::size_t>(2 * layer + 1)];
        const std::int64_t tokens = cache.written[static_cast<std::size_t>(layer)];
        if (segments != tokens / pool.config.segment || pending != tokens % pool.config.segment) {
            reader.unsound("counters: expected the segments of " + std::to_string(tokens) + " tokens");
        }
        pool.memory(page, layer).segments = segments;
        pool.memory(page, layer).pending = pending;
    }
}

}  // namespace

void Cache::save(const std::filesystem::path& path) const {
    const State& cache = checked_cache("Cache::save", "cache", this);
    expect_host("Cache::save", "cache", cache.config());
    Contents contents;
    contents.add("tokens", integer_tensor(cache.written, {cache.config().layers}));
    if (is_state(cache.config().kind)) {
        add_state(cache, contents);
    } else {
        add_rows(cache, contents);
    }
    SafetensorsMetadata metadata = description(cache.config());
    metadata["next"] = std::to_string(cache.next);
    metadata["shift"] = std::to_string(cache.shift);
    std::vector<NamedView> views;
    for (std::size_t n = 0; n < contents.names.size(); ++n) {
        views.push_back({contents.names[n], contents.tensors[n]});
    }
    write_safetensors(path, views, metadata);
}

Cache CachePool::restore(const std::filesystem::path& path) const {
    expect_host("CachePool::restore", "pool", config());
    const SafetensorsFile file = SafetensorsFile::open(path);
    const Reader reader{file, path.string()};
    check_description(reader, *state_);
    auto cache = std::make_unique<Cache::State>(state_);
    cache->written = reader.integers("tokens", {config().layers});
    for (const std::int64_t count : cache->written) {
        if (count < 0 || count > largest_position) { reader.unsound("tokens: expected 0 or more"); }
        cache->tokens = std::max(cache->tokens, count);
    }
    cache->next = reader.number("next");
    cache->shift = reader.number("shift");
    if (is_state(config().kind)) {
        read_state(reader, *cache);
    } else {
        read_rows(reader, *cache);
    }
    return Cache(std::move(cache));
}

}  // namespace heed
