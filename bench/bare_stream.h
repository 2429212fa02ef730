// The server that wire_bench compares with: plain gRPC that streams byte buffers. The buffers refer
// to static memory.
//
// Thread safety and ownership: as for gRPC's generic callback services.
#ifndef HEARTH_BENCH_BARE_STREAM_H_
#define HEARTH_BENCH_BARE_STREAM_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <string>
#include <vector>

namespace hearth {

inline constexpr size_t kSliceBytes = size_t{1} << 20;
inline constexpr char kBareMethod[] = "/bench.Bare/Same";  // sends the same 1 MiB slice repeatedly
// Sends as many different slices as the store sends.
inline constexpr char kSpreadMethod[] = "/bench.Bare/Spread";

// Answers any message with a stream of byte buffers, one for each slice. The buffers refer to
// static slices.
class BareStream final : public grpc::ServerGenericBidiReactor {
 public:
  BareStream(const std::vector<grpc::ByteBuffer>* answers, bool spread)
      : answers_(answers), spread_(spread) {
    StartRead(&request_);
  }
  void OnReadDone(bool ok) override {
    if (ok) StartWrite(&answers_->front());
  }
  void OnWriteDone(bool ok) override {
    if (!ok || ++written_ == static_cast<int>(answers_->size())) return Finish(grpc::Status::OK);
    StartWrite(&(*answers_)[spread_ ? written_ : 0]);
  }
  void OnDone() override { delete this; }

 private:
  const std::vector<grpc::ByteBuffer>* const answers_;
  const bool spread_;
  grpc::ByteBuffer request_;
  int written_ = 0;
};

class BareService final : public grpc::CallbackGenericService {
 public:
  explicit BareService(int slices) : bytes_(slices * kSliceBytes, 'x') {
    for (int i = 0; i < slices; ++i) {
      const grpc::Slice slice(bytes_.data() + i * kSliceBytes, kSliceBytes,
                              grpc::Slice::STATIC_SLICE);
      answers_.emplace_back(&slice, 1);
    }
  }
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new BareStream(&answers_, context->method() == kSpreadMethod);
  }

 private:
  std::string bytes_;
  std::vector<grpc::ByteBuffer> answers_;
};

}  // namespace hearth

#endif  // HEARTH_BENCH_BARE_STREAM_H_
