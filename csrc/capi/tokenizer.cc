#include "riftco/tokenizer.h"

#include "base/file.h"
#include "capi/arguments.h"
#include "capi/handles.h"
#include "model/load.h"
#include "text/bpe_trainer.h"

using namespace riftco;
using namespace riftco::capi;

static_assert(RT_NO_TOKEN == kNoToken);

template <>
struct riftco::capi::StructEnds<rt_encode_options> {
  static constexpr uint64_t values[] = {32, 40, 48};
};

namespace {

const rt_encode_options kEncodeDefaults{};
static_assert(sizeof(PlainRange) == sizeof(rt_byte_range) &&
              offsetof(PlainRange, end) == offsetof(rt_byte_range, end));

EncodeOptions encode_options(const rt_encode_options* given) {
  const rt_encode_options options = read_struct(given, kEncodeDefaults, "options");
  check_reserved(options.reserved, "options.reserved");
  const auto* plain = reinterpret_cast<const PlainRange*>(options.plain_ranges);
  return {.add_special = flag_argument(options.add_special, "options.add_special"),
          .parse_special = flag_argument(options.parse_special, "options.parse_special"),
          .strict = flag_argument(options.strict, "options.strict"),
          .cancel = cancel_flag(options.cancel, "options.cancel"),
          .plain = array_argument(plain, options.plain_range_count, "options.plain_ranges")};
}

rt_tokenizer_train_options train_defaults() {
  rt_tokenizer_train_options options{};
  options.vocabulary_size = TrainOptions{}.vocabulary_size;
  options.eos_token = RT_NO_TOKEN;
  return options;
}

std::vector<PreTokenizerStage> pre_tokenizer_argument(int32_t value, const char* name) {
  if (value == RT_PRE_TOKENIZER_SMOLLM) return {PreTokenizerStage::digits, PreTokenizerStage::gpt2};
  constexpr PreTokenizerStage::Kind kKinds[] = {PreTokenizerStage::gpt2, PreTokenizerStage::gpt2,
                                                PreTokenizerStage::llama3, PreTokenizerStage::qwen2};
  return {kKinds[choice_argument<int32_t>(value, RT_PRE_TOKENIZER_QWEN2, name)]};
}

std::vector<std::string_view> texts_argument(const rt_text* texts, uint64_t count, const char* name) {
  std::vector<std::string_view> all;
  for (const rt_text& text : array_argument(texts, count, name))
    all.push_back(text_argument(text.data, text.size, name));
  return all;
}

int32_t kind_number(std::string_view kind) {
  if (kind == "byte") return RT_TOKENIZER_BYTE;
  return kind == "bpe" ? RT_TOKENIZER_BPE : RT_TOKENIZER_SENTENCEPIECE;
}

}  // namespace

rt_status rt_encode_options_init(rt_encode_options* options, uint64_t size) {
  return guarded(__func__, [&] { init_struct(options, size, kEncodeDefaults, "options"); });
}

rt_status rt_tokenizer_create_byte(rt_tokenizer** tokenizer) {
  return guarded_create(__func__, "tokenizer", tokenizer,
                        [] { return std::make_unique<rt_tokenizer>(byte_tokenizer()); });
}

rt_status rt_tokenizer_load(const char* path, uint64_t path_size, rt_tokenizer** tokenizer) {
  return guarded_create(__func__, "tokenizer", tokenizer, [&] {
    return std::make_unique<rt_tokenizer>(load_tokenizer(text_argument(path, path_size, "path")));
  });
}

rt_status rt_tokenizer_get_info(const rt_tokenizer* tokenizer, rt_tokenizer_info* info) {
  return guarded(__func__, [&] {
    const Tokenizer& object = *checked(tokenizer, "tokenizer").object;
    const OutputStruct output(info, "info");
    const SpecialTokens& special = object.special();
    output.write({.struct_size = 0,
                  .kind = kind_number(object.kind()),
                  .vocabulary_size = object.vocabulary_size(),
                  .bos_token = special.bos.value_or(RT_NO_TOKEN),
                  .eos_token = special.end_of_generation.empty() ? RT_NO_TOKEN : special.end_of_generation[0],
                  .adds_bos = object.adds_bos() ? 1u : 0u,
                  .reserved = 0});
  });
}

rt_status rt_tokenizer_encode(const rt_tokenizer* tokenizer, const char* text, uint64_t text_size,
                              const rt_encode_options* options, uint32_t* tokens, uint64_t capacity,
                              uint64_t* required) {
  return guarded(__func__, [&] {
    const Tokenizer& object = *checked(tokenizer, "tokenizer").object;
    const EncodeOptions encoding = encode_options(options);
    const std::string_view input = text_argument(text, text_size, "text");
    check_output(tokens, capacity, required, "tokens");
    write_output<uint32_t>(object.encode(input, encoding), tokens, capacity, required, "tokens");
  });
}

rt_status rt_tokenizer_decode(const rt_tokenizer* tokenizer, const uint32_t* tokens, uint64_t token_count,
                              uint32_t skip_special, char* text, uint64_t capacity, uint64_t* required) {
  return guarded(__func__, [&] {
    const Tokenizer& object = *checked(tokenizer, "tokenizer").object;
    const std::span<const uint32_t> ids = array_argument(tokens, token_count, "tokens");
    const bool skip = flag_argument(skip_special, "skip_special");
    check_output(text, capacity, required, "text");
    write_output<char>(object.decode(ids, skip), text, capacity, required, "text");
  });
}

rt_status rt_tokenizer_find(const rt_tokenizer* tokenizer, const char* text, uint64_t text_size,
                            uint32_t* token) {
  return guarded(__func__, [&] {
    const Tokenizer& object = *checked(tokenizer, "tokenizer").object;
    const std::string_view bytes = text_argument(text, text_size, "text");
    output_argument(token, "token") = object.find(bytes).value_or(RT_NO_TOKEN);
  });
}

rt_status rt_tokenizer_special_tokens(const rt_tokenizer* tokenizer, uint32_t* tokens, uint64_t capacity,
                                      uint64_t* required) {
  return guarded(__func__, [&] {
    const Tokenizer& object = *checked(tokenizer, "tokenizer").object;
    check_output(tokens, capacity, required, "tokens");
    std::vector<uint32_t> special;
    for (uint32_t id = 0; id < object.vocabulary_size(); id++)
      if (object.is_special(id)) special.push_back(id);
    write_output<uint32_t>(special, tokens, capacity, required, "tokens");
  });
}

rt_status rt_tokenizer_is_special(const rt_tokenizer* tokenizer, uint32_t token, uint32_t* special) {
  return guarded(__func__, [&] {
    const Tokenizer& object = *checked(tokenizer, "tokenizer").object;
    output_argument(special, "special") = object.is_special(token) ? 1u : 0u;
  });
}

rt_status rt_tokenizer_chat_template(const rt_tokenizer* tokenizer, char* text, uint64_t capacity,
                                     uint64_t* required) {
  return guarded(__func__, [&] {
    const Tokenizer& object = *checked(tokenizer, "tokenizer").object;
    check_output(text, capacity, required, "text");
    write_output<char>(object.chat_template(), text, capacity, required, "text");
  });
}

rt_status rt_tokenizer_save(const rt_tokenizer* tokenizer, const char* path, uint64_t path_size) {
  return guarded(__func__, [&] {
    const Tokenizer& object = *checked(tokenizer, "tokenizer").object;
    const std::string document = to_tokenizer_json(object);
    AtomicFileWriter writer(text_argument(path, path_size, "path"));
    writer.write(std::as_bytes(std::span(document)));
    writer.commit();
  });
}

void rt_tokenizer_release(rt_tokenizer* tokenizer) { release(tokenizer); }

rt_status rt_tokenizer_train_options_init(rt_tokenizer_train_options* options, uint64_t size) {
  return guarded(__func__, [&] { init_struct(options, size, train_defaults(), "options"); });
}

rt_status rt_tokenizer_train(const rt_text* texts, uint64_t text_count,
                             const rt_tokenizer_train_options* given, rt_tokenizer** tokenizer) {
  return guarded_create(__func__, "tokenizer", tokenizer, [&] {
    const rt_tokenizer_train_options options = read_struct(given, train_defaults(), "options");
    const auto special =
        texts_argument(options.special_tokens, options.special_token_count, "options.special_tokens");
    check_reserved(options.reserved, "options.reserved");
    const TrainOptions chosen{
        .vocabulary_size = options.vocabulary_size,
        .minimum_count = options.minimum_count,
        .stages = pre_tokenizer_argument(options.pre_tokenizer, "options.pre_tokenizer"),
        .special_tokens = {special.begin(), special.end()},
        .eos_token = options.eos_token == RT_NO_TOKEN ? std::nullopt : std::optional(options.eos_token)};
    Progress progress("training", cancel_flag(options.cancel, "options.cancel"), options.progress,
                      options.progress_user_data);
    return std::make_unique<rt_tokenizer>(
        train_tokenizer(texts_argument(texts, text_count, "texts"), chosen, progress));
  });
}

rt_status rt_stream_decoder_create(const rt_tokenizer* tokenizer, uint32_t skip_special,
                                   rt_stream_decoder** decoder) {
  return guarded_create(__func__, "decoder", decoder, [&] {
    const rt_tokenizer& handle = checked(tokenizer, "tokenizer");
    return std::make_unique<rt_stream_decoder>(handle.object, flag_argument(skip_special, "skip_special"));
  });
}

rt_status rt_stream_decoder_push(rt_stream_decoder* decoder, uint32_t token, const char** text,
                                 uint64_t* text_size) {
  return guarded(__func__, [&] {
    StreamDecoder& object = checked(decoder, "decoder").object;
    const char*& data = output_argument(text, "text");
    uint64_t& size = output_argument(text_size, "text_size");
    const std::string_view bytes = object.push(token);
    data = bytes.data();
    size = bytes.size();
  });
}

rt_status rt_stream_decoder_flush(rt_stream_decoder* decoder, const char** text, uint64_t* text_size) {
  return guarded(__func__, [&] {
    StreamDecoder& object = checked(decoder, "decoder").object;
    const char*& data = output_argument(text, "text");
    uint64_t& size = output_argument(text_size, "text_size");
    const std::string_view bytes = object.flush();
    data = bytes.data();
    size = bytes.size();
  });
}

void rt_stream_decoder_release(rt_stream_decoder* decoder) { release(decoder); }
