// Token ids and their bytes, in one block of memory.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace riftco {

constexpr uint32_t kNoToken = UINT32_MAX;
constexpr uint32_t kMaxVocabulary = 1u << 24;
constexpr size_t kMaxAddedTokenBytes = 1024;

class Vocabulary {
 public:
  // See TokenizerSpec. corrupt_data for duplicates, bad UTF-8, contradicting flags and sizes out of bounds.
  Vocabulary(const std::vector<std::string>& tokens, std::vector<uint8_t> flags);

  uint32_t size() const noexcept { return uint32_t(flags_.size()); }
  std::string_view bytes(uint32_t id) const noexcept {  // id < size()
    return std::string_view(bytes_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
  }
  uint8_t flags(uint32_t id) const noexcept { return flags_[id]; }
  std::string spelled(uint32_t id) const;  // as it was in TokenizerSpec

  uint32_t find_model_token(std::string_view bytes) const noexcept;  // kNoToken when there is none

 private:
  void add(uint32_t id, const std::string& token);
  uint32_t& slot(std::string_view bytes) noexcept;
  uint64_t hash(std::string_view bytes) const noexcept;

  uint64_t seed_;
  std::string bytes_;
  std::vector<uint32_t> offsets_;  // size() + 1
  std::vector<uint8_t> flags_;
  std::vector<bool> plain_;      // bytes are the spelling
  std::vector<uint32_t> slots_;  // ids of model tokens, open addressing
};

// Differs from run to run, so that a file cannot be written to make a hash table slow.
uint64_t hash_seed() noexcept;

}  // namespace riftco
