#include "backend/registry.h"
#include "base/error.h"
#include "model/element_type.h"
#include "model/load.h"
#include "model/normal.h"

namespace riftco {
namespace {

constexpr double kDeviation = 0.02;  // of initial matrices

}  // namespace

std::shared_ptr<DecoderOnlyTransformer> create_model(const ModelConfig& config,
                                                     std::shared_ptr<const Tokenizer> tokenizer,
                                                     uint64_t seed, LoadOptions options) {
  validate(config, Status::invalid_argument, "the config");
  if (tokenizer && tokenizer->vocabulary_size() > config.vocabulary_size)
    fail(Status::invalid_argument, "the tokenizer has %u tokens, the model %u", tokenizer->vocabulary_size(),
         config.vocabulary_size);
  auto account = std::make_shared<MemoryAccount>(options.memory_limit);
  std::vector<ParameterInfo> parameters = parameter_list(config, DType::f32);
  for (ParameterInfo& p : parameters)
    if (!p.is_vector) p.type = element_type(p, options.type);
  auto weights = std::make_unique<Weights>(find_device(options.backend), config, std::move(parameters),
                                           account, options.compute);
  std::vector<float> row;
  std::vector<std::byte> converted;
  options.progress.begin(4 * parameter_count(config));
  for (size_t i = 0; i < weights->parameters().size(); i++) {
    const ParameterInfo& p = weights->parameters()[i];
    if (p.is_vector && p.name.ends_with(".bias")) continue;  // already zero
    row.assign(p.columns, 1.0f);
    for (uint32_t r = 0; r < p.rows; r++) {
      if (!p.is_vector)
        for (uint32_t c = 0; c < p.columns; c++)
          row[c] = normal(seed, i, uint64_t(r) * p.columns + c, kDeviation);
      converted.resize(row_bytes(p.type, p.columns));
      convert_rows(p, r, 1, DType::f32, reinterpret_cast<const std::byte*>(row.data()), p.type,
                   converted.data());
      weights->set_rows(i, r, 1, converted.data());
      options.progress.advance(4 * uint64_t(p.columns));
    }
  }
  options.progress.finish();
  return std::make_shared<DecoderOnlyTransformer>(std::move(weights), std::move(tokenizer),
                                                  std::move(account),
                                                  std::make_shared<ThreadPool>(options.threads));
}

}  // namespace riftco
