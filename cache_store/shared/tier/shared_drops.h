// SharedDrops: the drops of all that this store heard of from others, and those that it did here.
//
// A drop that was heard of and could not be done yet, such as while the index loads, hides all of
// the tenant until it is. Drops are told apart by the name of their mark in the engine, which is of
// one tenant under one secret, and ordered by number. What was done is remembered as a text, which
// its owner keeps: else all that was ever dropped would be dropped again after a start. A line for
// each mark: its name and its text. Lines that are anything else are of no use.
//
// Thread safety: all methods from any thread. `drop` is called under no lock, maybe by several
// threads at a time. Ownership: values.
#ifndef HEARTH_CACHE_STORE_SHARED_TIER_SHARED_DROPS_H_
#define HEARTH_CACHE_STORE_SHARED_TIER_SHARED_DROPS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace hearth {

// The last drops of all of a tenant, as the engine has them: the generation that the last one
// began, and the last one that took what is pinned, too. As a text: "NUMBER", or "NUMBER FORCED".
struct DropMark {
  // No number of ours is near it, and those after it are numbers still.
  static constexpr uint64_t kMaxNumber = uint64_t{1} << 62;

  uint64_t number = 0, forced = 0;  // 0: none

  // None: not a text of a mark.
  static std::optional<DropMark> Parse(absl::string_view text);
  std::string Text() const;
  bool Lacks(const DropMark& other) const { return number < other.number || forced < other.forced; }
  void Join(const DropMark& other) {
    number = std::max(number, other.number);
    forced = std::max(forced, other.forced);
  }
};

class SharedDrops {
 public:
  // Marks remembered, some 150 bytes each. Beyond, the oldest of the others is forgotten, and
  // done once more.
  static constexpr size_t kMaxMarks = 4096;

  // Drops what the store has of the tenant; `force`: what is pinned, too. An error: not all of it.
  using Drop = std::function<absl::Status(const std::string& tenant, bool force)>;
  // Keeps a text that takes the place of the one before; called by one thread at a time.
  using Keep = std::function<void(const std::string& text)>;
  // `kept`: the last text that was.
  SharedDrops(Drop drop, Keep keep, absl::string_view kept);
  explicit SharedDrops(Drop drop) : SharedDrops(std::move(drop), nullptr, "") {}

  // The engine has this under the name `mark`. Does the drop, unless it was done. An error: it is
  // still to be done.
  absl::Status Hear(const std::string& mark, const std::string& tenant, const DropMark& told)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Who calls did it.
  void NoteDone(const std::string& mark, const DropMark& done) ABSL_LOCKS_EXCLUDED(mu_);
  // The last ones that were done here.
  DropMark DoneOf(const std::string& mark) ABSL_LOCKS_EXCLUDED(mu_);
  // The number of the last one that was heard of, done or not.
  uint64_t HeardOf(const std::string& mark, const std::string& tenant) ABSL_LOCKS_EXCLUDED(mu_);
  // Does what was heard of and could not be done yet, if anything. An error: it still cannot.
  absl::Status DoHeard(const std::string& tenant) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether a drop is still to be done, also now that this has tried.
  bool IsHidden(const std::string& tenant) { return !DoHeard(tenant).ok(); }
  // For what came beside a drop that was done: once more.
  absl::Status DropAgain(const std::string& tenant) { return drop_(tenant, false); }

 private:
  using Marks = std::map<std::string, DropMark>;  // by name

  // What is done now, unless another thread keeps it: then that one does once more.
  void KeepDone() ABSL_LOCKS_EXCLUDED(mu_);
  void NoteLocked(const std::string& mark, const DropMark& done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Drop drop_;
  const Keep keep_;
  absl::Mutex mu_;
  bool is_kept_ ABSL_GUARDED_BY(mu_) = true;  // done_, as it is now
  bool is_keeping_ ABSL_GUARDED_BY(mu_) = false;
  Marks done_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Marks> undone_ ABSL_GUARDED_BY(mu_);  // by tenant
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_TIER_SHARED_DROPS_H_
