#include <algorithm>
#include <cmath>

#include "backend/registry.h"
#include "base/error.h"
#include "base/random.h"
#include "core/math.h"
#include "model/load.h"

namespace riftco {
namespace {

constexpr double kDeviation = 0.02;  // of initial matrices

// Normal values by Box and Muller (1958) from two uniform numbers in (0, 1); element i of stream `stream`.
float normal(uint64_t seed, uint64_t stream, uint64_t i) {
  const std::array<uint32_t, 4> bits = philox(seed, i, stream);
  auto uniform = [](uint32_t high, uint32_t low) {
    return (double(uint64_t(high) << 21 | low >> 11) + 0.5) * 0x1p-53;
  };
  const double radius = std::sqrt(-2.0 * math::log(uniform(bits[0], bits[1])));
  double sine, cosine;
  math::sin_cos(6.283185307179586 * uniform(bits[2], bits[3]), &sine, &cosine);
  return float(kDeviation * radius * cosine);
}

}  // namespace

std::shared_ptr<DecoderOnlyTransformer> create_model(const ModelConfig& config,
                                                     std::shared_ptr<const Tokenizer> tokenizer,
                                                     uint64_t seed, LoadOptions options) {
  validate(config, Status::invalid_argument, "the config");
  if (tokenizer && tokenizer->vocabulary_size() > config.vocabulary_size)
    fail(Status::invalid_argument, "the tokenizer has %u tokens, the model %u", tokenizer->vocabulary_size(),
         config.vocabulary_size);
  auto account = std::make_shared<MemoryAccount>(options.memory_limit);
  auto weights = std::make_unique<Weights>(find_device(options.backend), config,
                                           parameter_list(config, DType::f32), account);
  std::vector<float> row;
  options.progress.begin(4 * parameter_count(config));
  for (size_t i = 0; i < weights->parameters().size(); i++) {
    const ParameterInfo& p = weights->parameters()[i];
    if (p.is_vector && p.name.ends_with(".bias")) continue;  // already zero
    row.assign(p.columns, 1.0f);
    for (uint32_t r = 0; r < p.rows; r++) {
      if (!p.is_vector)
        for (uint32_t c = 0; c < p.columns; c++) row[c] = normal(seed, i, uint64_t(r) * p.columns + c);
      weights->set_rows(i, r, 1, reinterpret_cast<const std::byte*>(row.data()));
      options.progress.advance(4 * uint64_t(p.columns));
    }
  }
  options.progress.finish();
  return std::make_shared<DecoderOnlyTransformer>(std::move(weights), std::move(tokenizer),
                                                  std::move(account), options.threads);
}

}  // namespace riftco
