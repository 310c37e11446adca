#include <heed/activation.h>
#include <heed/cross_entropy.h>
#include <heed/dropout.h>
#include <heed/embedding.h>
#include <heed/linear.h>
#include <heed/norm.h>
#include <heed/quantized.h>

#include "array.h"
#include "context.h"
#include "keywords.h"
#include "module.h"
#include "signatures.h"

namespace heed::python {

namespace {

Shape with_last(Shape shape, std::int64_t extent) {
    if (shape.rank() > 0) { shape[shape.rank() - 1] = extent; }
    return shape;
}
Shape row_of(const Array& x) { return Shape{x.rank() > 0 ? x.extent(x.rank() - 1) : 0}; }

Activation to_activation(const char* f, nb::handle value) {
    return value && !value.is_none() ? activation_of(to_text(f, "activation", value)) : Activation::none;
}

nb::object linear_(nb::handle x, nb::handle weight, const nb::kwargs& keywords) {
    constexpr const char* f = "linear";
    nb::handle bias = Py_None, activation, out, context;
    const Own own[] = {{"bias", &bias}, {"activation", &activation}, {"out", &out}, {"context", &context}};
    read_keywords(f, keywords, own);
    const Array input(f, "x", x);
    const Array offset(f, "bias", bias);
    const LinearOptions options{.bias = offset, .activation = to_activation(f, activation)};
    Context& team = choose_context(f, context);
    if (nb::isinstance<QuantizedMatrix>(weight)) {
        const auto& matrix = nb::cast<const QuantizedMatrix&>(weight);
        const Result result = make_result(f, "out", out, x, input.dtype(), with_last(input.shape(), matrix.outputs()));
        without_gil([&] { linear(team, input, matrix, result.view(), options); });
        return result.object;
    }
    const Array matrix(f, "weight", weight);
    const Result result = make_result(f, "out", out, x, input.dtype(), with_last(input.shape(), matrix.extent(0)));
    without_gil([&] { linear(team, input, matrix, result.view(), options); });
    return result.object;
}

nb::tuple linear_backward_(nb::handle x, nb::handle weight, nb::handle dout, const nb::kwargs& keywords) {
    constexpr const char* f = "linear_backward";
    nb::handle context;
    const Own own[] = {{"context", &context}};
    read_keywords(f, keywords, own);
    const Array input(f, "x", x), matrix(f, "weight", weight), upstream(f, "dout", dout);
    const Result dx = make_result(f, "dx", {}, x, input.dtype(), input.shape());
    const Result dweight = make_result(f, "dweight", {}, x, wide(matrix.dtype()), matrix.shape());
    const Result dbias = make_result(f, "dbias", {}, x, wide(matrix.dtype()), Shape{matrix.extent(0)});
    Context& team = choose_context(f, context);
    without_gil([&] {
        linear_backward(team, input, matrix, upstream,
                        {.dx = dx.view(), .dweight = dweight.view(), .dbias = dbias.view()});
    });
    return nb::make_tuple(dx.object, dweight.object, dbias.object);
}

using Norm = void (*)(Context&, const View&, const MutableView&, const NormOptions&);
using NormBackward = void (*)(Context&, const View&, const View&, const NormGradients&, const NormBackwardOptions&);

nb::object norm_(const char* f, Norm norm, nb::handle x, const nb::kwargs& keywords) {
    nb::handle weight = Py_None, bias = Py_None, eps, offset, residual = Py_None, out, context;
    const Own own[] = {{"weight", &weight},     {"bias", &bias}, {"eps", &eps},        {"weight_offset", &offset},
                       {"residual", &residual}, {"out", &out},   {"context", &context}};
    read_keywords(f, keywords, own);
    const Array input(f, "x", x), gain(f, "weight", weight), shift(f, "bias", bias), added(f, "residual", residual);
    NormOptions options{.weight = gain, .bias = shift, .residual = added};
    if (eps) { options.eps = to_double(f, "eps", eps); }
    if (offset) { options.weight_offset = to_double(f, "weight_offset", offset); }
    const Result result = make_result(f, "out", out, x, input.dtype(), input.shape());
    const Result sum = added ? make_result(f, "sum", {}, x, input.dtype(), input.shape()) : Result{};
    if (added) { options.sum = sum.view(); }
    Context& team = choose_context(f, context);
    without_gil([&] { norm(team, input, result.view(), options); });
    return added ? nb::object(nb::make_tuple(result.object, sum.object)) : result.object;
}

nb::tuple norm_backward_(const char* f, NormBackward backward, nb::handle s, nb::handle dout,
                         const nb::kwargs& keywords, bool centred) {
    nb::handle weight = Py_None, eps, offset, dsum = Py_None, context;
    const Own own[] = {
        {"weight", &weight}, {"eps", &eps}, {"weight_offset", &offset}, {"dsum", &dsum}, {"context", &context}};
    read_keywords(f, keywords, own);
    const Array input(f, "s", s), upstream(f, "dout", dout), gain(f, "weight", weight), more(f, "dsum", dsum);
    NormBackwardOptions options{.weight = gain, .dsum = more};
    if (eps) { options.eps = to_double(f, "eps", eps); }
    if (offset) { options.weight_offset = to_double(f, "weight_offset", offset); }
    const Result dx = make_result(f, "dx", {}, s, input.dtype(), input.shape());
    const Result dweight = make_result(f, "dweight", {}, s, wide(input.dtype()), row_of(input));
    const Result dbias = centred ? make_result(f, "dbias", {}, s, wide(input.dtype()), row_of(input)) : Result{};
    NormGradients gradients{.dx = dx.view(), .dweight = dweight.view()};
    if (centred) { gradients.dbias = dbias.view(); }
    Context& team = choose_context(f, context);
    without_gil([&] { backward(team, input, upstream, gradients, options); });
    return centred ? nb::make_tuple(dx.object, dweight.object, dbias.object)
                   : nb::make_tuple(dx.object, dweight.object);
}

nb::object activate_(nb::handle x, const std::string& activation, const nb::kwargs& keywords) {
    constexpr const char* f = "activate";
    nb::handle up = Py_None, out, context;
    const Own own[] = {{"up", &up}, {"out", &out}, {"context", &context}};
    read_keywords(f, keywords, own);
    const Array input(f, "x", x), factor(f, "up", up);
    const Activation kind = activation_of(activation);
    const Result result = make_result(f, "out", out, x, input.dtype(), input.shape());
    Context& team = choose_context(f, context);
    without_gil(
        [&] { factor ? gated(team, kind, input, factor, result.view()) : activate(team, kind, input, result.view()); });
    return result.object;
}

nb::object activate_backward_(nb::handle x, const std::string& activation, nb::handle dout,
                              const nb::kwargs& keywords) {
    constexpr const char* f = "activate_backward";
    nb::handle up = Py_None, context;
    const Own own[] = {{"up", &up}, {"context", &context}};
    read_keywords(f, keywords, own);
    const Array input(f, "x", x), upstream(f, "dout", dout), factor(f, "up", up);
    const Activation kind = activation_of(activation);
    const Result dx = make_result(f, "dx", {}, x, input.dtype(), input.shape());
    const Result dup = factor ? make_result(f, "dup", {}, x, factor.dtype(), factor.shape()) : Result{};
    Context& team = choose_context(f, context);
    without_gil([&] {
        factor ? gated_backward(team, kind, input, factor, upstream, dx.view(), dup.view())
               : activate_backward(team, kind, input, upstream, dx.view());
    });
    return factor ? nb::object(nb::make_tuple(dx.object, dup.object)) : dx.object;
}

nb::object embedding_(nb::handle ids, nb::handle table, const nb::kwargs& keywords) {
    constexpr const char* f = "embedding";
    nb::handle scale, out, context;
    const Own own[] = {{"scale", &scale}, {"out", &out}, {"context", &context}};
    read_keywords(f, keywords, own);
    const Array places(f, "ids", ids), rows(f, "table", table);
    EmbeddingOptions options;
    if (scale) { options.scale = to_double(f, "scale", scale); }
    std::vector<std::int64_t> extents(places.shape().begin(), places.shape().end());
    extents.push_back(rows.extent(1));
    const Result result =
        make_result(f, "out", out, table, rows.dtype(), Shape(std::span<const std::int64_t>(extents)));
    Context& team = choose_context(f, context);
    without_gil([&] { embedding(team, places, rows, result.view(), options); });
    return result.object;
}

nb::object dropout_(nb::handle x, double p, const nb::kwargs& keywords) {
    constexpr const char* f = "dropout";
    nb::handle seed, offset, residual = Py_None, out, context;
    const Own own[] = {
        {"seed", &seed}, {"offset", &offset}, {"residual", &residual}, {"out", &out}, {"context", &context}};
    read_keywords(f, keywords, own);
    const Array input(f, "x", x), added(f, "residual", residual);
    DropoutOptions options{.p = p, .residual = added};
    if (seed && !seed.is_none()) { options.seed = to_seed(f, "seed", seed); }
    if (offset) { options.offset = static_cast<std::uint32_t>(to_integer(f, "offset", offset)); }
    const Result result = make_result(f, "out", out, x, input.dtype(), input.shape());
    Context& team = choose_context(f, context);
    without_gil([&] { dropout(team, input, result.view(), options); });
    return result.object;
}

nb::object cross_entropy_(nb::handle logits, nb::handle targets, const nb::kwargs& keywords) {
    constexpr const char* f = "cross_entropy";
    nb::handle smoothing, kind, ignore, gradient, context;
    const Own own[] = {{"label_smoothing", &smoothing},
                       {"smoothing", &kind},
                       {"ignore", &ignore},
                       {"gradient", &gradient},
                       {"context", &context}};
    read_keywords(f, keywords, own);
    const Array scores(f, "logits", logits), ids(f, "targets", targets);
    CrossEntropyOptions options;
    if (smoothing) { options.label_smoothing = to_double(f, "label_smoothing", smoothing); }
    if (kind) {
        options.smoothing =
            choose<Smoothing>(f, "smoothing", kind, {{"uniform", Smoothing::uniform}, {"others", Smoothing::others}});
    }
    if (ignore) { options.ignore = to_integer(f, "ignore", ignore); }
    const bool wanted = gradient && to_bool(f, "gradient", gradient);
    const Result dlogits = wanted ? make_result(f, "dlogits", {}, logits, scores.dtype(), scores.shape()) : Result{};
    Context& team = choose_context(f, context);
    CrossEntropy result;
    without_gil([&] {
        result = cross_entropy(team, scores, ids, options, {.dlogits = wanted ? dlogits.view() : MutableView{}});
    });
    return wanted ? nb::object(nb::make_tuple(result.loss, dlogits.object)) : nb::cast(result.loss);
}

nb::object linear_cross_entropy_(nb::handle states, nb::handle weight, nb::handle targets, const nb::kwargs& keywords) {
    constexpr const char* f = "linear_cross_entropy";
    nb::handle bias = Py_None, smoothing, ignore, softcap, gradient, context;
    const Own own[] = {{"bias", &bias},       {"label_smoothing", &smoothing}, {"ignore", &ignore},
                       {"softcap", &softcap}, {"gradient", &gradient},         {"context", &context}};
    read_keywords(f, keywords, own);
    const Array input(f, "hidden", states), matrix(f, "weight", weight), ids(f, "targets", targets);
    const Array offset(f, "bias", bias);
    LinearCrossEntropyOptions options{.bias = offset};
    if (smoothing) { options.loss.label_smoothing = to_double(f, "label_smoothing", smoothing); }
    if (ignore) { options.loss.ignore = to_integer(f, "ignore", ignore); }
    if (softcap) { options.softcap = to_double(f, "softcap", softcap); }
    const bool wanted = gradient && to_bool(f, "gradient", gradient);
    LinearCrossEntropyGradients gradients;
    Result dhidden, dweight;
    if (wanted) {
        dhidden = make_result(f, "dhidden", {}, states, input.dtype(), input.shape());
        dweight = make_result(f, "dweight", {}, states, wide(matrix.dtype()), matrix.shape());
        gradients.dhidden = dhidden.view();
        gradients.dweight = dweight.view();
    }
    Context& team = choose_context(f, context);
    CrossEntropy result;
    without_gil([&] { result = linear_cross_entropy(team, input, matrix, ids, options, gradients); });
    return wanted ? nb::object(nb::make_tuple(result.loss, dhidden.object, dweight.object)) : nb::cast(result.loss);
}

WeightFormat to_format(const char* f, nb::handle value) {
    return choose<WeightFormat>(f, "format", value, {{"int8", WeightFormat::int8}, {"int4", WeightFormat::int4}});
}

void bind_quantized(nb::module_& m) {
    nb::class_<QuantizedMatrix>(
        m, "QuantizedMatrix",
        R"doc(A weight [outputs, inputs] in 8 or 4 bits: 32 inputs share a scale. `linear` takes it as its weight.

>>> small = heed.QuantizedMatrix(numpy.eye(4, 64, dtype="float32"), "int8")
>>> small.shape, small.format, small.bytes
((4, 64), 'int8', 1088)
>>> heed.linear(numpy.ones((1, 64), "float32"), small).round(3)
array([[1., 1., 1., 1.]], dtype=float32))doc")
        .def(
            "__init__",
            [](QuantizedMatrix* self, nb::handle weight, nb::handle format) {
                constexpr const char* f = "QuantizedMatrix";
                const Array matrix(f, "weight", weight);
                const WeightFormat kind = to_format(f, format);
                Context& team = choose_context(f, {});
                QuantizedMatrix made;
                without_gil([&] { made = QuantizedMatrix::quantize(team, matrix, kind); });
                new (self) QuantizedMatrix(std::move(made));
            },
            nb::arg("weight"), nb::arg("format"),
            nb::sig("def __init__(self, weight: ArrayLike, format: Literal['int8', 'int4']) -> None"))
        .def_prop_ro(
            "shape", [](const QuantizedMatrix& x) { return nb::make_tuple(x.outputs(), x.inputs()); },
            nb::sig("def shape(self) -> tuple[int, int]"))
        .def_prop_ro("format",
                     [](const QuantizedMatrix& x) { return x.format() == WeightFormat::int8 ? "int8" : "int4"; })
        .def_prop_ro(
            "bytes", [](const QuantizedMatrix& x) { return x.bytes(); }, "Of memory.")
        .def(
            "dequantize",
            [](const QuantizedMatrix& x) {
                Tensor out(DType::f32, {x.outputs(), x.inputs()});
                Context& team = choose_context("QuantizedMatrix.dequantize", {});
                without_gil([&] { x.dequantize(team, out); });
                return to_array(out);
            },
            nb::sig("def dequantize(self) -> Any"), "The weights again, as float32.");
}

}  // namespace

#define HEED_OUT "out: Array | None = None, " HEED_CONTEXT
#define HEED_NORM_OPTIONS "eps: float = 1e-5, weight_offset: float = 0.0, "

void bind_layers(nb::module_& m) {
    bind_quantized(m);
    m.def(
        "linear", linear_, nb::arg("x"), nb::arg("weight"), nb::arg("keywords"),
        nb::sig("def linear(x: Array, weight: ArrayLike | QuantizedMatrix, *, bias: " HEED_ARRAY_OR_NONE
                ", activation: str | None = None, " HEED_OUT ") -> Array"),
        R"doc(out [...,N] = activation(x [...,K] weight^T + bias), weight [N,K] as PyTorch stores it, or a QuantizedMatrix.

activation is one of relu, gelu, gelu_tanh, quick_gelu, silu, tanh, sigmoid.

>>> heed.linear(numpy.ones((2, 3), "float32"), numpy.ones((1, 3), "float32"), bias=numpy.ones(1, "float32"))
array([[4.],
       [4.]], dtype=float32))doc");
    m.def("linear_backward", linear_backward_, nb::arg("x"), nb::arg("weight"), nb::arg("dout"), nb::arg("keywords"),
          nb::sig("def linear_backward(x: Array, weight: ArrayLike, dout: ArrayLike, *, " HEED_CONTEXT
                  ") -> tuple[Array, Array, Array]"),
          R"doc((dx, dweight, dbias) of linear without an activation.

>>> dx, dweight, dbias = heed.linear_backward(numpy.ones((2, 3)), numpy.ones((1, 3)), numpy.ones((2, 1)))
>>> dweight, dbias
(array([[2., 2., 2.]]), array([2.])))doc");
    m.def(
        "layer_norm",
        [](nb::handle x, const nb::kwargs& keywords) { return norm_("layer_norm", layer_norm, x, keywords); },
        nb::arg("x"), nb::arg("keywords"),
        nb::sig("def layer_norm(x: Array, *, weight: " HEED_ARRAY_OR_NONE ", bias: " HEED_ARRAY_OR_NONE
                ", " HEED_NORM_OPTIONS "residual: " HEED_ARRAY_OR_NONE ", " HEED_OUT
                ") -> Array | tuple[Array, Array]"),
        R"doc(x with mean 0 and variance 1 along the last axis, times weight (+ weight_offset), plus bias.

With a residual, x + residual is normalised, and (out, x + residual) returned.

>>> heed.layer_norm(numpy.array([[1.0, 3.0]]), eps=0.0)
array([[-1.,  1.]]))doc");
    m.def(
        "rms_norm", [](nb::handle x, const nb::kwargs& keywords) { return norm_("rms_norm", rms_norm, x, keywords); },
        nb::arg("x"), nb::arg("keywords"),
        nb::sig("def rms_norm(x: Array, *, weight: " HEED_ARRAY_OR_NONE ", " HEED_NORM_OPTIONS
                "residual: " HEED_ARRAY_OR_NONE ", " HEED_OUT ") -> Array | tuple[Array, Array]"),
        R"doc(x / sqrt(mean(x^2) + eps) along the last axis, times weight (+ weight_offset: 1 for Gemma).

With a residual, x + residual is normalised, and (out, x + residual) returned.

>>> heed.rms_norm(numpy.array([[3.0, 3.0]]), eps=0.0)
array([[1., 1.]]))doc");
    m.def(
        "layer_norm_backward",
        [](nb::handle s, nb::handle dout, const nb::kwargs& keywords) {
            return norm_backward_("layer_norm_backward", layer_norm_backward, s, dout, keywords, true);
        },
        nb::arg("s"), nb::arg("dout"), nb::arg("keywords"),
        nb::sig("def layer_norm_backward(s: Array, dout: ArrayLike, *, weight: " HEED_ARRAY_OR_NONE
                ", " HEED_NORM_OPTIONS "dsum: " HEED_ARRAY_OR_NONE ", " HEED_CONTEXT ") -> tuple[Array, Array, Array]"),
        R"doc((dx, dweight, dbias) of layer_norm; s is what was normalised, dsum what else flows into it.

>>> dx, dweight, dbias = heed.layer_norm_backward(numpy.array([[1.0, 3.0]]), numpy.ones((1, 2)), eps=0.0)
>>> dx, dbias
(array([[0., 0.]]), array([1., 1.])))doc");
    m.def(
        "rms_norm_backward",
        [](nb::handle s, nb::handle dout, const nb::kwargs& keywords) {
            return norm_backward_("rms_norm_backward", rms_norm_backward, s, dout, keywords, false);
        },
        nb::arg("s"), nb::arg("dout"), nb::arg("keywords"),
        nb::sig("def rms_norm_backward(s: Array, dout: ArrayLike, *, weight: " HEED_ARRAY_OR_NONE ", " HEED_NORM_OPTIONS
                "dsum: " HEED_ARRAY_OR_NONE ", " HEED_CONTEXT ") -> tuple[Array, Array]"),
        R"doc((dx, dweight) of rms_norm; s is what was normalised, dsum what else flows into it.

>>> dx, dweight = heed.rms_norm_backward(numpy.array([[2.0, 2.0]]), numpy.ones((1, 2)), eps=0.0)
>>> dx, dweight
(array([[0., 0.]]), array([1., 1.])))doc");
    m.def("activate", activate_, nb::arg("x"), nb::arg("activation"), nb::arg("keywords"),
          nb::sig("def activate(x: Array, activation: str, *, up: " HEED_ARRAY_OR_NONE ", " HEED_OUT ") -> Array"),
          R"doc(activation(x), or activation(x) * up: relu, gelu, gelu_tanh, quick_gelu, silu, tanh, sigmoid.

>>> heed.activate(numpy.array([-1.0, 2.0]), "relu", up=numpy.array([5.0, 5.0]))
array([ 0., 10.]))doc");
    m.def("activate_backward", activate_backward_, nb::arg("x"), nb::arg("activation"), nb::arg("dout"),
          nb::arg("keywords"),
          nb::sig("def activate_backward(x: Array, activation: str, dout: ArrayLike, *, up: " HEED_ARRAY_OR_NONE
                  ", " HEED_CONTEXT ") -> Array | tuple[Array, Array]"),
          R"doc(dx of activate, or (dx, dup) where there was an up.

>>> heed.activate_backward(numpy.array([-1.0, 2.0]), "relu", numpy.ones(2))
array([0., 1.]))doc");
    m.def("embedding", embedding_, nb::arg("ids"), nb::arg("table"), nb::arg("keywords"),
          nb::sig("def embedding(ids: ArrayLike, table: Array, *, scale: float = 1.0, " HEED_OUT ") -> Array"),
          R"doc(scale * table[ids]: ids [...], table [V,N], out [...,N].

>>> heed.embedding([1, 0], numpy.array([[1.0], [2.0]]), scale=10.0)
array([[20.],
       [10.]]))doc");
    m.def(
        "dropout", dropout_, nb::arg("x"), nb::arg("p"), nb::arg("keywords"),
        nb::sig(
            "def dropout(x: Array, p: float, *, seed: int | None = None, offset: int = 0, residual: " HEED_ARRAY_OR_NONE
            ", " HEED_OUT ") -> Array"),
        R"doc(x / (1 - p) where an element is kept, 0 elsewhere, plus residual. The bits are a function of seed, offset and place;
a seed is needed where p is above 0.

>>> heed.dropout(numpy.ones(4, "float32"), 0.5, seed=1).shape
(4,))doc");
    m.def(
        "cross_entropy", cross_entropy_, nb::arg("logits"), nb::arg("targets"), nb::arg("keywords"),
        nb::sig("def cross_entropy(logits: Array, targets: ArrayLike, *, label_smoothing: float = 0.0, "
                "smoothing: Literal['uniform', 'others'] = 'uniform', ignore: int = -100, "
                "gradient: bool = False, " HEED_CONTEXT ") -> float | tuple[float, Array]"),
        R"doc(Mean over targets that are not `ignore` of -log softmax(logits)[target]; with gradient=True (loss, dlogits).

>>> round(heed.cross_entropy(numpy.zeros((2, 4)), [1, -100]), 6)
1.386294)doc");
    m.def(
        "linear_cross_entropy", linear_cross_entropy_, nb::arg("hidden"), nb::arg("weight"), nb::arg("targets"),
        nb::arg("keywords"),
        nb::sig("def linear_cross_entropy(hidden: Array, weight: ArrayLike, targets: ArrayLike, *, "
                "bias: " HEED_ARRAY_OR_NONE ", label_smoothing: float = 0.0, ignore: int = -100, "
                "softcap: float = 0.0, gradient: bool = False, " HEED_CONTEXT
                ") -> float | tuple[float, Array, Array]"),
        R"doc(cross_entropy of hidden [...,K] weight^T, weight [V,K], without ever holding all logits; with gradient=True
(loss, dhidden, dweight).

>>> round(heed.linear_cross_entropy(numpy.ones((2, 3)), numpy.zeros((4, 3)), [1, 2]), 6)
1.386294)doc");
}

}  // namespace heed::python
