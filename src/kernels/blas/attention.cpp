// Scores of kBlockQueries queries and of all keys that they see are there at a time, as a row for each query.
#include "kernels/blas/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/libraries.h"
#include "kernels/cpu/attention/attention_table.h"
#include "kernels/cpu/random/random_table.h"
#include "kernels/strided.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {
namespace {

constexpr int64_t kBlockQueries = 32;
constexpr int64_t kMaxInt = std::numeric_limits<int>::max();
constexpr int64_t kDoubleBytes = sizeof(double);
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- products

// Row-major.
struct Matrix {
  double* data;
  int64_t lead;
};

// The rows of one head of [batch, heads, rows, cols] as a matrix.
bool has_lead(const TensorRef& t) {
  const int64_t rows = t.sizes[2], cols = t.sizes[3];
  const bool dense = cols <= 1 || t.strides[3] == 1;
  return dense && std::max(rows, cols) <= kMaxInt &&
         (rows <= 1 || (t.strides[2] >= std::max<int64_t>(1, cols) && t.strides[2] <= kMaxInt));
}
Matrix rows_of(const TensorRef& t, int64_t batch, int64_t head, int64_t first = 0) {
  return {t.as<double>() + batch * t.strides[0] + head * t.strides[1] + first * t.strides[2],
          t.sizes[2] == 1 ? t.sizes[3] : t.strides[2]};
}

enum class Take : char { kPlain = 'N', kTransposed = 'T' };
struct Extent {
  int64_t rows, depth, cols;
};

// out = alpha left right + beta out. BLAS is column-major, so the operands go in swapped.
void multiply(Take take_left, Matrix left, Take take_right, Matrix right, Extent extent, double alpha, double beta,
              Matrix out) {
  const char left_op = static_cast<char>(take_left), right_op = static_cast<char>(take_right);
  const int m = static_cast<int>(extent.rows), k = static_cast<int>(extent.depth), n = static_cast<int>(extent.cols);
  const int left_lead = static_cast<int>(left.lead), right_lead = static_cast<int>(right.lead),
            out_lead = static_cast<int>(out.lead);
  libraries().dgemm(&right_op, &left_op, &n, &m, &k, &alpha, right.data, &right_lead, left.data, &left_lead, &beta,
                    out.data, &out_lead);
}

// ---- scores

bool is_empty(const reference::AttentionTerms& terms) {
  return std::min({terms.batches, terms.heads, terms.queries, terms.keys, terms.width, terms.value_width}) == 0;
}

// Not worth a second thread: less than some 30 us of work.
bool is_small(const reference::AttentionTerms& terms) {
  return static_cast<double>(terms.batches * terms.heads) * terms.queries * terms.keys *
             (terms.width + terms.value_width) <
         2e5;
}

// Room for what dropout does to one row: random words of whole groups of 64, and a factor for each key.
int64_t word_doubles(const reference::AttentionTerms& terms) { return (terms.keys + 128) / 2; }
int64_t row_doubles(const reference::AttentionTerms& terms) { return word_doubles(terms) + terms.keys; }

struct Scores {
  Scores(const KernelCall& call, const reference::AttentionTerms& from, size_t first, size_t mask_at)
      : terms(from),
        q(call.inputs[first]),
        k(call.inputs[first + 1]),
        mask(input(call, mask_at)),
        bias(input(call, mask_at + 1)),
        key(call.random_key) {}

  struct Block {
    int64_t batch, head, first, queries, keys;  // keys that the last query sees
  };
  Block block(int64_t batch, int64_t head, int64_t first) const {
    const int64_t queries = std::min(kBlockQueries, terms.queries - first);
    return {batch, head, first, queries, seen(first + queries - 1)};
  }
  int64_t seen(int64_t query) const { return terms.causal ? std::min(terms.keys, query + 1) : terms.keys; }
  int64_t kv_head(const Block& block) const { return block.head / terms.heads_per_kv; }

  void compute(const Block& block, double* to) const {
    multiply(Take::kPlain, rows_of(q, block.batch, block.head, block.first), Take::kTransposed,
             rows_of(k, block.batch, kv_head(block)), {block.queries, terms.width, block.keys}, terms.scale, 0,
             {to, terms.keys});
    for (int64_t r = 0; mask != nullptr && r < block.queries; ++r) add_mask(block, r, to + r * terms.keys);
  }

  // What dropout multiplies the first n probabilities of a row by; null: nothing is dropped.
  const double* factors(const Block& block, int64_t r, int64_t n, double* room) const {
    const reference::Dropped& dropped = terms.dropped;
    if (dropped.threshold == 0) return nullptr;
    const int64_t query = (block.batch * terms.heads + block.head) * terms.queries + block.first + r;
    const int64_t element = query * terms.keys, skipped = element % 64;
    auto* words = reinterpret_cast<uint32_t*>(room);
    random_table().words(key, dropped.stream, static_cast<uint64_t>(element - skipped), words,
                         (skipped + n + 63) / 64 * 64);
    double* result = room + word_doubles(terms);
    for (int64_t j = 0; j < n; ++j) result[j] = words[skipped + j] >= dropped.threshold ? dropped.scale : 0;
    return result;
  }

  const reference::AttentionTerms& terms;
  const TensorRef &q, &k;
  const TensorRef *mask, *bias;
  uint64_t key;

 private:
  void add_mask(const Block& block, int64_t r, double* scores) const {
    const auto row = [&](const Strides& s) {
      return block.batch * s.at[0] + block.head * s.at[1] + (block.first + r) * s.at[2];
    };
    const int64_t at = row(terms.mask), step = terms.mask.at[3], n = seen(block.first + r);
    if (mask->dtype == DType::kBool) {
      const auto* visible = mask->as<uint8_t>() + at;
      for (int64_t j = 0; j < n; ++j) scores[j] = visible[j * step] != 0 ? scores[j] : -kInfinity;
      return;
    }
    const double* added = mask->as<double>() + at;
    if (bias == nullptr) {
      for (int64_t j = 0; j < n; ++j) scores[j] += added[j * step];
      return;
    }
    const double* beside = bias->as<double>() + row(terms.bias);
    const int64_t beside_step = terms.bias.at[3];
    for (int64_t j = 0; j < n; ++j) scores[j] += added[j * step] + beside[j * beside_step];
  }
};

// ---- forward

// Scores of n keys become probabilities; returns the log-sum-exp. A query that may attend nothing gets zeros and -inf.
double normalise(double* scores, int64_t n) {
  double top = -kInfinity, total = 0;
  for (int64_t j = 0; j < n; ++j) top = scores[j] > top || scores[j] != scores[j] ? scores[j] : top;
  if (top == -kInfinity) {
    std::fill_n(scores, n, 0.0);
    return -kInfinity;
  }
  for (int64_t j = 0; j < n; ++j) total += scores[j] = std::exp(scores[j] - top);
  for (int64_t j = 0; j < n; ++j) scores[j] /= total;
  return top + std::log(total);
}

void multiply_row(double* row, const double* factors, int64_t n) {
  for (int64_t j = 0; factors != nullptr && j < n; ++j) row[j] *= factors[j];
}

// ---- backward

// Scores of n keys become probabilities again.
void normalise_by(double log_sum_exp, double* scores, int64_t n) {
  for (int64_t j = 0; j < n; ++j) scores[j] = scores[j] == -kInfinity ? 0 : std::exp(scores[j] - log_sum_exp);
  if (!loses_sum(log_sum_exp)) return;
  const double total = std::accumulate(scores, scores + n, 0.0);
  for (int64_t j = 0; total > 0 && j < n; ++j) scores[j] /= total;
}

// Gradients of probabilities become those of scores: p (gradient - mean). The mean is over the very roundings of p, so
// that they sum to zero as they should.
void through_softmax(const double* p, double* grads, int64_t n) {
  double total = 0, sum = 0;
  for (int64_t j = 0; j < n; ++j) {
    total += p[j];
    sum += p[j] * grads[j];
  }
  const double mean = total == 0 ? 0 : sum / total;
  for (int64_t j = 0; j < n; ++j) grads[j] = p[j] == 0 ? 0 : p[j] * (grads[j] - mean);
}

int64_t forward_doubles(const reference::AttentionTerms& terms) {
  return kBlockQueries * terms.keys + row_doubles(terms);
}
int64_t backward_doubles(const reference::AttentionTerms& terms) {
  return 2 * kBlockQueries * terms.keys + row_doubles(terms);
}

// Of one head of keys, with all heads of queries that read it.
struct Backward {
  Backward(const KernelCall& call, const BlasAttentionGrad& from, double* sums)
      : scores(call, from, 1, 6),
        terms(from),
        dy(call.inputs[0]),
        v(call.inputs[3]),
        lse(call.inputs[5]),
        dq(output(call, 0)),
        dk(output(call, 1)),
        dv(output(call, 2)),
        mask_sums(output(call, 3) != nullptr ? sums : nullptr) {}

  void run(int64_t batch, int64_t kv, double* room) const {
    zero(dk, batch, kv);
    zero(dv, batch, kv);
    for (int64_t head = kv * terms.heads_per_kv; head < (kv + 1) * terms.heads_per_kv; ++head)
      for (int64_t first = 0; first < terms.queries; first += kBlockQueries)
        run(scores.block(batch, head, first), room);
  }

 private:
  void run(const Scores::Block& block, double* room) const {
    const int64_t kv = scores.kv_head(block);
    const Matrix p{room, terms.keys}, grads{room + kBlockQueries * terms.keys, terms.keys};
    double* row_room = grads.data + kBlockQueries * terms.keys;
    const Matrix dy_rows = rows_of(dy, block.batch, block.head, block.first);
    scores.compute(block, p.data);
    multiply(Take::kPlain, dy_rows, Take::kTransposed, rows_of(v, block.batch, kv),
             {block.queries, terms.value_width, block.keys}, 1, 0, grads);
    for (int64_t r = 0; r < block.queries; ++r)
      run_row(block, r, p.data + r * p.lead, grads.data + r * p.lead, row_room);

    if (dq != nullptr)
      multiply(Take::kPlain, grads, Take::kPlain, rows_of(scores.k, block.batch, kv),
               {block.queries, block.keys, terms.width}, terms.scale, 0,
               rows_of(*dq, block.batch, block.head, block.first));
    if (dk != nullptr)
      multiply(Take::kTransposed, grads, Take::kPlain, rows_of(scores.q, block.batch, block.head, block.first),
               {block.keys, block.queries, terms.width}, terms.scale, 1, rows_of(*dk, block.batch, kv));
    if (dv != nullptr)
      multiply(Take::kTransposed, p, Take::kPlain, dy_rows, {block.keys, block.queries, terms.value_width}, 1, 1,
               rows_of(*dv, block.batch, kv));
  }

  // Scores and gradients of dropped probabilities become these probabilities and gradients of the scores.
  void run_row(const Scores::Block& block, int64_t r, double* p, double* grads, double* room) const {
    const int64_t query = block.first + r, n = scores.seen(query);
    const double* factors = scores.factors(block, r, n, room);
    const int64_t row = (block.batch * terms.heads + block.head) * terms.queries + query;
    normalise_by(lse.as<double>()[row], p, n);
    multiply_row(grads, factors, n);
    through_softmax(p, grads, n);
    if (mask_sums != nullptr) add_to_mask(block, query, grads, n);
    multiply_row(p, factors, n);
    std::fill(p + n, p + block.keys, 0.0);
    std::fill(grads + n, grads + block.keys, 0.0);
  }

  void add_to_mask(const Scores::Block& block, int64_t query, const double* grads, int64_t n) const {
    const int64_t* s = terms.dmask_sums.at;
    double* to = mask_sums + block.batch * s[0] + block.head * s[1] + query * s[2];
    for (int64_t j = 0; j < n; ++j) to[j * s[3]] += grads[j];
  }

  void zero(const TensorRef* gradient, int64_t batch, int64_t kv) const {
    if (gradient == nullptr) return;
    const Matrix rows = rows_of(*gradient, batch, kv);
    for (int64_t j = 0; j < terms.keys; ++j) std::fill_n(rows.data + j * rows.lead, gradient->sizes[3], 0.0);
  }

  Scores scores;
  const BlasAttentionGrad& terms;
  const TensorRef &dy, &v, &lse;
  const TensorRef *dq, *dk, *dv;
  double* mask_sums;
};

bool all_have_leads(std::span<const TensorRef> operands) {
  return std::all_of(operands.begin(), operands.end(), [](const TensorRef& t) { return !t.present || has_lead(t); });
}

}  // namespace

BlasAttention::BlasAttention(const BoundCall& call)
    : AttentionTerms(call),
      suits(!is_empty(*this) && all_have_leads(call.inputs.first(3)) && all_have_leads(call.outputs.first(1))) {}

BlasAttentionGrad::BlasAttentionGrad(const BoundCall& call)
    : AttentionGradTerms(call),
      suits(!is_empty(*this) && all_have_leads(call.inputs.first(4)) && all_have_leads(call.outputs.first(3))) {}

const char* supports_blas_attention(const KernelQuery& query) {
  if (query.inputs[0].dtype != DType::kF64) return "not f64";
  return libraries().dgemm == nullptr ? "no BLAS is loaded" : nullptr;
}

int64_t blas_attention_scratch(const BoundCall& call) {
  const BlasAttention terms(call);
  if (!terms.suits) return reference::attention_scratch(call);
  return forward_doubles(terms) * kDoubleBytes * parallel_threads();
}

int64_t blas_attention_grad_scratch(const BoundCall& call) {
  const BlasAttentionGrad terms(call);
  if (!terms.suits) return reference::attention_grad_scratch(call);
  return (terms.dmask_numel + backward_doubles(terms) * parallel_threads()) * kDoubleBytes;
}

KernelStatus blas_attention(const KernelCall& call, const BlasAttention& terms) {
  if (!terms.suits) return reference::attention(call, terms);
  const Scores scores(call, terms, 0, 3);
  const TensorRef &v = call.inputs[2], *y = output(call, 0), *log_sum_exp = output(call, 1);
  const int64_t blocks = (terms.queries + kBlockQueries - 1) / kBlockQueries;
  run_tasks<double>(
      terms.batches * terms.heads * blocks, forward_doubles(terms), call.scratch, call.scratch_bytes, is_small(terms),
      [&](int64_t task, double* own) {
        const int64_t head = task / blocks;
        const Scores::Block block = scores.block(head / terms.heads, head % terms.heads, task % blocks * kBlockQueries);
        double* room = own + kBlockQueries * terms.keys;
        scores.compute(block, own);
        for (int64_t r = 0; r < block.queries; ++r) {
          double* row = own + r * terms.keys;
          const int64_t n = scores.seen(block.first + r);
          const double sum = normalise(row, n);
          if (log_sum_exp != nullptr) log_sum_exp->as<double>()[head * terms.queries + block.first + r] = sum;
          multiply_row(row, scores.factors(block, r, n, room), n);
          std::fill(row + n, row + block.keys, 0.0);
        }
        if (y != nullptr)
          multiply(Take::kPlain, {own, terms.keys}, Take::kPlain, rows_of(v, block.batch, scores.kv_head(block)),
                   {block.queries, block.keys, terms.value_width}, 1, 0,
                   rows_of(*y, block.batch, block.head, block.first));
      });
  return nullptr;
}

KernelStatus blas_attention_grad(const KernelCall& call, const BlasAttentionGrad& terms) {
  if (!terms.suits) return reference::attention_grad(call, terms);
  double* mask_sums = static_cast<double*>(call.scratch);
  std::fill_n(mask_sums, terms.dmask_numel, 0.0);
  const Backward backward(call, terms, mask_sums);
  const TensorRef* dmask = output(call, 3);
  // The mask's gradient sums over batches and heads: one thread then.
  run_tasks<double>(
      terms.batches * terms.kv_heads, backward_doubles(terms), mask_sums + terms.dmask_numel,
      call.scratch_bytes - terms.dmask_numel * kDoubleBytes, dmask != nullptr || is_small(terms),
      [&](int64_t task, double* own) { backward.run(task / terms.kv_heads, task % terms.kv_heads, own); });
  if (dmask != nullptr)
    terms.dmask.for_each([&](int64_t position, const auto& at) { dmask->as<double>()[at[0]] = mask_sums[position]; });
  return nullptr;
}

}  // namespace lowtide::cpu
