// Files: exact reads at an offset, and replacing a file as a whole or not at all. Paths are UTF-8 bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace riftco {

// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) noexcept : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const noexcept { return number_; }  // -1 when closed
  void reset(int number) noexcept;
  bool close() noexcept;  // false, with errno, when the file system reports an error that writes left behind

 private:
  int number_;
};

// A regular file open for reading, or bytes in memory. const calls may run on several threads at once.
class File {
 public:
  explicit File(
      std::string_view path);  // input_output: not there, not a regular file; invalid_argument: a NUL
  // Of the caller's descriptor, which is duplicated; its position is neither used nor moved.
  explicit File(int descriptor);
  explicit File(std::span<const std::byte> memory);  // which outlives this

  const std::string& path() const noexcept { return path_; }  // or what it is, for messages
  uint64_t size() const noexcept { return size_; }            // as it was at opening

  // Fills `out` with the bytes from `offset` or fails with input_output, also when the file has shrunk.
  void read_at(uint64_t offset, std::span<std::byte> out) const;

 private:
  void check_opened();

  std::string path_;
  Descriptor descriptor_;
  std::span<const std::byte> memory_;
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

  std::string path_;              // the target, links resolved
  std::string name_, temporary_;  // in the folder
  Descriptor folder_, descriptor_;
  uint64_t size_ = 0;
  bool committed_ = false;
};

}  // namespace riftco
