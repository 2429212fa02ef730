// FairPool: a few threads for work that would block gRPC's own threads too long.
//
// gRPC answers health checks on the same few threads as all other calls, so work of more than a
// millisecond runs here. Tenants have equal shares of the threads, of the queue and of the bytes
// (fair_share.h). The tenant with the fewest running jobs is next.
// Thread safety: all methods from any thread. Jobs may submit jobs.
// Invariants: (1) an accepted job runs once; (2) Submit accepts a job only if fewer than
// max_waiting jobs wait, and if waiting and running jobs then keep at most max_bytes alive; only a
// job that is alone may keep more; Continue accepts every job.
#ifndef HEARTH_SERVICES_SERVING_CALLS_FAIR_POOL_H_
#define HEARTH_SERVICES_SERVING_CALLS_FAIR_POOL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace hearth {

struct FairPoolOptions {
  int threads = 6;  // at least 2; a lone tenant gets half of them
  size_t max_waiting = 256;
  // Maximum number of bytes that waiting and running jobs keep alive. A message of 3 MiB takes up
  // to 12 MiB when it is parsed.
  uint64_t max_bytes = uint64_t{128} << 20;
};

class FairPool {
 public:
  using Job = std::function<void()>;

  // `kind` names the work in errors, for example "prompts".
  explicit FairPool(std::string kind, const FairPoolOptions& options = {});
  ~FairPool();  // waits until all accepted jobs have run
  FairPool(const FairPool&) = delete;
  FairPool& operator=(const FairPool&) = delete;

  // `bytes`: memory that the job keeps alive. kResourceExhausted, with the limit, if the job is
  // refused.
  absl::Status Submit(const std::string& tenant, uint64_t bytes, Job job)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Submits a job for a request of `bytes`. If `bytes` is 0, runs the job at once on the calling
  // thread: such calls ended before their message was complete, and must not fill the queue.
  absl::Status SubmitRequest(const std::string& tenant, uint64_t bytes, Job job);
  // Submits a job that continues a call whose earlier job was accepted. The job is never refused,
  // and is the tenant's next.
  void Continue(const std::string& tenant, Job job) ABSL_LOCKS_EXCLUDED(mutex_);
  size_t waiting() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiting {
    uint64_t bytes = 0;
    Job job;
  };
  struct Tenant {
    std::deque<Waiting> waiting;
    uint64_t bytes = 0;  // sum over the tenant's waiting and running jobs
    int running = 0;
    uint64_t last_turn = 0;
  };
  using Tenants = std::map<std::string, Tenant>;

  absl::Status CheckRoom(const std::string& tenant, uint64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Work() ABSL_LOCKS_EXCLUDED(mutex_);
  Tenants::iterator Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasTurn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return Next() != tenants_.end() || (stopping_ && waiting_ == 0);
  }

  const std::string kind_;
  const FairPoolOptions options_;
  mutable absl::Mutex mutex_;
  Tenants tenants_ ABSL_GUARDED_BY(mutex_);  // tenants with a waiting or running job
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t turns_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_FAIR_POOL_H_
