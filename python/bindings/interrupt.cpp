#include "interrupt.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/executor.h"

namespace lowtide::bindings {
namespace {

// Written only by the main thread while it watches; read by the handler, which the same watch installed.
struct sigaction previous;

void on_interrupt(int signal, siginfo_t* info, void* context) {
  stop_flag().store(true, std::memory_order_relaxed);
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_IGN && previous.sa_handler != SIG_DFL) {
    previous.sa_handler(signal);
  }
}

}  // namespace

InterruptWatch::InterruptWatch() {
  if (getpid() != syscall(SYS_gettid)) return;
  struct sigaction action{};
  action.sa_sigaction = on_interrupt;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  struct sigaction current;
  if (sigaction(SIGINT, nullptr, &current) != 0) return;
  const bool nested = (current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == on_interrupt;
  // A process that ignores Ctrl-C goes on ignoring it.
  if (nested || current.sa_handler == SIG_IGN) return;
  previous = current;
  watching_ = sigaction(SIGINT, &action, nullptr) == 0;
}

InterruptWatch::~InterruptWatch() {
  if (!watching_) return;
  sigaction(SIGINT, &previous, nullptr);
  stop_flag().store(false, std::memory_order_relaxed);
}

}  // namespace lowtide::bindings
