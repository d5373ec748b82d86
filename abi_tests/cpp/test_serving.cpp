// The C++ classes: test_serving REPORT SCRATCH_FOLDER. Failures go to the report; nothing is printed.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "riftco_transformer/stages/serving/stack.hpp"

namespace artifacts = riftco_transformer::artifacts;
namespace serve = riftco_transformer::stages::serving;
using riftco_transformer::CancelFlag;
using riftco_transformer::Error;
using riftco_transformer::ExecutionBackend;

namespace {

std::ofstream report;
bool failed = false;

#define CHECK(condition)                                             \
  do {                                                               \
    if (!(condition)) {                                              \
      failed = true;                                                 \
      report << __FILE__ << ':' << __LINE__ << ": " #condition "\n"; \
    }                                                                \
  } while (0)

// `f` throws an Error with this status and a message that holds the text.
template <class F>
void check_throws(int line, rt_status status, const std::string& text, F&& f) {
  try {
    f();
    report << __FILE__ << ':' << line << ": nothing was thrown\n";
  } catch (const Error& error) {
    if (error.status() == status && std::strstr(error.what(), text.c_str()) != nullptr) return;
    report << __FILE__ << ':' << line << ": status " << error.status() << ", " << error.what() << '\n';
  }
  failed = true;
}
#define THROWS(status, text, ...) check_throws(__LINE__, status, text, [&] { __VA_ARGS__; })

static_assert(std::is_aggregate_v<serve::ServingConfig> && std::is_aggregate_v<serve::GenerationConfig>);
static_assert(serve::ServingConfig{}.maximum_new_tokens == 256 &&
              serve::ServingConfig{}.kv_cache_block_size == 16);
static_assert(serve::ServingConfig{}.kv_cache_kind == serve::KvCacheKind::Paged);
static_assert(serve::ServingConfig{ExecutionBackend::Cpu, 5}.maximum_new_tokens == 5);
static_assert(std::is_nothrow_move_constructible_v<artifacts::Model> &&
              !std::is_copy_constructible_v<artifacts::Model>);
static_assert(std::is_move_constructible_v<serve::ServingStack> &&
              std::is_move_assignable_v<serve::DecodeSession>);

void test_tokenizers(const std::string& folder) {
  const std::array<std::string_view, 2> texts = {"hug hug hugs", "pug"};
  const auto tokenizer =
      artifacts::Tokenizer::train(texts, {.vocabulary_size = 259, .special_tokens = {"<end>"}});
  CHECK(tokenizer.encode("hug") == std::vector<std::uint32_t>{258});
  CHECK(tokenizer.chat_template().empty());
  tokenizer.save(folder + "/trained.json");
  CHECK(artifacts::Tokenizer(folder + "/trained.json").encode("hugs", {.add_special = true}) ==
        tokenizer.encode("hugs"));
  THROWS(RT_UNSUPPORTED, "byte tokenizer", artifacts::Tokenizer::byte().save(folder + "/no.json"));
}

artifacts::Model make_model() {
  rt_model_config config;
  riftco_transformer::detail::check(rt_model_config_init(&config, sizeof config));
  config.layer_count = 2;
  config.maximum_context = 64;
  return artifacts::Model(config, artifacts::Tokenizer::byte(), 1);
}

void test_artifacts(const std::string& folder) {
  const artifacts::Model model = make_model();
  CHECK(model.config().layer_count == 2 && model.info().session_count == 0);
  const artifacts::Tokenizer tokenizer = model.tokenizer();
  CHECK(tokenizer.info().vocabulary_size == 256);
  const std::vector<std::uint32_t> ids = tokenizer.encode("h\xC3\xA9");
  CHECK(ids == std::vector<std::uint32_t>({'h', 0xC3, 0xA9}));
  CHECK(tokenizer.decode(ids) == "h\xC3\xA9" && tokenizer.encode("").empty() && tokenizer.decode({}).empty());
  CHECK(tokenizer.find("h") == 'h' && tokenizer.find("hh") == RT_NO_TOKEN);
  THROWS(RT_OUT_OF_RANGE, "[rt_tokenizer_decode]", tokenizer.decode(std::vector<std::uint32_t>{256}));

  const std::string path = folder + "/model.rift";
  model.save(path);
  const artifacts::ModelSnapshot snapshot(path);
  CHECK(snapshot.path() == path && snapshot.description().front() == '{' &&
        snapshot.description().back() == '}');
  CHECK(snapshot.load(ExecutionBackend::Cpu, 1).logits(ids) == model.logits(ids));
  CHECK(model.logits(ids).size() == 3 * 256);
  THROWS(RT_INPUT_OUTPUT, "missing.gguf", artifacts::ModelSnapshot(folder + "/missing.gguf"));
  THROWS(RT_BACKEND_UNAVAILABLE, "cuda", snapshot.load(ExecutionBackend::Cuda));
  THROWS(RT_BACKEND_UNAVAILABLE, "tpu", riftco_transformer::require_backend(ExecutionBackend::Tpu));
  riftco_transformer::require_backend(ExecutionBackend::Cpu);
  CancelFlag cancel;
  cancel.set();
  THROWS(RT_CANCELLED, "cancelled", model.logits(ids, &cancel));
}

void test_buffers(const std::string& scratch) {
  const artifacts::Model model = make_model();
  const std::string path = scratch + "/buffer.rift";
  model.save(path, artifacts::ElementType::Bf16);
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const artifacts::Model again(std::as_bytes(std::span(bytes)));
  CHECK(again.info().weight_bytes < model.info().weight_bytes);
  CHECK(again.config().width == model.config().width);
  model.save(path);
  using artifacts::ElementType;
  const artifacts::Model converted(path, ExecutionBackend::Cpu, 0, ElementType::Bf16);
  CHECK(converted.info().weight_bytes == again.info().weight_bytes);
  const std::uint32_t ids[] = {1, 2, 3};
  CHECK(converted.logits(ids) == again.logits(ids));
  CHECK(artifacts::ModelSnapshot(path).load(ExecutionBackend::Cpu, 0, ElementType::Bf16).logits(ids) ==
        again.logits(ids));
  using artifacts::Compute;
  const artifacts::Model rounding(path, ExecutionBackend::Cpu, 0, ElementType::Bf16, Compute::Bf16);
  CHECK(rounding.info().compute == RT_COMPUTE_BF16 && converted.info().compute == RT_COMPUTE_EXACT);
  CHECK(rounding.logits(ids) != again.logits(ids));
  CHECK(artifacts::ModelSnapshot(path)
            .load(ExecutionBackend::Cpu, 0, ElementType::Bf16, Compute::Bf16)
            .logits(ids) == rounding.logits(ids));
  const artifacts::Model from_bytes(std::as_bytes(std::span(bytes)), ExecutionBackend::Cpu, 0,
                                    ElementType::Keep, Compute::Bf16);
  CHECK(from_bytes.logits(ids) == rounding.logits(ids));
  THROWS(RT_UNSUPPORTED, "type bf16",
         artifacts::Model(path, ExecutionBackend::Cpu, 0, ElementType::Keep, Compute::Bf16));
  THROWS(RT_CORRUPT_DATA, "the buffer", artifacts::Model(std::as_bytes(std::span(bytes).first(50))));
  THROWS(RT_INVALID_ARGUMENT, "the suffix names no format", model.save(scratch + "/a.bin"));
}

void test_sessions() {
  artifacts::Model model = make_model();
  const serve::PagedKvCachePool pool(model, 4, 20);
  serve::DecodeSession paged(model, pool), contiguous(model, serve::KvCacheKind::Contiguous);
  CHECK(paged.cache_kind() == serve::KvCacheKind::Paged && paged.block_size() == 4 && paged.capacity() == 64);
  CHECK(contiguous.cache_kind() == serve::KvCacheKind::Contiguous && contiguous.block_size() == 64);
  const std::vector<std::uint32_t> prompt = {1, 2, 3, 4, 5};
  CHECK(paged.prefill(prompt) == contiguous.prefill(prompt));
  CHECK(pool.usage().block_count == 20 && pool.usage().free_count == 18);
  CHECK(paged.step(6) == contiguous.step(6));
  THROWS(RT_OUT_OF_RANGE, "token 256", paged.step(256));
  std::vector<float> small(255);
  THROWS(RT_BUFFER_TOO_SMALL, "255", paged.step(1, small));
  THROWS(RT_OUT_OF_RANGE, "7", paged.truncate(7));

  serve::DecodeSession fork = paged.fork();
  CHECK(fork.size() == 6 && fork.step(7) == contiguous.step(7) && paged.size() == 6);
  contiguous.truncate(6);
  std::vector<float> rows(2 * 256);
  serve::DecodeSession* batch[] = {&paged, &contiguous};
  serve::step_many(batch, std::vector<std::uint32_t>{9, 9}, rows);
  CHECK(std::equal(rows.begin(), rows.begin() + 256, rows.begin() + 256) && paged.size() == 7);
  THROWS(RT_INVALID_ARGUMENT, "one token", serve::step_many(batch, std::vector<std::uint32_t>{9}, rows));
  batch[1] = nullptr;
  THROWS(RT_INVALID_ARGUMENT, "sessions[1] is NULL",
         serve::step_many(batch, std::vector<std::uint32_t>{9, 9}, rows));

  paged.save("saved.session");
  serve::DecodeSession loaded = serve::DecodeSession::load(model, "saved.session", &pool);
  std::remove("saved.session");
  CHECK(loaded.size() == paged.size() && loaded.usage().block_count == paged.usage().block_count);
  const std::array<std::uint32_t, 2> more = {5, 6};
  const std::vector<float> states = loaded.hidden_states(more), last = paged.hidden_states(more, 1);
  CHECK(states.size() == 2 * last.size() &&
        std::equal(last.begin(), last.end(), states.begin() + std::ptrdiff_t(last.size())));
  THROWS(RT_OUT_OF_RANGE, "first_row 2", loaded.hidden_states(more, 2));
  paged.truncate(paged.size() - 2);

  // Sessions outlive their model; a moved-from one throws.
  { const artifacts::Model gone = std::move(model); }
  CHECK(paged.step(1) == contiguous.step(1));
  serve::DecodeSession moved = std::move(paged);
  THROWS(RT_INVALID_ARGUMENT, "session is NULL", paged.reset());
  moved.reset();
  CHECK(moved.size() == 0);
}

void test_generation() {
  const artifacts::Model model = make_model();
  const artifacts::Tokenizer tokenizer = model.tokenizer();
  const serve::PagedKvCachePool paged(model, 3);
  const serve::ContiguousKvCacheFactory contiguous(model);
  serve::GenerationEngine engine(model, tokenizer, paged), other(model, tokenizer, contiguous);
  const serve::GenerationConfig config{.max_new_tokens = 70, .temperature = 0.8f, .top_k = 40, .seed = 7};
  const serve::GenerationResult result = engine.generate("Once", config);  // beyond 64 positions: rolls over
  CHECK(result.tokens.size() == 70 && result.log_probabilities.size() == 70 &&
        result.statistics.rollovers > 0);
  CHECK(result.text == other.generate("Once", config).text);  // swapping the factory changes nothing
  CHECK(result.text == engine.generate(tokenizer.encode("Once"), config).text);
  const serve::GenerationResult guessed =
      engine.generate("aaa", {.max_new_tokens = 20, .logit_bias = {{'a', 100.0f}}, .speculation = 8});
  CHECK(guessed.text == std::string(20, 'a') && guessed.statistics.accepted_tokens > 10);

  std::string text;
  std::size_t pieces = 0;
  for (const serve::GenerationPiece& piece : engine.stream("Once", config)) {
    text += piece.text;
    pieces++;
  }
  CHECK(text == result.text && pieces >= 70);
  for (const serve::GenerationPiece& piece : engine.stream("Once", config)) {
    CHECK(piece.token == result.tokens[0] && piece.log_probability == result.log_probabilities[0]);
    break;  // dropped by the next start
  }

  engine.start("Once");
  for (float& logit : engine.logits()) logit = 0;
  engine.logits()['x'] = 1;
  CHECK(engine.next().token == 'x');

  const std::string stop = result.text.substr(4, 2);
  serve::GenerationConfig stopping = config;
  stopping.stop_strings = {stop};
  const serve::GenerationResult stopped = engine.generate("Once", stopping);
  CHECK(stopped.finish == serve::FinishReason::Stop && stopped.text.find(stop) == std::string::npos);
  stopping.stop_strings.clear();
  stopping.stop_tokens = {result.tokens[2]};
  CHECK(engine.generate("Once", stopping).finish == serve::FinishReason::Stop);

  // choices: each has its own random numbers, choice 0 is the generation itself
  const serve::PagedKvCachePool large(model, 3, 66);
  serve::GenerationEngine source(model, tokenizer, large);
  source.start("Once", config);
  serve::GenerationEngine first = source.fork(0), second = source.fork(1);
  const serve::GenerationResult choice = second.finish();
  CHECK(choice.text != result.text && first.finish().text == result.text &&
        source.finish().text == result.text);
  engine.start("Once", config);
  engine.stop();
  THROWS(RT_INVALID_STATE, "no generation is running", engine.fork(1));
  serve::GenerationConfig ruled{.max_new_tokens = 1, .logit_bias = {{'y', 1000}}, .alternatives = 3};
  engine.start("Once", ruled);
  const serve::GenerationPiece told = engine.next();
  CHECK(told.token == 'y' && told.alternatives.size() == 3 && told.processed_log_probability == 0 &&
        told.alternatives[0].log_probability >= told.alternatives[1].log_probability);

  THROWS(RT_INVALID_STATE, "no generation is running", engine.next());
  THROWS(RT_INVALID_ARGUMENT, "temperature", engine.generate("Once", {.temperature = -1}));
  THROWS(RT_INVALID_ARGUMENT, "prompt", engine.start(""));
  const std::string long_prompt(65, 'a');
  THROWS(RT_CONTEXT_FULL, "65", engine.start(long_prompt, {.rollover = serve::Rollover::Stop}));
}

// From another thread, while the generation runs; nothing is lost.
void test_cancel() {
  serve::ServingStack serving(make_model());
  serve::GenerationEngine& engine = serving.engine();
  CancelFlag cancel;
  engine.start("endless", {.max_new_tokens = UINT64_MAX, .cancel = &cancel});
  std::thread setter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    cancel.set();
  });
  THROWS(RT_CANCELLED, "cancelled", while (true) engine.next());
  setter.join();
  cancel.reset();
  CHECK(engine.next().finish == serve::FinishReason::None);
}

void test_changes(const std::string& scratch) {
  artifacts::Model model = make_model();
  const std::vector<std::uint32_t> tokens = {1, 2, 3};
  const std::vector<float> before = model.logits(tokens);
  THROWS(RT_INVALID_STATE, "no adapters", model.lora());
  rt_lora_options options = artifacts::Model::lora_defaults();
  options.rank = 2;
  {
    const serve::DecodeSession session(model);
    THROWS(RT_INVALID_STATE, "1 decode session", model.attach_lora(options));
    THROWS(RT_INVALID_STATE, "1 decode session", model.to(ExecutionBackend::Cpu));
  }
  model.to(ExecutionBackend::Cpu);
  THROWS(RT_BACKEND_UNAVAILABLE, "cuda", model.to(ExecutionBackend::Cuda));
  model.attach_lora(options);
  CHECK(model.lora().rank == 2 && model.logits(tokens) == before);
  std::vector<float> b = model.read_parameter("layers.0.q.lora_b");
  std::fill(b.begin(), b.end(), 0.25f);
  model.write_parameter("layers.0.q.lora_b", b);
  const std::vector<float> with = model.logits(tokens);
  CHECK(with != before && model.info().parameter_epoch == 2);
  model.save_lora(scratch + "/adapter.safetensors");
  model.detach_lora();
  CHECK(model.logits(tokens) == before);
  model.load_lora(scratch + "/adapter.safetensors");
  CHECK(model.logits(tokens) == with && model.read_parameter("layers.0.q.lora_b") == b);
  model.merge_lora();
  THROWS(RT_INVALID_STATE, "no adapters", model.merge_lora());
}

void test_stack() {
  serve::ServingConfig config;
  config.maximum_new_tokens = 5;
  config.threads = 1;
  serve::ServingStack serving(make_model(), config);
  const serve::GenerationResult capped = serving.generate("Tensor:");
  CHECK(capped.tokens.size() == 5 && serving.generate("Tensor:", {3}).tokens.size() == 3);
  CHECK(serving.model().config().maximum_context == 64 && serving.tokenizer().info().vocabulary_size == 256);
  CHECK(serving.cache().usage().block_size == 16 && serving.cache().usage().block_count == 4);
  config.kv_cache_kind = serve::KvCacheKind::Contiguous;
  serve::ServingStack contiguous(make_model(), config);
  CHECK(contiguous.generate("Tensor:").text == capped.text && contiguous.cache().usage().block_size == 64);
  serve::ServingStack moved = std::move(serving);
  CHECK(moved.generate("Tensor:").text == capped.text);
  config.kv_cache_kind = serve::KvCacheKind::Paged;
  config.kv_cache_block_size = 0;
  THROWS(RT_INVALID_ARGUMENT, "block", serve::ServingStack(make_model(), config));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 99;
  report.open(argv[1]);
  try {
    test_artifacts(argv[2]);
    test_tokenizers(argv[2]);
    test_buffers(argv[2]);
    test_sessions();
    test_generation();
    test_cancel();
    test_changes(argv[2]);
    test_stack();
  } catch (const std::exception& error) {
    report << "unexpected: " << error.what() << '\n';
    failed = true;
  }
  return failed ? 1 : 0;
}
