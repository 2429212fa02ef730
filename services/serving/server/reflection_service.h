// ReflectionService: tells clients which services a server has, and gives them their .proto files.
//
// It is version 1 of gRPC's reflection, which new clients ask for first; gRPC 1.51 has v1alpha
// only. Like that and health it is open to everybody, is not counted by the admission, and reports
// no bytes to the ledger, which so bounds what one connection may send to it. Thread safety: gRPC
// calls it from many threads. Ownership: it outlives its server. Invariants: (1) at most
// kMaxReflectionStreams calls go on: one more ends the oldest; (2) a call holds one request or one
// answer: it reads on when its client has taken the answer.
#ifndef HEARTH_SERVICES_SERVING_SERVER_REFLECTION_SERVICE_H_
#define HEARTH_SERVICES_SERVING_SERVER_REFLECTION_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/reflection.grpc.pb.h"

namespace hearth {

inline constexpr char kReflectionName[] = "grpc.reflection.v1.ServerReflection";
// An answer has the 60 KiB or so of a file and its imports, and its request again: 8 MiB in all.
inline constexpr size_t kMaxReflectionStreams = 64;
// Of one call. A client asks once for each file.
inline constexpr int kMaxReflectionRequests = 1024;

class ReflectionService final
    : public grpc::reflection::v1::ServerReflection::WithRawCallbackMethod_ServerReflectionInfo<
          grpc::reflection::v1::ServerReflection::Service> {
 public:
  // `names`: of the server's services, with this one.
  explicit ReflectionService(std::vector<std::string> names) : names_(std::move(names)) {}
  ~ReflectionService() override;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ServerReflectionInfo(
      grpc::CallbackServerContext* context) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Stream;

  grpc::reflection::v1::ServerReflectionResponse Answer(
      const grpc::reflection::v1::ServerReflectionRequest& asked) const;
  void Forget(Stream* stream) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::vector<std::string> names_;
  absl::Mutex mutex_;
  std::list<Stream*> open_ ABSL_GUARDED_BY(mutex_);  // the oldest first; each deletes itself
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_SERVER_REFLECTION_SERVICE_H_
