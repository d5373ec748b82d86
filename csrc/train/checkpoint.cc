#include "train/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/progress.h"
#include "io/checksum.h"
#include "io/metadata.h"
#include "io/table.h"
#include "train/optimizer.h"

namespace riftco {
namespace {

constexpr char kFormat[] = "riftco.checkpoint", kConfig[] = "riftco.config", kStep[] = "riftco.step",
               kState[] = "riftco.state", kRank[] = "riftco.lora.rank", kTargets[] = "riftco.lora.targets",
               kAlpha[] = "riftco.lora.alpha", kBase[] = "riftco.lora.base", kWhat[] = "a checkpoint";
constexpr uint32_t kMajor = 1, kMinor = 0;
constexpr const char* kKinds[] = {"parameter.", "moment1.", "moment2."};

// How number `kind` of kKinds of a parameter lies in the file.
SafetensorsTensor stored(int kind, const ParameterInfo& p) {
  SafetensorsTensor tensor{kKinds[kind] + p.name, "F32", {p.rows, p.columns}};
  if (p.is_vector) tensor.shape.erase(tensor.shape.begin());
  return tensor;
}

// Calls f(kind, index) for each tensor of a checkpoint in the file's order.
template <class F>
void each_tensor(const ParameterStore& store, F&& f) {
  for (int kind = 0; kind < 3; kind++)
    for (size_t i = 0; i < store.parameters().size(); i++)
      if (is_trained(store.parameters()[i])) f(kind, i);
}

// Calls f(first row, rows, bytes) for pieces of about a MiB of a parameter.
template <class F>
void each_piece(const ParameterInfo& p, std::vector<std::byte>& bytes, F&& f) {
  const size_t row = size_t(4) * p.columns;
  const uint32_t piece = uint32_t(std::clamp<size_t>((size_t(1) << 20) / row, 1, p.rows));
  for (uint32_t first = 0; first < p.rows; first += piece) {
    const uint32_t rows = std::min(piece, p.rows - first);
    bytes.resize(rows * row);
    f(first, rows, row);
  }
}

// With the checksum of nothing, which has the length of the right one, in its place.
SafetensorsMetadata metadata_of(const CheckpointOrigin& origin, uint64_t step, std::string_view state) {
  if (state.size() > kMaxStateBytes)
    fail(Status::invalid_argument, "the state's %zu bytes are more than %zu", state.size(), kMaxStateBytes);
  SafetensorsMetadata metadata{{kFormat, format("%u.%u", kMajor, kMinor)},
                               {kConfig, config_to_json(origin.config)},
                               {kStep, std::to_string(step)},
                               {kState, std::string(state)},
                               {kChecksumKey, Checksum().text()}};
  if (origin.lora)
    metadata.insert({{kRank, std::to_string(origin.lora->rank)},
                     {kTargets, std::to_string(origin.lora->targets)},
                     {kAlpha, format("%.17g", origin.lora->alpha)},
                     {kBase, origin.lora->base}});
  return metadata;
}

// Adapters like the trainer's, on the same weights.
void check_lora(const SafetensorsReader& reader, const CheckpointOrigin::Lora& lora) {
  const char* path = reader.file().path().c_str();
  const uint64_t rank = number_entry(reader, kRank, kWhat, UINT32_MAX);
  const uint64_t targets = number_entry(reader, kTargets, kWhat, UINT32_MAX);
  const std::string &alpha = required_entry(reader, kAlpha, kWhat),
                    &base = required_entry(reader, kBase, kWhat);
  if (rank != lora.rank || targets != lora.targets || alpha != format("%.17g", lora.alpha))
    fail(Status::invalid_argument,
         "%s: of adapters of rank %llu, targets %llu and alpha %s; the model's have rank %u, targets %u and "
         "alpha %.17g",
         path, Count(rank), Count(targets), shown(alpha).c_str(), lora.rank, lora.targets, lora.alpha);
  if (base != lora.base)
    fail(Status::invalid_argument,
         "%s: of adapters of other weights: their fingerprint is %s, this model's %s", path,
         shown(base).c_str(), lora.base.c_str());
}

void check_origin(const SafetensorsReader& reader, const CheckpointOrigin& origin) {
  const char* path = reader.file().path().c_str();
  const ModelConfig config = config_from_json(required_entry(reader, kConfig, kWhat), reader.file().path());
  if (config != origin.config)
    fail(Status::invalid_argument, "%s: of another model: its config is %s, this model's %s", path,
         config_to_json(config).c_str(), config_to_json(origin.config).c_str());
  const bool has_lora = reader.metadata().contains(kRank);
  if (has_lora != origin.lora.has_value())
    fail(Status::invalid_argument,
         has_lora ? "%s: of adapters; this trainer trains all parameters"
                  : "%s: of all parameters; this trainer trains adapters",
         path);
  if (has_lora) check_lora(reader, *origin.lora);
}

// The file's tensors are exactly those of the store's parameters.
void check_tensors(const SafetensorsReader& reader, const ParameterStore& store) {
  const char* path = reader.file().path().c_str();
  size_t count = 0;
  each_tensor(store, [&](int kind, size_t i) {
    const SafetensorsTensor expected = stored(kind, store.parameters()[i]);
    const SafetensorsTensor* found = reader.find(expected.name);
    if (!found || found->dtype != expected.dtype || found->shape != expected.shape)
      fail(Status::corrupt_data, "%s: tensor %s is missing, not F32 or not of the parameter's shape", path,
           expected.name.c_str());
    count++;
  });
  if (reader.tensors().size() != count)
    fail(Status::corrupt_data, "%s: %zu tensors, not %zu", path, reader.tensors().size(), count);
}

void read_tensor(const SafetensorsReader& reader, int kind, ParameterStore& store, size_t index,
                 std::vector<std::byte>& bytes, Progress& progress) {
  const ParameterInfo& p = store.parameters()[index];
  const SafetensorsTensor& tensor = *reader.find(kKinds[kind] + p.name);
  each_piece(p, bytes, [&](uint32_t first, uint32_t rows, size_t row) {
    progress.advance(bytes.size());
    reader.read(tensor, first * row, bytes);
    for (const float v : std::span(reinterpret_cast<const float*>(bytes.data()), bytes.size() / 4))
      if (!std::isfinite(v) || (kind == 2 && v < 0))
        fail(Status::corrupt_data, "%s: tensor %s has the value %g", reader.file().path().c_str(),
             tensor.name.c_str(), double(v));
    store.set_rows(index, first, rows, bytes.data());
  });
}

}  // namespace

void write_checkpoint(std::string_view path, const CheckpointOrigin& origin, uint64_t step,
                      std::string_view state, const CheckpointStores<const ParameterStore>& stores,
                      const CancelFlag* cancel) {
  Progress progress("saving a checkpoint", cancel);
  SafetensorsMetadata metadata = metadata_of(origin, step, state);
  std::vector<SafetensorsTensor> tensors;
  each_tensor(stores.parameters, [&](int kind, size_t i) {
    tensors.push_back(stored(kind, stores.parameters.parameters()[i]));
  });
  SafetensorsWriter writer(path, metadata, std::move(tensors));
  Checksum checksum;
  add_header(checksum, metadata, writer.tensors());
  std::vector<std::byte> bytes;
  const ParameterStore* const by_kind[] = {&stores.parameters, &stores.moment1, &stores.moment2};
  each_tensor(stores.parameters, [&](int kind, size_t i) {
    const ParameterStore& store = *by_kind[kind];
    each_piece(store.parameters()[i], bytes, [&](uint32_t first, uint32_t rows, size_t) {
      progress.advance(bytes.size());
      store.get_rows(i, first, rows, bytes.data());
      writer.write(bytes);
      checksum.add(bytes);
    });
  });
  progress.finish();
  metadata[kChecksumKey] = checksum.text();
  writer.rewrite_metadata(metadata);
  writer.commit();
}

uint64_t read_checkpoint(std::string_view path, const CheckpointOrigin& origin,
                         const CheckpointStores<ParameterStore>& stores, const CancelFlag* cancel) {
  Progress progress("loading a checkpoint", cancel);
  const SafetensorsReader reader(std::make_shared<File>(path));
  check_format_version(reader, kFormat, kWhat, kMajor);
  const uint64_t step = number_entry(reader, kStep, kWhat, kMaxStep);
  check_origin(reader, origin);
  check_tensors(reader, stores.parameters);
  check_file_checksum(reader, progress);
  std::vector<std::byte> bytes;
  ParameterStore* const by_kind[] = {&stores.parameters, &stores.moment1, &stores.moment2};
  each_tensor(stores.parameters,
              [&](int kind, size_t i) { read_tensor(reader, kind, *by_kind[kind], i, bytes, progress); });
  progress.finish();
  return step;
}

std::string checkpoint_state(std::string_view path) {
  const SafetensorsReader reader(std::make_shared<File>(path));
  check_format_version(reader, kFormat, kWhat, kMajor);
  return required_entry(reader, kState, kWhat);
}

}  // namespace riftco
