// A model learns a text by heart through low-rank adapters; its own weights stay.
//
//   c++ -std=c++20 examples/adapters.cpp $(pkg-config --cflags --libs riftco) -o adapters
//   ./adapters model.gguf "The keeper of the lamp was Ada." 20
//
// Each step is one update of AdamW; the last line is what the inference kernels say about the text afterwards.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <span>
#include <vector>

#include "riftco_transformer/artifacts/model_snapshot.hpp"
#include "riftco_transformer/stages/training/trainer.hpp"

namespace artifacts = riftco_transformer::artifacts;
namespace training = riftco_transformer::stages::training;

namespace {

void run(const char* path, const char* text, std::uint64_t steps) {
  artifacts::Model model = artifacts::ModelSnapshot(path).load();
  const std::vector<std::uint32_t> ids = model.tokenizer().encode(text);
  const std::size_t length = ids.empty() ? 0 : ids.size() - 1;
  const training::TrainingBatch batch{
      .tokens = std::span(ids).first(length), .targets = std::span(ids).last(length), .length = length};
  model.attach_lora();
  training::Trainer trainer(model, {.learning_rate = 0.003});
  while (steps-- > 0) {
    const rt_training_metrics metrics = trainer.step(batch);
    std::printf("step %llu: loss %.4f\n", static_cast<unsigned long long>(metrics.step), metrics.loss);
  }
  std::printf("afterwards: loss %.4f\n", training::evaluate(model, batch).loss);
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t steps = 20;
  if (argc == 4) {
    const char* end = argv[3] + std::strlen(argv[3]);
    if (std::from_chars(argv[3], end, steps).ptr != end) steps = 0;
  }
  if (argc < 3 || argc > 4 || steps == 0) {
    std::cerr << "usage: adapters MODEL TEXT [STEPS]\n";
    return 2;
  }
  try {
    run(argv[1], argv[2], steps);
  } catch (const std::exception& error) {
    std::cerr << "adapters: " << argv[1] << ": " << error.what() << '\n';
    return 1;
  }
  return 0;
}
