// Where PanelLinearCrossEntropyLoss keeps logits: panels of kLogitPanel classes (the last has what is left), each
// row-major [rows, its classes]. The first panels lie in the memory of the weight's gradient, the others in `rest`, one
// behind the other. Panel p in the gradient begins no earlier than panel p's own part of it: gradients that are
// written panel by panel, each after its logits were read, never meet logits that are still to be read.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lowtide {

constexpr int64_t kLogitPanel = 512;

struct LogitPanels {
  // gradient_row: numbers of the logits' dtype that a row of the weight's gradient has room for.
  LogitPanels(int64_t rows, int64_t classes, int64_t gradient_row)
      : rows(rows),
        classes(classes),
        stride(kLogitPanel * std::max<int64_t>({rows, gradient_row, 1})),
        in_gradient(classes * gradient_row / stride) {}

  int64_t count() const { return (classes + kLogitPanel - 1) / kLogitPanel; }
  int64_t width(int64_t panel) const { return std::min(kLogitPanel, classes - panel * kLogitPanel); }
  bool is_in_gradient(int64_t panel) const { return panel < in_gradient; }
  // Numbers from the beginning of the gradient, or of `rest`.
  int64_t offset(int64_t panel) const {
    return is_in_gradient(panel) ? panel * stride : (panel - in_gradient) * kLogitPanel * rows;
  }

  int64_t rows, classes, stride, in_gradient;
};

}  // namespace lowtide
