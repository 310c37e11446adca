#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heed {

/// Text from a file, fit for a message on a terminal: quoted, everything but printable ASCII escaped, cut when long.
std::string in_quotes(std::string_view text);

/// Where a model's files are: the folder itself, or `best` inside of it where `heed train` made it.
std::filesystem::path model_folder(const std::filesystem::path& folder);

/// A regular file open for reading. Errors are FileErrors that begin with `[function] path:`.
class InputFile {
public:
    InputFile(std::string_view function, const std::filesystem::path& path);
    InputFile(const InputFile&) = delete;
    InputFile& operator=(const InputFile&) = delete;
    ~InputFile();

    /// As it was when the file was opened.
    std::uint64_t size() const { return size_; }
    /// Fills `to` from `offset` on; a file that has become too short is an error.
    void read(std::uint64_t offset, std::span<std::byte> to) const;
    /// The whole file, mapped by the first call. Empty for an empty file.
    std::span<const std::byte> map();

private:
    [[noreturn]] void fail(std::string_view what, int code) const;

    std::string context_;
    int descriptor_ = -1;
    std::uint64_t size_ = 0;
    const std::byte* mapping_ = nullptr;
};

/// Replaces a file whole or not at all: bytes go to a temporary file beside it, commit() puts that in its place.
/// Without commit() the destructor removes the temporary file. Errors are FileErrors, `[function] path: ...`.
class AtomicFile {
public:
    AtomicFile(std::string_view function, std::filesystem::path path);
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;
    ~AtomicFile();

    void write(std::span<const std::byte> bytes);
    void commit();

private:
    void flush();
    void write_through(std::span<const std::byte> bytes);
    [[noreturn]] void fail(std::string_view what, int code) const;

    std::string context_;
    std::filesystem::path path_;
    std::filesystem::path temporary_;
    std::vector<std::byte> buffer_;
    int descriptor_ = -1;
};

}  // namespace heed
