// Warnings: log lines for the operator about damage and failing disks, limited per kind of warning
// and minute.
//
// Libraries do not log themselves: they pass lines to the sink. After the limit, the next line of
// the same kind says how many lines were left out. Thread safe; the sink may be called from any
// thread.
#ifndef HEARTH_CACHE_STORE_BASE_WARNINGS_H_
#define HEARTH_CACHE_STORE_BASE_WARNINGS_H_

#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace hearth {

class Warnings {
 public:
  using Sink = std::function<void(const std::string&)>;
  // Limit of lines per minute for one kind of warning: a failing disk reports the same error with
  // every write.
  static constexpr int kMaxPerMinute = 6;

  // If `sink` is null, lines are discarded.
  explicit Warnings(Sink sink) : sink_(std::move(sink)) {}

  void Say(absl::string_view kind, absl::string_view text) ABSL_LOCKS_EXCLUDED(mu_) {
    if (!sink_) return;
    uint64_t left_out = 0;
    {
      const absl::Time now = absl::Now();
      absl::MutexLock lock(&mu_);
      Kind& said = kinds_[kind];
      if (now - said.begun >= absl::Minutes(1) || now < said.begun) {
        left_out = said.left_out;
        said = Kind{now, 0, 0};
      }
      if (said.lines >= kMaxPerMinute) {
        ++said.left_out;
        return;
      }
      ++said.lines;
    }
    const std::string more =
        left_out > 0 ? absl::StrCat(" (", left_out, " similar warnings were left out)") : "";
    sink_(absl::StrCat(kind, ": ", text, more));
  }

 private:
  struct Kind {
    absl::Time begun = absl::InfinitePast();
    int lines = 0;
    uint64_t left_out = 0;
  };

  const Sink sink_;
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, Kind> kinds_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_WARNINGS_H_
