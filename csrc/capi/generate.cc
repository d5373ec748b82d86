#include "riftco/generate.h"

#include <string>

#include "capi/arguments.h"
#include "capi/handles.h"

using namespace riftco;
using namespace riftco::capi;

static_assert(RT_ROLLOVER_STOP == int32_t(Rollover::stop) && RT_FINISH_LENGTH == int32_t(Finish::length));
static_assert(RT_NO_TOKEN == GenerationPiece::kNoToken && RT_MAX_ALTERNATIVES == kMaxAlternatives &&
              RT_MAX_SPECULATION == PromptLookup::kMaxGuess);
static_assert(sizeof(rt_token_probability) == sizeof(TokenProbability) &&
              offsetof(rt_token_probability, processed_log_probability) ==
                  offsetof(TokenProbability, processed_log_probability));

namespace {

rt_generation_options generation_defaults() {
  const GenerationOptions defaults;
  rt_generation_options options{};
  options.max_new_tokens = defaults.max_new_tokens;
  options.seed = defaults.sampling.seed;
  options.temperature = defaults.sampling.temperature;
  options.top_p = defaults.sampling.top_p;
  options.min_p = defaults.sampling.min_p;
  options.top_k = defaults.sampling.top_k;
  options.repetition_penalty = defaults.rules.repetition_penalty;
  return options;
}

GenerationOptions generation_options(const rt_generation_options* given) {
  const rt_generation_options options = read_struct(given, generation_defaults(), "options");
  GenerationOptions chosen;
  chosen.max_new_tokens = options.max_new_tokens;
  chosen.sampling = {.temperature = options.temperature,
                     .top_k = options.top_k,
                     .top_p = options.top_p,
                     .min_p = options.min_p,
                     .seed = options.seed,
                     .alternatives = options.alternatives};
  chosen.speculation = options.speculation;
  chosen.min_new_tokens = options.min_new_tokens;
  chosen.rules.repetition_penalty = options.repetition_penalty;
  chosen.rules.presence_penalty = options.presence_penalty;
  chosen.rules.frequency_penalty = options.frequency_penalty;
  chosen.rules.penalty_window = options.penalty_window;
  for (const rt_logit_bias& bias :
       array_argument(options.logit_bias, options.logit_bias_count, "options.logit_bias"))
    chosen.rules.bias.push_back({bias.token, bias.bias});
  chosen.ignore_eos = flag_argument(options.ignore_eos, "options.ignore_eos");
  chosen.parse_special = flag_argument(options.parse_special, "options.parse_special");
  chosen.rollover = choice_argument<Rollover>(options.rollover, RT_ROLLOVER_STOP, "options.rollover");
  chosen.rollover_keep = options.rollover_keep;
  for (const rt_text& text :
       array_argument(options.stop_strings, options.stop_string_count, "options.stop_strings"))
    chosen.stop_strings.emplace_back(text_argument(text.data, text.size, "a text of options.stop_strings"));
  const std::span tokens =
      array_argument(options.stop_tokens, options.stop_token_count, "options.stop_tokens");
  chosen.stop_tokens.assign(tokens.begin(), tokens.end());
  chosen.cancel = cancel_flag(options.cancel, "options.cancel");
  return chosen;
}

// A start that fails, for whatever reason, leaves no generation running.
Generator& idle(rt_generator* generator) {
  Generator& object = *checked(generator, "generator").object;
  object.drop_running();
  return object;
}

}  // namespace

rt_status rt_generation_options_init(rt_generation_options* options, uint64_t size) {
  return guarded(__func__, [&] { init_struct(options, size, generation_defaults(), "options"); });
}

rt_status rt_generator_create(const rt_model* model, const rt_tokenizer* tokenizer,
                              rt_kv_cache_factory* factory, rt_generator** generator) {
  return guarded_create(__func__, "generator", generator, [&] {
    const auto& object = checked(model, "model").object;
    auto tokens = optional_object(tokenizer, "tokenizer");
    auto caches = optional_object(factory, "factory");
    return std::make_unique<rt_generator>(
        std::make_unique<Generator>(object, std::move(tokens), std::move(caches)));
  });
}

rt_status rt_generator_start(rt_generator* generator, const char* prompt, uint64_t prompt_size,
                             const rt_generation_options* options) {
  return guarded(__func__, [&] {
    Generator& object = idle(generator);
    const std::string_view text = text_argument(prompt, prompt_size, "prompt");
    object.start(text, generation_options(options));
  });
}

rt_status rt_generator_start_tokens(rt_generator* generator, const uint32_t* tokens, uint64_t token_count,
                                    const rt_generation_options* options) {
  return guarded(__func__, [&] {
    Generator& object = idle(generator);
    const std::span<const uint32_t> ids = array_argument(tokens, token_count, "tokens");
    object.start_tokens(ids, generation_options(options));
  });
}

rt_status rt_generator_fork(const rt_generator* generator, uint64_t choice, rt_generator** fork) {
  return guarded_create(__func__, "fork", fork, [&] {
    return std::make_unique<rt_generator>(checked(generator, "generator").object->fork(choice));
  });
}

rt_status rt_generator_stop(rt_generator* generator) {
  return guarded(__func__, [&] { idle(generator); });
}

rt_status rt_generator_next(rt_generator* generator, rt_generation_piece* piece) {
  return guarded(__func__, [&] {
    Generator& object = *checked(generator, "generator").object;
    const OutputStruct output(piece, "piece");
    const GenerationPiece next = object.next();
    output.write({.struct_size = 0,
                  .bytes = next.bytes.data(),
                  .size = next.bytes.size(),
                  .token = next.token,
                  .finish = int32_t(next.finish),
                  .log_probability = next.probability.log_probability,
                  .processed_log_probability = next.probability.processed_log_probability,
                  .alternatives = reinterpret_cast<const rt_token_probability*>(next.alternatives.data()),
                  .alternative_count = next.alternatives.size()});
  });
}

rt_status rt_generator_logits(rt_generator* generator, float** logits, uint64_t* count) {
  return guarded(__func__, [&] {
    Generator& object = *checked(generator, "generator").object;
    float*& data = output_argument(logits, "logits");
    uint64_t& size = output_argument(count, "count");
    const std::span<float> row = object.logits();
    data = row.data();
    size = row.size();
  });
}

rt_status rt_generator_get_stats(const rt_generator* generator, rt_generation_stats* stats) {
  return guarded(__func__, [&] {
    const GenerationStats& now = checked(generator, "generator").object->stats();
    OutputStruct(stats, "stats")
        .write({.struct_size = 0,
                .prompt_tokens = now.prompt_tokens,
                .reused_tokens = now.reused_tokens,
                .new_tokens = now.new_tokens,
                .rollovers = now.rollovers,
                .prefill_seconds = now.prefill_seconds,
                .decode_seconds = now.decode_seconds,
                .drafted_tokens = now.drafted_tokens,
                .accepted_tokens = now.accepted_tokens});
  });
}

void rt_generator_release(rt_generator* generator) { release(generator); }
