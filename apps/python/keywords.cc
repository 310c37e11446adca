#include "keywords.h"

#include <algorithm>
#include <string>

#include <heed/pattern.h>

namespace heed::python {

namespace {

constexpr std::string_view names[] = {
    "causal",      "window",     "scale",          "softcap",      "align",           "allow",
    "bias",        "pattern",    "alibi_slopes",   "sinks",        "lengths",         "query_lengths",
    "key_lengths", "cu_seqlens", "cu_seqlens_q",   "cu_seqlens_k", "query_positions", "key_positions",
    "dropout",     "seed",       "dropout_offset", "dropout_keep", "kernel"};

std::string python_repr(nb::handle value) { return nb::cast<std::string>(nb::repr(value)); }

}  // namespace

Pattern to_pattern(const char* function, const char* argument, nb::handle value) {
    Pattern* pattern = nullptr;
    if (nb::try_cast<Pattern*>(value, pattern) && pattern != nullptr) { return *pattern; }
    if (PyUnicode_Check(value.ptr()) != 0) { return patterns::parse(to_text(function, argument, value)); }
    refuse(function, argument, "a heed.Pattern or its text", python_repr(value));
}

Window to_window(const char* function, const char* argument, nb::handle value) {
    if ((PyTuple_Check(value.ptr()) == 0 && PyList_Check(value.ptr()) == 0) || nb::len(value) != 2) {
        refuse(function, argument, "(left, right), -1 for unlimited", python_repr(value));
    }
    const nb::sequence sides = nb::borrow<nb::sequence>(value);
    return {.left = to_integer(function, argument, nb::object(sides[0])),
            .right = to_integer(function, argument, nb::object(sides[1]))};
}

bool to_bool(const char* function, std::string_view argument, nb::handle value) {
    if (value.is(nb::handle(Py_True))) { return true; }
    if (value.is(nb::handle(Py_False))) { return false; }
    const int truth = PyObject_IsTrue(value.ptr());  // numpy.bool and the like
    if (truth < 0) { throw nb::python_error(); }
    if (PyNumber_Check(value.ptr()) == 0) {
        refuse(function, std::string(argument).c_str(), "True or False", python_repr(value));
    }
    return truth != 0;
}

double to_double(const char* function, std::string_view argument, nb::handle value) {
    const double number = PyFloat_AsDouble(value.ptr());
    if (number == -1 && PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        refuse(function, std::string(argument).c_str(), "a number", python_repr(value));
    }
    return number;
}

std::int64_t to_integer(const char* function, std::string_view argument, nb::handle value) {
    const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
    const std::int64_t number = index ? PyLong_AsLongLong(index.ptr()) : -1;
    if (number == -1 && PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        refuse(function, std::string(argument).c_str(), "a whole number", python_repr(value));
    }
    return number;
}

std::uint64_t to_seed(const char* function, std::string_view argument, nb::handle value) {
    const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
    const std::uint64_t number = index ? PyLong_AsUnsignedLongLong(index.ptr()) : 0;
    if (PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        refuse(function, std::string(argument).c_str(), "a whole number from 0 up to 2^64 - 1", python_repr(value));
    }
    return number;
}

std::string to_text(const char* function, std::string_view argument, nb::handle value) {
    if (PyUnicode_Check(value.ptr()) == 0) {
        refuse(function, std::string(argument).c_str(), "a text", python_repr(value));
    }
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
    if (text == nullptr) { throw nb::python_error(); }  // UnicodeEncodeError, which is a ValueError: a lone surrogate
    return {text, static_cast<std::size_t>(size)};
}

std::vector<std::int64_t> to_integers(const char* function, const char* argument, nb::handle value) {
    const Array array(function, argument, value);
    if (array.rank() != 1 || (array.dtype() != DType::i64 && array.dtype() != DType::i32)) {
        refuse(function, argument, "whole numbers along one axis, i64 or i32",
               to_string(array.shape()) + " of " + std::string(name_of(array.dtype())));
    }
    const View view = array;
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(view.extent(0)));
    for (std::size_t n = 0; n < numbers.size(); ++n) {
        const std::int64_t at = static_cast<std::int64_t>(n) * view.stride(0);
        numbers[n] = view.dtype() == DType::i64 ? view.as<std::int64_t>()[at] : view.as<std::int32_t>()[at];
    }
    return numbers;
}

View AttentionKeywords::hold(const char* name, nb::handle value) {
    return arrays_.emplace_back(function_, name, value, Access::read, where_).view();
}

bool AttentionKeywords::set(std::string_view name, nb::handle value) {
    const char* f = function_;
    // As good as not given; but a name that nobody knows must not pass for that.
    if (value.is_none()) { return std::find(std::begin(names), std::end(names), name) != std::end(names); }
    if (name == "causal") {
        options.causal = to_bool(f, name, value);
    } else if (name == "window") {
        options.window = to_window(f, "window", value);
    } else if (name == "scale") {
        options.scale = to_double(f, name, value);
    } else if (name == "softcap") {
        options.softcap = to_double(f, name, value);
    } else if (name == "align") {
        options.align =
            choose<Align>(f, "align", value, {{"bottom_right", Align::bottom_right}, {"top_left", Align::top_left}});
    } else if (name == "allow") {
        options.allow = hold("allow", value);
    } else if (name == "bias") {
        options.bias = hold("bias", value);
    } else if (name == "pattern") {
        options.pattern = to_pattern(f, "pattern", value);
    } else if (name == "alibi_slopes") {
        options.alibi_slopes = hold("alibi_slopes", value);
    } else if (name == "sinks") {
        options.sinks = hold("sinks", value);
    } else if (name == "lengths") {
        options.query_lengths = options.key_lengths = hold("lengths", value);
    } else if (name == "query_lengths") {
        options.query_lengths = hold("query_lengths", value);
    } else if (name == "key_lengths") {
        options.key_lengths = hold("key_lengths", value);
    } else if (name == "cu_seqlens") {
        options.cu_seqlens_q = options.cu_seqlens_k = hold("cu_seqlens", value);
    } else if (name == "cu_seqlens_q") {
        options.cu_seqlens_q = hold("cu_seqlens_q", value);
    } else if (name == "cu_seqlens_k") {
        options.cu_seqlens_k = hold("cu_seqlens_k", value);
    } else if (name == "query_positions") {
        options.query_positions = hold("query_positions", value);
    } else if (name == "key_positions") {
        options.key_positions = hold("key_positions", value);
    } else if (name == "dropout") {
        options.dropout.p = to_double(f, name, value);
    } else if (name == "seed") {
        options.dropout.seed = to_seed(f, name, value);
    } else if (name == "dropout_offset") {
        const std::uint64_t offset = to_seed(f, name, value);
        if (offset > 0xffffffffU) { refuse(f, "dropout_offset", "a number below 2^32", std::to_string(offset)); }
        options.dropout.offset = static_cast<std::uint32_t>(offset);
    } else if (name == "dropout_keep") {
        options.dropout.keep = hold("dropout_keep", value);
    } else if (name == "kernel") {
        options.kernel = to_text(f, name, value);
    } else {
        return false;
    }
    return true;
}

void read_keywords(const char* function, const Keywords& keywords, std::span<const Own> own,
                   AttentionKeywords* options) {
    keywords.visit([&](PyObject* key, PyObject* value) {
        Py_ssize_t size = 0;
        const char* text = PyUnicode_AsUTF8AndSize(key, &size);
        if (text == nullptr) { throw nb::python_error(); }
        const std::string_view name(text, static_cast<std::size_t>(size));
        for (const auto& [own_name, slot] : own) {
            if (own_name == name) {
                if (value != Py_None) { *slot = value; }
                return;
            }
        }
        if (options == nullptr || !options->set(name, value)) {
            throw nb::type_error(
                (std::string(function) + "() got an unexpected keyword argument '" + std::string(name) + "'").c_str());
        }
    });
}

}  // namespace heed::python
