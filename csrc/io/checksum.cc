#include "io/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "base/error.h"
#include "io/table.h"

namespace riftco {

struct Checksum::State {
  XXH3_state_t value;
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->value); }
Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->value, bytes.data(), bytes.size());
}

void Checksum::add(std::string_view text) {
  add(uint64_t(text.size()));
  add(std::as_bytes(std::span(text)));
}

std::string Checksum::text() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->value);
  return format("xxh3-128:%016llx%016llx", Count(hash.high64), Count(hash.low64));
}

void add_header(Checksum& checksum, const SafetensorsMetadata& metadata,
                const std::vector<SafetensorsTensor>& tensors) {
  for (const auto& [key, value] : metadata) {
    if (key == kChecksumKey) continue;
    checksum.add(key);
    checksum.add(value);
  }
  for (const SafetensorsTensor& tensor : tensors) {
    checksum.add(tensor.name);
    checksum.add(tensor.dtype);
    checksum.add(uint64_t(tensor.shape.size()));
    for (const uint64_t size : tensor.shape) checksum.add(size);
  }
}

void check_file_checksum(const SafetensorsReader& reader, Progress& progress) {
  constexpr size_t kPiece = 1 << 20;
  const char* path = reader.file().path().c_str();
  const auto expected = reader.metadata().find(std::string_view(kChecksumKey));
  if (expected == reader.metadata().end())
    fail(Status::corrupt_data, "%s: its metadata lacks %s", path, kChecksumKey);
  Checksum checksum;
  add_header(checksum, reader.metadata(), reader.tensors());
  const uint64_t size = reader.file().size();
  std::vector<std::byte> piece(std::min<uint64_t>(kPiece, size - reader.data_offset()));
  for (uint64_t at = reader.data_offset(); at < size; at += piece.size()) {
    piece.resize(std::min<uint64_t>(kPiece, size - at));
    progress.advance(piece.size());
    reader.file().read_at(at, piece);
    checksum.add(piece);
  }
#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION  // no fuzzer would guess it
  if (checksum.text() != expected->second)
    fail(Status::corrupt_data, "%s: %s is %s, but the contents give %s", path, kChecksumKey,
         shown(expected->second).c_str(), checksum.text().c_str());
#endif
}

}  // namespace riftco
