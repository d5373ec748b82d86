#include "io/safetensors.h"

#include <bit>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "io/table.h"

namespace riftco {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's integers are read as they lie");

constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr size_t kMaxRank = 8;
constexpr char kMetadataKey[] = "__metadata__";

struct Element {
  const char* name;
  uint32_t bits;
};
constexpr Element kElements[] = {{"BOOL", 8},    {"U8", 8},      {"I8", 8},   {"I16", 16},    {"U16", 16},
                                 {"I32", 32},    {"U32", 32},    {"I64", 64}, {"U64", 64},    {"F16", 16},
                                 {"BF16", 16},   {"F32", 32},    {"F64", 64}, {"C64", 64},    {"F8_E4M3", 8},
                                 {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}};

// The bits of an element, or 0 when the type is not known.
uint32_t element_bits(std::string_view dtype) noexcept {
  for (const Element& element : kElements)
    if (dtype == element.name) return element.bits;
  return 0;
}

// False when the size is no whole number of bytes or does not fit 64 bits.
bool tensor_bytes(const SafetensorsTensor& tensor, uint64_t& bytes) noexcept {
  uint64_t bits = element_bits(tensor.dtype);
  for (const uint64_t size : tensor.shape)
    if (__builtin_mul_overflow(bits, size, &bits)) return false;
  bytes = bits / 8;
  return bits % 8 == 0;
}

std::string shape_text(const SafetensorsTensor& tensor) {
  std::string text = tensor.dtype + "[";
  for (const uint64_t size : tensor.shape) text += (text.back() == '[' ? "" : ", ") + std::to_string(size);
  return text + "]";
}

// Takes the header's JSON event by event, so that memory follows the tensors and not a tree of values.
class HeaderParser : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderParser(const std::string& where, std::vector<SafetensorsTensor>& tensors,
               SafetensorsMetadata& metadata)
      : where_(where), tensors_(tensors), metadata_(metadata) {}

  bool null() override { refuse("null"); }
  bool boolean(bool value) override { refuse(value ? "true" : "false"); }
  bool number_integer(int64_t value) override { refuse(std::to_string(value).c_str()); }
  bool number_float(double value, const std::string&) override { refuse(format("%g", value).c_str()); }
  bool binary(binary_t&) override { refuse("binary data"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail(Status::corrupt_data, "%s: not valid JSON at byte %zu", where_.c_str(), position);
  }

  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::shape && place_ != Place::offsets) refuse(std::to_string(value).c_str());
    std::vector<uint64_t>& list = place_ == Place::shape ? tensors_.back().shape : offsets_;
    if (list.size() == (place_ == Place::shape ? kMaxRank : 2)) refuse("a longer list");
    list.push_back(value);
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::metadata) {
      if (!metadata_.try_emplace(std::move(key_), std::move(value)).second)
        refuse("a key that is there twice");
    } else if (place_ == Place::tensor && field_ == "dtype") {
      if (element_bits(value) == 0)
        fail(Status::unsupported, "%s: tensor %s has the unknown type %s", where_.c_str(),
             shown(key_).c_str(), shown(value).c_str());
      tensors_.back().dtype = std::move(value);
    } else {
      refuse(shown(value).c_str());
    }
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::top && key_ == kMetadataKey) {
      if (std::exchange(has_metadata_, true)) refuse("a second object");
      place_ = Place::metadata;
    } else if (place_ == Place::top) {
      place_ = Place::tensor;
      tensors_.emplace_back().name = key_;
      has_dtype_ = has_shape_ = has_offsets_ = false;
      offsets_.clear();
    } else {
      refuse("an object");
    }
    return true;
  }

  bool key(std::string& name) override {
    if (place_ != Place::tensor) {
      key_ = std::move(name);
      return true;
    }
    field_ = std::move(name);
    bool& seen = field_ == "dtype" ? has_dtype_ : field_ == "shape" ? has_shape_ : has_offsets_;
    if (&seen == &has_offsets_ && field_ != "data_offsets") refuse("an unknown field");
    if (std::exchange(seen, true)) refuse("a field that is there twice");
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::tensor || field_ == "dtype") refuse("a list");
    place_ = field_ == "shape" ? Place::shape : Place::offsets;
    return true;
  }

  bool end_array() override {
    place_ = Place::tensor;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      if (!has_dtype_ || !has_shape_ || offsets_.size() != 2)
        fail(Status::corrupt_data, "%s: tensor %s lacks a dtype, shape or two data_offsets", where_.c_str(),
             shown(key_).c_str());
      finish_tensor(tensors_.back());
    }
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

 private:
  enum class Place { outside, top, metadata, tensor, shape, offsets };

  [[noreturn]] void refuse(const char* found) const {
    fail(Status::corrupt_data, "%s: %s%s%s: found %s", where_.c_str(), shown(key_).c_str(),
         place_ >= Place::tensor ? ", " : "", place_ >= Place::tensor ? shown(field_).c_str() : "", found);
  }

  // Offsets are still relative to the data section.
  void finish_tensor(SafetensorsTensor& tensor) const {
    uint64_t expected;
    const bool fits = tensor_bytes(tensor, expected);
    if (offsets_[0] > offsets_[1] || !fits || offsets_[1] - offsets_[0] != expected)
      fail(Status::corrupt_data, "%s: tensor %s: data_offsets [%llu, %llu] do not hold %s", where_.c_str(),
           shown(key_).c_str(), Count(offsets_[0]), Count(offsets_[1]), shape_text(tensor).c_str());
    tensor.offset = offsets_[0];
    tensor.bytes = expected;
  }

  const std::string& where_;
  std::vector<SafetensorsTensor>& tensors_;
  SafetensorsMetadata& metadata_;
  Place place_ = Place::outside;
  std::string key_, field_;        // the latest key at the top or in the metadata, and in a tensor
  std::vector<uint64_t> offsets_;  // of the tensor at hand
  bool has_metadata_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
};

// Tensors must follow each other from 0 to the end of the data section.
void check_layout(const std::vector<SafetensorsTensor>& tensors, uint64_t data_bytes, const File& file) {
  std::vector<const SafetensorsTensor*> order;
  order.reserve(tensors.size());
  for (const SafetensorsTensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const SafetensorsTensor* a, const SafetensorsTensor* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  uint64_t end = 0;
  for (const SafetensorsTensor* tensor : order) {
    if (tensor->offset != end)
      fail(Status::corrupt_data, "%s: tensor %s starts at %llu of the data, but the one before ends at %llu",
           file.path().c_str(), shown(tensor->name).c_str(), Count(tensor->offset), Count(end));
    end += tensor->bytes;  // cannot wrap: it is that tensor's second data offset
  }
  if (end != data_bytes)
    fail(Status::corrupt_data, "%s: the tensors take %llu bytes, but the data section has %llu",
         file.path().c_str(), Count(end), Count(data_bytes));
}

std::string header_text(const SafetensorsMetadata& metadata, const std::vector<SafetensorsTensor>& tensors) {
  std::string text(8, '\0');  // the length, filled in at the end
  text += '{';
  if (!metadata.empty()) text += json_string(kMetadataKey) + ':' + json_object(metadata) + ',';
  uint64_t offset = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    text += json_string(tensor.name) + ":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[";
    for (const uint64_t size : tensor.shape) text += std::to_string(size) + ',';
    if (!tensor.shape.empty()) text.pop_back();
    text +=
        "],\"data_offsets\":[" + std::to_string(offset) + ',' + std::to_string(offset + tensor.bytes) + "]},";
    offset += tensor.bytes;
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t size = text.size() - 8;
  if (size > kMaxHeader)
    fail(Status::invalid_argument, "a safetensors header of %llu bytes exceeds the format's %llu",
         Count(size), Count(kMaxHeader));
  std::memcpy(text.data(), &size, 8);
  return text;
}

// Fills in sizes and offsets from the start of the data; refuses what a reader would refuse.
void lay_out(std::vector<SafetensorsTensor>& tensors) {
  uint64_t end = 0;
  std::vector<std::string_view> names;
  for (SafetensorsTensor& tensor : tensors) {
    const std::string name = shown(tensor.name);
    if (element_bits(tensor.dtype) == 0 || tensor.name == kMetadataKey)
      fail(Status::invalid_argument, "tensor %s of type %s cannot be stored", name.c_str(),
           tensor.dtype.c_str());
    tensor.offset = end;
    if (tensor.shape.size() > kMaxRank || !tensor_bytes(tensor, tensor.bytes) ||
        __builtin_add_overflow(end, tensor.bytes, &end) || end > INT64_MAX - 2 * kMaxHeader)
      fail(Status::invalid_argument, "tensor %s: %s cannot be stored", name.c_str(),
           shape_text(tensor).c_str());
    names.push_back(tensor.name);
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    fail(Status::invalid_argument, "two tensors are named %s", shown(*twice).c_str());
}

}  // namespace

SafetensorsReader::SafetensorsReader(std::shared_ptr<const File> file) : file_(std::move(file)) {
  const std::string& path = file_->path();
  if (file_->size() < 8)
    fail(Status::corrupt_data, "%s: %llu bytes are too few for a safetensors file", path.c_str(),
         Count(file_->size()));
  uint64_t header_bytes;
  file_->read_at(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  const uint64_t most = std::min(kMaxHeader, file_->size() - 8);
  if (header_bytes > most)
    fail(Status::corrupt_data, "%s: the header's length %llu exceeds %llu", path.c_str(), Count(header_bytes),
         Count(most));
  std::string header(header_bytes, '\0');
  file_->read_at(8, std::as_writable_bytes(std::span(header)));
  if (!header.starts_with('{'))
    fail(Status::corrupt_data, "%s: the header does not start with {", path.c_str());

  const std::string where = path + ": header";
  HeaderParser parser(where, tensors_, metadata_);
  sax_parse_json(header, where, parser);
  data_offset_ = 8 + header_bytes;
  check_layout(tensors_, file_->size() - data_offset_, *file_);
  by_name_ = sorted_by_name(tensors_, &SafetensorsTensor::name, *file_, "tensor");
  for (SafetensorsTensor& tensor : tensors_) tensor.offset += data_offset_;
}

const SafetensorsTensor* SafetensorsReader::find(std::string_view name) const noexcept {
  return find_by_name(tensors_, by_name_, &SafetensorsTensor::name, name);
}

DType SafetensorsReader::dtype(const SafetensorsTensor& tensor) const {
  if (tensor.dtype == "F32") return DType::f32;
  if (tensor.dtype == "F16") return DType::f16;
  if (tensor.dtype == "BF16") return DType::bf16;
  fail(Status::unsupported, "%s: tensor %s has type %s; F32, F16 and BF16 can be read", file_->path().c_str(),
       shown(tensor.name).c_str(), tensor.dtype.c_str());
}

void SafetensorsReader::read(const SafetensorsTensor& tensor, uint64_t at, std::span<std::byte> out) const {
  read_within(*file_, tensor.name, tensor.offset, tensor.bytes, at, out);
}

SafetensorsWriter::SafetensorsWriter(std::string_view path, const SafetensorsMetadata& metadata,
                                     std::vector<SafetensorsTensor> tensors)
    : file_(path), tensors_(std::move(tensors)) {
  lay_out(tensors_);
  const std::string header = header_text(metadata, tensors_);
  header_bytes_ = end_ = header.size();
  for (SafetensorsTensor& tensor : tensors_) {
    tensor.offset += header_bytes_;
    end_ += tensor.bytes;
  }
  file_.write(std::as_bytes(std::span(header)));
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  if (bytes.size() > end_ - file_.size())
    fail(Status::out_of_range, "%s: %zu bytes are more than the %llu that the tensors still lack",
         file_.path().c_str(), bytes.size(), Count(end_ - file_.size()));
  file_.write(bytes);
}

void SafetensorsWriter::rewrite_metadata(const SafetensorsMetadata& metadata) {
  const std::string header = header_text(metadata, tensors_);
  if (header.size() != header_bytes_)
    fail(Status::invalid_argument, "%s: the new header has %zu bytes, the first had %llu",
         file_.path().c_str(), header.size(), Count(header_bytes_));
  file_.write_at(0, std::as_bytes(std::span(header)));
}

void SafetensorsWriter::commit() {
  if (file_.size() != end_)
    fail(Status::invalid_state, "%s: %llu bytes of the tensors are not written yet", file_.path().c_str(),
         Count(end_ - file_.size()));
  file_.commit();
}

}  // namespace riftco
