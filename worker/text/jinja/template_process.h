// TemplateProcess: a child process that runs a model's chat template (render_chats.py).
//
// Neither the template nor the child is trusted. The child inherits no descriptor and no
// environment, may open no file, has limited memory and CPU time, and is killed if an answer takes
// too long, is too large or is malformed. The next request starts a new child. The child ends when
// its socket closes, so it does not outlive the worker.
// Thread safety: all methods from any thread; requests are answered one at a time.
#ifndef HEARTH_WORKER_TEXT_JINJA_TEMPLATE_PROCESS_H_
#define HEARTH_WORKER_TEXT_JINJA_TEMPLATE_PROCESS_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace hearth {

struct TemplateLimits {
  // Limit of the CPU time of an answer. A rendering takes milliseconds.
  absl::Duration cpu = absl::Seconds(2);
  // Limit of the elapsed time of an answer, for a child that waits instead of computing. It is
  // longer than the limit of the CPU time, so that requests do not fail on a busy machine.
  absl::Duration wait = absl::Seconds(20);
  uint64_t memory_bytes = uint64_t{512} << 20;
  const char* python = "/usr/bin/python3";
};

class TemplateProcess {
 public:
  // `setup`: the child's first message, a JSON object without the limits.
  TemplateProcess(nlohmann::json setup, const TemplateLimits& limits);
  ~TemplateProcess();
  TemplateProcess(const TemplateProcess&) = delete;
  TemplateProcess& operator=(const TemplateProcess&) = delete;

  // Starts the child, and returns its answer to the first message. kFailedPrecondition: Python or
  // Jinja is missing; the message names the Debian package.
  absl::StatusOr<nlohmann::json> Start() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the child's answer to a request. Starts the child if it does not run.
  // kInvalidArgument: the answer took too much CPU time, or the child refused the request, with the
  // template's words. kCancelled: `stopped`, which may be null, returned true. kUnavailable: the
  // child failed.
  absl::StatusOr<nlohmann::json> Ask(const nlohmann::json& request,
                                     const std::function<bool()>& stopped)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the id of the running child; -1: none. For tests.
  pid_t pid() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Waits until no other thread talks to the child.
  bool Enter(const std::function<bool()>& stopped) ABSL_LOCKS_EXCLUDED(mutex_);
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_);
  // REQUIRES, for the methods below: this thread has entered.
  absl::StatusOr<nlohmann::json> StartChild(const std::function<bool()>& stopped);
  absl::StatusOr<nlohmann::json> Exchange(const std::string& request,
                                          const std::function<bool()>& stopped);
  // Sends or receives all bytes.
  absl::Status Move(bool sends, char* bytes, size_t size, absl::Time deadline,
                    const std::function<bool()>& stopped) const;
  absl::Status Spawn();
  // Ends the child. Returns why it ended, if it ended by itself.
  absl::Status End(const absl::Status& why);
  bool IsRunning();

  std::string setup_;
  const TemplateLimits limits_;
  mutable absl::Mutex mutex_;
  bool is_free_ ABSL_GUARDED_BY(mutex_) = true;
  pid_t pid_ ABSL_GUARDED_BY(mutex_) = -1;  // changed only by the thread that has entered
  int socket_ = -1;                         // used only by the thread that has entered
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_JINJA_TEMPLATE_PROCESS_H_
