// Saved sessions: a safetensors file of keys and values in logical order, for any page size and any machine of the same
// kernel contract.
//
//   layers.N.keys, layers.N.values   F32, F16 or BF16 [tokens, kv_heads, head_width]
//   riftco.session          "1.0": a newer minor is read, a newer major is refused
//   riftco.model            DecoderOnlyTransformer::fingerprint of the model that computed them
//   riftco.kernel_contract  a decimal number
//   riftco.checksum         over the other metadata, the tensor table and the data (io/checksum.h)
#pragma once
#include <memory>
#include <string_view>

#include "serve/decode_session.h"

namespace riftco {

// Writes `path`, whole or not at all. contract: of the kernels that computed the session.
void save_session(const DecodeSession& session, uint32_t contract, std::string_view path);

// A session with the saved tokens. `options` as for a new one; its element type is the file's, or left at f32.
// corrupt_data, version_mismatch (a newer format, another kernel contract), invalid_argument (another model, another element
// type than the factory's), context_full, cache_exhausted.
std::unique_ptr<DecodeSession> load_session(std::shared_ptr<const DecoderOnlyTransformer> model,
                                            DecodeSessionOptions options, uint32_t contract,
                                            std::string_view path);

}  // namespace riftco
