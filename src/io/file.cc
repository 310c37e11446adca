#include "io/file.h"

#include <heed/error.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>

namespace heed {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;
/// Linux moves at most 2 GiB a call; stay well below.
constexpr std::size_t largest_transfer = std::size_t{1} << 30;

std::string context_of(std::string_view function, const std::filesystem::path& path) {
    return std::string("[").append(function).append("] ").append(path.string()).append(": ");
}

std::string reason(int code) { return std::generic_category().message(code); }

}  // namespace

std::string in_quotes(std::string_view text) {
    constexpr std::size_t longest = 100;
    constexpr char hex[] = "0123456789abcdef";
    std::string result = "'";
    for (const char character : text.substr(0, longest)) {
        const auto byte = static_cast<unsigned char>(character);
        if (byte >= 0x20 && byte < 0x7f && character != '\'' && character != '\\') {
            result += character;
        } else {
            result += {'\\', 'x', hex[byte >> 4], hex[byte & 15]};
        }
    }
    result += "'";
    if (text.size() > longest) { result += "... (" + std::to_string(text.size()) + " bytes)"; }
    return result;
}

std::filesystem::path model_folder(const std::filesystem::path& folder) {
    std::error_code ignored;
    const bool run = !std::filesystem::exists(folder / "config.json", ignored) &&
                     std::filesystem::exists(folder / "run.json", ignored) &&
                     std::filesystem::exists(folder / "best" / "config.json", ignored);
    return run ? folder / "best" : folder;
}

InputFile::InputFile(std::string_view function, const std::filesystem::path& path)
    : context_(context_of(function, path)) {
    // Without O_NONBLOCK a named pipe would wait for its writer.
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) { fail("cannot open", errno); }
    struct stat status {};
    const int code = ::fstat(descriptor_, &status) != 0 ? errno : 0;
    if (code != 0 || !S_ISREG(status.st_mode)) {
        ::close(descriptor_);
        if (code != 0) { fail("cannot inspect", code); }
        throw FileError(context_ + "expected a regular file");
    }
    size_ = static_cast<std::uint64_t>(status.st_size);
}

InputFile::~InputFile() {
    if (mapping_ != nullptr) { ::munmap(const_cast<std::byte*>(mapping_), size_); }
    ::close(descriptor_);
}

void InputFile::fail(std::string_view what, int code) const {
    throw FileError(context_ + std::string(what) + ": " + reason(code));
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> to) const {
    while (!to.empty()) {
        const ::ssize_t count =
            ::pread(descriptor_, to.data(), std::min(to.size(), largest_transfer), static_cast<::off_t>(offset));
        if (count < 0 && errno == EINTR) { continue; }
        if (count < 0) { fail("cannot read", errno); }
        if (count == 0) {
            throw FileError(context_ + "shortened while open: it had " + std::to_string(size_) + " bytes, now " +
                            std::to_string(offset) + " or fewer");
        }
        offset += static_cast<std::uint64_t>(count);
        to = to.subspan(static_cast<std::size_t>(count));
    }
}

std::span<const std::byte> InputFile::map() {
    if (mapping_ == nullptr && size_ > 0) {
        void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor_, 0);
        if (address == MAP_FAILED) { fail("cannot map", errno); }
        mapping_ = static_cast<const std::byte*>(address);
    }
    return {mapping_, static_cast<std::size_t>(size_)};
}

AtomicFile::AtomicFile(std::string_view function, std::filesystem::path path)
    : context_(context_of(function, path)), path_(std::move(path)) {
    struct stat old {};
    const bool exists = ::stat(path_.c_str(), &old) == 0;
    // A rename would put a plain file where /dev/null was.
    if (exists && !S_ISREG(old.st_mode)) { throw FileError(context_ + "exists and is not a regular file"); }
    buffer_.reserve(buffer_bytes);
    static std::atomic<unsigned> counter{0};
    do {
        temporary_ = path_.parent_path() /
                     (".heed-" + std::to_string(::getpid()) + "-" + std::to_string(counter.fetch_add(1)) + ".tmp");
        descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EEXIST);
    if (descriptor_ < 0) { fail("cannot create a temporary file in its folder", errno); }
    // A private file stays private. Where the owner differs this may be refused, and then the umask decides.
    if (exists && ::fchmod(descriptor_, old.st_mode & 0777U) != 0) { errno = 0; }
}

AtomicFile::~AtomicFile() {
    if (descriptor_ >= 0) { ::close(descriptor_); }
    if (!temporary_.empty()) { ::unlink(temporary_.c_str()); }
}

void AtomicFile::fail(std::string_view what, int code) const {
    throw FileError(context_ + std::string(what) + ": " + reason(code));
}

void AtomicFile::write(std::span<const std::byte> bytes) {
    if (bytes.size() > buffer_bytes - buffer_.size()) { flush(); }
    if (bytes.size() >= buffer_bytes) {
        write_through(bytes);
    } else {
        buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    }
}

void AtomicFile::flush() {
    write_through(buffer_);
    buffer_.clear();
}

void AtomicFile::write_through(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ::ssize_t count = ::write(descriptor_, bytes.data(), std::min(bytes.size(), largest_transfer));
        if (count < 0 && errno == EINTR) { continue; }
        if (count < 0) { fail("cannot write", errno); }
        bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
}

void AtomicFile::commit() {
    flush();
    if (::fsync(descriptor_) != 0) { fail("cannot flush to the disk", errno); }
    const int closed = ::close(descriptor_);
    descriptor_ = -1;  // closed even where close() reports an error
    if (closed != 0) { fail("cannot close", errno); }
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) { fail("cannot put the new file in place", errno); }
    temporary_.clear();
    // Makes the rename itself last. The file is whole either way, and not every file system can do this.
    const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
    const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor >= 0) {
        ::fsync(descriptor);
        ::close(descriptor);
    }
}

}  // namespace heed
