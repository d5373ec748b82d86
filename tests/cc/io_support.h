// Shared by the tests of files and formats: a folder of their own, bytes by hand, and what a call allocates.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace riftco {

// A folder that goes with the test.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "riftco-test-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  size_t entries() const {
    return size_t(
        std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
  }

 private:
  std::filesystem::path path_;
};

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);  // some file systems flush a file that is written over
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::shared_ptr<const File> open_file(const std::string& path) {
  return std::make_shared<const File>(path);
}

// The bytes of `values` as they lie in memory.
template <class T>
std::string bytes_of(std::initializer_list<T> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T)};
}

inline std::span<const std::byte> as_span(const std::string& bytes) {
  return std::as_bytes(std::span(bytes));
}

// Status and message of the riftco::Error that `call` throws; ok when it throws none.
struct Outcome {
  Status status = Status::ok;
  std::string message;
};
template <class Call>
Outcome outcome_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.status(), error.what()};
  }
  return {};
}

// `call` fails with `status`, and the message has `part` in it.
template <class Call>
void expect_error(Call call, Status status, const std::string& part) {
  const Outcome outcome = outcome_of(call);
  EXPECT_EQ(int(outcome.status), int(status)) << outcome.message;
  EXPECT_NE(outcome.message.find(part), std::string::npos) << outcome.message << "\nlacks " << part;
}

// The most memory that `operator new` had handed out at one time since the last call.
size_t take_memory_peak() noexcept;

// Opens every prefix of the file and the file with each of the integers (offset, width in bytes) set to 0,
// all ones and the largest signed value: always an Error with a message, and no more memory than a small
// multiple of the file.
struct Integer {
  size_t at, width;
};
template <class Open>
void expect_hostile_refused(const std::string& bytes, const std::vector<Integer>& integers, Open open) {
  const Folder folder;
  const std::string path = folder / "hostile";
  const auto check = [&](const std::string& hostile, const std::string& what) {
    write_bytes(path, hostile);
    take_memory_peak();
    const Outcome outcome = outcome_of([&] { open(path); });
    EXPECT_NE(int(outcome.status), int(Status::ok)) << what << " was accepted";
    EXPECT_NE(int(outcome.status), int(Status::internal)) << what;
    EXPECT_TRUE(outcome.message.find(path) != std::string::npos) << what << ": " << outcome.message;
    EXPECT_LE(take_memory_peak(), 16 * bytes.size() + 16384) << what;
  };
  for (size_t size = 0; size < bytes.size(); size++) check(bytes.substr(0, size), format("%zu bytes", size));
  for (const Integer& integer : integers) {
    const std::string zero(integer.width, '\0'), ones(integer.width, '\xFF');
    std::string most = ones;
    most.back() = '\x7F';
    for (const std::string& value : {zero, ones, most}) {
      std::string hostile = bytes;
      hostile.replace(integer.at, integer.width, value);
      if (hostile != bytes) check(hostile, format("integer at %zu, last byte %d", integer.at, value.back()));
    }
  }
}

}  // namespace riftco
