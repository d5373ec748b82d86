#include "io/rift.h"

#include "base/error.h"
#include "base/json.h"
#include "io/checksum.h"
#include "io/metadata.h"
#include "io/table.h"

namespace riftco {

namespace {

constexpr char kFormat[] = "riftco.format", kConfig[] = "riftco.config", kTokenizer[] = "riftco.tokenizer",
               kStage[] = "riftco.stage", kParent[] = "riftco.parent", kTypes[] = "riftco.types",
               kWhat[] = "a .rift file";
constexpr unsigned kMajor = 1, kMinor = 0;

std::string optional(const SafetensorsReader& reader, const char* key) {
  const auto found = reader.metadata().find(std::string_view(key));
  return found == reader.metadata().end() ? "" : found->second;
}

// The quantised type called `name`.
const DType* quantised_type(std::string_view name) noexcept {
  for (const DType& type : kAllTypes)
    if (is_quantised(type) && name == dtype_info(type).name) return &type;
  return nullptr;
}

RiftTensor quantised_tensor(const SafetensorsReader& reader, const SafetensorsTensor& stored,
                            const std::string& name) {
  const DType* type = quantised_type(name);
  if (!type)
    fail(Status::unsupported, "%s: tensor %s has the unknown type %s", reader.file().path().c_str(),
         shown(stored.name).c_str(), shown(name).c_str());
  const DTypeInfo& info = dtype_info(*type);
  if (stored.dtype != "U8" || stored.shape.size() != 2 || stored.shape[1] % info.bytes != 0)
    fail(Status::corrupt_data,
         "%s: tensor %s of type %s is not stored as U8 rows of whole blocks of %u bytes",
         reader.file().path().c_str(), shown(stored.name).c_str(), info.name, info.bytes);
  // bytes / block bytes * block elements could wrap only with zero rows, for which any width was accepted.
  uint64_t width;
  if (__builtin_mul_overflow(stored.shape[1] / info.bytes, uint64_t(info.block), &width))
    fail(Status::corrupt_data, "%s: tensor %s has rows of %llu bytes", reader.file().path().c_str(),
         shown(stored.name).c_str(), Count(stored.shape[1]));
  return {stored.name, *type, {stored.shape[0], width}, stored.offset, stored.bytes};
}

// How a tensor lies in the safetensors file.
SafetensorsTensor stored(const RiftTensor& tensor) {
  static constexpr const char* kFloats[] = {"F32", "F16", "BF16"};
  if (!is_quantised(tensor.type)) return {tensor.name, kFloats[size_t(tensor.type)], tensor.shape};
  const DTypeInfo& info = dtype_info(tensor.type);
  if (tensor.shape.size() != 2 || tensor.shape[1] % info.block != 0)
    fail(Status::invalid_argument, "tensor %s of type %s is not rows of whole blocks of %u",
         shown(tensor.name).c_str(), info.name, info.block);
  return {tensor.name, "U8", {tensor.shape[0], row_bytes(tensor.type, tensor.shape[1])}};
}

std::vector<SafetensorsTensor> stored(const std::vector<RiftTensor>& tensors) {
  std::vector<SafetensorsTensor> list;
  for (const RiftTensor& tensor : tensors) list.push_back(stored(tensor));
  return list;
}

// With the checksum of nothing, which has the length of the right one, in its place.
SafetensorsMetadata stored(const RiftMetadata& metadata, const std::vector<RiftTensor>& tensors) {
  SafetensorsMetadata types;
  for (const RiftTensor& tensor : tensors)
    if (is_quantised(tensor.type)) types[tensor.name] = dtype_info(tensor.type).name;
  SafetensorsMetadata map{{kFormat, format("%u.%u", kMajor, kMinor)},
                          {kConfig, metadata.config},
                          {kChecksumKey, Checksum().text()}};
  if (!metadata.tokenizer.empty()) map[kTokenizer] = metadata.tokenizer;
  if (!metadata.stage.empty()) map[kStage] = metadata.stage;
  if (!metadata.parent.empty()) map[kParent] = metadata.parent;
  if (!types.empty()) map[kTypes] = json_object(types);
  return map;
}

}  // namespace

RiftReader::RiftReader(std::shared_ptr<const File> file, Progress* progress) : reader_(std::move(file)) {
  check_format_version(reader_, kFormat, kWhat, kMajor);
  Progress unheard("loading a .rift file");
  Progress& heard = progress ? *progress : unheard;
  heard.begin(2 * (reader_.file().size() - reader_.data_offset()));
  check_file_checksum(reader_, heard);
  metadata_ = {required_entry(reader_, kConfig, kWhat), optional(reader_, kTokenizer),
               optional(reader_, kStage), optional(reader_, kParent)};

  const std::string where = this->file().path() + ": " + kTypes, text = optional(reader_, kTypes);
  const nlohmann::json types = text.empty() ? nlohmann::json::object() : parse_json(text, where);
  if (!types.is_object()) fail(Status::corrupt_data, "%s: not an object", where.c_str());
  for (const auto& [name, type] : types.items())
    if (!type.is_string() || !reader_.find(name))
      fail(Status::corrupt_data, "%s: %s is no tensor or its type no text", where.c_str(),
           shown(name).c_str());
  for (const SafetensorsTensor& tensor : reader_.tensors()) {
    const auto type = types.find(tensor.name);
    tensors_.push_back(
        type != types.end()
            ? quantised_tensor(reader_, tensor, type->get_ref<const std::string&>())
            : RiftTensor{tensor.name, reader_.dtype(tensor), tensor.shape, tensor.offset, tensor.bytes});
  }
}

const RiftTensor* RiftReader::find(std::string_view name) const noexcept {
  const SafetensorsTensor* found = reader_.find(name);
  return found ? &tensors_[size_t(found - reader_.tensors().data())] : nullptr;
}

void RiftReader::read(const RiftTensor& tensor, uint64_t at, std::span<std::byte> out) const {
  read_within(file(), tensor.name, tensor.offset, tensor.bytes, at, out);
}

RiftWriter::RiftWriter(std::string_view path, const RiftMetadata& metadata,
                       const std::vector<RiftTensor>& tensors)
    : checksum_(std::make_unique<Checksum>()),
      metadata_(stored(metadata, tensors)),
      writer_(path, metadata_, stored(tensors)) {
  add_header(*checksum_, metadata_, writer_.tensors());
}

void RiftWriter::write(std::span<const std::byte> bytes) {
  writer_.write(bytes);
  checksum_->add(bytes);
}

void RiftWriter::commit() {
  metadata_[kChecksumKey] = checksum_->text();
  writer_.rewrite_metadata(metadata_);
  writer_.commit();
}

}  // namespace riftco
