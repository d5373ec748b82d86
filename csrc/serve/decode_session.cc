#include "serve/decode_session.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace riftco {
namespace {

using ull = unsigned long long;

void check_tokens(const DecoderOnlyTransformer& model, std::span<const uint32_t> tokens) {
  if (tokens.empty()) fail(Status::invalid_argument, "at least one token is needed");
  for (uint32_t token : tokens) model.check_token(token);
}

void check_room(std::span<float> logits, uint64_t rows, const DecoderOnlyTransformer& model) {
  const uint32_t vocabulary = model.config().vocabulary_size;
  if (logits.size() / vocabulary < rows)
    fail(Status::buffer_too_small, "%llu rows of %u logits do not fit into %zu floats", ull(rows), vocabulary,
         logits.size());
}

// One transaction over all tokens, in blocks of rows. want(i, row) sets the outputs of row i.
template <class Want>
void run_rows(const DecoderOnlyTransformer& model, KeyValueCache& cache, std::span<const uint32_t> tokens,
              const CancelFlag* cancel, Want&& want) {
  KvTransaction transaction(cache, tokens.size());
  const CacheView view = cache.view();
  std::array<StepRow, kMaxBlockRows> rows;
  for (size_t done = 0; done < tokens.size();) {
    const size_t count = std::min(tokens.size() - done, rows.size());
    for (size_t i = 0; i < count; ++i) {
      rows[i] = {tokens[done + i], uint32_t(cache.length() + done + i), 0};
      want(done + i, rows[i]);
    }
    model.run({{rows.data(), count}, {&view, 1}, {&cancel, size_t(cancel ? 1 : 0)}});
    done += count;
  }
  cache.mark_written();
  transaction.commit();
}

// An empty cache for a whole sequence.
std::unique_ptr<KeyValueCache> sequence_cache(const DecoderOnlyTransformer& model,
                                              std::span<const uint32_t> tokens) {
  check_tokens(model, tokens);
  if (tokens.size() > model.config().maximum_context)
    fail(Status::context_full, "%zu tokens do not fit the model's context of %u", tokens.size(),
         model.config().maximum_context);
  const uint32_t length = uint32_t(tokens.size());
  model.reserve(length);
  return ContiguousKvCacheFactory(model.device(), model.kv_geometry(length), length).create();
}

uint32_t resolve_context(const DecoderOnlyTransformer& model, uint64_t maximum_context) {
  const uint32_t largest = model.config().maximum_context;
  if (maximum_context > largest)
    fail(Status::out_of_range, "a maximum context of %llu tokens is more than the model's %u",
         ull(maximum_context), largest);
  return maximum_context ? uint32_t(maximum_context) : largest;
}

std::shared_ptr<KeyValueCacheFactory> session_factory(const DecoderOnlyTransformer& model,
                                                      const DecodeSessionOptions& options) {
  if (!options.factory)
    return make_kv_cache_factory(
        model, {options.kind, options.page_size, 0, options.maximum_context, options.element});
  const KeyValueCacheFactory& factory = *options.factory;
  if (options.kind != factory.kind() && options.kind != KvCacheKind::paged)
    fail(Status::invalid_argument, "cache kind %d is not the factory's %d", int(options.kind),
         int(factory.kind()));
  if (options.page_size != factory.page_size() && options.page_size != kDefaultPageSize &&
      options.page_size != 0)
    fail(Status::invalid_argument, "a block size of %llu is not the factory's %u", ull(options.page_size),
         factory.page_size());
  if (options.element != factory.element() && options.element != DType::f32)
    fail(Status::invalid_argument, "an element type of %s is not the factory's %s",
         dtype_info(options.element).name, dtype_info(factory.element()).name);
  factory.check(model.device(), model.kv_geometry(factory.page_size()), model.config().maximum_context);
  return options.factory;
}

}  // namespace

std::shared_ptr<KeyValueCacheFactory> make_kv_cache_factory(const DecoderOnlyTransformer& model,
                                                            const KvCacheFactoryOptions& options) {
  const uint32_t context = resolve_context(model, options.maximum_context);
  const uint64_t page_size = options.page_size;
  if (options.kind == KvCacheKind::contiguous) {
    if (page_size != 0 && page_size != kDefaultPageSize && page_size != context)
      fail(Status::invalid_argument,
           "a contiguous cache has one block of its maximum context of %u tokens, not of %llu", context,
           ull(page_size));
    if (options.page_count != 0)
      fail(Status::invalid_argument, "contiguous caches have no block count (%llu given)",
           ull(options.page_count));
    return std::make_shared<ContiguousKvCacheFactory>(
        model.device(), model.kv_geometry(context, options.element), context, options.memory_limit);
  }
  if (options.kind != KvCacheKind::paged)
    fail(Status::invalid_argument, "there is no cache kind %d", int(options.kind));
  if (page_size == 0) fail(Status::invalid_argument, "a block needs at least one token");
  if (page_size > UINT32_MAX)
    fail(Status::out_of_range, "a block size of %llu is more than %u", ull(page_size), UINT32_MAX);
  return std::make_shared<PagedKvCachePool>(model.device(),
                                            model.kv_geometry(uint32_t(page_size), options.element), context,
                                            options.page_count, options.memory_limit);
}

DecodeSession::DecodeSession(std::shared_ptr<const DecoderOnlyTransformer> model,
                             const DecodeSessionOptions& options)
    : hold_(std::move(model)),
      factory_(session_factory(this->model(), options)),
      cache_(factory_->create(options.maximum_context)),
      cancel_(options.cancel) {
  this->model().reserve(capacity());
}

DecodeSession::DecodeSession(const DecodeSession& other, std::unique_ptr<KeyValueCache> cache)
    : hold_(other.hold_.model()),
      factory_(other.factory_),
      cache_(std::move(cache)),
      cancel_(other.cancel_) {}

std::unique_ptr<DecodeSession> DecodeSession::fork() const {
  return std::unique_ptr<DecodeSession>(new DecodeSession(*this, cache_->fork()));
}

void DecodeSession::prefill(std::span<const uint32_t> tokens, std::span<float> logits) {
  check_tokens(model(), tokens);
  check_room(logits, 1, model());
  forward_tokens(model(), *cache_, tokens, cancel_, logits.data());
}

void DecodeSession::hidden_states(std::span<const uint32_t> tokens, uint64_t first, std::span<float> states) {
  check_tokens(model(), tokens);
  if (first >= tokens.size())
    fail(Status::out_of_range, "token %llu is not one of the %zu given", ull(first), tokens.size());
  const size_t width = model().config().width;
  if (states.size() / width < tokens.size() - first)
    fail(Status::buffer_too_small, "%zu hidden states of width %zu do not fit into %zu floats",
         tokens.size() - size_t(first), width, states.size());
  run_rows(model(), *cache_, tokens, cancel_, [&](size_t row, StepRow& step) {
    if (row >= first) step.hidden = states.data() + (row - first) * width;
  });
}

void DecodeSession::step_many(std::span<DecodeSession* const> sessions, std::span<const uint32_t> tokens,
                              std::span<float> logits) {
  if (sessions.empty()) fail(Status::invalid_argument, "at least one session is needed");
  for (size_t i = 0; i < sessions.size(); ++i)
    if (!sessions[i]) fail(Status::invalid_argument, "session %zu is null", i);
  if (tokens.size() != sessions.size())
    fail(Status::invalid_argument, "%zu sessions got %zu tokens", sessions.size(), tokens.size());

  // Whatever happens, no transaction and no mark is left.
  struct Cleanup {
    std::span<DecodeSession* const> sessions;
    ~Cleanup() {
      for (DecodeSession* session : sessions) {
        session->cache_->abort_tokens();
        session->in_batch_ = false;
      }
    }
  } const cleanup{sessions};

  const DecoderOnlyTransformer& model = sessions[0]->model();
  for (size_t i = 0; i < sessions.size(); ++i) {
    if (&sessions[i]->model() != &model)
      fail(Status::invalid_argument, "session %zu is of another model than session 0", i);
    if (std::exchange(sessions[i]->in_batch_, true))
      fail(Status::invalid_argument, "session %zu is in the batch twice", i);
  }
  check_tokens(model, tokens);
  check_room(logits, sessions.size(), model);
  for (DecodeSession* session : sessions) session->cache_->begin_token();
  run_batch(sessions, tokens, logits);
  for (DecodeSession* session : sessions) {
    session->cache_->mark_written();
    session->cache_->commit_token();
  }
}

void DecodeSession::run_batch(std::span<DecodeSession* const> sessions, std::span<const uint32_t> tokens,
                              std::span<float> logits) {
  const DecoderOnlyTransformer& model = sessions[0]->model();
  const auto check_all = [&] {  // within a block, only the flags of its own sessions are seen
    for (DecodeSession* session : sessions) check_cancel(session->cancel_, "the step");
  };
  std::array<StepRow, kMaxBlockRows> rows;
  std::array<CacheView, kMaxBlockRows> views;
  std::array<const CancelFlag*, kMaxBlockRows> flags;
  for (size_t done = 0; done < sessions.size();) {
    const size_t count = std::min(sessions.size() - done, rows.size());
    size_t flag_count = 0;
    for (size_t i = 0; i < count; ++i) {
      const KeyValueCache& cache = *sessions[done + i]->cache_;
      if (const CancelFlag* flag = sessions[done + i]->cancel_) flags[flag_count++] = flag;
      views[i] = cache.view();
      rows[i] = {tokens[done + i], cache.length(), uint32_t(i),
                 &logits[(done + i) * model.config().vocabulary_size]};
    }
    check_all();
    model.run({{rows.data(), count}, {views.data(), count}, {flags.data(), flag_count}});
    done += count;
  }
  check_all();
}

void forward_tokens(const DecoderOnlyTransformer& model, KeyValueCache& cache,
                    std::span<const uint32_t> tokens, const CancelFlag* cancel, float* logits) {
  run_rows(model, cache, tokens, cancel,
           [&](size_t row, StepRow& step) { step.logits = row + 1 == tokens.size() ? logits : nullptr; });
}

void forward_each(const DecoderOnlyTransformer& model, KeyValueCache& cache, std::span<const uint32_t> tokens,
                  const CancelFlag* cancel, float* logits) {
  const size_t vocabulary = model.config().vocabulary_size;
  run_rows(model, cache, tokens, cancel,
           [&](size_t row, StepRow& step) { step.logits = logits + row * vocabulary; });
}

void sequence_logits(const std::shared_ptr<const DecoderOnlyTransformer>& model,
                     std::span<const uint32_t> tokens, const CancelFlag* cancel, std::span<float> logits) {
  const SessionHold hold(model);
  check_room(logits, tokens.size(), *model);
  const auto cache = sequence_cache(*model, tokens);
  forward_each(*model, *cache, tokens, cancel, logits.data());
}

void each_logits(const std::shared_ptr<const DecoderOnlyTransformer>& model, std::span<const uint32_t> tokens,
                 const CancelFlag* cancel,
                 const std::function<void(size_t token, std::span<const float> logits)>& see) {
  constexpr size_t kPiece = 64;  // tokens: some 13 MB of logits of a large vocabulary
  const SessionHold hold(model);
  const auto cache = sequence_cache(*model, tokens);
  const size_t vocabulary = model->config().vocabulary_size;
  std::vector<float> logits(std::min(kPiece, tokens.size()) * vocabulary);
  for (size_t first = 0; first < tokens.size(); first += kPiece) {
    const size_t count = std::min(kPiece, tokens.size() - first);
    forward_each(*model, *cache, tokens.subspan(first, count), cancel, logits.data());
    for (size_t i = 0; i < count; ++i) see(first + i, std::span(logits).subspan(i * vocabulary, vocabulary));
  }
}

}  // namespace riftco
