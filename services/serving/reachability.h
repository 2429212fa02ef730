// Reachability: whether a server can reach another server that it depends on; logs changes.
//
// Thread safety: all methods from any thread.
#ifndef HEARTH_SERVICES_SERVING_REACHABILITY_H_
#define HEARTH_SERVICES_SERVING_REACHABILITY_H_

#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "services/serving/logging.h"

namespace hearth {

class Reachability {
 public:
  // `what`: name of the other server in log lines, such as "store". `address` must not contain
  // secrets.
  Reachability(absl::string_view what, std::string address,
               absl::Duration log_every = absl::Seconds(10))
      : what_(what), address_(std::move(address)), rate_(log_every) {}

  // Stores whether the server is reached, and logs a change. A server that is reachable from the
  // start is not logged. If the log rate omits a change, a later call logs it, unless the change
  // was reverted by then.
  void Note(bool is_reached, absl::string_view reason) {
    is_reached_ = is_reached;
    absl::MutexLock lock(&mutex_);
    if (logged_ == is_reached) return;
    if (LogSometimes(&rate_, is_reached ? LogLevel::kInfo : LogLevel::kWarning,
                     absl::StrCat(what_, is_reached ? " reachable" : " unreachable"),
                     {{"address", address_}, {"reason", reason}})) {
      logged_ = is_reached;
    }
  }
  bool is_reached() const { return is_reached_.load(); }
  const std::string& address() const { return address_; }

 private:
  const std::string what_, address_;
  std::atomic<bool> is_reached_{true};
  absl::Mutex mutex_;
  bool logged_ ABSL_GUARDED_BY(mutex_) = true;
  LogRate rate_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_REACHABILITY_H_
