// A test with a safetensors file in a folder of its own, which it may read, replace and forge.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "io/checksum.h"

namespace riftco::test {

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("riftco_" + std::string(info->test_suite_name()) + "_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    path_ = folder_ / "a.file";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string contents() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void replace(std::string_view bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), std::streamsize(bytes.size()));
  }

  // Rewrites the file with changes, under a right checksum.
  struct Parts {
    SafetensorsMetadata metadata;
    std::vector<SafetensorsTensor> tensors;
    std::vector<std::byte> data;
  };
  void forge(const std::function<void(Parts&)>& change) const {
    Parts parts;
    {
      const SafetensorsReader reader(std::make_shared<File>(path_.string()));
      parts = {reader.metadata(), reader.tensors(), {}};
      parts.data.resize(reader.file().size() - reader.data_offset());
      reader.file().read_at(reader.data_offset(), parts.data);
    }
    change(parts);
    const std::string key = kChecksumKey;
    SafetensorsWriter writer(path_.string(), parts.metadata, parts.tensors);
    Checksum checksum;
    add_header(checksum, parts.metadata, writer.tensors());
    checksum.add(parts.data);
    if (parts.metadata.contains(key)) parts.metadata[key] = checksum.text();
    writer.write(parts.data);
    writer.rewrite_metadata(parts.metadata);
    writer.commit();
  }

  std::filesystem::path folder_, path_;
};

}  // namespace riftco::test
