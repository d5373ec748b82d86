// Text to token ids and back: the byte tokenizer, byte-level and SentencePiece byte-pair encoding.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_spec.h"
#include "text/vocabulary.h"

namespace riftco {

struct PlainRange {
  uint64_t begin, end;
};

struct EncodeOptions {
  bool add_special = false;            // put what the file says (BOS, EOS) before and after
  bool parse_special = false;          // find special tokens written in the text
  bool strict = false;                 // a byte that the vocabulary lacks is invalid_argument, not dropped
  const CancelFlag* cancel = nullptr;  // looked at every 64 KiB
  // Where parse_special finds nothing: [begin, end) of bytes, in order, none inside another.
  std::span<const PlainRange> plain = {};
};

// Immutable; any number of threads may use one at the same time. Text is bytes: what is not UTF-8 is encoded
// byte by byte. decode(encode(text)) is text, unless the vocabulary lacks a byte, the file normalises or an
// added token strips white space.
class Tokenizer {
 public:
  // corrupt_data when the parts contradict each other, unsupported for what is not built.
  Tokenizer(std::string kind, TokenizerSpec spec);
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  const std::string& kind() const noexcept { return kind_; }  // "byte", "bpe" or "sentencepiece"
  uint32_t vocabulary_size() const noexcept { return vocabulary_.size(); }

  std::vector<uint32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // The exact bytes. out_of_range for an id that the vocabulary does not have.
  std::string decode(std::span<const uint32_t> ids, bool skip_special = false) const;
  std::string_view token_bytes(uint32_t id) const;
  // Whether decode leaves out a space at the beginning of the text.
  bool strips_first_space() const noexcept { return spec_.strips_first_space; }
  bool is_special(uint32_t id) const;
  // The token with exactly these bytes: an added one first, then one that encoding can make.
  std::optional<uint32_t> find(std::string_view bytes) const;

  const SpecialTokens& special() const noexcept { return spec_.special; }
  bool is_end_of_generation(uint32_t id) const noexcept;
  bool adds_bos() const noexcept;  // whether add_special begins with BOS
  const std::string& chat_template() const noexcept { return spec_.chat_template; }

  TokenizerSpec spec() const;  // everything: what writers need
  // The same as one JSON document: equal tokenizers give equal bytes.
  std::string to_json() const;

 private:
  friend class TextEncoder;
  void check_parts() const;

  std::string kind_;
  TokenizerSpec spec_;  // less what the members below hold: tokens, flags, merges
  Vocabulary vocabulary_;
  MergeTable merges_;
  PreTokenizer pre_tokenizer_;
  AddedTokens added_first_, added_second_;  // see kAfterNormalizer
  std::array<uint32_t, 256> byte_ids_;      // kNoToken where the vocabulary has none
  std::array<uint32_t, 256> byte_tokens_;   // of SentencePiece; the same
  std::vector<uint32_t> score_places_;      // by id, 0 the best
};

std::shared_ptr<const Tokenizer> byte_tokenizer();  // id = byte

// Reads what to_json wrote. `where` names the source in messages, here and below.
std::shared_ptr<const Tokenizer> tokenizer_from_json(std::string_view text, const std::string& where);

// The files of a Hugging Face folder; all but the first may be empty.
struct HuggingFaceTokenizerFiles {
  std::string_view tokenizer_json = {};
  std::string_view tokenizer_config = {};    // names of BOS, EOS, unknown and padding; chat template
  std::string_view special_tokens_map = {};  // the same names, where tokenizer_config has none
  std::string_view generation_config =
      {};                               // eos_token_id: one or several ids (config.json has the same field)
  std::string_view chat_template = {};  // chat_template.jinja: wins over the one in tokenizer_config
};
std::shared_ptr<const Tokenizer> tokenizer_from_hugging_face(const HuggingFaceTokenizerFiles& files,
                                                             const std::string& where);

// The same files, for others to read. unsupported for the byte tokenizer.
std::string to_tokenizer_json(const Tokenizer& tokenizer);
std::string to_tokenizer_config(const Tokenizer& tokenizer);  // tokenizer_config.json

// The `tokenizer.*` metadata of a GGUF file, whose names these are.
struct GgufTokenizerMetadata {
  std::string_view model = {};  // tokenizer.ggml.model
  std::string_view pre = {};    // tokenizer.ggml.pre
  std::vector<std::string_view> tokens = {}, merges = {};
  std::vector<int64_t> token_types = {};  // may be empty: all normal
  std::vector<float> scores = {};         // of model "llama"
  std::optional<uint64_t> bos_token_id = {}, eos_token_id = {}, eot_token_id = {}, eom_token_id = {},
                          unknown_token_id = {}, padding_token_id = {};
  std::optional<bool> add_bos_token = {}, add_eos_token = {}, add_space_prefix = {};
  std::string_view chat_template = {};  // tokenizer.chat_template
};
std::shared_ptr<const Tokenizer> tokenizer_from_gguf(const GgufTokenizerMetadata& metadata,
                                                     const std::string& where);

// The same, to be written.
struct GgufTokenizer {
  std::string model, pre;
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> token_types;
  std::vector<float> scores;
  std::vector<std::pair<std::string, uint32_t>> ids;  // "bos": of tokenizer.ggml.bos_token_id, ...
  std::vector<std::pair<std::string, bool>> flags;    // "add_bos_token", ...
  std::string chat_template;
};
// With tokens that nothing stands for behind the tokenizer's own, up to the model's vocabulary size.
// unsupported, by name, for what would not encode to the same ids when it is read back.
GgufTokenizer to_gguf_tokenizer(const Tokenizer& tokenizer, uint32_t vocabulary_size);

}  // namespace riftco
