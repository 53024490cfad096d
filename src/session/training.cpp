// The public API over Session: no type of ours but those of include/lowtide crosses it.

#include "lowtide/training.h"

#include "base/check.h"
#include "base/thread_pool.h"
#include "ir/parse.h"
#include "session/session.h"

namespace lowtide {

static DType to_dtype(ElementType type) { return static_cast<DType>(type); }
static ElementType to_element_type(DType dtype) {
  LT_CHECK(dtype <= DType::kF64, "the C++ API has no type ", name(dtype));
  return static_cast<ElementType>(dtype);
}
static_assert(static_cast<int>(DType::kF64) == static_cast<int>(ElementType::kF64));

static TensorRef to_ref(const TensorView& view) {
  LT_USER_CHECK(ErrorKind::kInvalidArgument, view.sizes.size() <= kMaxRank, "a tensor of rank ", view.sizes.size(),
                ", at most ", kMaxRank);
  TensorRef ref;
  ref.data = view.data;
  ref.dtype = to_dtype(view.type);
  ref.rank = static_cast<int32_t>(view.sizes.size());
  ref.present = true;
  int64_t stride = 1;
  for (size_t i = view.sizes.size(); i-- > 0;) {
    ref.sizes[i] = view.sizes[i];
    ref.strides[i] = stride;
    stride *= view.sizes[i];
  }
  return ref;
}

static TensorView to_view(const TensorRef& ref) {
  return {ref.data, to_element_type(ref.dtype), {ref.sizes, ref.sizes + ref.rank}};
}

struct TrainingGraph::Impl {
  explicit Impl(std::string_view text) : session(parse(text), SessionOptions{}) {}
  Session session;
  std::vector<InputInfo> inputs;
};

struct TrainingStep::Impl {
  std::shared_ptr<TrainingGraph::Impl> graph;
  std::vector<OwnedTensor> outputs;
  std::vector<TensorRef> inputs;
  std::shared_ptr<RunState> state;
};

TrainingGraph::TrainingGraph(std::string_view text, int threads) {
  if (threads > 1) install_thread_pool(threads);
  impl_ = std::make_shared<Impl>(text);
  const Session& session = impl_->session;
  const Graph graph = parse(session.training_text());
  for (const GraphInput& input : graph.inputs()) {
    const Value& value = graph.value(input.value);
    InputInfo info{value.name, to_element_type(value.type.dtype), {}, input.requires_grad};
    for (const Dim& dim : value.type.shape) info.sizes.push_back(to_string(dim));
    impl_->inputs.push_back(std::move(info));
  }
}

TrainingGraph::~TrainingGraph() = default;

const std::vector<InputInfo>& TrainingGraph::inputs() const { return impl_->inputs; }
std::string TrainingGraph::training_text() const { return impl_->session.training_text(); }

TrainingStep TrainingGraph::forward(std::span<const TensorView> tensors, uint64_t seed) {
  TrainingStep step;
  step.impl_ = std::make_shared<TrainingStep::Impl>();
  step.impl_->graph = impl_;
  for (const TensorView& tensor : tensors) step.impl_->inputs.push_back(to_ref(tensor));
  step.impl_->outputs = impl_->session.forward(step.impl_->inputs, seed, &step.impl_->state);
  return step;
}

StepMemory TrainingGraph::memory(std::span<const TensorView> tensors) {
  std::vector<int64_t> sizes;
  for (const SymbolSource& symbol : impl_->session.program().symbols) {
    LT_USER_CHECK(ErrorKind::kInvalidArgument, static_cast<size_t>(symbol.input) < tensors.size(), "expected ",
                  impl_->inputs.size(), " tensors, found ", tensors.size());
    sizes.push_back(tensors[static_cast<size_t>(symbol.input)].sizes.at(static_cast<size_t>(symbol.dim)));
  }
  const MemoryReport report = impl_->session.memory(sizes);
  return {report.peak_bytes, report.arena_bytes, report.output_bytes, report.lower_bound_bytes};
}

size_t TrainingStep::output_count() const { return impl_->outputs.size(); }

TensorView TrainingStep::output(size_t index) const {
  LT_USER_CHECK(ErrorKind::kInvalidArgument, index < impl_->outputs.size(), "output ", index, " of ",
                impl_->outputs.size());
  return to_view(impl_->outputs[index].ref);
}

std::vector<Gradient> TrainingStep::backward(std::span<const TensorView> output_gradients) {
  Session& session = impl_->graph->session;
  std::vector<TensorRef> incoming;
  // Storage of the implied gradients of scalar outputs: the number 1 in each float type.
  const double one64 = 1.0;
  const float one32 = 1.0f;
  if (output_gradients.empty()) {
    for (int output : session.grad_outputs()) {
      TensorRef ref = impl_->outputs[static_cast<size_t>(output)].ref;
      const bool scalar = ref.numel() == 1 && (ref.dtype == DType::kF32 || ref.dtype == DType::kF64);
      ref.present = scalar;
      ref.data =
          ref.dtype == DType::kF64 ? const_cast<double*>(&one64) : static_cast<void*>(const_cast<float*>(&one32));
      incoming.push_back(ref);
    }
  } else {
    for (const TensorView& view : output_gradients) incoming.push_back(to_ref(view));
  }
  std::vector<TensorRef> saved;
  for (int input : session.saved_inputs()) saved.push_back(impl_->inputs[static_cast<size_t>(input)]);
  std::vector<OwnedTensor> results = session.backward(*impl_->state, incoming, saved).tensors();
  std::vector<Gradient> gradients;
  for (size_t i = 0; i < results.size(); ++i)
    gradients.push_back(
        {static_cast<size_t>(session.gradient_targets()[i]), to_view(results[i].ref), std::move(results[i].owner)});
  return gradients;
}

}  // namespace lowtide
