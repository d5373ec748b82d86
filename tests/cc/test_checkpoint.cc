// Checkpoints: the same file and the same values on every instruction set, and files that are refused.
#include <cmath>
#include <cstring>

#include "base/random.h"
#include "file_support.h"
#include "model/weights.h"
#include "serve_support.h"
#include "train/checkpoint.h"

namespace riftco {
namespace {

using test::failure_of;

ModelConfig config() {
  ModelConfig c = test::tiny_config(8);
  c.vocabulary_size = 20;
  c.width = 12, c.head_width = 6, c.mlp_width = 20;
  c.layer_count = 2;
  return c;
}

struct Stores {
  explicit Stores(const Device& device = test::best_device(), uint64_t seed = 0)
      : parameters(device, parameter_list(config(), DType::f32), nullptr, "p"),
        moment1(device, parameters.parameters(), nullptr, "m"),
        moment2(device, parameters.parameters(), nullptr, "v") {
    if (!seed) return;
    for (ParameterStore* store : {&parameters, &moment1, &moment2}) {
      seed++;
      for (size_t i = 0; i < store->parameters().size(); i++) {
        const ParameterInfo& p = store->parameters()[i];
        std::vector<float> row(p.columns);
        for (uint32_t r = 0; r < p.rows; r++) {
          for (uint32_t c = 0; c < p.columns; c++)
            row[c] = float(philox(seed, uint64_t(r) * p.columns + c, i)[0]) * 0x1p-32f -
                     (store == &moment2 ? 0.0f : 0.5f);
          store->set_rows(i, r, 1, std::as_bytes(std::span(row)).data());
        }
      }
    }
  }
  CheckpointStores<ParameterStore> all() { return {parameters, moment1, moment2}; }
  CheckpointStores<const ParameterStore> all() const { return {parameters, moment1, moment2}; }
  std::vector<float> values() const {
    std::vector<float> all;
    for (const ParameterStore* store : {&parameters, &moment1, &moment2})
      for (size_t i = 0; i < store->parameters().size(); i++) {
        const ParameterInfo& p = store->parameters()[i];
        all.resize(all.size() + size_t(p.rows) * p.columns);
        store->read_floats(i, &*all.end() - size_t(p.rows) * p.columns);
      }
    return all;
  }
  ParameterStore parameters, moment1, moment2;
};

CheckpointOrigin full() { return {.config = config(), .lora = std::nullopt}; }
CheckpointOrigin lora() {  // the tensors of this test stay the model's
  return {.config = config(), .lora = CheckpointOrigin::Lora{4, 5, 0.1, "xxh3-128:1"}};
}

class Checkpoint : public test::FileTest {
 protected:
  void write(const Stores& stores, std::string_view state = "here", const CheckpointOrigin& origin = full(),
             const CancelFlag* cancel = nullptr) const {
    write_checkpoint(path_.string(), origin, 7, state, stores.all(), cancel);
  }
  uint64_t read(Stores& stores, const CheckpointOrigin& origin = full(),
                const CancelFlag* cancel = nullptr) const {
    return read_checkpoint(path_.string(), origin, stores.all(), cancel);
  }
  test::Failure refusal(const CheckpointOrigin& origin = full()) const {
    Stores stores;
    return failure_of([&] { read(stores, origin); });
  }
};

TEST_F(Checkpoint, IsTheSameFileAndTheSameValuesOnEveryInstructionSet) {
  std::string first;
  for (const CpuIsa isa : test::available_isas()) {
    const Stores stores(test::device_of(isa), 5);
    write(stores, "state \xC3\xA9\n\"quoted\"");
    if (first.empty()) first = contents();
    EXPECT_EQ(contents(), first);
    for (const CpuIsa other : test::available_isas()) {
      Stores loaded(test::device_of(other));
      EXPECT_EQ(read(loaded), 7u);
      EXPECT_EQ(loaded.values(), stores.values());
    }
    EXPECT_EQ(checkpoint_state(path_.string()), "state \xC3\xA9\n\"quoted\"");
  }
}

TEST_F(Checkpoint, RotaryFactorsAreNotTrained) {
  std::vector<ParameterInfo> list = {{"layers.0.q.weight", DType::f32, 3, 4, false},
                                     {"rotary.factors", DType::f32, 1, 2, true}};
  ParameterStore p(test::best_device(), list, nullptr, "p"), m(test::best_device(), list, nullptr, "m"),
      v(test::best_device(), list, nullptr, "v");
  write_checkpoint(path_.string(), full(), 1, "", {p, m, v}, nullptr);
  EXPECT_EQ(SafetensorsReader(std::make_shared<File>(path_.string())).tensors().size(), 3u);
  EXPECT_EQ(read_checkpoint(path_.string(), full(), {p, m, v}, nullptr), 1u);
}

TEST_F(Checkpoint, EveryTruncationAndManyChangedBytesAreRefused) {
  write(Stores(test::best_device(), 5));
  const std::string whole = contents();
  Stores stores;
  const auto refused = [&] {
    const auto failure = failure_of([&] { read(stores); });
    return failure.status != Status::ok && failure.status != Status::internal;
  };
  for (size_t size = 0; size < whole.size(); size += size < 8000 ? 53 : 509) {
    replace(std::string_view(whole).substr(0, size));
    ASSERT_TRUE(refused()) << "the first " << size << " bytes";
  }
  for (size_t at = 0; at < whole.size(); at += at < 8000 ? 7 : 997) {
    std::string changed = whole;
    changed[at] = char(changed[at] ^ 32);
    replace(changed);
    ASSERT_TRUE(refused()) << "byte " << at << " of " << whole.size();
  }
  replace(whole + "x");
  EXPECT_TRUE(refused());
}

TEST_F(Checkpoint, WhatDoesNotFitIsRefusedWithTheReason) {
  const Stores stores(test::best_device(), 5);
  const auto after = [&](const std::function<void(Parts&)>& change, const CheckpointOrigin& origin = full()) {
    write(stores, "here", origin);
    forge(change);
    return refusal(origin);
  };
  const auto set = [&](const char* key, const char* value, const CheckpointOrigin& origin = full()) {
    return after([&](Parts& parts) { parts.metadata[key] = value; }, origin);
  };
  const auto expect = [](const test::Failure& failure, Status status, const char* text) {
    EXPECT_EQ(failure.status, status) << failure.message;
    EXPECT_NE(failure.message.find(text), std::string::npos) << failure.message;
  };
  EXPECT_EQ(after([](Parts&) {}).status, Status::ok);
  EXPECT_EQ(after([](Parts&) {}, lora()).status, Status::ok);
  EXPECT_EQ(set("riftco.checkpoint", "1.9").status, Status::ok) << "a newer minor is read";
  EXPECT_EQ(set("who", "me").status, Status::ok);
  expect(set("riftco.checkpoint", "2.0"), Status::version_mismatch, "a checkpoint of format 2.0");
  expect(set("riftco.checkpoint", "0.1"), Status::corrupt_data, "riftco.checkpoint is");
  expect(set("riftco.checkpoint", "1"), Status::corrupt_data, "riftco.checkpoint is");
  expect(set("riftco.step", "-1"), Status::corrupt_data, "riftco.step is");
  expect(set("riftco.step", "9007199254740993"), Status::corrupt_data, "not a number up to 9007199254740992");
  expect(set("riftco.step", "1e3"), Status::corrupt_data, "riftco.step is");
  expect(set("riftco.config", "{}"), Status::corrupt_data, "");
  expect(set("riftco.config", config_to_json(test::tiny_config()).c_str()), Status::invalid_argument,
         "of another model: its config is");
  for (const char* key : {"riftco.checkpoint", "riftco.step", "riftco.config", "riftco.checksum"})
    expect(after([&](Parts& parts) { parts.metadata.erase(key); }), Status::corrupt_data, key);
  for (const char* key : {"riftco.lora.targets", "riftco.lora.alpha", "riftco.lora.base"})
    expect(after([&](Parts& parts) { parts.metadata.erase(key); }, lora()), Status::corrupt_data, key);
  expect(set("riftco.lora.rank", "8", lora()), Status::invalid_argument,
         "of adapters of rank 8, targets 5 and alpha \"0.10000000000000001\"; the model's have rank 4, "
         "targets 5");
  expect(set("riftco.lora.targets", "1", lora()), Status::invalid_argument, "targets 1");
  expect(set("riftco.lora.alpha", "2", lora()), Status::invalid_argument, "alpha \"2\";");
  expect(set("riftco.lora.base", "xxh3-128:2", lora()), Status::invalid_argument,
         "of adapters of other weights");
  write(stores);
  expect(refusal(lora()), Status::invalid_argument, "of all parameters; this trainer trains adapters");
  write(stores, "", lora());
  expect(refusal(), Status::invalid_argument, "of adapters; this trainer trains all parameters");
}

TEST_F(Checkpoint, TensorsAreCheckedBeforeAndAsTheyAreRead) {
  const Stores stores(test::best_device(), 5);
  const auto expect = [&](const std::function<void(Parts&)>& change, const char* text) {
    write(stores);
    forge(change);
    const test::Failure failure = refusal();
    EXPECT_EQ(failure.status, Status::corrupt_data) << failure.message;
    EXPECT_NE(failure.message.find(text), std::string::npos) << failure.message;
  };
  const auto set_value = [](const char* tensor, float value) {
    return [=](Parts& parts) {
      for (const SafetensorsTensor& t : parts.tensors)
        if (t.name == tensor)
          std::memcpy(&parts.data[t.offset - parts.tensors[0].offset + t.bytes - 4], &value, 4);
    };
  };
  expect([](Parts& parts) { parts.tensors[0].name = "parameter.embedding"; },
         "tensor parameter.embedding.token is missing");
  expect([](Parts& parts) { std::swap(parts.tensors[0].shape[0], parts.tensors[0].shape[1]); },
         "tensor parameter.embedding.token is missing, not F32 or not of the parameter's shape");
  expect([](Parts& parts) { parts.tensors[1].dtype = "I32"; }, "not F32");
  expect(
      [](Parts& parts) {
        parts.tensors.push_back({"more", "F32", {1}});
        parts.data.resize(parts.data.size() + 4);
      },
      "tensors, not");
  for (const float bad : {NAN, INFINITY}) {
    expect(set_value("parameter.head.weight", bad), "tensor parameter.head.weight has the value");
    expect(set_value("moment1.layers.1.q.bias", bad), "tensor moment1.layers.1.q.bias has the value");
    expect(set_value("moment2.final_norm.weight", bad), "tensor moment2.final_norm.weight has the value");
  }
  expect(set_value("moment2.head.bias", -1e-30f), "tensor moment2.head.bias has the value -1e-30");
}

TEST_F(Checkpoint, StatesMustBeTextAndNotTooLong) {
  const Stores stores;
  EXPECT_EQ(failure_of([&] { write(stores, "\xFF"); }).status, Status::invalid_argument);
  EXPECT_EQ(failure_of([&] { write(stores, std::string(kMaxStateBytes + 1, 'x')); }).message,
            "the state's 16777217 bytes are more than 16777216");
  const std::string largest(kMaxStateBytes, '\x01');  // six bytes each in JSON
  EXPECT_EQ(failure_of([&] { write(stores, largest); }).status, Status::invalid_argument)
      << "its JSON is longer than a header may be";
  EXPECT_FALSE(std::filesystem::exists(path_));
  write(stores, std::string(kMaxStateBytes, 'x'));
  EXPECT_EQ(checkpoint_state(path_.string()).size(), kMaxStateBytes);
}

TEST_F(Checkpoint, ACancelledSaveLeavesTheFileThatWasThere) {
  write(Stores(test::best_device(), 5), "first");
  const std::string before = contents();
  CancelFlag cancel;
  cancel.set();
  EXPECT_EQ(failure_of([&] { write(Stores(test::best_device(), 9), "second", full(), &cancel); }).status,
            Status::cancelled);
  EXPECT_EQ(contents(), before);
  Stores stores;
  EXPECT_EQ(failure_of([&] { read(stores, full(), &cancel); }).status, Status::cancelled);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

}  // namespace
}  // namespace riftco
