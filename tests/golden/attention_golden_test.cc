/// The golden attention cases: inputs and results of other software in float64, forward and backward.

#include <gtest/gtest.h>

#include <heed/heed.h>
#include <heed/safetensors.h>
#include <nlohmann/json.hpp>

#include "base/dispatch.h"
#include "support/kernels.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

namespace heed {
namespace {

constexpr std::size_t cases_in_tree = 28;

std::vector<std::filesystem::path> golden_files() {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(HEED_TEST_DATA "/attention")) {
        if (entry.path().extension() == ".safetensors") { files.push_back(entry.path()); }
    }
    std::sort(files.begin(), files.end());
    return files;
}

/// One file: its inputs in the type under test, its options, its results.
class GoldenCase {
public:
    GoldenCase(const std::filesystem::path& path, DType dtype) : file_(SafetensorsFile::open(path)), dtype_(dtype) {
        q = file_.tensor("q").to(dtype);
        k = file_.tensor("k").to(dtype);
        v = file_.tensor("v").to(dtype);
        dout = file_.tensor("dout").to(dtype);
        const nlohmann::json spec = nlohmann::json::parse(file_.metadata().find("spec")->second);
        for (const auto& [key, value] : spec.items()) { set_option(key, value); }
    }

    bool has(const char* name) const { return file_.contains(name); }
    Tensor expected(const char* name) const { return file_.tensor(name).to(DType::f64); }

    Tensor q, k, v, dout;
    AttentionOptions options;

private:
    View borrow(const char* name) {
        kept_.push_back(file_.tensor(name));
        return std::as_const(kept_.back()).view();
    }
    void set_option(const std::string& key, const nlohmann::json& value) {
        if (key == "scale") {
            options.scale = value.get<double>();
        } else if (key == "softcap") {
            options.softcap = value.get<double>();
        } else if (key == "causal") {
            options.causal = value.get<bool>();
        } else if (key == "align") {
            options.align = value.get<std::string>() == "top-left" ? Align::top_left : Align::bottom_right;
        } else if (key == "window") {
            options.window = {.left = value.at(0).get<std::int64_t>(), .right = value.at(1).get<std::int64_t>()};
        } else if (key == "alibi") {
            options.alibi_slopes = borrow("alibi_slopes");
        } else if (key == "bias") {
            options.bias = borrow("bias");
        } else if (key == "mask") {
            options.allow = borrow("mask");
        } else if (key == "lengths") {
            options.key_lengths = borrow("key_lengths");
        } else if (key == "sinks") {
            options.sinks = borrow("sinks");
        } else if (key == "dropout") {
            options.dropout.p = value.get<double>();
            options.dropout.keep = borrow("dropout_keep");
        } else {
            FAIL() << "unknown option " << key;
        }
    }
    SafetensorsFile file_;
    DType dtype_;
    std::vector<Tensor> kept_;
};

/// Largest difference relative to the tensor's largest value; infinities must agree and NaN never does.
void expect_close(const char* name, const Tensor& got, const Tensor& expected, double tolerance,
                  double least_scale = std::numeric_limits<double>::min()) {
    ASSERT_TRUE(got.shape() == expected.shape()) << name;
    double scale = least_scale;
    for (std::int64_t n = 0; n < expected.elements(); ++n) {
        const double value = expected.as<double>()[n];
        if (std::isfinite(value)) { scale = std::max(scale, std::abs(value)); }
    }
    for (std::int64_t n = 0; n < expected.elements(); ++n) {
        const double value = read_number(got.dtype(), got.data(), n);
        const double wanted = expected.as<double>()[n];
        if (value == wanted) { continue; }
        ASSERT_LE(std::abs(value - wanted), tolerance * scale)
            << name << "[" << n << "] is " << value << ", not " << wanted;
    }
}

double largest_finite(const Tensor& tensor) {
    double largest = 0;
    for (std::int64_t n = 0; n < tensor.elements(); ++n) {
        const double value = std::abs(tensor.as<double>()[n]);
        if (std::isfinite(value)) { largest = std::max(largest, value); }
    }
    return largest;
}

void check(const std::filesystem::path& path, const std::string& kernel, DType dtype, double tolerance) {
    GoldenCase golden(path, dtype);
    golden.options.kernel = kernel;
    // Kernels that work in float cannot know a score of 2,669 (large-scores) to better than 2^-24 of it, and a weight
    // is the exponential of that; and where dq and dk are 0 by cancellation (one key: odd-dims) they leave 1e-5 of the
    // terms that cancel, which are of the size of dv. The reference is held to the plain tolerance.
    const bool in_float = kernel != "reference";
    if (in_float) { tolerance = std::max(tolerance, 2 * 0x1p-24 * largest_finite(golden.expected("lse"))); }
    const double least = in_float ? largest_finite(golden.expected("dv")) : std::numeric_limits<double>::min();
    Context context(2);
    const Shape rows{golden.q.shape()[0], golden.q.shape()[1], golden.q.shape()[2]};
    Tensor out(dtype, golden.dout.shape());
    Tensor lse(dtype, rows);
    attend(context, golden.q, golden.k, golden.v, {.out = out, .lse = lse}, golden.options);
    expect_close("out", out, golden.expected("out"), tolerance);
    expect_close("lse", lse, golden.expected("lse"), tolerance);

    Tensor dq(dtype, golden.q.shape());
    Tensor dk(dtype, golden.k.shape());
    Tensor dv(dtype, golden.v.shape());
    AttentionGradients gradients{.dq = dq, .dk = dk, .dv = dv};
    Tensor dbias;
    Tensor dsinks;
    if (golden.has("dbias")) {
        dbias = Tensor(dtype, golden.options.bias.shape());
        gradients.dbias = dbias;
    }
    if (golden.has("dsinks")) {
        dsinks = Tensor(dtype, golden.options.sinks.shape());
        gradients.dsinks = dsinks;
    }
    attend_backward(context, {.q = golden.q, .k = golden.k, .v = golden.v, .out = out, .lse = lse, .dout = golden.dout},
                    gradients, golden.options);
    expect_close("dq", dq, golden.expected("dq"), tolerance, least);
    expect_close("dk", dk, golden.expected("dk"), tolerance, least);
    expect_close("dv", dv, golden.expected("dv"), tolerance);
    if (dbias) { expect_close("dbias", dbias, golden.expected("dbias"), tolerance); }
    if (dsinks) { expect_close("dsinks", dsinks, golden.expected("dsinks"), tolerance); }

    if (golden.has("weights")) {
        Tensor weights(dtype, {rows[0], rows[1], rows[2], golden.k.shape()[2]});
        attention_weights(context, golden.q, golden.k, weights, {}, golden.options);
        // The files hold the weights in float32.
        expect_close("weights", weights, golden.expected("weights"), std::max(tolerance, 1.2e-7));
    }
}

TEST(GoldenAttention, AllCasesAreHere) { EXPECT_EQ(golden_files().size(), cases_in_tree); }

TEST(GoldenAttention, ReferenceInDouble) {
    for (const auto& path : golden_files()) {
        SCOPED_TRACE(path.filename());
        check(path, "reference", DType::f64, 1e-9);
    }
}

TEST(GoldenAttention, EveryKernelInFloat) {
    for (const std::string& kernel : testing::runnable_kernels()) {
        for (const auto& path : golden_files()) {
            SCOPED_TRACE(kernel + " " + path.filename().string());
            check(path, kernel, DType::f32, 1e-5);
        }
    }
}

}  // namespace
}  // namespace heed
