#pragma once
/// Calls that cannot be carried out, and what is expected of them.

#include "unit/ops/attention_call.h"

#include <functional>

namespace heed::testing {

inline constexpr unsigned char poison = 0x5A;

/// A call that works, for a test to break in one place.
struct Given {
    Given() {
        Random random(31);
        q = random_tensor(random, DType::f32, {2, 4, 3, 8});
        k = random_tensor(random, DType::f32, {2, 2, 5, 8});
        v = random_tensor(random, DType::f32, {2, 2, 5, 6});
        dout = random_tensor(random, DType::f32, {2, 4, 3, 6});
        forward_out = random_tensor(random, DType::f32, {2, 4, 3, 6});
        forward_lse = random_tensor(random, DType::f32, {2, 4, 3});
        bias = random_tensor(random, DType::f32, {2, 4, 3, 5});
        sinks = random_tensor(random, DType::f32, {4});
        slopes = random_tensor(random, DType::f32, {4});
        out = poisoned({2, 4, 3, 6});
        lse = poisoned({2, 4, 3});
        dq = poisoned({2, 4, 3, 8});
        dk = poisoned({2, 2, 5, 8});
        dv = poisoned({2, 2, 5, 6});
        dbias = poisoned({2, 4, 3, 5});
        dsinks = poisoned({4});
        dslopes = poisoned({4});
        view_q = std::as_const(q).view();
        view_k = std::as_const(k).view();
        view_v = std::as_const(v).view();
        view_out = out.view();
        view_lse = lse.view();
        view_dout = std::as_const(dout).view();
        view_forward_out = std::as_const(forward_out).view();
        view_forward_lse = std::as_const(forward_lse).view();
        gradients = {.dq = dq, .dk = dk, .dv = dv};
    }
    static Tensor poisoned(const Shape& shape) {
        Tensor tensor(DType::f32, shape);
        std::memset(tensor.data(), poison, tensor.bytes());
        return tensor;
    }
    void run_forward() { attend(context, view_q, view_k, view_v, {.out = view_out, .lse = view_lse}, options); }
    void run_backward() {
        attend_backward(context,
                        {.q = view_q,
                         .k = view_k,
                         .v = view_v,
                         .out = view_forward_out,
                         .lse = view_forward_lse,
                         .dout = view_dout,
                         .dlse = view_dlse},
                        gradients, options);
    }
    void expect_nothing_written() const {
        for (const Tensor* t : {&out, &lse, &dq, &dk, &dv, &dbias, &dsinks, &dslopes}) {
            const auto* bytes = static_cast<const unsigned char*>(t->data());
            for (std::size_t n = 0; n < t->bytes(); ++n) { ASSERT_EQ(bytes[n], poison); }
        }
    }

    Context context{1};
    Tensor q, k, v, dout, forward_out, forward_lse, bias, sinks, slopes;
    Tensor out, lse, dq, dk, dv, dbias, dsinks, dslopes;
    Tensor extra;  // whatever a test needs to keep alive
    View view_q, view_k, view_v, view_dout, view_forward_out, view_forward_lse, view_dlse;
    MutableView view_out, view_lse;
    AttentionGradients gradients;
    AttentionOptions options;
};

struct Mistake {
    const char* what;
    std::function<void(Given&)> make;
    const char* message;  ///< after "[function] "
};

inline void expect_error(const char* function, const Mistake& mistake, const std::function<void(Given&)>& run) {
    SCOPED_TRACE(mistake.what);
    Given given;
    mistake.make(given);
    try {
        run(given);
        ADD_FAILURE() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()), "[" + std::string(function) + "] " + mistake.message);
    }
    given.expect_nothing_written();
}

inline View shaped(Given& s, DType dtype, const Shape& shape, const std::vector<double>& values = {}) {
    s.extra = filled(dtype, shape, values);
    return std::as_const(s.extra).view();
}

}  // namespace heed::testing
