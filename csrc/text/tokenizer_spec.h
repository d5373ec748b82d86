// What a tokenizer is, as plain data: every importer fills one, class Tokenizer checks it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace riftco {

// One byte of flags per token id.
enum TokenFlag : uint8_t {
  kModelToken = 1,        // byte-pair encoding can make it from text
  kAddedToken = 2,        // found in the text as it stands, before byte-pair encoding
  kSpecialToken = 4,      // added, and only found where the caller asks for it; left out by decode on request
  kSingleWord = 8,        // added: not found inside a word
  kStripLeft = 16,        // added: swallows the white space before it
  kStripRight = 32,       // added: swallows the white space after it
  kAfterNormalizer = 64,  // added: searched in a second pass, in what the others left, once it is normalised
  kByteToken = 128,       // spelled <0x00> to <0xFF>: a byte of a character without a token
};

// How tokens that are not added stand for bytes.
enum class Spelling : uint8_t {
  byte_level,      // GPT-2's printable stand-ins for bytes (byte_spelling.h)
  sentence_piece,  // text, with U+2581 in the place of spaces
};

// Ids that the file declares; absent where it does not.
struct SpecialTokens {
  std::optional<uint32_t> bos, eos, unknown, pad;
  std::vector<uint32_t> end_of_generation;  // eos first, no id twice
};

constexpr size_t kMaxPreTokenizerStages = 8, kMaxNormalizerSteps = 8;

struct TokenizerSpec {
  Spelling spelling = Spelling::byte_level;
  // By id, in that spelling; always UTF-8. Added byte-level tokens are plain text. A token with no flag is
  // never made from text; its bytes are its stand-ins undone where possible.
  std::vector<std::string> tokens;
  std::vector<uint8_t> flags;
  std::vector<MergePair> merges;  // best first
  std::vector<float> scores;      // by id, in place of merges: what joins to the best score joins first
  std::vector<NormalizerStep> normalizer;
  SpacePrefix space_prefix = SpacePrefix::none;
  bool strips_first_space = false;  // decode leaves out one space where the text begins
  std::vector<PreTokenizerStage> stages;
  bool ignore_merges = false;  // a piece that is a token is that token, whatever the merges say
  std::optional<uint32_t>
      missing_byte;                 // stands for a byte without a token; such bytes are dropped if absent
  bool fuse_missing_bytes = false;  // one `missing_byte` for a run of them
  std::vector<uint32_t> prefix, suffix;  // what EncodeOptions::add_special adds
  SpecialTokens special;
  std::string chat_template;  // Jinja source, kept as it is; may be empty
};

}  // namespace riftco
