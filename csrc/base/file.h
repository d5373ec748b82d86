// Files: exact reads at an offset, and replacing a file as a whole or not at all. Paths are UTF-8 bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace riftco {

// A regular file open for reading. const calls may run on several threads at once.
class File {
 public:
  explicit File(
      std::string_view path);  // input_output: not there, not a regular file; invalid_argument: a NUL
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const noexcept { return path_; }
  uint64_t size() const noexcept { return size_; }  // as it was at opening

  // Fills `out` with the bytes from `offset` or fails with input_output, also when the file has shrunk.
  void read_at(uint64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  int descriptor_;
  uint64_t size_;
};

// The bytes of a file of at most `max_bytes`; a larger one is refused (corrupt_data) before anything is read.
std::string read_small_file(std::string_view path, uint64_t max_bytes);

// Writes a temporary file beside `path`; commit() makes it durable and puts it in the place of `path`.
// Without commit(), or when anything fails, `path` stays what it was and the temporary file is removed.
class AtomicFileWriter {
 public:
  // A symbolic link is followed. An existing file lends its permission bits and must be writable.
  explicit AtomicFileWriter(std::string_view path);
  ~AtomicFileWriter();
  AtomicFileWriter(const AtomicFileWriter&) = delete;
  AtomicFileWriter& operator=(const AtomicFileWriter&) = delete;

  const std::string& path() const noexcept { return path_; }
  uint64_t size() const noexcept { return size_; }

  void write(std::span<const std::byte> bytes);  // appends
  void write_at(uint64_t offset,
                std::span<const std::byte> bytes);  // replaces bytes that were written before
  void commit();                                    // once; nothing can be written after it

 private:
  void write_all(uint64_t offset, std::span<const std::byte> bytes);

  std::string path_;       // the target, links resolved
  std::string temporary_;  // empty after commit()
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

}  // namespace riftco
