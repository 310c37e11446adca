#pragma once
/// Rotary positions by given cosines and sines: tables of other people's files (ONNX's RotaryEmbedding), tokens with
/// several coordinates (axial RoPE of vision models), and xPos. <heed/positions.h> has RoPE by frequencies.
///
///     heed::rotary_tables(context, cosine, sine, {{rows_table, rows}, {columns_table, columns}});
///     heed::rotate(context, q, q, {.cosine = cosine, .sine = sine});

#include <optional>
#include <vector>

#include <heed/positions.h>

namespace heed {

/// By what each token is turned.
struct Rotations {
    /// Any float type, n <= D/2 pairs. Without positions a row for each token: [B,T,n], [1,T,n] or [T,n]; with
    /// positions [P,n], of which a token has the row at its position.
    View cosine{};
    View sine{};  ///< of the same shape and type
    Pairing pairing = Pairing::halves;
    /// i32 or i64, [B,T], [1,T] or [T], each 0 to P-1.
    View positions{};
};

/// out [B,H,T,D] = x [B,H,T,D] with the first 2 n numbers of every row rotated,
///
///     (a, b) -> (a cos - b sin, a sin + b cos)
///
/// and the others as they are. f32, bf16, f16 or f64; out has the type of x or f32. `out` may be x itself; any other
/// overlap is refused. cos^2 + sin^2 need not be 1.
HEED_API void rotate(Context& context, const View& x, const MutableView& out, const Rotations& by);

/// dx = gradient of sum(dout * rotate(x)): (a, b) -> (a cos + b sin, b cos - a sin). It needs no x.
HEED_API void rotate_backward(Context& context, const View& dout, const MutableView& dx, const Rotations& by);

/// One coordinate of the tokens: pair i of it turns by position * table.frequencies[i] and is multiplied by its
/// attention factor.
struct RotaryAxis {
    RopeTable table{};  ///< its pairing is not looked at
    View positions{};   ///< [T], or [B,T]; any integer or float type
};

/// xPos: cosines and sines of queries are multiplied by z^p, those of keys by z^-p, so that scores fall off with the
/// distance: z = (2i/size + gamma) / (1 + gamma) for pair i of size/2, p = (position - centre) / scale_base.
struct Xpos {
    double gamma = 0.4;
    double scale_base = 512;
    double centre = 0;
    bool keys = false;
};

/// cosine and sine [T,n] or [B,T,n], f32 or f64: the pairs of all axes, one axis after the other. With xpos, positions
/// are those of the first axis.
HEED_API void rotary_tables(Context& context, const MutableView& cosine, const MutableView& sine,
                            const std::vector<RotaryAxis>& axes, const std::optional<Xpos>& xpos = {});

}  // namespace heed
