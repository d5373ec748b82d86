// usage: count_steps decode|prefill|train N: does N steps of a small model on one thread. tests/py/test_instructions.py counts
// their instructions.
#include <cstdlib>
#include <cstring>

#include "serve/decode_session.h"
#include "serve_support.h"
#include "train/network.h"

namespace riftco::test {
namespace {

int run(const char* what, int steps) {
  // Few tokens: valgrind computes fused multiply-adds slowly.
  const std::vector<uint32_t> tokens = random_tokens(16, 301, 1);
  const bool train = std::strcmp(what, "train") == 0;
  const auto model = random_model(llama_config(), train ? DType::f32 : DType::q4_1);
  std::vector<float> logits(301);
  DecodeSession session(model, {});
  if (std::strcmp(what, "decode") == 0) {
    session.prefill(tokens, logits);
    for (int i = 0; i < steps; i++) session.truncate(16), session.step(tokens[0], logits);
  } else if (std::strcmp(what, "prefill") == 0) {
    for (int i = 0; i < steps; i++) session.reset(), session.prefill(tokens, logits);
  } else if (train) {
    TrainingNetwork network(model, {});
    ParameterStore gradients(model->device(), model->weights().parameters(), model->account(),
                             "the gradients");
    for (int i = 0; i < steps; i++) network.loss_and_gradients({tokens, tokens, 1, 16}, gradients);
  } else {
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace riftco::test

int main(int argc, char** argv) { return argc == 3 ? riftco::test::run(argv[1], std::atoi(argv[2])) : 2; }
