#include "reference/infini_attention.h"

#include "kernel/attention_problem.h"
#include "reference/attention.h"
#include "reference/listed_rows.h"
#include "reference/rows.h"

namespace heed::reference {
namespace {

/// sigma(x) = elu(x) + 1
Row sigma(const Row& x) {
    Row y(x.size());
    for (std::size_t n = 0; n < x.size(); ++n) { y[n] = x[n] > 0 ? x[n] + 1 : std::exp(x[n]); }
    return y;
}
/// of y = sigma(x):  dx = sigma'(x) dy
Row sigma_backward(const Row& x, const Row& dy) {
    Row dx(x.size());
    for (std::size_t n = 0; n < x.size(); ++n) { dx[n] = x[n] > 0 ? dy[n] : dy[n] * std::exp(x[n]); }
    return dx;
}

/// M as D rows of E, and z, of one key/value head; or a gradient of them.
struct Memory {
    std::vector<Row> m;
    Row z;

    Memory(const InfiniProblem& p, const View& from_m, const View& from_z, std::int64_t b, std::int64_t g)
        : m(index(p.head_size), Row(index(p.value_size), 0)), z(index(p.head_size), 0) {
        for (std::int64_t d = 0; d < p.head_size; ++d) {
            if (from_m) { m[index(d)] = row_of(from_m, b, g, d); }
            if (from_z) { z[index(d)] = read_number(from_z.dtype(), from_z.data(), z_offset(from_z, b, g, d)); }
        }
    }
    void store(const MutableView& to_m, const MutableView& to_z, std::int64_t b, std::int64_t g) const {
        for (std::size_t d = 0; d < m.size(); ++d) {
            const auto at = static_cast<std::int64_t>(d);
            if (to_m) { put_row(to_m, b, g, at, m[d]); }
            if (to_z) { write_number(to_z.dtype(), to_z.data(), z_offset(to_z, b, g, at), z[d]); }
        }
    }
    /// M += x y^T
    void add_outer(const Row& x, const Row& y) {
        for (std::size_t d = 0; d < m.size(); ++d) { add(m[d], x[d], y); }
    }
    /// x M
    Row read(const Row& x) const {
        Row y(m[0].size(), 0);
        for (std::size_t d = 0; d < m.size(); ++d) { add(y, x[d], m[d]); }
        return y;
    }
    /// M y
    Row read_columns(const Row& y) const {
        Row x(m.size());
        for (std::size_t d = 0; d < m.size(); ++d) { x[d] = dot(m[d], y); }
        return x;
    }

private:
    template <class AnyView>
    static std::int64_t z_offset(const AnyView& view, std::int64_t b, std::int64_t g, std::int64_t d) {
        return b * view.stride(0) + g * view.stride(1) + d * view.stride(2);
    }
};

/// x M / (x . z), or 0 where the denominator is below epsilon.
Row retrieve(const InfiniProblem& p, const Memory& memory, const Row& x) {
    const double c = dot(x, memory.z);
    Row r = memory.read(x);
    for (double& value : r) { value = c < p.options.epsilon ? 0 : value / c; }
    return r;
}
/// of r = x M / c, c = x . z:
///   dx += M (dr / c) - (dr . r / c) z,   dM += x (dr / c)^T,   dz -= (dr . r / c) x
void retrieve_backward(const InfiniProblem& p, const Memory& memory, const Row& x, const Row& dr, Row& dx,
                       Memory& dmemory) {
    const double c = dot(x, memory.z);
    if (c < p.options.epsilon) { return; }
    const double dc = -dot(dr, memory.read(x)) / (c * c);
    Row dn = dr;
    for (double& value : dn) { value /= c; }
    add(dx, 1, memory.read_columns(dn));
    add(dx, dc, memory.z);
    dmemory.add_outer(x, dn);
    add(dmemory.z, dc, x);
}

/// What step 3 stores of a token: v, less what the memory says already where the update is by delta.
Row novelty(const InfiniProblem& p, const Memory& before, bool empty, const Row& x, Row v) {
    if (p.options.update == MemoryUpdate::delta && !empty) { add(v, -1, retrieve(p, before, x)); }
    return v;
}
/// Step 3: M + sum_t sigma(k_t) (v_t - r_t)^T, z + sum_t sigma(k_t); all r_t from the memory before.
Memory updated(const InfiniProblem& p, const Memory& before, bool empty, const View& keys, const View& values,
               std::int64_t b, std::int64_t g) {
    Memory after = before;
    for (std::int64_t t = 0; t < keys.extent(2); ++t) {
        const Row x = sigma(row_of(keys, b, g, t));
        after.add_outer(x, novelty(p, before, empty, x, row_of(values, b, g, t)));
        add(after.z, 1, x);
    }
    return after;
}

/// Step 1 of some queries over the keys of their segment: the last query sees the last key.
AttentionProblem local_problem(const InfiniProblem& p, const View& q, const View& keys, const View& values) {
    AttentionProblem local;
    local.batch = p.batch;
    local.heads = p.heads;
    local.kv_heads = p.kv_heads;
    local.queries = q.extent(2);
    local.keys = keys.extent(2);
    local.head_size = p.head_size;
    local.value_size = p.value_size;
    local.options = p.local;
    local.scale = p.local.scale.value_or(1 / std::sqrt(static_cast<double>(p.head_size)));
    local.q = q;
    local.k = keys;
    local.v = values;
    return local;
}
Row local_row(const AttentionProblem& local, std::int64_t b, std::int64_t h, std::int64_t i) {
    SoftmaxRow softmax;
    softmax.compute(local, local.sequence(b), b, h, i);
    Row out(index(local.value_size), 0);
    for (std::int64_t j = 0; j < local.keys; ++j) {
        if (softmax.visible[index(j)] != 0) {
            add(out, softmax.weight[index(j)], row_of(local.v, b, h / local.group(), j));
        }
    }
    return out;
}

}  // namespace

void infini_piece(const InfiniProblem& p, const InfiniPiece& piece, InfiniMemory& memory) {
    const bool empty = memory.segments == 0;
    const bool bypass = empty && p.options.first_segment == FirstSegment::local_only;
    const AttentionProblem attention = local_problem(p, piece.q, piece.keys, piece.values);
    for (std::int64_t b = 0; b < p.batch; ++b) {
        for (std::int64_t h = 0; h < p.heads; ++h) {
            const Memory before(p, memory.m, memory.z, b, h / p.group());
            for (std::int64_t i = 0; i < piece.q.extent(2); ++i) {
                // 1
                const Row local = local_row(attention, b, h, i);
                Row out(local.size(), 0);
                // 2
                if (!empty) { add(out, p.gate(h), retrieve(p, before, sigma(row_of(piece.memory_q, b, h, i)))); }
                // 4
                add(out, bypass ? 1 : p.rest(h), local);
                put_row(piece.out, b, h, i, out);
            }
        }
    }
    if (!piece.complete) { return; }
    // 3
    for (std::int64_t b = 0; b < p.batch; ++b) {
        for (std::int64_t g = 0; g < p.kv_heads; ++g) {
            const Memory before(p, memory.m, memory.z, b, g);
            updated(p, before, empty, piece.memory_keys, piece.values, b, g).store(memory.m, memory.z, b, g);
        }
    }
    ++memory.segments;
}

namespace {

/// A sum in double of what segments add to, for a tensor of any strides.
struct Sum {
    MutableView view;
    Tensor total;

    explicit Sum(const MutableView& target) : view(target) {
        if (view) { total = Tensor(DType::f64, view.shape()); }
    }
    void add(const Tensor& more) {
        for (std::int64_t n = 0; view && n < total.elements(); ++n) { total.as<double>()[n] += more.as<double>()[n]; }
    }
    void store() const {
        if (view) { put_all(std::span(total.as<double>(), static_cast<std::size_t>(total.elements())), view); }
    }
};

/// One segment's share of the backward pass: rows of gradients, in the shapes of the segment's inputs.
class SegmentBackward {
public:
    SegmentBackward(const InfiniProblem& problem, std::int64_t segment, bool empty)
        : p(problem),
          s(segment),
          empty_(empty),
          bypass_(empty && problem.options.first_segment == FirstSegment::local_only),
          q(p.part(p.q, s)),
          k(p.part(p.k, s)),
          v(p.part(p.v, s)),
          memory_q(p.part(p.memory_q, s)),
          memory_k(p.part(p.memory_k, s)),
          dq_memory(DType::f64, q.shape()),
          dk_memory(DType::f64, k.shape()),
          dv_memory(DType::f64, v.shape()),
          dlocal(DType::f64, {p.batch, p.heads, q.extent(2), p.value_size}) {}

    /// of 3, M' = M + sum_t x_t n_t^T and z' = z + sum_t x_t with x_t = sigma(k_t), n_t = v_t - r_t:
    ///   dn_t = x_t dM',   dx_t = dM' n_t + dz',   and by delta r_t passes -dn_t on
    /// dmemory is that of the memory behind the segment, and becomes that before it.
    void update(const Memory& before, std::int64_t b, std::int64_t g, Memory& dmemory) {
        if (k.extent(2) < p.options.segment) { return; }
        const Memory dafter = dmemory;
        for (std::int64_t t = 0; t < k.extent(2); ++t) {
            const Row key = row_of(memory_k, b, g, t);
            const Row x = sigma(key);
            const Row dn = dafter.read(x);
            Row dx = dafter.read_columns(novelty(p, before, empty_, x, row_of(v, b, g, t)));
            add(dx, 1, dafter.z);
            if (p.options.update == MemoryUpdate::delta && !empty_) {
                Row dr = dn;
                for (double& value : dr) { value = -value; }
                retrieve_backward(p, before, x, dr, dx, dmemory);
            }
            put_row(dv_memory, b, g, t, dn);
            put_row(dk_memory, b, g, t, sigma_backward(key, dx));
        }
    }

    /// of 4, out = gate memory + (1 - gate) local:
    ///   dmemory = gate dout,   dlocal = (1 - gate) dout,   dgate = dout . (memory - local)
    /// and of 2. Returns dgate of head h.
    double queries(const View& dout, const Memory& before, std::int64_t b, std::int64_t h, Memory& dmemory) {
        const AttentionProblem attention = local_problem(p, q, k, v);
        double dgate = 0;
        for (std::int64_t i = 0; i < q.extent(2); ++i) {
            const Row d = row_of(dout, b, h, i);
            Row of_local(d.size(), 0);
            add(of_local, bypass_ ? 1 : p.rest(h), d);
            put_row(dlocal, b, h, i, of_local);
            if (bypass_) { continue; }
            dgate -= dot(d, local_row(attention, b, h, i));
            if (empty_) { continue; }
            const Row query = row_of(memory_q, b, h, i);
            const Row x = sigma(query);
            dgate += dot(d, retrieve(p, before, x));
            Row dr(d.size(), 0);
            add(dr, p.gate(h), d);
            Row dx(x.size(), 0);
            retrieve_backward(p, before, x, dr, dx, dmemory);
            put_row(dq_memory, b, h, i, sigma_backward(query, dx));
        }
        return dgate;
    }

    /// of 1, and the sums of what came by the memory and by local attention.
    void finish(const InfiniGradients& to, Sum& dsinks, Sum& dslopes) {
        Tensor dq(DType::f64, q.shape());
        Tensor dk(DType::f64, k.shape());
        Tensor dv(DType::f64, v.shape());
        Tensor of_sinks;
        Tensor of_slopes;
        AttentionProblem attention = local_problem(p, q, k, v);
        attention.dout = dlocal;
        attention.gradients = {.dq = dq, .dk = dk, .dv = dv};
        if (dsinks.view) {
            of_sinks = Tensor(DType::f64, dsinks.view.shape());
            attention.gradients.dsinks = of_sinks;
        }
        if (dslopes.view) {
            of_slopes = Tensor(DType::f64, dslopes.view.shape());
            attention.gradients.dalibi_slopes = of_slopes;
        }
        attend_backward(attention);
        dsinks.add(of_sinks);
        dslopes.add(of_slopes);
        give(to.dq, dq, p.own_memory_q ? nullptr : &dq_memory);
        give(to.dk, dk, p.own_memory_k ? nullptr : &dk_memory);
        give(to.dv, dv, &dv_memory);
        if (p.own_memory_q) { give(to.dmemory_q, dq_memory, nullptr); }
        if (p.own_memory_k) { give(to.dmemory_k, dk_memory, nullptr); }
    }

private:
    void give(const MutableView& to, const Tensor& a, const Tensor* b) const {
        const MutableView target = p.part(to, s);
        for (std::int64_t n = 0; n < a.shape()[0]; ++n) {
            for (std::int64_t h = 0; h < a.shape()[1]; ++h) {
                for (std::int64_t t = 0; t < a.shape()[2]; ++t) {
                    Row row = row_of(a, n, h, t);
                    if (b != nullptr) { add(row, 1, row_of(*b, n, h, t)); }
                    put_row(target, n, h, t, row);
                }
            }
        }
    }

    const InfiniProblem& p;
    std::int64_t s;
    bool empty_;
    bool bypass_;
    View q, k, v, memory_q, memory_k;
    Tensor dq_memory, dk_memory, dv_memory, dlocal;
};

}  // namespace

void infini_attend_backward(const InfiniProblem& p, const View& dout, const InfiniGradients& gradients,
                            const InfiniMemory& start, const InfiniMemoryGradient& after) {
    // The memory before each segment, [segment][b * G + g], by steps 3 of the forward pass.
    std::vector<std::vector<Memory>> before(index(p.segments()));
    std::vector<Memory> dmemory;  // of the memory behind the segment at hand
    const auto empty = [&](std::int64_t s) { return start.segments + s == 0; };
    const auto head = [&](std::int64_t b, std::int64_t g) { return index(b * p.kv_heads + g); };
    for (std::int64_t b = 0; b < p.batch; ++b) {
        for (std::int64_t g = 0; g < p.kv_heads; ++g) {
            Memory memory(p, start.m ? start.m.view() : View(), start.z ? start.z.view() : View(), b, g);
            for (std::int64_t s = 0; s < p.segments(); ++s) {
                before[index(s)].push_back(memory);
                memory = updated(p, memory, empty(s), p.part(p.memory_k, s), p.part(p.v, s), b, g);
            }
            dmemory.emplace_back(p, after.dm, after.dz, b, g);
        }
    }
    Row dgate(index(p.heads), 0);
    Sum dsinks(gradients.dsinks);
    Sum dslopes(gradients.dalibi_slopes);
    for (std::int64_t s = p.segments() - 1; s >= 0; --s) {
        const std::int64_t unroll = p.options.unroll;
        if (unroll > 0 && s != p.segments() - 1 && (s + 1) % unroll == 0) {
            for (Memory& d : dmemory) { d = Memory(p, {}, {}, 0, 0); }
        }
        SegmentBackward segment(p, s, empty(s));
        for (std::int64_t b = 0; b < p.batch; ++b) {
            for (std::int64_t g = 0; g < p.kv_heads; ++g) {
                const Memory& memory = before[index(s)][head(b, g)];
                segment.update(memory, b, g, dmemory[head(b, g)]);
                for (std::int64_t h = g * p.group(); h < (g + 1) * p.group(); ++h) {
                    dgate[index(h)] += segment.queries(p.part(dout, s), memory, b, h, dmemory[head(b, g)]);
                }
            }
        }
        segment.finish(gradients, dsinks, dslopes);
    }
    for (std::int64_t b = 0; b < p.batch; ++b) {
        for (std::int64_t g = 0; g < p.kv_heads; ++g) { dmemory[head(b, g)].store(gradients.dm, gradients.dz, b, g); }
    }
    for (std::int64_t h = 0; gradients.dgates && h < p.heads; ++h) {
        const MutableView& to = gradients.dgates;
        write_number(to.dtype(), to.data(), h * to.stride(0), dgate[index(h)] * p.gate(h) * p.rest(h));
    }
    dsinks.store();
    dslopes.store();
}

}  // namespace heed::reference
