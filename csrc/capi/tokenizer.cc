#include "riftco/tokenizer.h"

#include "base/file.h"
#include "capi/arguments.h"
#include "capi/handles.h"
#include "model/load.h"

using namespace riftco;
using namespace riftco::capi;

static_assert(RT_NO_TOKEN == kNoToken);

namespace {

const rt_encode_options kEncodeDefaults{};

EncodeOptions encode_options(const rt_encode_options* given) {
  const rt_encode_options options = read_struct(given, kEncodeDefaults, "options");
  check_reserved(options.reserved, "options.reserved");
  return {.add_special = flag_argument(options.add_special, "options.add_special"),
          .parse_special = flag_argument(options.parse_special, "options.parse_special"),
          .strict = flag_argument(options.strict, "options.strict"),
          .cancel = cancel_flag(options.cancel, "options.cancel")};
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
