#pragma once
/// Keyword arguments: those of the function itself, and the options of attention that many functions share.

#include <heed/attention.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "array.h"

namespace heed::python {

/// A heed.Pattern or its text.
Pattern to_pattern(const char* function, const char* argument, nb::handle value);
Window to_window(const char* function, const char* argument, nb::handle value);
bool to_bool(const char* function, std::string_view argument, nb::handle value);
double to_double(const char* function, std::string_view argument, nb::handle value);
std::int64_t to_integer(const char* function, std::string_view argument, nb::handle value);
std::uint64_t to_seed(const char* function, std::string_view argument, nb::handle value);
std::string to_text(const char* function, std::string_view argument, nb::handle value);
std::vector<std::int64_t> to_integers(const char* function, const char* argument, nb::handle value);

/// One of a few words, as an enumeration: choose(function, "align", value, {{"top_left", Align::top_left}, ...}).
template <class Enum, std::size_t Count>
Enum choose(const char* function, const char* argument, nb::handle value,
            const std::pair<const char*, Enum> (&choices)[Count]) {
    std::string words;
    for (const auto& [word, choice] : choices) {
        if (PyUnicode_Check(value.ptr()) != 0 && PyUnicode_CompareWithASCIIString(value.ptr(), word) == 0) {
            return choice;
        }
        words += (words.empty() ? "'" : ", '") + std::string(word) + "'";
    }
    refuse(function, argument, "one of " + words, nb::cast<std::string>(nb::repr(value)));
}

/// AttentionOptions from keywords, and what keeps their arrays for the length of the call.
class AttentionKeywords {
public:
    explicit AttentionKeywords(const char* function, Where where = Where::cpu) : function_(function), where_(where) {}

    /// False where the name is none of attention's options.
    bool set(std::string_view name, nb::handle value);

    AttentionOptions options{};

private:
    View hold(const char* name, nb::handle value);

    const char* function_;
    Where where_;
    std::vector<Array> arrays_;
};

/// Keyword arguments as Python hands them over: in a dict, or (by a quick_call) their values beside a tuple of names.
class Keywords {
public:
    Keywords(const nb::kwargs& dict) : dict_(dict.ptr()) {}
    Keywords(PyObject* names, PyObject* const* values) : names_(names), values_(values) {}

    template <class Visit>
    void visit(Visit&& visit) const {
        PyObject* name = nullptr;
        PyObject* value = nullptr;
        for (Py_ssize_t at = 0; dict_ != nullptr && PyDict_Next(dict_, &at, &name, &value) != 0;) {
            visit(name, value);
        }
        const Py_ssize_t count = names_ != nullptr ? PyTuple_GET_SIZE(names_) : 0;
        for (Py_ssize_t n = 0; n < count; ++n) { visit(PyTuple_GET_ITEM(names_, n), values_[n]); }
    }

private:
    PyObject* dict_ = nullptr;
    PyObject* names_ = nullptr;
    PyObject* const* values_ = nullptr;
};

/// The function's own keywords go where `own` points, the others to attention's options; None is as good as not given.
/// TypeError for a name that nobody knows.
///
///     const Own own[] = {{"out", &out}, {"lse", &lse}};
///     read_keywords("attend", keywords, own, &options);
using Own = std::pair<std::string_view, nb::handle*>;

void read_keywords(const char* function, const Keywords& keywords, std::span<const Own> own,
                   AttentionKeywords* options = nullptr);

}  // namespace heed::python
