#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <heed/error.h>
#include <heed/tensor.h>

namespace heed {

/// Free text that travels with the tensors, by key.
using SafetensorsMetadata = std::map<std::string, std::string, std::less<>>;

/// A safetensors file, open for reading:
///
///     const SafetensorsFile file = SafetensorsFile::open("model.safetensors");
///     const Tensor weight = file.tensor("wte.weight");
///
/// Files are taken to be hostile. Opening checks every rule of the format, and only memory in proportion to the
/// file is ever asked for; a file that breaks a rule is a FileError that names the file, the tensor and the numbers.
/// Beyond the format: at most 8 axes, a million tensors, names of 1 to 4096 bytes, and only element types that DType
/// knows, or that the format has beside them: floats of 8 bits (F8_E4M3, F8_E5M2, ...) become f32 when they are read,
/// those of 4 and 6 bits and complex numbers are refused then. Names are arbitrary UTF-8, control characters included:
/// escape them before a terminal sees them.
///
/// Every const member may be called from several threads at once.
class HEED_API SafetensorsFile {
public:
    /// What the header says of one tensor. Offsets are in bytes from the start of the data.
    struct Entry {
        DType dtype = DType::f32;  ///< of what tensor() returns
        Shape shape;
        std::uint64_t begin = 0;
        std::uint64_t end = 0;
        std::string_view file_type = "F32";  ///< in the file's words; of constant storage
    };

    /// Reads the header and maps the data; weights are not read before they are used.
    static SafetensorsFile open(const std::filesystem::path& path);
    /// A file that is already in memory; the bytes are borrowed and must outlive the result and its views.
    /// `label` stands for the path in messages.
    static SafetensorsFile from_memory(std::span<const std::byte> bytes, std::string label = "memory");

    SafetensorsFile(SafetensorsFile&&) noexcept;
    SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
    ~SafetensorsFile();

    /// In the order of the header.
    const std::vector<std::string>& names() const;
    const SafetensorsMetadata& metadata() const;
    bool contains(std::string_view name) const;
    /// FileError where there is no such tensor, here and below.
    const Entry& entry(std::string_view name) const;

    /// A row-major copy, 64-byte aligned. Always safe: a file that another process has shortened since it was opened
    /// is a FileError too. So is a boolean other than 0 and 1, which C++ may not even look at as a bool.
    Tensor tensor(std::string_view name) const;
    /// The same into memory of the caller's: row-major, of the entry's type and shape. What it holds is undefined where
    /// a FileError comes.
    void read(std::string_view name, const MutableView& out) const;

    /// The file's own bytes, row-major, without a copy; valid as long as this object.
    /// The format does not promise alignment: FileError where the data does not lie on a multiple of its element size
    /// (then take tensor(); write_safetensors always aligns), or where tensor() would convert it. Booleans are checked
    /// as in tensor().
    /// For files that nobody changes meanwhile: touching a mapped page that was cut off ends a process with SIGBUS.
    View view(std::string_view name) const;
    /// Whether view() would find the data aligned.
    bool is_aligned(std::string_view name) const;

private:
    struct Contents;
    explicit SafetensorsFile(std::unique_ptr<Contents> contents);
    std::unique_ptr<Contents> contents_;
};

/// A tensor to be written. Any strides; it is stored row-major.
struct NamedView {
    std::string name;
    View view;
};

/// Writes a safetensors file: all of it or nothing. The bytes go to a temporary file in the same folder, which takes
/// the place of `path` once it is complete and on the disk; whatever goes wrong, what was at `path` is untouched and
/// the temporary file is gone. A symbolic link at `path` is replaced, not followed.
///
/// The header lists the tensors in the order given. Their data lies widest element first (otherwise in the order
/// given), so that every tensor is aligned.
///
/// Error: an absent view, an empty, repeated or reserved ("__metadata__") name, text that is not UTF-8, a boolean other
/// than 0 and 1. FileError: the disk.
HEED_API void write_safetensors(const std::filesystem::path& path, const std::vector<NamedView>& tensors,
                                const SafetensorsMetadata& metadata = {});

}  // namespace heed
