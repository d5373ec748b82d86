// Memory of a training step: what the blocks keep from forward to backward, and scratch.
#pragma once
#include <memory>
#include <vector>

#include "base/memory.h"
#include "train/block.h"
#include "train/network.h"

namespace riftco {

struct WorkspaceShape {
  uint32_t sequences, length;  // of a micro-batch
  bool gradients;              // also the way back
  bool keep_all;               // the inside of every block; else of one
  bool materialized;
  bool operator==(const WorkspaceShape&) const = default;
};

struct TrainingWorkspace {
  // Points the context's scratch into itself.
  TrainingWorkspace(const WorkspaceShape& shape, TrainingContext& context,
                    std::shared_ptr<MemoryAccount> account);

  WorkspaceShape shape;
  std::vector<BlockActivations> blocks;  // those that are not kept share their inside
  BlockScratch scratch;
  float *last, *dx;     // [rows, width]: what the last block gives, and the gradient on its way back
  float* cos_sin;       // [length, 2 * rotated pairs]
  float* logits;        // [head_rows, vocabulary]
  uint32_t head_rows;   // rows of logits at a time
  float* losses;        // [rows]
  uint32_t* positions;  // [rows]
  size_t bytes() const noexcept { return memory_.size(); }

 private:
  Buffer memory_;
};

}  // namespace riftco
