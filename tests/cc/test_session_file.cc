// Saved sessions: the same bits in any cache and on any instruction set, and files that are refused.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "file_support.h"
#include "serve/session_file.h"
#include "serve_support.h"

namespace riftco {
namespace {

using test::failure_of;

constexpr uint32_t kContract = 7, kVocabulary = 64;

std::shared_ptr<DecoderOnlyTransformer> tiny_model(CpuIsa isa = cpu_isa(), uint64_t seed = 1) {
  ModelConfig config = test::tiny_config(300);
  config.layer_count = 2;
  return test::random_model(config, DType::f32, {.device = test::device_of(isa), .seed = seed});
}

std::vector<float> prefill(DecodeSession& session, std::span<const uint32_t> tokens) {
  std::vector<float> logits(kVocabulary);
  session.prefill(tokens, logits);
  return logits;
}

class SessionFile : public test::FileTest {
 protected:
  // A session of `count` tokens, saved.
  void save(const std::shared_ptr<DecoderOnlyTransformer>& model, uint32_t count,
            const DecodeSessionOptions& options = {}) {
    DecodeSession session(model, options);
    if (count) prefill(session, test::random_tokens(count, kVocabulary, 3));
    save_session(session, kContract, path_.string());
  }
  std::unique_ptr<DecodeSession> load(const std::shared_ptr<DecoderOnlyTransformer>& model,
                                      const DecodeSessionOptions& options = {}) const {
    return load_session(model, options, kContract, path_.string());
  }
};

TEST_F(SessionFile, GoesOnWithTheSameBitsInAnyCache) {
  const auto model = tiny_model();
  const auto tokens = test::random_tokens(280, kVocabulary, 3);
  for (DType element : {DType::f32, DType::f16, DType::bf16})
    for (uint64_t page : {1, 16, 0}) {
      DecodeSessionOptions options{.page_size = page, .element = element};
      if (page == 0) options.kind = KvCacheKind::contiguous;
      DecodeSession session(model, options);
      prefill(session, std::span(tokens).first(270));
      save_session(session, kContract, path_.string());
      const auto expected = prefill(session, std::span(tokens).subspan(270, 5));
      for (uint64_t other : {3, 64, 0}) {
        DecodeSessionOptions target{.page_size = other};
        if (other == 0) target.kind = KvCacheKind::contiguous;
        const auto loaded = load(model, target);
        ASSERT_EQ(loaded->size(), 270u);
        EXPECT_EQ(loaded->factory().element(), element);
        EXPECT_EQ(prefill(*loaded, std::span(tokens).subspan(270, 5)), expected) << page << " " << other;
      }
    }
}

TEST_F(SessionFile, IsTheSameFileAndTheSameBitsOnEveryInstructionSet) {
  std::string first;
  std::vector<float> expected;
  for (CpuIsa isa : test::available_isas()) {
    save(tiny_model(isa), 40, {.element = DType::f16});
    if (first.empty()) first = contents();
    EXPECT_EQ(contents(), first);
    const auto logits = prefill(*load(tiny_model(isa)), std::array{1u, 2u, 3u});
    if (expected.empty()) expected = logits;
    EXPECT_EQ(logits, expected);
  }
}

TEST_F(SessionFile, EmptySessions) {
  const auto model = tiny_model();
  save(model, 0);
  const auto loaded = load(model);
  EXPECT_EQ(loaded->size(), 0u);
  DecodeSession fresh(model, {});
  EXPECT_EQ(prefill(*loaded, std::array{5u}), prefill(fresh, std::array{5u}));
}

TEST_F(SessionFile, EveryTruncationAndEveryChangedByteIsRefused) {
  const auto model = tiny_model();
  const auto pool = make_kv_cache_factory(*model, {.page_size = 2});
  save(model, 3);
  const std::string whole = contents();
  const auto refused = [&] {
    const auto failure = failure_of([&] { load(model, {.factory = pool}); });
    return failure.status != Status::ok && failure.status != Status::internal &&
           pool->usage().free_count == pool->usage().page_count && model->session_count() == 0;
  };
  // Changed in place: a file that is cut to nothing and written again goes to the disk at once.
  for (size_t size = whole.size(); size-- > 0;) {
    std::filesystem::resize_file(path_, size);
    ASSERT_TRUE(refused()) << "the first " << size << " bytes";
  }
  replace(whole);
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  const auto put = [&](size_t at, char byte) { file.seekp(at).put(byte).flush(); };
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int bit : {1, 32, 128}) {
      put(at, char(whole[at] ^ bit));
      ASSERT_TRUE(refused()) << "byte " << at << " of " << whole.size();
    }
    put(at, whole[at]);
  }
  replace(whole + "x");
  EXPECT_TRUE(refused());
  replace(whole);
  EXPECT_EQ(load(model, {.factory = pool})->size(), 3u);
}

TEST_F(SessionFile, WhatDoesNotFitIsRefusedWithTheReason) {
  const auto model = tiny_model();
  const auto after = [&](const std::function<void(Parts&)>& change) {
    save(model, 3);
    forge(change);
    return failure_of([&] { load(model); });
  };
  const auto set = [&](const char* key, const char* value) {
    return after([&](Parts& parts) { parts.metadata[key] = value; });
  };
  const auto expect = [](const test::Failure& failure, Status status, const char* text) {
    EXPECT_EQ(failure.status, status) << failure.message;
    EXPECT_NE(failure.message.find(text), std::string::npos) << failure.message;
  };
  EXPECT_EQ(after([](Parts&) {}).status, Status::ok);
  EXPECT_EQ(set("riftco.session", "1.9").status, Status::ok) << "a newer minor is read";
  EXPECT_EQ(set("who", "me").status, Status::ok);
  expect(set("riftco.session", "2.0"), Status::version_mismatch, "a saved session of format 2.0");
  expect(set("riftco.session", "one"), Status::corrupt_data, "riftco.session is");
  expect(set("riftco.session", "1"), Status::corrupt_data, "riftco.session is");
  expect(set("riftco.kernel_contract", "8"), Status::version_mismatch, "kernel contract 8; this library's 7");
  expect(set("riftco.kernel_contract", "-7"), Status::corrupt_data, "riftco.kernel_contract is");
  expect(set("riftco.model", "xxh3-128:0"), Status::invalid_argument, "saved from another model");
  for (const char* key : {"riftco.session", "riftco.kernel_contract", "riftco.model", "riftco.checksum"})
    expect(after([&](Parts& parts) { parts.metadata.erase(key); }), Status::corrupt_data, key);
  expect(after([](Parts& parts) { parts.tensors[1].name = "layers.0.value"; }), Status::corrupt_data,
         "layers.0.values is missing");
  expect(after([](Parts& parts) { parts.tensors[0].name = "layers.9.keys"; }), Status::corrupt_data,
         "layers.0.keys is missing");
  expect(after([](Parts& parts) {
           parts.tensors.push_back({"more", "F32", {1}});
           parts.data.resize(parts.data.size() + 4);
         }),
         Status::corrupt_data, "5 tensors, not 4");
  expect(after([](Parts& parts) { std::swap(parts.tensors[3].shape[0], parts.tensors[3].shape[1]); }),
         Status::corrupt_data, "is not F32 [3, 2, 16]");
  expect(after([](Parts& parts) { parts.tensors[0].shape = {96}; }), Status::corrupt_data,
         "three dimensions");
  expect(after([](Parts& parts) { parts.tensors[2].dtype = "I32"; }), Status::corrupt_data,
         "layers.1.keys is missing or is not F32");
  for (size_t at : {size_t(0), size_t(500), size_t(1532)})
    expect(after([&](Parts& parts) {
             ASSERT_EQ(parts.data.size(), 1536u);
             const float nan = NAN;
             std::memcpy(&parts.data[at], &nan, 4);
           }),
           Status::corrupt_data, "not finite");
  save(model, 3);
  expect(failure_of([&] { load(tiny_model(cpu_isa(), 2)); }), Status::invalid_argument, "another model");
  expect(failure_of([&] { load_session(model, {}, 8, path_.string()); }), Status::version_mismatch,
         "kernel contract 7; this library's 8");
  expect(failure_of([&] { load(model, {.element = DType::bf16}); }), Status::invalid_argument,
         "keys and values are f32, the cache's bf16");
  expect(failure_of([&] { load_session(model, {}, kContract, "/nowhere/x"); }), Status::input_output,
         "nowhere");
}

TEST_F(SessionFile, ResourcesThatAreMissingLeaveThePoolAlone) {
  const auto model = tiny_model();
  save(model, 40);
  const auto pool = make_kv_cache_factory(*model, {.page_size = 4, .page_count = 9});
  EXPECT_EQ(failure_of([&] { load(model, {.factory = pool}); }).status, Status::cache_exhausted);
  EXPECT_EQ(pool->usage().free_count, 9u);
  EXPECT_EQ(pool->pool().audit(), 0u);
  EXPECT_EQ(failure_of([&] { load(model, {.maximum_context = 39}); }).status, Status::context_full);
  CancelFlag cancel;
  cancel.set();
  EXPECT_EQ(failure_of([&] { load(model, {.cancel = &cancel}); }).status, Status::cancelled);
  const auto half = make_kv_cache_factory(*model, {.element = DType::f16});
  EXPECT_EQ(failure_of([&] { load(model, {.factory = half}); }).status, Status::invalid_argument);
}

}  // namespace
}  // namespace riftco
