// y = W x + b (+ an adapter's part) over rows of floats, and its gradients. W is of any type where it is frozen: quantised
// matrices are made floats a chunk of outputs at a time, never whole.
#pragma once
#include "train/context.h"

namespace riftco {

// x as an operand, in the context's scratch.
Operand pack_rows(const TrainingContext& context, const float* x, uint32_t rows, uint32_t width);

// y[r] (+)= W x[r] + b; y: [rows, outputs].
void linear_forward(const TrainingContext& context, const PackedMatrix& matrix, const Operand& x, float* y,
                    bool accumulate);

// The rows x that were multiplied, for the gradients of the matrices that read them.
struct LinearInput {
  const float* x;      // [rows, inputs]
  Operand transposed;  // in the context's scratch; empty where none of the matrices is trained
};
LinearInput linear_input(const TrainingContext& context, const float* x, uint32_t rows, uint32_t inputs,
                         std::initializer_list<const PackedMatrix*> matrices);

// Adds to the gradients of W, b and the adapter, those of them that are trained.
void linear_parameter_gradients(const TrainingContext& context, const PackedMatrix& matrix,
                                const LinearInput& input, uint32_t rows, const float* dy);

// dx (+)= W^T dy, and the adapter's part.
void linear_input_gradient(const TrainingContext& context, const PackedMatrix& matrix, uint32_t rows,
                           const float* dy, float* dx, bool accumulate);

}  // namespace riftco
