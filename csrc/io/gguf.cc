#include "io/gguf.h"

#include <strings.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "io/table.h"

namespace riftco {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's integers are read as they lie");

constexpr uint64_t kFirstRead = 1 << 20;
constexpr uint64_t kMaxHeader = 256 << 20;  // a vocabulary of 256k tokens takes about 15 MiB
constexpr uint64_t kMaxKey = 65535;         // the format's own limit
constexpr uint64_t kMaxTensorName = 256;
constexpr uint32_t kMaxRank = 4;
constexpr uint64_t kDefaultAlignment = 32;

struct ValueType {
  const char* name;
  uint32_t bytes;  // of one value; 0: of varying size
};
constexpr ValueType kValueTypes[] = {{"u8", 1},  {"i8", 1},  {"u16", 2},  {"i16", 2},    {"u32", 4},
                                     {"i32", 4}, {"f32", 4}, {"bool", 1}, {"string", 0}, {"array", 0},
                                     {"u64", 8}, {"i64", 8}, {"f64", 8}};

struct TensorType {
  uint32_t number;
  const char* name;
  uint32_t block;  // elements
  uint32_t bytes;  // of a block
};
constexpr TensorType kTensorTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},     {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},     {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},  {14, "Q6_K", 256, 210},
    {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74}, {18, "IQ3_XXS", 256, 98},
    {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110}, {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},       {26, "I32", 1, 4},
    {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},  {30, "BF16", 1, 2},
    {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},   {40, "NVFP4", 64, 36},
    {41, "Q1_0", 128, 18}};

const TensorType* tensor_type(uint32_t number) noexcept {
  for (const TensorType& type : kTensorTypes)
    if (type.number == number) return &type;
  return nullptr;
}

template <class T>
T load(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

bool is_integer(GgufType type) noexcept {
  return type <= GgufType::i32 || type == GgufType::u64 || type == GgufType::i64;
}
bool is_float(GgufType type) noexcept { return type == GgufType::f32 || type == GgufType::f64; }

// Value `index` of an integer entry; false when it does not fit.
bool integer_at(const GgufEntry& entry, uint64_t index, int64_t& value) noexcept {
  const std::byte* at = entry.data.data() + index * kValueTypes[size_t(entry.type)].bytes;
  switch (entry.type) {
    case GgufType::u8:
      value = load<uint8_t>(at);
      break;
    case GgufType::i8:
      value = load<int8_t>(at);
      break;
    case GgufType::u16:
      value = load<uint16_t>(at);
      break;
    case GgufType::i16:
      value = load<int16_t>(at);
      break;
    case GgufType::u32:
      value = load<uint32_t>(at);
      break;
    case GgufType::i32:
      value = load<int32_t>(at);
      break;
    case GgufType::u64:
      value = load<int64_t>(at);
      return value >= 0;
    default:
      value = load<int64_t>(at);
      break;
  }
  return true;
}

double float_at(const GgufEntry& entry, uint64_t index) noexcept {
  return entry.type == GgufType::f32 ? double(load<float>(entry.data.data() + 4 * index))
                                     : load<double>(entry.data.data() + 8 * index);
}

std::string number_text(const GgufEntry& entry, uint64_t index) {
  if (entry.type == GgufType::boolean) return entry.data[index] == std::byte{0} ? "false" : "true";
  if (entry.type == GgufType::u64) return std::to_string(load<uint64_t>(entry.data.data() + 8 * index));
  if (is_float(entry.type)) {
    char text[32];  // the shortest that reads back to the same value
    const double value = float_at(entry, index);
    const auto end = entry.type == GgufType::f32 ? std::to_chars(text, std::end(text), float(value))
                                                 : std::to_chars(text, std::end(text), value);
    return {text, end.ptr};
  }
  int64_t value = 0;
  integer_at(entry, index, value);
  return std::to_string(value);
}

std::string_view string_at(const std::byte* at) noexcept {
  return {reinterpret_cast<const char*>(at + 8), load<uint64_t>(at)};
}

// What an entry holds, for messages.
std::string entry_text(const GgufEntry& entry) {
  const char* type = gguf_type_name(entry.type);
  if (entry.is_array) return format("an array of %llu %s", Count(entry.count), type);
  if (entry.type == GgufType::string) return "the string " + shown(string_at(entry.data.data()));
  if (is_float(entry.type)) return format("%s %g", type, float_at(entry, 0));
  if (entry.type == GgufType::boolean) return entry.data[0] == std::byte{0} ? "false" : "true";
  if (entry.type == GgufType::u64) return format("u64 %llu", Count(load<uint64_t>(entry.data.data())));
  int64_t value = 0;
  integer_at(entry, 0, value);
  return format("%s %lld", type, static_cast<long long>(value));
}

}  // namespace

// Walks the header once, reading the file in growing pieces; every length is checked before it is used.
class GgufParser {
 public:
  explicit GgufParser(GgufReader& reader)
      : out_(reader), file_(*reader.file_), limit_(std::min(file_.size(), kMaxHeader)) {}

  void run() {
    if (file_.size() < 4 || take<uint32_t>("magic") != 0x46554747)  // "GGUF"
      fail(Status::corrupt_data, "%s: not a GGUF file", file_.path().c_str());
    out_.version_ = take<uint32_t>("version");
    if (out_.version_ == 0x02000000 || out_.version_ == 0x03000000)
      fail(Status::unsupported, "%s: big-endian GGUF files cannot be read", file_.path().c_str());
    if (out_.version_ != 2 && out_.version_ != 3)
      fail(Status::version_mismatch, "%s: GGUF version %u; versions 2 and 3 can be read",
           file_.path().c_str(), out_.version_);
    const uint64_t tensors = take<uint64_t>("tensor count"), entries = take<uint64_t>("metadata count");
    check_count("tensor count", tensors, 8 + 1 + 4 + 8 + 4 + 8);
    check_count("metadata count", entries, 8 + 1 + 4 + 1);
    for (index_ = 0, part_ = "metadata entry"; index_ < entries; index_++) read_entry();
    for (index_ = 0, part_ = "tensor"; index_ < tensors; index_++) read_tensor();
    part_ = nullptr;
    finish();
  }

 private:
  struct Piece {  // of the header; pointers would dangle when it grows
    uint64_t at, size;
  };

  [[noreturn]] void refuse(const char* field, uint64_t value, const char* why) const {
    const std::string part = part_ ? format("%s %llu, ", part_, Count(index_)) : "";
    fail(Status::corrupt_data, "%s: %s%s %llu: %s", file_.path().c_str(), part.c_str(), field, Count(value),
         why);
  }

  // Makes the next `bytes` bytes of the header available.
  void need(const char* field, uint64_t bytes) {
    if (bytes > limit_ - at_)
      refuse(field, bytes,
             limit_ == file_.size() ? "more bytes than the file has" : "a header of over 256 MiB");
    const uint64_t have = out_.header_.size();
    if (at_ + bytes <= have) return;
    const uint64_t grown = std::min(limit_, std::max({at_ + bytes, 2 * have, kFirstRead}));
    out_.header_.resize(grown);
    file_.read_at(have, std::span(out_.header_).subspan(have));
  }

  template <class T>
  T take(const char* field) {
    need(field, sizeof(T));
    const T value = load<T>(out_.header_.data() + at_);
    at_ += sizeof(T);
    return value;
  }

  Piece take_piece(const char* field, uint64_t bytes) {
    need(field, bytes);
    at_ += bytes;
    return {at_ - bytes, bytes};
  }

  Piece take_name(const char* field, uint64_t most) {
    const uint64_t size = take<uint64_t>(field);
    if (size == 0 || size > most) refuse(field, size, "not an allowed length");
    return take_piece(field, size);
  }

  void check_count(const char* field, uint64_t count, uint64_t least_bytes) const {
    if (count > (limit_ - at_) / least_bytes) refuse(field, count, "more than fit into the file");
  }

  GgufType take_type(const char* field) {
    const uint32_t number = take<uint32_t>(field);
    if (number >= std::size(kValueTypes)) refuse(field, number, "not a value type");
    return GgufType(number);
  }

  void read_entry() {
    const Piece key = take_name("key length", kMaxKey);
    GgufEntry entry{{}, take_type("value type"), false, 1, {}};
    if (entry.type == GgufType::array) {
      entry.is_array = true;
      entry.type = take_type("element type");
      if (entry.type == GgufType::array) refuse("element type", 9, "arrays of arrays are not allowed");
      entry.count = take<uint64_t>("array length");
    }
    keys_.push_back(key);
    values_.push_back(take_values(entry));
    out_.metadata_.push_back(entry);
  }

  Piece take_values(const GgufEntry& entry) {
    const uint64_t start = at_, bytes = kValueTypes[size_t(entry.type)].bytes;
    if (entry.type == GgufType::string) {
      check_count("array length", entry.count, 8);
      for (uint64_t i = 0; i < entry.count; i++) take_piece("string length", take<uint64_t>("string length"));
      return {start, at_ - start};
    }
    check_count("array length", entry.count, bytes);
    const Piece piece = take_piece("array length", entry.count * bytes);
    if (entry.type == GgufType::boolean)
      for (const std::byte value : std::span(out_.header_).subspan(piece.at, piece.size))
        if (value > std::byte{1}) refuse("boolean", std::to_integer<uint64_t>(value), "neither 0 nor 1");
    return piece;
  }

  void read_tensor() {
    names_.push_back(take_name("name length", kMaxTensorName));
    const uint32_t rank = take<uint32_t>("dimension count");
    if (rank == 0 || rank > kMaxRank) refuse("dimension count", rank, "not 1 to 4");
    GgufTensor tensor{{}, 0, std::vector<uint64_t>(rank), 0, 0};
    uint64_t elements = 1;
    for (uint32_t i = rank; i-- > 0;) {
      const uint64_t size = tensor.shape[i] = take<uint64_t>("dimension");
      if (size == 0 || __builtin_mul_overflow(elements, size, &elements))
        refuse("dimension", size, "not an allowed size");
    }
    tensor.type = take<uint32_t>("type");
    tensor.offset = take<uint64_t>("offset");
    if (const TensorType* type = tensor_type(tensor.type)) {
      if (tensor.shape.back() % type->block != 0)
        refuse("dimension", tensor.shape.back(), "not a whole number of the type's blocks");
      if (__builtin_mul_overflow(elements / type->block, uint64_t(type->bytes), &tensor.bytes))
        refuse("dimension", tensor.shape.back(), "the tensor is too large");
    }
    out_.tensors_.push_back(std::move(tensor));
  }

  // Views, lookup tables, and the tensors' places in the file.
  void finish() {
    out_.header_.resize(at_);
    out_.header_.shrink_to_fit();
    const std::byte* base = out_.header_.data();
    const auto text = [&](Piece piece) {
      return std::string_view(reinterpret_cast<const char*>(base + piece.at), piece.size);
    };
    for (size_t i = 0; i < keys_.size(); i++) {
      out_.metadata_[i].key = text(keys_[i]);
      out_.metadata_[i].data = {base + values_[i].at, values_[i].size};
    }
    for (size_t i = 0; i < names_.size(); i++) out_.tensors_[i].name = text(names_[i]);
    out_.entries_by_key_ = sorted_by_name(out_.metadata_, &GgufEntry::key, file_, "metadata key");
    out_.tensors_by_name_ = sorted_by_name(out_.tensors_, &GgufTensor::name, file_, "tensor");
    place_tensors();
  }

  // Tensors follow each other, each from the next multiple of the alignment; so do the file's last bytes.
  void place_tensors() {
    constexpr char kKey[] = "general.alignment";
    const uint64_t alignment = out_.find(kKey) ? out_.get_u64(kKey) : kDefaultAlignment;
    if (!std::has_single_bit(alignment) || alignment > UINT32_MAX)
      refuse(kKey, alignment, "not a power of two of 32 bits");
    const auto aligned = [&](uint64_t at) { return (at + alignment - 1) & ~(alignment - 1); };
    const uint64_t start = aligned(at_);
    if (start > file_.size() && !out_.tensors_.empty())
      refuse(kKey, alignment, "the data would start beyond the file's end");
    std::vector<GgufTensor*> order;
    for (GgufTensor& tensor : out_.tensors_) order.push_back(&tensor);
    std::sort(order.begin(), order.end(), [](const GgufTensor* a, const GgufTensor* b) {
      return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
    });
    uint64_t end = 0;      // of the tensor before, from `start`
    bool is_known = true;  // a tensor of an unknown type has one byte at least
    for (GgufTensor* tensor : order) {
      const uint64_t offset = tensor->offset, room = file_.size() - start;
      const TensorType* type = tensor_type(tensor->type);
      const uint64_t bytes = type ? tensor->bytes : 1;
      if (offset % alignment != 0 || (is_known ? offset != aligned(end) : offset < end) || offset > room ||
          bytes > room - offset)
        fail(Status::corrupt_data,
             "%s: tensor %s: %llu bytes at offset %llu; the one before ends at %llu, the data at %llu",
             file_.path().c_str(), shown(tensor->name).c_str(), Count(tensor->bytes), Count(offset),
             Count(end), Count(room));
      is_known = type != nullptr;
      end = offset + bytes;
      tensor->offset += start;
    }
    if (is_known && file_.size() > start + aligned(end))
      refuse("file size", file_.size(), "bytes after the last tensor");
  }

  GgufReader& out_;
  const File& file_;
  const uint64_t limit_;        // the header ends before
  uint64_t at_ = 0;             // in the header
  const char* part_ = nullptr;  // what is being read, for messages
  uint64_t index_ = 0;
  std::vector<Piece> keys_, values_, names_;
};

const char* gguf_type_name(GgufType type) noexcept { return kValueTypes[size_t(type)].name; }

std::string gguf_value_text(const GgufEntry& entry) {
  if (!entry.is_array && entry.type == GgufType::string) return std::string(string_at(entry.data.data()));
  std::string text;
  const std::byte* at = entry.data.data();  // of the next string
  for (uint64_t i = 0; i < entry.count; i++) {
    if (i > 0) text += ", ";
    if (entry.type == GgufType::string) {
      text += json_text(string_at(at));
      at += 8 + string_at(at).size();
    } else {
      text += number_text(entry, i);
    }
  }
  return entry.is_array ? "[" + text + "]" : text;
}

std::string ggml_type_name(uint32_t number) {
  const TensorType* type = tensor_type(number);
  return type ? type->name : format("type %u", number);
}

uint32_t ggml_type_number(DType type) noexcept {
  for (const TensorType& candidate : kTensorTypes)
    if (::strcasecmp(candidate.name, dtype_info(type).name) == 0) return candidate.number;
  __builtin_unreachable();  // every element type of ours is one of the format's
}

GgufReader::GgufReader(std::shared_ptr<const File> file) : file_(std::move(file)) { GgufParser(*this).run(); }

const GgufEntry* GgufReader::find(std::string_view key) const noexcept {
  return find_by_name(metadata_, entries_by_key_, &GgufEntry::key, key);
}

const GgufTensor* GgufReader::find_tensor(std::string_view name) const noexcept {
  return find_by_name(tensors_, tensors_by_name_, &GgufTensor::name, name);
}

const GgufEntry& GgufReader::require(std::string_view key, bool is_array, bool (*fits)(GgufType),
                                     const char* wanted) const {
  const GgufEntry* entry = find(key);
  if (!entry)
    fail(Status::corrupt_data, "%s: the metadata key %s is missing", file_->path().c_str(),
         shown(key).c_str());
  if (entry->is_array != is_array || !fits(entry->type)) refuse(*entry, wanted);
  return *entry;
}

void GgufReader::refuse(const GgufEntry& entry, const char* wanted) const {
  fail(Status::corrupt_data, "%s: metadata %s is %s, not %s", file_->path().c_str(), shown(entry.key).c_str(),
       entry_text(entry).c_str(), wanted);
}

uint64_t GgufReader::get_u64(std::string_view key) const {
  constexpr char kWanted[] = "a non-negative integer";
  const GgufEntry& entry = require(key, false, is_integer, kWanted);
  if (entry.type == GgufType::u64) return load<uint64_t>(entry.data.data());
  int64_t value;
  integer_at(entry, 0, value);
  if (value < 0) refuse(entry, kWanted);
  return uint64_t(value);
}

double GgufReader::get_f64(std::string_view key) const {
  constexpr char kWanted[] = "a finite float";
  const GgufEntry& entry = require(key, false, is_float, kWanted);
  const double value = float_at(entry, 0);
  if (!std::isfinite(value)) refuse(entry, kWanted);
  return value;
}

bool GgufReader::get_bool(std::string_view key) const {
  const auto is_bool = [](GgufType type) { return type == GgufType::boolean; };
  return require(key, false, is_bool, "a boolean").data[0] != std::byte{0};
}

std::string_view GgufReader::get_string(std::string_view key) const {
  const auto is_string = [](GgufType type) { return type == GgufType::string; };
  return string_at(require(key, false, is_string, "a string").data.data());
}

std::vector<std::string_view> GgufReader::get_strings(std::string_view key) const {
  const auto is_string = [](GgufType type) { return type == GgufType::string; };
  const GgufEntry& entry = require(key, true, is_string, "an array of strings");
  std::vector<std::string_view> strings;
  strings.reserve(entry.count);
  const std::byte* at = entry.data.data();
  for (uint64_t i = 0; i < entry.count; i++) {
    strings.push_back(string_at(at));
    at += 8 + strings.back().size();
  }
  return strings;
}

std::vector<int64_t> GgufReader::get_integers(std::string_view key) const {
  const GgufEntry& entry = require(key, true, is_integer, "an array of integers");
  std::vector<int64_t> values(entry.count);
  for (uint64_t i = 0; i < entry.count; i++)
    if (!integer_at(entry, i, values[i])) refuse(entry, "an array of 64-bit signed integers");
  return values;
}

std::vector<double> GgufReader::get_floats(std::string_view key) const {
  const GgufEntry& entry = require(key, true, is_float, "an array of floats");
  std::vector<double> values(entry.count);
  for (uint64_t i = 0; i < entry.count; i++) values[i] = float_at(entry, i);
  return values;
}

std::vector<bool> GgufReader::get_bools(std::string_view key) const {
  const auto is_bool = [](GgufType type) { return type == GgufType::boolean; };
  const GgufEntry& entry = require(key, true, is_bool, "an array of booleans");
  std::vector<bool> values(entry.count);
  for (uint64_t i = 0; i < entry.count; i++) values[i] = entry.data[i] != std::byte{0};
  return values;
}

DType GgufReader::dtype(const GgufTensor& tensor) const {
  switch (tensor.type) {
    case 0:
      return DType::f32;
    case 1:
      return DType::f16;
    case 2:
      return DType::q4_0;
    case 3:
      return DType::q4_1;
    case 6:
      return DType::q5_0;
    case 7:
      return DType::q5_1;
    case 8:
      return DType::q8_0;
    case 12:
      return DType::q4_k;
    case 13:
      return DType::q5_k;
    case 14:
      return DType::q6_k;
    case 30:
      return DType::bf16;
    default:
      fail(Status::unsupported,
           "%s: tensor %s has %s; F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K can be "
           "read",
           file_->path().c_str(), shown(tensor.name).c_str(), ggml_type_name(tensor.type).c_str());
  }
}

void GgufReader::read(const GgufTensor& tensor, uint64_t at, std::span<std::byte> out) const {
  read_within(*file_, tensor.name, tensor.offset, tensor.bytes, at, out);
}

}  // namespace riftco
