#include "base/file.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <utility>

#include "base/system_call.h"

namespace riftco {
namespace {

static_assert(sizeof(off_t) == 8, "offsets beyond 2 GiB");

using Count = unsigned long long;  // for %llu

void check_regular(const char* verb, const std::string& path, const struct stat& info) {
  if (!S_ISREG(info.st_mode))
    fail(Status::input_output, "cannot %s %s: it is %s", verb, path.c_str(),
         S_ISDIR(info.st_mode) ? "a directory" : "not a regular file");
}

// The file that a write to `path` changes: links resolved when they lead anywhere.
std::string target_of(std::string_view path) {
  std::string name = checked_path(path);
  const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(name.c_str(), nullptr), &std::free);
  return resolved ? resolved.get() : name;
}

std::string temporary_name() {
  static std::atomic<unsigned> counter{0};
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return format(".riftco-%ld-%lx%lx-%u.tmp", long(getpid()), long(now.tv_sec), long(now.tv_nsec), counter++);
}

}  // namespace

void Descriptor::reset(int number) noexcept {
  close();
  number_ = number;
}

bool Descriptor::close() noexcept {
  const int number = std::exchange(number_, -1);
  return number < 0 || ::close(number) == 0;  // never again on EINTR: the number may already be another's
}

// O_NONBLOCK: opening a FIFO must not wait for a writer.
File::File(std::string_view path)
    : path_(checked_path(path)),
      descriptor_(retry([&] { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); })) {
  check_opened();
}

File::File(int descriptor)
    : path_(format("file descriptor %d", descriptor)), descriptor_(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)) {
  check_opened();
}

File::File(std::span<const std::byte> memory) : path_("the buffer"), memory_(memory), size_(memory.size()) {}

void File::check_opened() {
  struct stat info;
  if (descriptor_.get() < 0 || ::fstat(descriptor_.get(), &info) != 0) fail_errno("cannot open", path_);
  check_regular("read", path_, info);
  size_ = uint64_t(info.st_size);
}

void File::read_at(uint64_t offset, std::span<std::byte> out) const {
  uint64_t end;
  if (__builtin_add_overflow(offset, out.size(), &end) || end > size_)
    fail(Status::input_output, "cannot read %zu bytes at %llu of %s: it has %llu bytes", out.size(),
         Count(offset), path_.c_str(), Count(size_));
  if (descriptor_.get() < 0) {
    std::copy_n(memory_.begin() + ptrdiff_t(offset), out.size(), out.begin());
    return;
  }
  while (!out.empty()) {
    const ssize_t got =
        retry([&] { return ::pread(descriptor_.get(), out.data(), out.size(), off_t(offset)); });
    if (got < 0)
      fail_errno(format("cannot read %zu bytes at %llu of", out.size(), Count(offset)).c_str(), path_);
    if (got == 0)
      fail(Status::input_output, "%s ends at %llu, before its %llu bytes: it has shrunk while it was read",
           path_.c_str(), Count(offset), Count(size_));
    offset += uint64_t(got);
    out = out.subspan(size_t(got));
  }
}

std::string read_small_file(std::string_view path, uint64_t max_bytes) {
  const File file(path);
  if (file.size() > max_bytes)
    fail(Status::corrupt_data, "%s has %llu bytes, more than the %llu that it may have", file.path().c_str(),
         Count(file.size()), Count(max_bytes));
  std::string text(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

AtomicFileWriter::AtomicFileWriter(std::string_view path) : path_(target_of(path)) {
  struct stat info;
  const bool replaces = ::stat(path_.c_str(), &info) == 0;
  if (replaces) check_regular("write", path_, info);
  if (replaces && ::access(path_.c_str(), W_OK) != 0) fail_errno("cannot write", path_);

  const size_t slash = path_.rfind('/');
  const std::string folder = slash == path_.npos ? "." : path_.substr(0, slash + 1);
  name_ = slash == path_.npos ? path_ : path_.substr(slash + 1);
  if (name_.empty()) fail(Status::input_output, "cannot write \"%s\": it names no file", path_.c_str());
  // Names are relative to this descriptor, so the host may change its working directory meanwhile.
  folder_.reset(retry([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (folder_.get() < 0) fail_errno("cannot write", path_);
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  do {
    temporary_ = temporary_name();
    descriptor_.reset(
        retry([&] { return ::openat(folder_.get(), temporary_.c_str(), kFlags, replaces ? 0600 : 0666); }));
  } while (descriptor_.get() < 0 && errno == EEXIST);
  if (descriptor_.get() < 0) fail_errno("cannot write", path_);
  // Best effort: a file system without permission bits refuses, and then the file stays private.
  if (replaces) (void)!::fchmod(descriptor_.get(), info.st_mode & 0777);
}

AtomicFileWriter::~AtomicFileWriter() {
  if (!committed_) ::unlinkat(folder_.get(), temporary_.c_str(), 0);
}

void AtomicFileWriter::write_all(uint64_t offset, std::span<const std::byte> bytes) {
  if (descriptor_.get() < 0) fail(Status::invalid_state, "%s is already written", path_.c_str());
  while (!bytes.empty()) {
    const ssize_t done =
        retry([&] { return ::pwrite(descriptor_.get(), bytes.data(), bytes.size(), off_t(offset)); });
    if (done < 0)
      fail_errno(format("cannot write %zu bytes at %llu of", bytes.size(), Count(offset)).c_str(), path_);
    offset += uint64_t(done);
    bytes = bytes.subspan(size_t(done));
  }
}

void AtomicFileWriter::write(std::span<const std::byte> bytes) {
  write_all(size_, bytes);
  size_ += bytes.size();
}

void AtomicFileWriter::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  if (offset > size_ || bytes.size() > size_ - offset)
    fail(Status::out_of_range, "bytes %llu to %llu of %s are not among the %llu written", Count(offset),
         Count(offset) + bytes.size(), path_.c_str(), Count(size_));
  write_all(offset, bytes);
}

void AtomicFileWriter::commit() {
  if (descriptor_.get() < 0) fail(Status::invalid_state, "%s is already written", path_.c_str());
  if (retry([&] { return ::fsync(descriptor_.get()); }) != 0) fail_errno("cannot write", path_);
  if (!descriptor_.close()) fail_errno("cannot write", path_);
  if (retry([&] { return ::renameat(folder_.get(), temporary_.c_str(), folder_.get(), name_.c_str()); }) != 0)
    fail_errno("cannot replace", path_);
  committed_ = true;
  if (!sync_folder(folder_)) fail_errno("wrote, but cannot make durable", path_);
}

}  // namespace riftco
