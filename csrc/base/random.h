// Counter-based random numbers (Philox4x32-10, Salmon and others 2011): a pure function of key and counter, so that a
// stream does not depend on what else draws.
#pragma once
#include <array>
#include <cstdint>

namespace riftco {

// 128 random bits for this counter under this key. `stream` separates uses that share a key.
constexpr std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter, uint64_t stream = 0) noexcept {
  std::array<uint32_t, 4> c{uint32_t(counter), uint32_t(counter >> 32), uint32_t(stream),
                            uint32_t(stream >> 32)};
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(0xD2511F53u) * c[0], b = uint64_t(0xCD9E8D57u) * c[2];
    c = {uint32_t(b >> 32) ^ c[1] ^ k0, uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ k1, uint32_t(a)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// 64 of them.
constexpr uint64_t random_bits(uint64_t key, uint64_t counter, uint64_t stream = 0) noexcept {
  const auto words = philox(key, counter, stream);
  return uint64_t(words[1]) << 32 | words[0];
}

}  // namespace riftco
