// Files of adapters: what comes back, and what is refused. tests/py/test_lora.py holds PEFT's against PEFT.
#include <gtest/gtest.h>

#include "io/checksum.h"
#include "io/safetensors.h"
#include "io_support.h"
#include "model/lora_file.h"
#include "serve_support.h"

namespace riftco {
namespace {

using Floats = std::vector<float>;

void load(DecoderOnlyTransformer& model, const std::string& path) {
  ModelChange change(model, "loading adapters");
  load_lora(change, path);
}

std::map<std::string, Floats> adapters_of(const DecoderOnlyTransformer& model) {
  std::map<std::string, Floats> all;
  for (const ParameterInfo& p : model.lora()->parameters().parameters()) {
    all[p.name].resize(size_t(p.rows) * p.columns);
    model.read_parameter(p.name, all[p.name].data());
  }
  return all;
}

std::shared_ptr<DecoderOnlyTransformer> model_of(const ModelConfig& config) {
  return test::random_model(config, DType::q8_0);
}

TEST(LoraFile, ComesBackBitForBitInBothFormats) {
  const Folder folder;
  const auto model = model_of(test::llama_config());
  test::attach_random_lora(*model, {.rank = 3, .targets = 255, .alpha = 0.1, .seed = 5});
  for (const std::string& path : {folder / "a.safetensors", folder / "peft", folder / "slash/"}) {
    SCOPED_TRACE(path);
    save_lora(*model, path);
    const auto other = model_of(test::llama_config());
    load(*other, path);
    EXPECT_EQ(adapters_of(*other), adapters_of(*model));
    const LoraOptions& options = other->lora()->options();
    EXPECT_EQ(options.rank, 3u);
    EXPECT_EQ(options.targets, 255u);
    EXPECT_EQ(options.alpha, 0.1);
    EXPECT_EQ(options.seed, 0u);
    EXPECT_EQ(other->fingerprint(), model->fingerprint());
    expect_error([&] { load(*other, path); }, Status::invalid_state, "has adapters already");
  }
  save_lora(*model, folder / "b.safetensors");
  EXPECT_EQ(read_bytes(folder / "a.safetensors"), read_bytes(folder / "b.safetensors"));
  EXPECT_EQ(read_bytes(folder / "peft/adapter_model.safetensors"),
            read_bytes(folder / "slash/adapter_model.safetensors"));
  expect_error([&] { save_lora(*model, folder / "peft"); }, Status::input_output, "not empty");
}

TEST(LoraFile, NativeFilesAreForEveryGeometry) {
  const Folder folder;
  for (const ModelConfig& config : {test::gpt2_config(), test::window_config(), test::tiny_config()}) {
    const auto model = test::random_model(config, DType::f16), other = test::random_model(config, DType::f32);
    test::attach_random_lora(*model, {.rank = 2, .targets = kLoraO | kLoraUp});
    save_lora(*model, folder / "a.safetensors");
    load(*other, folder / "a.safetensors");
    EXPECT_EQ(adapters_of(*other), adapters_of(*model));
  }
}

TEST(LoraFile, WhatCannotBeWrittenIsRefused) {
  const Folder folder;
  const auto model = test::random_model(test::gpt2_config(), DType::f32);
  expect_error([&] { save_lora(*model, folder / "a.safetensors"); }, Status::invalid_state, "no adapters");
  test::attach_random_lora(*model, {});
  expect_error([&] { save_lora(*model, folder / "peft"); }, Status::unsupported, "save a .safetensors file");
  expect_error([&] { save_lora(*model, folder / "a.bin"); }, Status::invalid_argument, "suffix");
  EXPECT_EQ(folder.entries(), 0u);
}

// A native file with one thing changed.
struct Changed {
  SafetensorsMetadata metadata;
  std::vector<SafetensorsTensor> tensors;
};

class HostileLora : public testing::Test {
 protected:
  // Of 1 layer: q.lora_a [2, 32], q.lora_b [32, 2].
  void write(const std::function<void(Changed&)>& change, const std::string& name) {
    Changed c{{{"riftco.lora", "1.0"},
               {"riftco.rank", "2"},
               {"riftco.alpha", "4"},
               {kChecksumKey, Checksum().text()}},
              {{"layers.0.q.lora_a", "F32", {2, 32}}, {"layers.0.q.lora_b", "F32", {32, 2}}}};
    change(c);
    SafetensorsWriter writer(folder_ / name, c.metadata, c.tensors);
    Checksum checksum;
    add_header(checksum, c.metadata, writer.tensors());
    for (const SafetensorsTensor& tensor : writer.tensors()) {
      std::vector<std::byte> bytes(tensor.bytes);
      if (bytes.size() >= 4 && infinite_) bytes[3] = std::byte(0x7F), bytes[2] = std::byte(0x80);
      writer.write(bytes);
      checksum.add(bytes);
    }
    if (c.metadata.contains(kChecksumKey)) {
      c.metadata[kChecksumKey] = checksum.text();
      writer.rewrite_metadata(c.metadata);
    }
    writer.commit();
  }
  void refused(const std::function<void(Changed&)>& change, Status status, const char* part) {
    write(change, "hostile.safetensors");
    expect_error([&] { load(*model_, folder_ / "hostile.safetensors"); }, status, part);
    EXPECT_EQ(model_->lora(), nullptr);
    EXPECT_EQ(model_->parameter_epoch(), 0u);
  }

  const Folder folder_;
  const std::shared_ptr<DecoderOnlyTransformer> model_ = test::random_model(test::tiny_config(), DType::f32);
  bool infinite_ = false;
};

TEST_F(HostileLora, EveryFieldIsChecked) {
  const auto metadata = [](const char* key, const char* value) {
    return [=](Changed& c) { c.metadata[key] = value; };
  };
  const auto shape = [](size_t tensor, std::vector<uint64_t> dims) {
    return [=](Changed& c) { c.tensors[tensor].shape = dims; };
  };
  refused([](Changed& c) { c.metadata.erase("riftco.lora"); }, Status::corrupt_data,
          "not a file of adapters");
  refused([](Changed& c) { c.metadata.erase("riftco.rank"); }, Status::corrupt_data, "riftco.rank");
  refused([](Changed& c) { c.metadata.erase(kChecksumKey); }, Status::corrupt_data, "checksum");
  refused(metadata("riftco.lora", "2.0"), Status::version_mismatch, "format 2.0");
  refused(metadata("riftco.lora", "x"), Status::corrupt_data, "riftco.lora is \"x\"");
  refused(metadata("riftco.rank", "0"), Status::corrupt_data, "[2, 32]");
  refused(metadata("riftco.rank", "-2"), Status::corrupt_data, "riftco.rank is \"-2\"");
  refused(metadata("riftco.rank", "4294967296"), Status::corrupt_data, "riftco.rank is \"4294967296\"");
  refused(metadata("riftco.rank", "3"), Status::corrupt_data, "has shape [2, 32], not [3, 32]");
  for (const char* alpha : {"0", "-1", "nan", "inf", "1e300"})
    refused(metadata("riftco.alpha", alpha), Status::corrupt_data, "alpha");
  refused(metadata("riftco.alpha", "4x"), Status::corrupt_data, "riftco.alpha is \"4x\"");
  refused(shape(0, {2, 33}), Status::corrupt_data, "[2, 33]");
  refused(shape(0, {64}), Status::corrupt_data, "[64]");
  refused(shape(1, {2, 32}), Status::corrupt_data, "lora_b");
  refused(shape(1, {0, 2}), Status::corrupt_data, "[0, 2]");
  refused([](Changed& c) { c.tensors.pop_back(); }, Status::corrupt_data, "no tensor \"layers.0.q.lora_b\"");
  refused([](Changed& c) { c.tensors.erase(c.tensors.begin()); }, Status::corrupt_data, "no adapter");
  refused([](Changed& c) { c.tensors.clear(); }, Status::corrupt_data, "no adapter");
  refused(
      [](Changed& c) {
        c.tensors.push_back({"layers.1.q.lora_a", "F32", {2, 32}});
      },
      Status::unsupported, "\"layers.1.q.lora_a\" is no adapter");
  refused([](Changed& c) { c.tensors[0].dtype = "I32"; }, Status::unsupported, "I32");
  // More than the model has: refused before anything of that size is made.
  refused(
      [](Changed& c) {
        c.metadata["riftco.rank"] = "33";
        c.tensors[0].shape = {33, 32};
        c.tensors[1].shape = {32, 33};
      },
      Status::corrupt_data, "rank of 33");
  infinite_ = true;
  refused([](Changed&) {}, Status::corrupt_data, "not finite");
  infinite_ = false;
  write([](Changed& c) { c.tensors[0].dtype = c.tensors[1].dtype = "BF16"; }, "good.safetensors");
  load(*model_, folder_ / "good.safetensors");
  EXPECT_NE(model_->lora(), nullptr);
}

TEST_F(HostileLora, EveryChangedByteIsRefused) {
  write([](Changed&) {}, "a.safetensors");
  const std::string bytes = read_bytes(folder_ / "a.safetensors");
  for (size_t at = 0; at < bytes.size(); at += at < 400 ? 1 : 37) {
    std::string hostile = bytes;
    hostile[at] = char(hostile[at] ^ 0x11);
    write_bytes(folder_ / "b.safetensors", hostile);
    EXPECT_NE(outcome_of([&] { load(*model_, folder_ / "b.safetensors"); }).status, Status::ok) << at;
    ASSERT_EQ(model_->lora(), nullptr);
  }
  load(*model_, folder_ / "a.safetensors");
}

}  // namespace
}  // namespace riftco
