#include "serve/generation.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/error.h"

namespace riftco {
namespace {

using ull = unsigned long long;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Rollover resolve(Rollover rollover, PositionKind position) {
  if (rollover != Rollover::by_position) return rollover;
  return position == PositionKind::learned ? Rollover::window : Rollover::stop;
}

std::shared_ptr<KeyValueCacheFactory> generator_factory(const DecoderOnlyTransformer& model,
                                                        std::shared_ptr<KeyValueCacheFactory> factory) {
  if (!factory) return make_kv_cache_factory(model, {});
  factory->check(model.device(), model.kv_geometry(factory->page_size()), model.config().maximum_context);
  return factory;
}

void check_options(const GenerationOptions& options, uint32_t context, uint32_t vocabulary) {
  validate(options.sampling);
  validate(options.rules, vocabulary);
  if (options.min_new_tokens > options.max_new_tokens)
    fail(Status::invalid_argument, "min_new_tokens %llu is more than max_new_tokens %llu",
         ull(options.min_new_tokens), ull(options.max_new_tokens));
  if (options.max_new_tokens == 0) fail(Status::invalid_argument, "max_new_tokens is 0");
  if (options.rollover < Rollover::by_position || options.rollover > Rollover::stop)
    fail(Status::invalid_argument, "there is no rollover policy %d", int(options.rollover));
  if (options.rollover == Rollover::keep) {
    if (options.rollover_keep == 0 || options.rollover_keep >= context)
      fail(Status::out_of_range, "rollover_keep %u is not in 1 .. %u", options.rollover_keep, context - 1);
  } else if (options.rollover_keep != 0) {
    fail(Status::invalid_argument, "rollover_keep %u is given without the policy that reads it",
         options.rollover_keep);
  }
  if (options.speculation > PromptLookup::kMaxGuess)
    fail(Status::out_of_range, "a speculation of %u tokens is more than %u", options.speculation,
         PromptLookup::kMaxGuess);
  for (uint32_t token : options.stop_tokens)
    if (token >= vocabulary)
      fail(Status::out_of_range, "stop token %u is not below the vocabulary size %u", token, vocabulary);
}

}  // namespace

Generator::Generator(std::shared_ptr<const DecoderOnlyTransformer> model,
                     std::shared_ptr<const Tokenizer> tokenizer,
                     std::shared_ptr<KeyValueCacheFactory> factory)
    : model_(std::move(model)),
      tokenizer_(tokenizer ? std::move(tokenizer) : model_->tokenizer()),
      factory_(generator_factory(*model_, std::move(factory))),
      cache_(factory_->create()),
      epoch_(model_->parameter_epoch()),
      processor_(model_->config().vocabulary_size),
      sampler_(*model_->device().kernels, model_->config().vocabulary_size),
      logits_(model_->config().vocabulary_size) {
  const auto lock = model_->reading();
  model_->reserve(cache_->capacity());
}

Generator::Generator(const Generator& other, std::unique_ptr<KeyValueCache> cache)
    : model_(other.model_),
      tokenizer_(other.tokenizer_),
      factory_(other.factory_),
      cache_(std::move(cache)),
      history_(other.history_),
      context_start_(other.context_start_),
      epoch_(other.epoch_),
      hold_(std::in_place, other.model_),
      options_(other.options_),
      barred_(other.barred_),
      processor_(other.model_->config().vocabulary_size),
      sampler_(*other.model_->device().kernels, other.model_->config().vocabulary_size),
      decoder_(other.decoder_),
      stop_strings_(other.stop_strings_),
      lookup_(other.lookup_),
      draft_(other.draft_),
      logits_(other.logits_),
      row_(other.row_),
      logits_ready_(other.logits_ready_),
      stats_(other.stats_) {}

std::unique_ptr<Generator> Generator::fork(uint64_t choice) const {
  require_running();
  std::unique_ptr<Generator> copy(new Generator(*this, cache_->fork()));
  copy->history_.reserve(history_.capacity());  // so that tokens allocate nothing
  copy->draft_.reserve(draft_.capacity());
  copy->options_.sampling.stream = choice;
  return copy;
}

void Generator::start(std::string_view prompt, const GenerationOptions& options) {
  drop_running();
  if (!tokenizer_) fail(Status::invalid_state, "the model has no tokenizer: start from token ids");
  std::vector<uint32_t> tokens =
      tokenizer_->encode(prompt, {.parse_special = options.parse_special, .cancel = options.cancel});
  const auto bos = tokenizer_->special().bos;
  if (bos && (tokenizer_->adds_bos() || tokens.empty())) tokens.insert(tokens.begin(), *bos);
  begin(std::move(tokens), options);
}

void Generator::start_tokens(std::span<const uint32_t> tokens, const GenerationOptions& options) {
  drop_running();
  begin({tokens.begin(), tokens.end()}, options);
}

void Generator::begin(std::vector<uint32_t> prompt, const GenerationOptions& options) {
  check_options(options, cache_->capacity(), model_->config().vocabulary_size);
  if (!tokenizer_ && !options.stop_strings.empty())
    fail(Status::invalid_argument, "stop strings are given and there is no tokenizer");
  if (prompt.empty()) fail(Status::invalid_argument, "the prompt has no token");
  for (uint32_t token : prompt) model_->check_token(token);
  if (prompt.size() > cache_->capacity() &&
      resolve(options.rollover, model_->config().position) == Rollover::stop)
    fail(Status::context_full, "a prompt of %zu tokens does not fit the context of %u", prompt.size(),
         cache_->capacity());
  adopt(options);
  hold_.emplace(model_);
  try {
    drop_stale_cache();
    load_prompt(std::move(prompt));
  } catch (...) {
    hold_.reset();
    throw;
  }
}

// Everything that the generation keeps of its options.
void Generator::adopt(const GenerationOptions& options) {
  options_ = options;
  options_.rollover = resolve(options.rollover, model_->config().position);
  options_.sampling.stream = 0;
  std::sort(options_.stop_tokens.begin(), options_.stop_tokens.end());
  barred_ = options_.stop_tokens;
  if (tokenizer_ && !options_.ignore_eos)
    for (uint32_t token : tokenizer_->special().end_of_generation)
      if (token < model_->config().vocabulary_size) barred_.push_back(token);
  stop_strings_ = StopStrings(options.stop_strings);
  decoder_.reset();
  if (tokenizer_) decoder_.emplace(tokenizer_, true, true);
  draft_.reserve(size_t(options.speculation) + 1);
  logits_.resize((size_t(options.speculation) + 1) * model_->config().vocabulary_size);
}

// Parameters may have changed since the generation before; while one is running they cannot.
void Generator::drop_stale_cache() {
  if (epoch_ == model_->parameter_epoch()) return;
  cache_->reset();
  model_->reserve(cache_->capacity());
  epoch_ = model_->parameter_epoch();
}

// Decodes the prompt, but for what the cache already holds of it. The last token is always decoded, for its
// logits.
void Generator::load_prompt(std::vector<uint32_t> prompt) {
  const uint32_t capacity = cache_->capacity();
  prompt.reserve(prompt.size() + std::min<uint64_t>(options_.max_new_tokens, capacity));
  lookup_ = options_.speculation ? PromptLookup(options_.speculation, prompt.capacity()) : PromptLookup();
  const size_t start = prompt.size() - std::min<size_t>(prompt.size(), capacity);
  const auto context = std::span(prompt).subspan(start);
  const auto cached = std::span(history_).subspan(context_start_, cache_->length());
  const size_t same = size_t(
      std::mismatch(context.begin(), context.end(), cached.begin(), cached.end()).first - context.begin());
  const size_t reused = std::min(same, context.size() - 1);

  cache_->truncate(reused);
  history_ = std::move(prompt);
  context_start_ = start;
  stats_ = {.prompt_tokens = history_.size(), .reused_tokens = reused};
  const auto begin = Clock::now();
  forward_tokens(*model_, *cache_, std::span(history_).subspan(start + reused), options_.cancel,
                 logits_.data());
  stats_.prefill_seconds = seconds_since(begin);
  logits_ready_ = true;
}

void Generator::drop_running() noexcept {
  hold_.reset();
  forget_draft(history_.size());
  logits_ready_ = false;
}

void Generator::require_running() const {
  if (!hold_) fail(Status::invalid_state, "no generation is running");
}

std::span<float> Generator::logits() {
  require_running();
  check_cancel(options_.cancel, "the generation");
  decode_pending();
  return row();
}

std::span<float> Generator::row() noexcept {
  const size_t vocabulary = model_->config().vocabulary_size;
  return std::span(logits_).subspan(row_ * vocabulary, vocabulary);
}

// Rolls over where the newest token does not fit any more. When the replay fails the cache is empty, and the
// next call replays.
void Generator::decode_pending() {
  if (logits_ready_) return;
  const auto begin = Clock::now();
  if (history_.size() - context_start_ > cache_->capacity()) {
    context_start_ =
        history_.size() - (options_.rollover == Rollover::keep ? options_.rollover_keep : cache_->capacity());
    cache_->reset();
    stats_.rollovers++;
  }
  const auto pending = std::span(history_).subspan(context_start_ + cache_->length());
  if (!decode_draft(pending)) forward_tokens(*model_, *cache_, pending, options_.cancel, logits_.data());
  logits_ready_ = true;
  stats_.decode_seconds += seconds_since(begin);
}

// Decodes the newest token and a guess of those that follow in one step. False: there is no guess, or it cannot be decoded
// (no free page, not finite), which must not fail a generation that may go on without it.
bool Generator::decode_draft(std::span<const uint32_t> pending) {
  if (options_.speculation == 0 || pending.size() > 1) return false;
  const uint64_t fitting = cache_->capacity() - (history_.size() - context_start_);
  const uint64_t wanted = options_.max_new_tokens - stats_.new_tokens - 1;  // the last one is never decoded
  draft_.assign(1, pending[0]);
  lookup_.guess(history_, std::min(fitting, wanted), draft_);
  const size_t guessed = draft_.size() - 1;
  try {
    if (guessed > 0) {
      forward_each(*model_, *cache_, draft_, options_.cancel, logits_.data());
      stats_.drafted_tokens += guessed;
      return true;
    }
  } catch (const std::exception&) {  // where it was cancelled, the step without the guess is, too
  }
  lookup_.learn(guessed, 0);
  draft_.clear();
  return false;
}

// Whether `token`, which follows the newest one, is what the draft says: then its logits are there already.
bool Generator::follow_draft(uint32_t token) noexcept {
  if (row_ + 1 >= draft_.size() || draft_[row_ + 1] != token) return false;
  row_++;
  stats_.accepted_tokens++;
  return true;
}

// Leaves nothing in the cache but the first `known` tokens of the history, or less.
void Generator::forget_draft(size_t known) noexcept {
  if (draft_.empty()) return;
  lookup_.learn(draft_.size() - 1, row_);
  draft_.clear();
  row_ = 0;
  cache_->truncate(std::min<uint64_t>(cache_->length(), known - context_start_));
}

GenerationPiece Generator::next() {
  require_running();
  check_cancel(options_.cancel, "the generation");
  decode_pending();
  const auto barred = stats_.new_tokens < options_.min_new_tokens ? std::span<const uint32_t>(barred_)
                                                                  : std::span<uint32_t>();
  const std::span<const float> processed =
      processor_.apply(options_.rules, barred, row(), history_, size_t(stats_.prompt_tokens));
  const TokenProbability sampled = sampler_.sample(row(), processed, options_.sampling, stats_.new_tokens);
  const uint32_t token = sampled.token;
  text_.clear();
  Finish finish = finish_by_token(token);
  const bool has_text = decoder_ && finish == Finish::none && token < tokenizer_->vocabulary_size();
  // What needs memory comes first, so that a failure loses nothing.
  if (history_.size() == history_.capacity()) history_.reserve(2 * history_.size());
  if (decoder_)
    stop_strings_.reserve(decoder_->held_bytes() + (has_text ? tokenizer_->token_bytes(token).size() : 0),
                          text_);
  if (has_text && stop_strings_.push(decoder_->push(token), text_)) finish = Finish::stop;
  const bool text_ended = has_text && finish == Finish::stop;

  history_.push_back(token);
  stats_.new_tokens++;
  if (finish == Finish::none && (stats_.new_tokens == options_.max_new_tokens || !next_fits()))
    finish = Finish::length;
  logits_ready_ = finish == Finish::none && follow_draft(token);
  if (!logits_ready_) forget_draft(history_.size() - 1);
  if (finish != Finish::none) {
    if (decoder_ && !text_ended) flush_text();
    hold_.reset();
  }
  return {text_, token, finish, sampled, sampler_.alternatives()};
}

Finish Generator::finish_by_token(uint32_t token) const noexcept {
  if (std::binary_search(options_.stop_tokens.begin(), options_.stop_tokens.end(), token))
    return Finish::stop;
  if (!options_.ignore_eos && tokenizer_ && tokenizer_->is_end_of_generation(token)) return Finish::eos;
  return Finish::none;
}

// Whether the newest token can be decoded.
bool Generator::next_fits() const noexcept {
  return options_.rollover != Rollover::stop || history_.size() - context_start_ <= cache_->capacity();
}

// Adds what decoder and stop strings hold back; bytes that never became a character may still complete a stop
// string.
void Generator::flush_text() {
  if (!stop_strings_.push(decoder_->flush(), text_)) stop_strings_.flush(text_);
}

}  // namespace riftco
