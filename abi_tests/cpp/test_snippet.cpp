// The example of the C++ interface, as written in its documentation: test_snippet REPORT SCRATCH_FOLDER.
#include <fstream>
#include <string>

#include "riftco_transformer/stages/serving/stack.hpp"

namespace {

void save_model(const std::string& path) {
  namespace artifacts = riftco_transformer::artifacts;
  rt_model_config config;
  riftco_transformer::detail::check(rt_model_config_init(&config, sizeof config));
  config.layer_count = 2;
  artifacts::Model(config, artifacts::Tokenizer::byte(), 1).save(path);
}

int run(const std::string& path) {
  save_model(path);
  const riftco_transformer::artifacts::ModelSnapshot snapshot(path);

  namespace serve = riftco_transformer::stages::serving;
  serve::ServingConfig config;
  config.backend = riftco_transformer::ExecutionBackend::Cpu;
  config.kv_cache_kind = serve::KvCacheKind::Paged;
  config.kv_cache_block_size = 16;
  config.kv_cache_block_count = 0;  // one full context
  serve::ServingStack serving(snapshot, config);
  const auto result = serving.generate("Tensor:", serve::GenerationConfig{32});

  return result.tokens.size() == 32 && !result.text.empty() && result.finish == serve::FinishReason::Length
             ? 0
             : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 99;
  try {
    return run(std::string(argv[2]) + "/model.rift");
  } catch (const std::exception& error) {
    std::ofstream(argv[1]) << error.what() << '\n';
    return 1;
  }
}
