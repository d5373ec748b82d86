#include "io/gguf_writer.h"

#include <array>
#include <cstring>

#include "base/error.h"
#include "io/table.h"

namespace riftco {
namespace {

constexpr uint64_t kAlignment = 32;  // the format's default, which is not written

template <class T>
void append(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void append(std::string& to, std::string_view text) {
  append(to, uint64_t(text.size()));
  to += text;
}

uint64_t aligned(uint64_t at) { return (at + kAlignment - 1) / kAlignment * kAlignment; }

std::string header(const GgufMetadata& metadata, const std::vector<GgufOutputTensor>& tensors) {
  std::string text = "GGUF";
  append(text, uint32_t(3));
  append(text, uint64_t(tensors.size()));
  append(text, metadata.count());
  text += metadata.bytes();
  uint64_t offset = 0;
  for (const GgufOutputTensor& tensor : tensors) {
    append(text, std::string_view(tensor.name));
    append(text, uint32_t(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) append(text, tensor.shape[i]);
    append(text, ggml_type_number(tensor.type));
    append(text, offset);
    offset = aligned(offset + tensor.bytes);
  }
  return text;
}

}  // namespace

void GgufMetadata::start(std::string_view key, GgufType type) {
  append(bytes_, key);
  append(bytes_, uint32_t(type));
  count_++;
}

void GgufMetadata::start_array(std::string_view key, GgufType type, size_t count) {
  start(key, GgufType::array);
  append(bytes_, uint32_t(type));
  append(bytes_, uint64_t(count));
}

void GgufMetadata::add(std::string_view key, uint32_t value) {
  start(key, GgufType::u32);
  append(bytes_, value);
}
void GgufMetadata::add(std::string_view key, float value) {
  start(key, GgufType::f32);
  append(bytes_, value);
}
void GgufMetadata::add(std::string_view key, bool value) {
  start(key, GgufType::boolean);
  bytes_ += value ? '\1' : '\0';
}
void GgufMetadata::add(std::string_view key, std::string_view value) {
  start(key, GgufType::string);
  append(bytes_, value);
}
void GgufMetadata::add(std::string_view key, const std::vector<std::string>& values) {
  start_array(key, GgufType::string, values.size());
  for (const std::string& value : values) append(bytes_, std::string_view(value));
}
void GgufMetadata::add(std::string_view key, const std::vector<int32_t>& values) {
  start_array(key, GgufType::i32, values.size());
  for (const int32_t value : values) append(bytes_, value);
}
void GgufMetadata::add(std::string_view key, const std::vector<float>& values) {
  start_array(key, GgufType::f32, values.size());
  for (const float value : values) append(bytes_, value);
}

GgufWriter::GgufWriter(std::string_view path, const GgufMetadata& metadata,
                       std::vector<GgufOutputTensor> tensors)
    : file_(path), tensors_(std::move(tensors)) {
  const std::string text = header(metadata, tensors_);
  file_.write(std::as_bytes(std::span(text)));
  pad();
}

void GgufWriter::write(std::span<const std::byte> bytes) {
  if (current_ == tensors_.size() || bytes.size() > tensors_[current_].bytes - written_)
    fail(Status::out_of_range, "%s: %zu bytes are more than the tensor lacks", file_.path().c_str(),
         bytes.size());
  file_.write(bytes);
  written_ += bytes.size();
  if (written_ < tensors_[current_].bytes) return;
  pad();
  current_++;
  written_ = 0;
}

void GgufWriter::pad() {
  constexpr std::array<std::byte, kAlignment> kZeros{};
  file_.write(std::span(kZeros).first(aligned(file_.size()) - file_.size()));
}

void GgufWriter::commit() {
  if (current_ != tensors_.size())
    fail(Status::invalid_state, "%s: %zu tensors are not written yet", file_.path().c_str(),
         tensors_.size() - current_);
  file_.commit();
}

}  // namespace riftco
