// Text to token ids and back.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "riftco/tokenizer.h"
#include "riftco_transformer/core/error.hpp"

namespace riftco_transformer::artifacts {

struct EncodeConfig {
  bool add_special = false;    // add the tokens that the file says surround a text
  bool parse_special = false;  // read the text of special tokens as those tokens
  bool strict = false;  // a byte without any token throws RT_INVALID_ARGUMENT instead of being left out
};

struct TrainConfig {
  std::uint32_t vocabulary_size = 8192;
  std::int32_t pre_tokenizer = RT_PRE_TOKENIZER_GPT2;
  std::uint64_t minimum_count = 0;  // pairs that come less often do not join
  std::vector<std::string> special_tokens;
  const rt_cancel* cancel = nullptr;
};

// Immutable: any number of threads may use one.
class Tokenizer {
 public:
  // From a tokenizer.json, a .gguf, a .rift or a folder with a tokenizer.json.
  explicit Tokenizer(std::string_view path)
      : handle_(detail::make<Handle>(rt_tokenizer_load, path.data(), path.size())) {}

  // Takes over a handle of the C ABI.
  explicit Tokenizer(rt_tokenizer* handle) noexcept : handle_(handle) {}

  // 256 ids, one for each byte.
  static Tokenizer byte() {
    rt_tokenizer* handle = nullptr;
    detail::check(rt_tokenizer_create_byte(&handle));
    return Tokenizer(handle);
  }

  // Learns byte-level BPE from texts.
  static Tokenizer train(std::span<const std::string_view> texts, const TrainConfig& config = {}) {
    const auto corpus = as_texts(texts);
    const auto special = as_texts(config.special_tokens);
    auto options = detail::defaults<rt_tokenizer_train_options>(rt_tokenizer_train_options_init);
    options.vocabulary_size = config.vocabulary_size;
    options.pre_tokenizer = config.pre_tokenizer;
    options.minimum_count = config.minimum_count;
    options.special_tokens = special.data();
    options.special_token_count = special.size();
    options.cancel = config.cancel;
    rt_tokenizer* handle = nullptr;
    detail::check(rt_tokenizer_train(corpus.data(), corpus.size(), &options, &handle));
    return Tokenizer(handle);
  }

  rt_tokenizer_info info() const {
    rt_tokenizer_info info{};
    info.struct_size = sizeof info;
    detail::check(rt_tokenizer_get_info(get(), &info));
    return info;
  }

  std::vector<std::uint32_t> encode(std::string_view text, const EncodeConfig& config = {}) const {
    auto options = detail::defaults<rt_encode_options>(rt_encode_options_init);
    options.add_special = config.add_special;
    options.parse_special = config.parse_special;
    options.strict = config.strict;
    // A token is at least a byte, but for those that add_special adds: one call nearly always.
    std::vector<std::uint32_t> tokens(text.size() + 8);
    std::uint64_t count = 0;
    rt_status status =
        rt_tokenizer_encode(get(), text.data(), text.size(), &options, tokens.data(), tokens.size(), &count);
    if (status == RT_BUFFER_TOO_SMALL) {
      tokens.resize(count);
      status = rt_tokenizer_encode(get(), text.data(), text.size(), &options, tokens.data(), tokens.size(),
                                   &count);
    }
    detail::check(status);
    tokens.resize(count);
    return tokens;
  }

  // The exact bytes, which are UTF-8 where the tokens are.
  std::string decode(std::span<const std::uint32_t> tokens, bool skip_special = false) const {
    std::uint64_t size = 0;
    detail::check(rt_tokenizer_decode(get(), tokens.data(), tokens.size(), skip_special, nullptr, 0, &size));
    std::string text(size, '\0');
    detail::check(
        rt_tokenizer_decode(get(), tokens.data(), tokens.size(), skip_special, text.data(), size, &size));
    return text;
  }

  // The token whose text is exactly this, or RT_NO_TOKEN.
  std::uint32_t find(std::string_view text) const {
    std::uint32_t token = RT_NO_TOKEN;
    detail::check(rt_tokenizer_find(get(), text.data(), text.size(), &token));
    return token;
  }

  // The Jinja source of the file's chat template; empty where it has none.
  std::string chat_template() const {
    std::uint64_t size = 0;
    detail::check(rt_tokenizer_chat_template(get(), nullptr, 0, &size));
    std::string text(size, '\0');
    detail::check(rt_tokenizer_chat_template(get(), text.data(), size, &size));
    return text;
  }

  // Writes a tokenizer.json.
  void save(std::string_view path) const {
    detail::check(rt_tokenizer_save(get(), path.data(), path.size()));
  }

  rt_tokenizer* get() const noexcept { return handle_.get(); }

 private:
  template <class Texts>
  static std::vector<rt_text> as_texts(const Texts& texts) {
    std::vector<rt_text> all;
    for (const std::string_view text : texts) all.push_back({text.data(), text.size()});
    return all;
  }

  using Handle = detail::Owned<rt_tokenizer, rt_tokenizer_release>;
  Handle handle_;
};

}  // namespace riftco_transformer::artifacts
