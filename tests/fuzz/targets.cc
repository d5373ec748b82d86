#include "targets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "backend/cpu/isa.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "model/importers/hugging_face_config.h"
#include "model/load.h"
#include "model/lora_file.h"
#include "serve/session_file.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"
#include "train/trainer.h"

namespace riftco {
namespace {

using Bytes = std::span<const std::byte>;

// A refusal is the right answer to bad input.
template <class Read>
void expect_answer(Read read) {
  try {
    read();
  } catch (const Error&) {
  } catch (const std::bad_alloc&) {
  }
}

std::shared_ptr<const File> file_of(Bytes bytes) { return std::make_shared<const File>(bytes); }
std::string_view text_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// Everything that the reader lists can be read.
template <class Reader>
void read_tensors(const Reader& reader) {
  for (const auto& tensor : reader.tensors()) {
    std::byte first[16];
    reader.read(tensor, 0, std::span(first).first(std::min<uint64_t>(tensor.bytes, sizeof first)));
  }
}

void use_tokenizer(std::shared_ptr<const Tokenizer> tokenizer) {
  static constexpr std::string_view kText =
      "Hello,  world!\n\n<|im_start|>caf\u00e9 \u4f60\u597d \U0001f469\u200d\U0001f4bb 1234 \xff\xfe don't";
  for (const bool special : {false, true}) {
    EncodeOptions options;
    options.add_special = options.parse_special = special;
    StreamDecoder decoder(tokenizer);
    for (const uint32_t id : tokenizer->encode(kText, options)) decoder.push(id);
    decoder.flush();
  }
}

void fuzz_gguf(Bytes bytes) {
  expect_answer([&] { read_tensors(GgufReader(file_of(bytes))); });
  expect_answer([&] { inspect_model(file_of(bytes)); });
  expect_answer([&] { load_model(file_of(bytes), {}); });
}

void fuzz_safetensors(Bytes bytes) {
  expect_answer([&] { read_tensors(SafetensorsReader(file_of(bytes))); });
}

void fuzz_rift(Bytes bytes) {
  expect_answer([&] { inspect_model(file_of(bytes)); });
  expect_answer([&] { load_model(file_of(bytes), {}); });
}

void fuzz_config(Bytes bytes) {
  expect_answer([&] {
    const nlohmann::json config = parse_json(text_of(bytes), "config.json");
    hugging_face_config(hugging_face_family(config, "config.json"), config, "config.json");
  });
}

void fuzz_tokenizer(Bytes bytes) {
  expect_answer([&] {
    use_tokenizer(tokenizer_from_hugging_face({.tokenizer_json = text_of(bytes)}, "tokenizer.json"));
  });
  expect_answer([&] { use_tokenizer(tokenizer_from_json(text_of(bytes), "riftco.tokenizer")); });
}

// A session's file names its model by fingerprint, a checkpoint's by config: always the same ones.
std::shared_ptr<DecoderOnlyTransformer> tiny_model(PositionKind position) {
  ModelConfig config;
  config.vocabulary_size = 16;
  config.maximum_context = 8;
  config.layer_count = 1;
  config.width = config.head_width = config.mlp_width = 8;
  config.head_count = config.kv_head_count = 1;
  config.position = position;
  if (position == PositionKind::rotary) {
    config.rotary_width = 8;
    config.activation = Activation::silu_gated;
  }
  return create_model(config, nullptr, 0, {.threads = 1});
}

// Calls use(path) with a file of these bytes.
template <class Use>
void with_file(Bytes bytes, Use use) {
  const Descriptor file(::memfd_create("fuzz", MFD_CLOEXEC));
  if (::pwrite(file.get(), bytes.data(), bytes.size(), 0) != ssize_t(bytes.size())) return;
  expect_answer([&] { use(format("/proc/self/fd/%d", file.get())); });
}

void fuzz_session(Bytes bytes) {
  static const std::shared_ptr<DecoderOnlyTransformer> model = tiny_model(PositionKind::learned);
  with_file(bytes, [&](const std::string& path) {
    const auto session = load_session(model, {}, kKernelContract, path);
    float logits[16];
    session->step(0, logits);
  });
}

// PEFT's config, a zero byte and its tensors; without a zero byte a native file.
void fuzz_adapters(Bytes bytes) {
  static const std::shared_ptr<DecoderOnlyTransformer> models[] = {tiny_model(PositionKind::learned),
                                                                   tiny_model(PositionKind::rotary)};
  const size_t config = size_t(std::find(bytes.begin(), bytes.end(), std::byte{0}) - bytes.begin());
  for (const auto& model : models)
    expect_answer([&] {
      if (config < 100) {  // a native file begins with the size of its header
        ModelChange change(*model, "loading adapters");
        load_lora(change, file_of(bytes));
        detach_lora(change);
      } else if (config < bytes.size()) {
        read_peft(*model, text_of(bytes.first(config)), "adapter_config.json",
                  file_of(bytes.subspan(config + 1)));
      }
    });
}

void fuzz_checkpoint(Bytes bytes) {
  static Trainer trainer(tiny_model(PositionKind::learned), {});
  with_file(bytes, [&](const std::string& path) {
    checkpoint_state(path);
    trainer.load(path, nullptr);
    static constexpr uint32_t kTokens[] = {1, 2};
    trainer.step({kTokens, kTokens, 1, 2});
  });
}

constexpr FuzzTarget kTargets[] = {
    {"adapters", fuzz_adapters}, {"checkpoint", fuzz_checkpoint},
    {"config", fuzz_config},     {"gguf", fuzz_gguf},
    {"rift", fuzz_rift},         {"safetensors", fuzz_safetensors},
    {"session", fuzz_session},   {"tokenizer", fuzz_tokenizer},
};

}  // namespace

std::span<const FuzzTarget> fuzz_targets() { return kTargets; }

}  // namespace riftco
