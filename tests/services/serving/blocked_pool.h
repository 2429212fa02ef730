// BlockedPool: occupies all threads of a pool until the test releases them. IsServing: checks the
// health of the server, for example while its pool is blocked.
//
// Thread safety: made and used by one test thread.
#ifndef HEARTH_TESTS_SERVICES_SERVING_BLOCKED_POOL_H_
#define HEARTH_TESTS_SERVICES_SERVING_BLOCKED_POOL_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cassert>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "services/serving/calls/fair_pool.h"

namespace hearth {

// Occupies every thread of `pool`, each for a tenant that no test uses.
class BlockedPool {
 public:
  static constexpr int kThreads = 6;  // number of threads in the pools of both services

  explicit BlockedPool(FairPool* pool) {
    for (int i = 0; i < kThreads; ++i) {
      const absl::Status status = pool->Submit(absl::StrCat("blocks ", i), 0, [this] {
        taken_.DecrementCount();
        let_go_.WaitForNotification();
        done_.DecrementCount();
      });
      assert(status.ok());
      (void)status;
    }
    taken_.Wait();
  }
  ~BlockedPool() {
    LetGo();
    done_.Wait();
  }
  void LetGo() {
    if (!let_go_.HasBeenNotified()) let_go_.Notify();
  }

 private:
  absl::BlockingCounter taken_{kThreads}, done_{kThreads};
  absl::Notification let_go_;
};

// Whether the server's health service answers SERVING.
inline bool IsServing(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer response;
  absl::Notification answered;
  grpc::Status status;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request, &response,
                 [&](grpc::Status told) {
                   status = std::move(told);
                   answered.Notify();
                 });
  answered.WaitForNotification();
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (status.ok() && response.Dump(&slices).ok()) {
    for (const grpc::Slice& slice : slices) {
      bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
  }
  return bytes == std::string("\x08\x01");  // a HealthCheckResponse with status SERVING
}

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_SERVING_BLOCKED_POOL_H_
