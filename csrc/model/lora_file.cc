#include "model/lora_file.h"

#include <charconv>
#include <vector>

#include "base/folder.h"
#include "io/checksum.h"
#include "io/metadata.h"
#include "io/table.h"
#include "model/importers/lora_reader.h"
#include "model/save.h"

namespace riftco {
namespace {

constexpr char kFormat[] = "riftco.lora", kRank[] = "riftco.rank", kAlpha[] = "riftco.alpha",
               kWhat[] = "a file of adapters (PEFT's come as a folder)";
constexpr uint32_t kMajor = 1, kMinor = 0;

void write_native(const LoraAdapters& lora, std::string_view path) {
  std::vector<SafetensorsTensor> tensors;
  for (const ParameterInfo& p : lora.parameters().parameters())
    tensors.push_back({p.name, "F32", {p.rows, p.columns}});
  SafetensorsMetadata metadata{{kFormat, format("%u.%u", kMajor, kMinor)},
                               {kRank, std::to_string(lora.options().rank)},
                               {kAlpha, shortest_text(lora.options().alpha)},
                               {kChecksumKey, Checksum().text()}};
  SafetensorsWriter writer(path, metadata, std::move(tensors));
  Checksum checksum;
  add_header(checksum, metadata, writer.tensors());
  write_values(lora.parameters(), [&](std::span<const std::byte> bytes) {
    writer.write(bytes);
    checksum.add(bytes);
  });
  metadata[kChecksumKey] = checksum.text();
  writer.rewrite_metadata(metadata);
  writer.commit();
}

double alpha_entry(const SafetensorsReader& reader) {
  const std::string_view text = required_entry(reader, kAlpha, kWhat);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    fail(Status::corrupt_data, "%s: %s is %s, not a number", reader.file().path().c_str(), kAlpha,
         shown(text).c_str());
  return value;
}

std::shared_ptr<LoraAdapters> read_native(const DecoderOnlyTransformer& model,
                                          std::shared_ptr<const File> file) {
  const SafetensorsReader reader(std::move(file));
  check_format_version(reader, kFormat, kWhat, kMajor);
  Progress progress("loading adapters");
  check_file_checksum(reader, progress);
  const uint32_t rank = uint32_t(number_entry(reader, kRank, kWhat, UINT32_MAX));
  return read_lora(model, reader, rank, alpha_entry(reader), [](const std::string& linear) {
    return LoraTensors{linear + ".lora_a", linear + ".lora_b"};
  });
}

}  // namespace

void save_lora(const DecoderOnlyTransformer& model, std::string_view path) {
  const auto lock = model.reading();
  const LoraAdapters& lora = *attached_lora(model);
  if (path.ends_with(".safetensors")) return write_native(lora, path);
  if (!names_folder(path))
    fail(Status::invalid_argument,
         "%s: the suffix names no format of adapters; there are .safetensors and a folder",
         std::string(path).c_str());
  write_peft(model, path);
}

void load_lora(ModelChange& change, std::string_view path) {
  change.check_unadapted();
  change.set_lora(is_folder(path) ? read_peft(change.model(), path)
                                  : read_native(change.model(), std::make_shared<const File>(path)));
}

void load_lora(ModelChange& change, std::shared_ptr<const File> file) {
  change.check_unadapted();
  change.set_lora(read_native(change.model(), std::move(file)));
}

HuggingFaceFamily lora_family(const ModelConfig& config) {
  if (config.position == PositionKind::rotary) return HuggingFaceFamily::llama;
  if (config.activation == Activation::silu_gated)
    fail(Status::unsupported, "PEFT has no names for a model with learned positions and a gated MLP");
  return HuggingFaceFamily::gpt2;
}

std::string shortest_text(double value) {
  char text[32];
  return {text, std::to_chars(text, std::end(text), value).ptr};
}

void write_values(const ParameterStore& store, const std::function<void(std::span<const std::byte>)>& write) {
  std::vector<std::byte> values;
  for (size_t i = 0; i < store.parameters().size(); i++) {
    const ParameterInfo& p = store.parameters()[i];
    values.resize(p.rows * row_bytes(p.type, p.columns));
    store.get_rows(i, 0, p.rows, values.data());
    write(values);
  }
}

}  // namespace riftco
