#include "runtime/trace.h"

#include "base/text.h"

namespace lowtide {

static std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return result + '"';
}

std::string Trace::json() const {
  auto micros = [](Clock::duration span) { return std::chrono::duration<double, std::micro>(span).count(); };
  return concat("{\"traceEvents\": [\n",
                join(events_, ",\n",
                     [&](std::ostream& out, const Event& event) {
                       out << "{\"name\": " << quoted(event.name) << ", \"cat\": " << quoted(event.kernel)
                           << ", \"ph\": \"X\", \"pid\": 0, \"tid\": 0, \"ts\": " << micros(event.begin - start_)
                           << ", \"dur\": " << micros(event.end - event.begin) << "}";
                     }),
                "\n]}\n");
}

}  // namespace lowtide
