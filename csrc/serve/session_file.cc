#include "serve/session_file.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "io/checksum.h"
#include "io/metadata.h"
#include "io/safetensors.h"
#include "io/table.h"

namespace riftco {
namespace {

constexpr char kFormat[] = "riftco.session", kModel[] = "riftco.model",
               kContract[] = "riftco.kernel_contract", kWhat[] = "a saved session";
constexpr uint32_t kMajor = 1, kMinor = 0;
constexpr const char* kTypes[] = {"F32", "F16", "BF16"};

std::string tensor_name(uint32_t layer, bool values) {
  return format("layers.%u.%s", layer, values ? "values" : "keys");
}

std::vector<SafetensorsTensor> tensor_table(const KvGeometry& g, uint64_t tokens) {
  std::vector<SafetensorsTensor> tensors;
  for (uint32_t layer = 0; layer < g.layers; ++layer)
    for (bool values : {false, true})
      tensors.push_back(
          {tensor_name(layer, values), kTypes[size_t(g.element)], {tokens, g.kv_heads, g.head_width}});
  return tensors;
}

// Floats to elements; exact for values that came from elements.
void narrow(DType element, std::span<const float> values, std::vector<std::byte>& out) {
  if (element == DType::f32) {
    out.assign(std::as_bytes(values).begin(), std::as_bytes(values).end());
    return;
  }
  out.resize(values.size() * 2);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = element == DType::f16 ? float_to_half(values[i]) : float_to_bf16(values[i]);
    std::memcpy(&out[2 * i], &bits, 2);
  }
}

// Tokens at a time, so that a piece has about 256 KiB of floats.
uint32_t piece_tokens(const KvGeometry& g) {
  const uint64_t width = uint64_t(g.kv_heads) * g.head_width;
  return uint32_t(std::clamp<uint64_t>((uint64_t(1) << 16) / width, 1, kMaxBlockRows));
}

// Everything but the tensors.
void check_metadata(const SafetensorsReader& reader, const DecoderOnlyTransformer& model, uint32_t contract,
                    const CancelFlag* cancel) {
  const std::string& path = reader.file().path();
  check_format_version(reader, kFormat, kWhat, kMajor);
  Progress progress("loading a session", cancel);
  check_file_checksum(reader, progress);
  const uint64_t found = number_entry(reader, kContract, kWhat, UINT32_MAX);
  if (found != contract)
    fail(Status::version_mismatch,
         "%s: saved under kernel contract %llu; this library's %u computes other bits", path.c_str(),
         Count(found), contract);
  if (const std::string& saved = required_entry(reader, kModel, kWhat); saved != model.fingerprint())
    fail(Status::invalid_argument, "%s: saved from another model: its fingerprint is %s, this model's %s",
         path.c_str(), shown(saved).c_str(), model.fingerprint().c_str());
}

// The file's tensors are exactly the table of `tokens` tokens of one element type, which is set in `g`.
uint64_t check_tensors(const SafetensorsReader& reader, KvGeometry& g) {
  const std::string& path = reader.file().path();
  const SafetensorsTensor* first = reader.find(tensor_name(0, false));
  if (!first || first->shape.size() != 3)
    fail(Status::corrupt_data, "%s: tensor %s is missing or has not three dimensions", path.c_str(),
         tensor_name(0, false).c_str());
  g.element = reader.dtype(*first);
  const uint64_t tokens = first->shape[0];
  const std::vector<SafetensorsTensor> expected = tensor_table(g, tokens);
  for (const SafetensorsTensor& tensor : expected) {
    const SafetensorsTensor* found = reader.find(tensor.name);
    if (!found || found->dtype != tensor.dtype || found->shape != tensor.shape)
      fail(Status::corrupt_data, "%s: tensor %s is missing or is not %s [%llu, %u, %u]", path.c_str(),
           tensor.name.c_str(), tensor.dtype.c_str(), Count(tokens), g.kv_heads, g.head_width);
  }
  if (reader.tensors().size() != expected.size())
    fail(Status::corrupt_data, "%s: %zu tensors, not %zu", path.c_str(), reader.tensors().size(),
         expected.size());
  return tokens;
}

// Reads elements and widens them.
void read_piece(const SafetensorsReader& reader, const std::string& name, DType element, uint64_t first_value,
                std::span<float> out, std::vector<std::byte>& bytes) {
  const size_t size = dtype_info(element).bytes;
  bytes.resize(out.size() * size);
  reader.read(*reader.find(name), first_value * size, bytes);
  dequantise(element, bytes.data(), out);
}

// Into the open transaction of an empty cache.
void fill(const SafetensorsReader& reader, const KernelTable& kernels, const CacheView& view, uint32_t tokens,
          const CancelFlag* cancel) {
  const KvGeometry& g = *view.geometry;
  const uint32_t piece = piece_tokens(g);
  const size_t width = size_t(g.kv_heads) * g.head_width;
  std::vector<float> keys(piece * width), values(piece * width);
  std::vector<AttentionRow> rows(piece);
  std::vector<std::byte> bytes;
  for (uint32_t layer = 0; layer < g.layers; ++layer)
    for (uint32_t done = 0; done < tokens; done += piece) {
      check_cancel(cancel, "loading a session");
      const uint32_t count = std::min(piece, tokens - done);
      for (uint32_t i = 0; i < count; ++i) rows[i] = {&view, done + i};
      read_piece(reader, tensor_name(layer, false), g.element, done * width,
                 std::span(keys).first(count * width), bytes);
      read_piece(reader, tensor_name(layer, true), g.element, done * width,
                 std::span(values).first(count * width), bytes);
      StoreArgs args{};  // no queries, norms or rotation: keys are stored as they were saved
      args.rows = rows.data();
      args.row_count = count;
      args.layer = layer;
      args.kv_heads = g.kv_heads;
      args.head_width = g.head_width;
      args.k = keys.data();
      args.v = values.data();
      if (!kernels.store(args, {}))
        fail(Status::corrupt_data,
             "%s: layer %u has a key or value that is not finite between tokens %u and %u",
             reader.file().path().c_str(), layer, done, done + count - 1);
    }
}

}  // namespace

void save_session(const DecodeSession& session, uint32_t contract, std::string_view path) {
  const CacheView view = session.cache().view();
  const KvGeometry& g = *view.geometry;
  const KernelTable& kernels = *session.model().device().kernels;
  SafetensorsMetadata metadata{{kFormat, format("%u.%u", kMajor, kMinor)},
                               {kModel, session.model().fingerprint()},
                               {kContract, format("%u", contract)},
                               {kChecksumKey, Checksum().text()}};
  SafetensorsWriter writer(path, metadata, tensor_table(g, session.size()));
  Checksum checksum;
  add_header(checksum, metadata, writer.tensors());
  const uint32_t piece = piece_tokens(g);
  const size_t width = size_t(g.kv_heads) * g.head_width;
  std::vector<float> keys(piece * width), values(piece * width);
  std::vector<std::byte> bytes;
  for (uint32_t layer = 0; layer < g.layers; ++layer)
    for (bool wants_values : {false, true})
      for (uint32_t done = 0; done < session.size(); done += piece) {
        const uint32_t count = std::min(piece, session.size() - done);
        for (uint32_t i = 0; i < count; ++i)
          kernels.kv_read(view, layer, done + i, &keys[i * width], &values[i * width]);
        narrow(g.element, std::span(wants_values ? values : keys).first(count * width), bytes);
        writer.write(bytes);
        checksum.add(bytes);
      }
  metadata[kChecksumKey] = checksum.text();
  writer.rewrite_metadata(metadata);
  writer.commit();
}

std::unique_ptr<DecodeSession> load_session(std::shared_ptr<const DecoderOnlyTransformer> model,
                                            DecodeSessionOptions options, uint32_t contract,
                                            std::string_view path) {
  const SessionHold hold(model);  // so that its parameters stay what is checked
  const SafetensorsReader reader(std::make_shared<File>(path));
  check_metadata(reader, *model, contract, options.cancel);
  KvGeometry geometry = model->kv_geometry(0);
  const uint64_t tokens = check_tensors(reader, geometry);
  const DType wanted = options.factory ? options.factory->element() : options.element;
  if (wanted != geometry.element && (options.factory || wanted != DType::f32))
    fail(Status::invalid_argument, "%s: keys and values are %s, the cache's %s", reader.file().path().c_str(),
         dtype_info(geometry.element).name, dtype_info(wanted).name);
  options.element = geometry.element;
  auto session = std::make_unique<DecodeSession>(std::move(model), options);
  if (tokens == 0) return session;
  session->restore(tokens, [&](const CacheView& view) {
    fill(reader, *session->model().device().kernels, view, uint32_t(tokens), options.cancel);
  });
  return session;
}

}  // namespace riftco
