#pragma once
/// A case made real: tensors in the layout it asks for, with loud values wherever nothing may look, the options, and
/// what the options mean worked out by the test itself.

#include <heed/attention.h>
#include <heed/tensor.h>

#include "conformance/case.h"

#include <cstddef>
#include <list>
#include <vector>

namespace heed::conformance {

/// A view into memory of its own. Every byte that is not an element of the view is 0xFF, which is NaN in every float
/// type, and must stay so; the memory ends where the layout ends, so that a sanitizer sees the first byte too far.
class Placed {
public:
    Placed() = default;
    /// `layout` as in the table, except "mixed".
    Placed(DType dtype, const Shape& shape, std::string_view layout);

    const View& view() const { return view_; }
    MutableView mutable_view() { return {view_.dtype(), memory_.data() + offset_, view_.shape(), view_.strides()}; }
    /// The same place in a copy of the memory that somebody else made, and the copy back.
    const std::vector<std::byte>& memory() const { return memory_; }
    MutableView view_in(void* copy, Device device) const {
        return {view_.dtype(), static_cast<std::byte*>(copy) + offset_, view_.shape(), view_.strides(), device};
    }
    std::byte* overwrite() { return memory_.data(); }
    /// Nothing outside the view has been written to.
    bool surroundings_untouched() const;
    std::vector<double> numbers() const;
    void store(std::int64_t n, double value);
    double load(std::int64_t n) const;

private:
    std::int64_t element_offset(std::int64_t n) const;
    std::vector<std::byte> memory_;
    std::int64_t offset_ = 0;  // bytes
    View view_;
};

/// One batch entry or packed sequence.
struct Piece {
    std::int64_t batch = 0, query_begin = 0, queries = 0, key_begin = 0, keys = 0;
    std::vector<std::int64_t> query_positions, key_positions;
};

class Problem {
public:
    explicit Problem(const Case& c);
    Problem(const Problem&) = delete;
    Problem& operator=(const Problem&) = delete;

    Case c;
    bool packed = false;
    std::int64_t B = 0, N = 0, H = 0, G = 0, T = 0, S = 0, D = 0, E = 0;  // N: sequences; B: extent of the tensors
    DType dtype = DType::f32, out_dtype = DType::f32, lse_dtype = DType::f32;
    double scale = 1;

    // As a kernel gets them.
    Placed q, k, v, dout, dlse;
    AttentionOptions options;

    // The same numbers, row-major; 0 where nothing may look.
    std::vector<double> clean_q, clean_k, clean_v, clean_dout, clean_dlse;
    std::vector<Piece> pieces;

    bool visible(std::int64_t n, std::int64_t h, std::int64_t i, std::int64_t j) const {
        const std::int64_t at = ((n * H + h) * longest_queries + i) * longest_keys + j;
        return visible_[static_cast<std::size_t>(at)] != 0;
    }
    double bias(std::int64_t n, std::int64_t h, std::int64_t i, std::int64_t j) const;
    double slope(std::int64_t n, std::int64_t h) const;
    double sink(std::int64_t h) const;
    bool keeps(std::int64_t n, std::int64_t h, std::int64_t i, std::int64_t j) const;
    bool may_hold_nan() const { return c[Axis::inputs].substr(0, 3) == "NaN"; }
    /// The layout of the `index`-th tensor of a call.
    std::string_view layout(int index) const;

    std::int64_t longest_queries = 0, longest_keys = 0;

private:
    void make_pieces();
    void make_positions();
    void make_masks();
    void make_bias();
    void make_rows();
    void find_visible();
    void make_tensors();
    void plant_hidden_bias();
    void plant_visible_nan();

    View keep_integers(std::vector<std::int64_t> values, const Shape& shape, bool narrow);
    /// A pairwise option: "BHTS", "B11S", "BhTS" ... and how to fill it.
    template <class Fill>
    View pairwise(DType pairwise_dtype, std::string_view form, Fill fill);

    std::vector<char> visible_;
    std::vector<Tensor> tensors_;
    std::list<Placed> placed_;  // a list: views into its members stay good
    std::uint64_t seed_ = 0;
};

}  // namespace heed::conformance
