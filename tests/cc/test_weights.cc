#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "backend/registry.h"
#include "base/random.h"
#include "model/weights.h"

namespace riftco {
namespace {

// Random finite rows of a type in file layout.
std::vector<std::byte> random_rows(DType type, size_t rows, uint32_t columns, uint64_t seed) {
  const size_t bytes = rows * row_bytes(type, columns);
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; i++) out[i] = std::byte(random_bits(seed, i));
  const size_t block = dtype_info(type).bytes;
  for (size_t b = 0; b < bytes; b += block) {  // clear one exponent bit of what must be finite
    if (type == DType::f32) out[b + 3] &= std::byte(0xBF);
    if (type == DType::f32) continue;
    if (type == DType::q6_k) {
      out[b + 209] &= std::byte(0xBF);
    } else {
      out[b + 1] &= std::byte(0xBF);
      if (is_quantised(type)) out[b + 3] &= std::byte(0xBF);
    }
  }
  return out;
}

TEST(Weights, ComeBackBitForBitInAnyPieces) {
  ModelConfig config;
  config.layer_count = 1;
  config.vocabulary_size = 251;
  for (const DType type : kAllTypes) {
    const bool has_parts = dtype_info(type).block == 256;
    config.width = has_parts ? 256 : 96;
    config.head_width = config.width / config.head_count;
    config.mlp_width = has_parts ? 512 : 160;
    auto account = std::make_shared<MemoryAccount>();
    Weights weights(find_device(0), config, parameter_list(config, type), account);
    EXPECT_EQ(account->bytes(), weights.bytes());
    EXPECT_EQ(weights.bytes(), Weights::packed_bytes(find_device(0), weights.parameters()));
    for (size_t i = 0; i < weights.parameters().size(); i++) {
      const ParameterInfo& p = weights.parameters()[i];
      const auto rows = random_rows(p.type, p.rows, p.columns, i);
      const size_t row = row_bytes(p.type, p.columns);
      for (uint32_t first = 0; first < p.rows; first += 13)
        weights.set_rows(i, first, std::min(13u, p.rows - first), rows.data() + first * row);
      std::vector<std::byte> back(rows.size());
      for (uint32_t first = 0; first < p.rows; first += 7)
        weights.get_rows(i, first, std::min(7u, p.rows - first), back.data() + first * row);
      EXPECT_EQ(back, rows) << p.name << " " << dtype_info(type).name;
    }
  }
}

TEST(Weights, TheStepModelNamesEveryParameter) {
  ModelConfig config;
  config.activation = Activation::silu_gated;
  config.biases |= kBiasGate;
  const Weights weights(find_device(0), config, parameter_list(config, DType::f32), nullptr);
  const StepModel& m = weights.step_model();
  ASSERT_EQ(m.layers.size(), config.layer_count);
  for (const LayerWeights& l : m.layers) {
    for (const PackedMatrix* p : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down})
      EXPECT_TRUE(p->data && p->bias);
    EXPECT_TRUE(l.attention_norm.weight && l.attention_norm.bias && l.mlp_norm.weight && l.mlp_norm.bias);
  }
  EXPECT_TRUE(m.token_embedding && m.position_embedding && m.head.data && m.head.bias && m.final_norm.weight);
  EXPECT_NE(m.head.data, m.token_embedding.data);
  config.tied_head = true;
  const Weights tied(find_device(0), config, parameter_list(config, DType::f32), nullptr);
  EXPECT_EQ(tied.step_model().head.data, tied.step_model().token_embedding.data);
  EXPECT_LT(tied.bytes(), weights.bytes());
}

TEST(Weights, OnlyMatricesOfBf16AreComputedAsBf16) {
  ModelConfig config;
  std::vector<ParameterInfo> mixed = parameter_list(config, DType::bf16);
  for (ParameterInfo& p : mixed)
    if (p.name == "layers.1.up.weight") p.type = DType::q8_0;
  Weights weights(find_device(0), config, mixed, nullptr, Compute::bf16);
  EXPECT_EQ(weights.step_model().compute, Compute::bf16);
  for (const LayerWeights& l : weights.step_model().layers)
    for (const PackedMatrix* p : {&l.q, &l.k, &l.v, &l.o, &l.up, &l.down})
      EXPECT_EQ(p->compute, p->type == DType::bf16 ? Compute::bf16 : Compute::exact);
  EXPECT_EQ(weights.step_model().layers[1].up.type, DType::q8_0);
  EXPECT_EQ(weights.step_model().head.compute, Compute::bf16);

  EXPECT_TRUE(weights.widen(nullptr));
  EXPECT_EQ(weights.step_model().compute, Compute::exact);
  for (const LayerWeights& l : weights.step_model().layers)
    for (const PackedMatrix* p : {&l.q, &l.k, &l.v, &l.o, &l.up, &l.down})
      EXPECT_EQ(p->compute, Compute::exact);
  EXPECT_EQ(weights.step_model().head.compute, Compute::exact);
}

// A table of embeddings is no matrix that steps multiply with, unless it is the head too.
TEST(Weights, ComputeBf16NeedsAMatrixOfBf16) {
  ModelConfig config;
  const auto with_bf16 = [&](const std::string& name) {
    std::vector<ParameterInfo> list = parameter_list(config, DType::f32);
    for (ParameterInfo& p : list)
      if (p.name.starts_with(name)) p.type = DType::bf16;
    Weights(find_device(0), config, list, std::make_shared<MemoryAccount>(0), Compute::bf16);
  };
  const auto status_of = [&](const std::string& name) {
    try {
      with_bf16(name);
    } catch (const Error& error) {
      return error.status();
    }
    return Status::ok;
  };
  EXPECT_EQ(status_of("none"), Status::unsupported);
  EXPECT_EQ(status_of("embedding."), Status::unsupported);
  EXPECT_EQ(status_of("layers.3.k.weight"), Status::out_of_memory) << "accepted, and then there is no memory";
  EXPECT_EQ(status_of("head.weight"), Status::out_of_memory);
  config.tied_head = true;
  EXPECT_EQ(status_of("embedding.position"), Status::unsupported);
  EXPECT_EQ(status_of("embedding.token"), Status::out_of_memory);
}

TEST(Weights, RefuseValuesThatAreNotFiniteAndRowsBeyondTheEnd) {
  const ModelConfig config;
  Weights weights(find_device(0), config, parameter_list(config, DType::f32), nullptr);
  std::vector<float> row(config.width, 1.0f);
  row[5] = std::numeric_limits<float>::quiet_NaN();
  try {
    weights.set_rows(0, 3, 1, reinterpret_cast<std::byte*>(row.data()));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::corrupt_data);
    EXPECT_STREQ(error.what(), "row 3 of embedding.token has a value or scale that is not finite");
  }
  EXPECT_THROW(weights.set_rows(0, 256, 1, reinterpret_cast<std::byte*>(row.data())), Error);
  EXPECT_THROW(weights.get_rows(0, 1, UINT32_MAX, reinterpret_cast<std::byte*>(row.data())), Error);
}

}  // namespace
}  // namespace riftco
