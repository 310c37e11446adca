#include <heed/infini_attention.h>

#include "ops/infini_attention_steps.h"
#include "reference/infini_attention.h"

namespace heed {
namespace {

/// The memory before each segment, and what a segment needs besides.
class Backward {
public:
    Backward(Context& context, const InfiniProblem& problem, const View& dout, const InfiniGradients& gradients,
             const InfiniMemory& before)
        : context_(context),
          p_(problem),
          dout_(dout),
          gradients_(gradients),
          first_(before.segments),
          segments_(p_.segments()),
          rest_(heads()),
          gate_(heads()),
          minus_(static_cast<std::size_t>(p_.kv_heads), -1),
          dgate_(heads(), 0) {
        for (std::size_t h = 0; h < heads(); ++h) {
            gate_[h] = p_.gate(static_cast<std::int64_t>(h));
            rest_[h] = p_.rest(static_cast<std::int64_t>(h));
        }
        if (gradients.dsinks) { dsinks_ = Tensor(DType::f64, gradients.dsinks.shape()); }
        if (gradients.dalibi_slopes) { dslopes_ = Tensor(DType::f64, gradients.dalibi_slopes.shape()); }
        remember(before);
    }

    void run(const InfiniMemoryGradient& after) {
        dm_ = after.dm ? Tensor::copy_of(after.dm).to(p_.wide) : Tensor(p_.wide, p_.memory_shape());
        dz_ = after.dz ? Tensor::copy_of(after.dz).to(p_.wide) : Tensor(p_.wide, p_.normaliser_shape());
        const std::int64_t unroll = p_.options.unroll;
        for (std::int64_t s = segments_ - 1; s >= 0; --s) {
            if (unroll > 0 && s != segments_ - 1 && (s + 1) % unroll == 0) {
                dm_ = Tensor(p_.wide, p_.memory_shape());
                dz_ = Tensor(p_.wide, p_.normaliser_shape());
            }
            segment(s);
        }
        if (gradients_.dm) { store(dm_, gradients_.dm); }
        if (gradients_.dz) { store(dz_, gradients_.dz); }
        for (std::size_t h = 0; gradients_.dgates && h < heads(); ++h) {
            const MutableView& to = gradients_.dgates;
            write_number(to.dtype(), to.data(), static_cast<std::int64_t>(h) * to.stride(0),
                         dgate_[h] * gate_[h] * rest_[h]);
        }
        if (gradients_.dsinks) { store(dsinks_, gradients_.dsinks); }
        if (gradients_.dalibi_slopes) { store(dslopes_, gradients_.dalibi_slopes); }
    }

private:
    std::size_t heads() const { return static_cast<std::size_t>(p_.heads); }
    bool empty(std::int64_t s) const { return first_ + s == 0; }
    bool by_delta(std::int64_t s) const { return p_.options.update == MemoryUpdate::delta && !empty(s); }
    template <class AnyView>
    AnyView part(const AnyView& x, std::int64_t s) const {
        return p_.part(x, s);
    }
    Tensor like(const View& x) const { return Tensor::uninitialised(p_.wide, x.shape()); }

    static void store(const Tensor& from, const MutableView& to) {
        const Shape row_major = from.shape().row_major();
        for (std::int64_t n = 0; n < from.elements(); ++n) {
            std::int64_t offset = 0;
            for (int axis = 0; axis < to.rank(); ++axis) {
                offset += n / row_major[axis] % to.extent(axis) * to.stride(axis);
            }
            write_number(to.dtype(), to.data(), offset, read_number(from.dtype(), from.data(), n));
        }
    }
    static void add(Tensor& to, const Tensor& x) {
        for (std::int64_t n = 0; n < to.elements(); ++n) {
            write_number(to.dtype(), to.data(), n,
                         read_number(to.dtype(), to.data(), n) + read_number(x.dtype(), x.data(), n));
        }
    }

    /// v - r of the delta rule.
    Tensor novelty(std::int64_t s, const MemoryView& memory) const {
        Tensor w = like(part(p_.v, s));
        retrieve(context_, p_, part(p_.memory_k, s), memory, w);
        weighted_sum(context_, w, {}, part(p_.v, s), minus_, w);
        return w;
    }

    void remember(const InfiniMemory& before) {
        Tensor m = before.m ? before.m.clone() : Tensor(p_.wide, p_.memory_shape());
        Tensor z = before.z ? before.z.clone() : Tensor(p_.wide, p_.normaliser_shape());
        for (std::int64_t s = 0; s < segments_; ++s) {
            m_.push_back(m.clone());
            z_.push_back(z.clone());
            if (s + 1 == segments_) { break; }
            const Tensor w = by_delta(s) ? novelty(s, {m, z}) : Tensor();
            fold(context_, p_, part(p_.memory_k, s), w ? w.view() : part(p_.v, s), {m, z});
        }
    }

    void segment(std::int64_t s) {
        const View k = part(p_.memory_k, s);
        const View v = part(p_.v, s);
        const MemoryView memory{m_[static_cast<std::size_t>(s)], z_[static_cast<std::size_t>(s)]};
        Tensor more_m(p_.wide, p_.memory_shape());
        Tensor more_z(p_.wide, p_.normaliser_shape());

        // of 3, M' = M + sigma(K)^T W with W = V, or V - R by delta
        Tensor dk_memory(p_.wide, k.shape());
        Tensor dv_memory(p_.wide, v.shape());
        if (k.extent(2) == p_.options.segment) {
            const Tensor w = by_delta(s) ? novelty(s, memory) : Tensor();
            fold_backward(context_, p_, k, w ? w.view() : v, {dm_, dz_}, dk_memory, dv_memory);
            if (by_delta(s)) {
                Tensor dr = like(v);
                weighted_sum(context_, dr, minus_, dv_memory, {}, {});
                Tensor dk_retrieved = like(k);
                retrieve_backward(context_, p_, k, memory, dr, dk_retrieved, {more_m, more_z});
                add(dk_memory, dk_retrieved);
                add(dm_, more_m);
                add(dz_, more_z);
            }
        }

        // of 4, out = g memory + (1 - g) local
        const View q = part(p_.q, s);
        const View dout = part(dout_, s);
        Tensor local = like(dout);
        Tensor lse(p_.wide, {p_.batch, p_.heads, q.extent(2)});
        attend(context_, q, part(p_.k, s), v, {.out = local, .lse = lse}, p_.local);
        Tensor dlocal = like(dout);
        const bool bypass = empty(s) && p_.options.first_segment == FirstSegment::local_only;
        weighted_sum(context_, dlocal, bypass ? std::vector<double>() : rest_, dout, {}, {});
        Tensor dq_memory(p_.wide, q.shape());
        if (!empty(s)) {
            // of 2
            Tensor found = like(dout);
            retrieve(context_, p_, part(p_.memory_q, s), memory, found);
            add_dot_difference(context_, dout, found, local, dgate_);
            Tensor dfound = like(dout);
            weighted_sum(context_, dfound, gate_, dout, {}, {});
            retrieve_backward(context_, p_, part(p_.memory_q, s), memory, dfound, dq_memory, {more_m, more_z});
            add(dm_, more_m);
            add(dz_, more_z);
        } else if (!bypass) {
            std::vector<double> sum(heads(), 0);
            add_dot_difference(context_, dout, local, {}, sum);
            for (std::size_t h = 0; h < heads(); ++h) { dgate_[h] -= sum[h]; }
        }

        // of 1
        Tensor dq = like(q);
        Tensor dk = like(k);
        Tensor dv = like(v);
        Tensor dsinks = dsinks_ ? Tensor(DType::f64, dsinks_.shape()) : Tensor();
        Tensor dslopes = dslopes_ ? Tensor(DType::f64, dslopes_.shape()) : Tensor();
        AttentionGradients of_local;
        of_local.dq = dq;
        of_local.dk = dk;
        of_local.dv = dv;
        if (dsinks) { of_local.dsinks = dsinks; }
        if (dslopes) { of_local.dalibi_slopes = dslopes; }
        attend_backward(context_, {.q = q, .k = part(p_.k, s), .v = v, .out = local, .lse = lse, .dout = dlocal},
                        of_local, p_.local);
        if (dsinks) { add(dsinks_, dsinks); }
        if (dslopes) { add(dslopes_, dslopes); }

        const auto give = [&](const MutableView& to, const Tensor& a, const View& b) {
            weighted_sum(context_, part(to, s), {}, a, {}, b);
        };
        give(gradients_.dq, dq, p_.own_memory_q ? View() : dq_memory.view());
        give(gradients_.dk, dk, p_.own_memory_k ? View() : dk_memory.view());
        give(gradients_.dv, dv, dv_memory);
        if (p_.own_memory_q) { give(gradients_.dmemory_q, dq_memory, {}); }
        if (p_.own_memory_k) { give(gradients_.dmemory_k, dk_memory, {}); }
    }

    Context& context_;
    const InfiniProblem& p_;
    View dout_;
    const InfiniGradients& gradients_;
    std::int64_t first_;
    std::int64_t segments_;
    std::vector<double> rest_, gate_, minus_, dgate_;
    std::vector<Tensor> m_, z_;  ///< before each segment
    Tensor dm_, dz_;             ///< of the memory behind the segment at hand
    Tensor dsinks_, dslopes_;
};

}  // namespace

void infini_attend_backward(Context& context, const View& q, const View& k, const View& v, const View& gates,
                            const View& dout, const InfiniGradients& gradients, const InfiniMemory& before,
                            const InfiniOptions& options, const InfiniMemoryGradient& after) {
    const InfiniProblem p = checked_infini_backward(context, {"infini_attend_backward", context}, q, k, v, gates, dout,
                                                    gradients, before, options, after);
    if (p.by_reference) {
        reference::infini_attend_backward(p, dout, gradients, before, after);
    } else {
        Backward(context, p, dout, gradients, before).run(after);
    }
}

}  // namespace heed
