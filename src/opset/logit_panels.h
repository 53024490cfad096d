// Where the logits of a linear layer lie in panels of classes (the last has what is left), each row-major [rows, its
// classes]: PanelLinearCrossEntropyLoss keeps them so until backward, in panels of kLogitPanel, and
// LinearCrossEntropyLoss's kernel while it runs. The first panels lie in the memory of the weight's gradient, the
// others in `rest`, one behind the other. Panel p in the gradient begins no earlier than panel p's own part of it:
// gradients that are written panel by panel, each after its logits were read, never meet logits that are still to be
// read.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lowtide {

constexpr int64_t kLogitPanel = 512;

struct LogitPanels {
  // gradient_row: numbers of the logits' dtype that a row of the weight's gradient has room for.
  LogitPanels(int64_t rows, int64_t classes, int64_t gradient_row, int64_t panel = kLogitPanel)
      : rows(rows),
        classes(classes),
        panel(panel),
        stride(panel * std::max<int64_t>({rows, gradient_row, 1})),
        in_gradient(classes * gradient_row / stride) {}

  int64_t count() const { return (classes + panel - 1) / panel; }
  int64_t width(int64_t p) const { return std::min(panel, classes - p * panel); }
  bool is_in_gradient(int64_t p) const { return p < in_gradient; }
  // Numbers from the beginning of the gradient, or of `rest`.
  int64_t offset(int64_t p) const { return is_in_gradient(p) ? p * stride : (p - in_gradient) * panel * rows; }
  // Numbers of all panels that do not lie in the gradient.
  int64_t rest() const { return std::max<int64_t>(0, classes - in_gradient * panel) * rows; }

  int64_t rows, classes, panel, stride, in_gradient;
};

}  // namespace lowtide
