// Learns the merges of a byte-level tokenizer from text.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "text/tokenizer.h"

namespace riftco {

struct TrainOptions {
  uint32_t vocabulary_size = 8192;  // special tokens and the 256 bytes included
  uint64_t minimum_count = 0;       // pairs that come less often do not join
  std::vector<PreTokenizerStage> stages = {PreTokenizerStage::gpt2};
  std::vector<std::string> special_tokens = {};  // the first ids, in this order
  std::optional<uint32_t> eos_token = {};        // one of them
};

// The most frequent pair of neighbours joins first; of equals the one whose ids come first, left before right.
// Fewer tokens come out where no pair is left. Merges and ids are those of the `tokenizers` package's trainer
// (without its limits on lengths and alphabets).
std::shared_ptr<const Tokenizer> train_tokenizer(std::span<const std::string_view> texts,
                                                 const TrainOptions& options, Progress& progress);

}  // namespace riftco
