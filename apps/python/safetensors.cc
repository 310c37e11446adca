#include <heed/safetensors.h>

#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "array.h"
#include "context.h"
#include "keywords.h"
#include "module.h"

namespace heed::python {

namespace {

nb::object tensor_(const SafetensorsFile& file, const std::string& name) {
    const SafetensorsFile::Entry& entry = file.entry(name);
    const Result result = make_result("SafetensorsFile", "out", {}, nb::none(), entry.dtype, entry.shape);
    without_gil([&] { file.read(name, result.view()); });
    return result.object;
}

/// The file's bytes as a NumPy array that cannot be written to and keeps the file open.
nb::object view_(nb::handle file, const std::string& name) {
    const auto& self = nb::cast<const SafetensorsFile&>(file);
    View view;
    without_gil([&] { view = self.view(name); });
    const auto bytes = static_cast<std::size_t>(view.shape().elements()) * size_of(view.dtype());
    const nb::object plain =
        nb::cast(nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>(view.data(), {bytes}, file));
    // NumPy's type by way of an array of it: bfloat16 is not one of NumPy's own.
    const nb::object like = make_result("SafetensorsFile", "view", {}, nb::none(), view.dtype(), {0}).object;
    const std::vector<std::int64_t> shape(view.shape().begin(), view.shape().end());
    return plain.attr("view")(like.attr("dtype")).attr("reshape")(nb::tuple(nb::cast(shape)));
}

void write_(const std::filesystem::path& path, const nb::dict& tensors,
            const std::map<std::string, std::string>& metadata) {
    Arrays arrays;
    std::vector<NamedView> views;
    for (const auto [name, array] : tensors) {
        views.push_back({to_text("write_safetensors", "names of tensors", name),
                         arrays.emplace_back("write_safetensors", "tensors", array)});
    }
    const SafetensorsMetadata texts(metadata.begin(), metadata.end());
    without_gil([&] { write_safetensors(path, views, texts); });
}

}  // namespace

void bind_safetensors(nb::module_& m) {
    nb::class_<SafetensorsFile>(m, "SafetensorsFile",
                                R"doc(A safetensors file, open for reading; every rule of the format is checked.

file[name] is a copy, as a NumPy array (bfloat16 needs ml_dtypes); file.view(name) is the mapped file itself.

>>> heed.write_safetensors("small.safetensors", {"x": numpy.ones(3, "float32")})
>>> heed.SafetensorsFile("small.safetensors")["x"]
array([1., 1., 1.], dtype=float32))doc")
        .def(
            "__init__",
            [](SafetensorsFile* self, const std::filesystem::path& path) {
                new (self) SafetensorsFile(SafetensorsFile::open(path));
            },
            nb::arg("path"), nb::sig("def __init__(self, path: str | os.PathLike[str]) -> None"))
        .def_prop_ro(
            "names", [](const SafetensorsFile& self) { return self.names(); }, "In the order of the header.")
        .def_prop_ro(
            "metadata",
            [](const SafetensorsFile& self) {
                return std::map<std::string, std::string>(self.metadata().begin(), self.metadata().end());
            },
            "Free text by key.")
        .def(
            "shape",
            [](const SafetensorsFile& self, const std::string& name) {
                const Shape& shape = self.entry(name).shape;
                return nb::tuple(nb::cast(std::vector<std::int64_t>(shape.begin(), shape.end())));
            },
            nb::arg("name"), nb::sig("def shape(self, name: str) -> tuple[int, ...]"))
        .def(
            "dtype",
            [](const SafetensorsFile& self, const std::string& name) {
                return std::string(name_of(self.entry(name).dtype));
            },
            nb::arg("name"), "\"f32\", \"bf16\", ...")
        .def(
            "__contains__", [](const SafetensorsFile& self, const std::string& name) { return self.contains(name); },
            nb::arg("name"))
        .def("__len__", [](const SafetensorsFile& self) { return self.names().size(); })
        .def(
            "__iter__", [](const SafetensorsFile& self) { return nb::iter(nb::cast(self.names())); },
            nb::sig("def __iter__(self) -> Iterator[str]"))
        .def("view", view_, nb::arg("name"), nb::sig("def view(self, name: str) -> Any"),
             R"doc(The same without a copy: a read-only array of the file's own bytes, which keeps it open.

For files that nobody changes meanwhile. Floats of 8 bits, which file[name] converts, and data that is not aligned are
refused.

>>> heed.write_safetensors("small.safetensors", {"x": numpy.ones(3, "float32")})
>>> heed.SafetensorsFile("small.safetensors").view("x")
array([1., 1., 1.], dtype=float32))doc")
        .def("__getitem__", tensor_, nb::arg("name"), nb::sig("def __getitem__(self, name: str) -> Any"));
    m.def("write_safetensors", write_, nb::arg("path"), nb::arg("tensors"),
          nb::arg("metadata") = std::map<std::string, std::string>(),
          nb::sig("def write_safetensors(path: str | os.PathLike[str], tensors: dict[str, ArrayLike], "
                  "metadata: dict[str, str] = {}) -> None"),
          R"doc(Writes a safetensors file: all of it or nothing.

>>> heed.write_safetensors("one.safetensors", {"x": numpy.arange(3)}, {"made by": "heed"}))doc");
}

}  // namespace heed::python
