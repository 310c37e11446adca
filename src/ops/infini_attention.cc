#include <heed/elementwise.h>
#include <heed/infini_attention.h>

#include "ops/cached_attention.h"
#include "ops/host_copy.h"
#include "ops/infini_attention_steps.h"
#include "reference/infini_attention.h"

namespace heed {
namespace {

Tensor clone_of(const Tensor& tensor) { return tensor ? tensor.clone() : Tensor(); }

/// Gives an empty memory its sizes, and room for pending tokens where the call will leave or complete some.
void make_room(const InfiniProblem& p, InfiniMemory& memory) {
    const Device device = p.q.device();
    if (!memory.m) {
        memory.m = Tensor(p.wide, p.memory_shape(), device);
        memory.z = Tensor(p.wide, p.normaliser_shape(), device);
    }
    if (memory.pending == 0 && p.tokens % p.options.segment == 0) { return; }
    const Shape keys{p.batch, p.kv_heads, p.options.segment, p.head_size};
    if (!memory.k) {
        memory.k = Tensor(p.q.dtype(), keys, device);
        memory.v = Tensor(p.q.dtype(), {p.batch, p.kv_heads, p.options.segment, p.value_size}, device);
    }
    if (p.own_memory_k && !memory.memory_k) { memory.memory_k = Tensor(p.q.dtype(), keys, device); }
}

/// Tokens [t, t + n) of the call, all of one segment; where the segment began in another call or goes on in another,
/// its keys are gathered in the memory.
InfiniPiece piece_of(Context& context, const InfiniProblem& p, const MutableView& out, std::int64_t t, std::int64_t n,
                     InfiniMemory& memory) {
    const auto part = [&](const auto& x) { return x.slice(2, t, t + n); };
    InfiniPiece piece{.q = part(p.q),
                      .memory_q = part(p.memory_q),
                      .keys = part(p.k),
                      .memory_keys = part(p.memory_k),
                      .values = part(p.v),
                      .out = part(out),
                      .complete = memory.pending + n == p.options.segment};
    if (memory.pending > 0 || !piece.complete) {
        const auto keep = [&](const View& from, Tensor& to) {
            const MutableView kept = to.view().slice(2, memory.pending, memory.pending + n);
            on_host(context) ? copy_rows(from, kept) : convert(context, from, kept);
            return View(to.view().slice(2, 0, memory.pending + n));
        };
        piece.keys = keep(piece.keys, memory.k);
        piece.values = keep(piece.values, memory.v);
        piece.memory_keys = p.own_memory_k ? keep(piece.memory_keys, memory.memory_k) : piece.keys;
    }
    return piece;
}

/// Steps 1 to 4 by the kernels of attention and of linear attention; scratch serves all pieces of a call.
class ByKernels {
    struct Space {
        StepMemory memory;
        MutableView view;
    };

public:
    ByKernels(Context& context, const InfiniProblem& problem, DType out)
        : context_(context), p_(problem), out_(out), minus_(static_cast<std::size_t>(p_.kv_heads), -1) {
        for (std::int64_t h = 0; h < p_.heads; ++h) {
            gate_.push_back(p_.gate(h));
            rest_.push_back(p_.rest(h));
        }
    }

    void run(const InfiniPiece& piece, InfiniMemory& memory) {
        const std::int64_t n = piece.q.extent(2);
        // 1. Local results wait in float for the mix where out is narrower.
        const MutableView local =
            out_ == p_.wide ? piece.out : space(local_, detail::KeptMemory::local, p_.heads).slice(2, 0, n);
        attend(context_, piece.q, piece.keys, piece.values, local, p_.local);
        // 2 and 4
        if (memory.segments > 0) {
            const MutableView found = space(found_, detail::KeptMemory::found, p_.heads).slice(2, 0, n);
            retrieve(context_, p_, piece.memory_q, {memory.m, memory.z}, found);
            weighted_sum(context_, piece.out, gate_, found, rest_, local);
        } else if (p_.options.first_segment == FirstSegment::gated) {
            weighted_sum(context_, piece.out, rest_, local, {}, {});
        } else if (local_.view) {
            weighted_sum(context_, piece.out, {}, local, {}, {});
        }
        // 3
        if (piece.complete) { update(piece.memory_keys, piece.values, memory); }
    }

private:
    void update(const View& k, const View& v, InfiniMemory& memory) {
        const MutableMemoryView target{memory.m, memory.z};
        if (p_.options.update == MemoryUpdate::delta && memory.segments > 0) {
            const MutableView news = space(news_, detail::KeptMemory::news, p_.kv_heads, p_.options.segment);
            retrieve(context_, p_, k, {memory.m, memory.z}, news);
            weighted_sum(context_, news, {}, v, minus_, news);
            fold(context_, p_, k, news, target);
        } else {
            fold(context_, p_, k, v, target);
        }
        ++memory.segments;
    }
    /// Made when first asked for; a call's pieces have at most its own tokens, a completed segment all of them.
    MutableView space(Space& space, detail::KeptMemory slot, std::int64_t heads, std::int64_t rows = 0) {
        const std::int64_t longest = rows > 0 ? rows : std::min(p_.tokens, p_.options.segment);
        if (!space.view) {
            space.view = space.memory.view(context_, slot, p_.wide, {p_.batch, heads, longest, p_.value_size});
        }
        return space.view;
    }

    Context& context_;
    const InfiniProblem& p_;
    DType out_;
    std::vector<double> gate_, rest_, minus_;
    Space local_, found_, news_;
};

}  // namespace

InfiniMemory InfiniMemory::clone() const {
    InfiniMemory copy;
    copy.m = clone_of(m);
    copy.z = clone_of(z);
    copy.segments = segments;
    copy.pending = pending;
    copy.k = clone_of(k);
    copy.memory_k = clone_of(memory_k);
    copy.v = clone_of(v);
    return copy;
}

std::size_t InfiniMemory::bytes() const {
    std::size_t sum = 0;
    for (const Tensor* part : {&m, &z, &k, &memory_k, &v}) { sum += *part ? part->bytes() : 0; }
    return sum;
}

void infini_attend(Context& context, const View& q, const View& k, const View& v, const View& gates,
                   const MutableView& out, InfiniMemory& memory, const InfiniOptions& options) {
    InfiniProblem p =
        checked_infini_forward(context, {"infini_attend", context}, {q, k, v, gates}, out, memory, options);
    const Tensor gates_here = gates_on_host(context, p);
    make_room(p, memory);
    ByKernels kernels(context, p, out.dtype());
    for (std::int64_t t = 0; t < p.tokens;) {
        const std::int64_t n = std::min(p.tokens - t, p.options.segment - memory.pending);
        const InfiniPiece piece = piece_of(context, p, out, t, n, memory);
        if (p.by_reference) {
            reference::infini_piece(p, piece, memory);
        } else {
            kernels.run(piece, memory);
        }
        memory.pending = piece.complete ? 0 : memory.pending + n;
        t += n;
    }
}

}  // namespace heed
