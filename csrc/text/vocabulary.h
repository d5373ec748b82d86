// Token ids and their bytes, in one block of memory.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/text_table.h"

namespace riftco {

enum class Spelling : uint8_t;

constexpr uint32_t kMaxVocabulary = kMostInSlots;
constexpr size_t kMaxAddedTokenBytes = 1024;

class Vocabulary {
 public:
  // See TokenizerSpec. corrupt_data for duplicates, bad UTF-8, contradicting flags and sizes out of bounds.
  Vocabulary(const std::vector<std::string>& tokens, std::vector<uint8_t> flags, Spelling spelling);

  uint32_t size() const noexcept { return uint32_t(flags_.size()); }
  std::string_view bytes(uint32_t id) const noexcept { return bytes_[id]; }  // id < size()
  // What encoding compares with: the bytes, or the spelling where it is SentencePiece's.
  std::string_view key(uint32_t id) const noexcept { return keys_.empty() ? bytes_[id] : keys_[id]; }
  uint8_t flags(uint32_t id) const noexcept { return flags_[id]; }
  std::string spelled(uint32_t id) const;  // as it was in TokenizerSpec

  uint32_t find_model_token(std::string_view key) const noexcept;  // kNoToken when there is none

 private:
  struct Strings {  // in one block
    void add(std::string_view text);
    bool empty() const noexcept { return offsets.size() == 1; }
    std::string_view operator[](uint32_t i) const noexcept {
      return std::string_view(bytes).substr(offsets[i], offsets[i + 1] - offsets[i]);
    }
    std::string bytes;
    std::vector<uint32_t> offsets{0};
  };

  void add(uint32_t id, const std::string& token, Spelling spelling);
  void add_byte_level(uint32_t id, const std::string& token);
  void add_sentence_piece(uint32_t id, const std::string& token);

  Strings bytes_, keys_;
  std::vector<uint8_t> flags_;
  std::vector<bool> plain_;  // bytes are the spelling
  TextTable model_tokens_;   // by key
};

}  // namespace riftco
