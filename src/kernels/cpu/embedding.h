// Rows gathered by index and gradients scattered back.
#pragma once

#include <cstdint>

namespace lowtide::cpu {

// The first position whose index is outside [-rows, rows), or -1. The functions below need valid indices; a negative
// one counts from the end.
int64_t first_bad_index(const int64_t* indices, int64_t n, int64_t rows);

// out[i] = table[indices[i]], rows of row_bytes bytes.
void gather_rows(const void* table, int64_t rows, int64_t row_bytes, const int64_t* indices, int64_t n, void* out);

// grad[v] = the sum of dy[i] over all i with indices[i] = v, in ascending i: blocks of kRowsPerBlock occurrences, then
// the blocks in order. Rows that do not occur, and row skipped_row (padding_idx; -1: none), are 0. `onto`: the sums are
// added onto what grad holds. grad is [rows, cols], dy is [n, cols]; n < 2^31.
void scatter_add_rows(const float* dy, const int64_t* indices, int64_t n, float* grad, int64_t rows, int64_t cols,
                      int64_t skipped_row, bool onto, void* scratch);
int64_t scatter_add_rows_scratch_bytes(int64_t n, int64_t rows);

}  // namespace lowtide::cpu
