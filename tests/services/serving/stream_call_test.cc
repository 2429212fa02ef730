// StreamCall: one write at a time, one end, and callers that leave early. Server and client are in
// one process: a write is complete when the client reads the message, so the client controls the
// server's progress.
#include "services/serving/calls/stream_call.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <vector>

#include "proto/cache_store.grpc.pb.h"
#include "services/rpc/slice_wire.h"

namespace hearth {
namespace {

// A StreamCall that sends the numbers that the test gives it.
class NumberCall final : public StreamCall {
 public:
  using StreamCall::Abort;
  using StreamCall::Delegate;
  using StreamCall::KeepUntilDone;
  using StreamCall::StreamCall;

  void Send(uint32_t number) {
    v1::RestorePointInfo message;
    message.set_tokens(number);
    Push(MessageBytes(message));
  }
  size_t waiting() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return ready();
  }
  bool is_writing() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return writing();
  }
  void HoldOnce() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    Hold();
  }
  void ReleaseOnce() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    Release();
  }

  std::atomic<int> finishes{0}, departures{0};

 private:
  void OnGone() override {
    ++departures;
    StreamCall::OnGone();
  }
  void BeforeFinish() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { ++finishes; }
};

class NumberService final
    : public v1::CacheStore::WithRawCallbackMethod_List<v1::CacheStore::Service> {
 public:
  explicit NumberService(Admission* admission) : admission_(admission) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* List(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request) override {
    const auto call = std::make_shared<NumberCall>(context);
    const auto caller = call->Enter(admission_, "List", request->Length());
    EXPECT_TRUE(caller.ok()) << caller.status();
    call->KeepUntilDone(kept);
    kept.reset();
    entered.set_value(call);
    return call.get();
  }

  std::promise<std::shared_ptr<NumberCall>> entered;
  std::shared_ptr<int> kept = std::make_shared<int>();

 private:
  Admission* const admission_;
};

class StreamCallTest : public testing::Test {
 protected:
  ~StreamCallTest() override {
    context_.TryCancel();
    call_.reset();
    reader_.reset();
    server_->Shutdown();
  }

  // Begins a call. Returns the server's object of the call.
  NumberCall* Begin(absl::Duration patience = absl::Hours(1)) {
    admission_.SetPatience(patience);
    service_ = std::make_unique<NumberService>(&admission_);
    kept_ = service_->kept;
    server_ = grpc::ServerBuilder().RegisterService(service_.get()).BuildAndStart();
    stub_ = v1::CacheStore::NewStub(server_->InProcessChannel({}));
    reader_ = stub_->List(&context_, v1::ListRequest());
    call_ = service_->entered.get_future().get();
    return call_.get();
  }
  uint32_t Read() {
    v1::RestorePointInfo message;
    EXPECT_TRUE(reader_->Read(&message));
    return message.tokens();
  }
  bool AtEnd() {
    v1::RestorePointInfo message;
    return !reader_->Read(&message);
  }
  // Ends the call and returns the status code that the admission recorded.
  absl::StatusCode RecordedCode() {
    call_.reset();
    EXPECT_TRUE(admission_.WaitIdle(absl::InfiniteFuture()));
    EXPECT_EQ(records_.size(), 1u);
    return records_.at(0);
  }

  std::vector<absl::StatusCode> records_;
  Admission admission_{[this](const CallRecord& call) { records_.push_back(call.code); }};
  std::weak_ptr<int> kept_;
  std::unique_ptr<NumberService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::CacheStore::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::RestorePointInfo>> reader_;
  std::shared_ptr<NumberCall> call_;
};

TEST_F(StreamCallTest, WritesOneMessageAtATime) {
  NumberCall* call = Begin();
  EXPECT_FALSE(call->is_writing());
  for (const uint32_t number : {7, 8, 9}) call->Send(number);
  EXPECT_TRUE(call->is_writing());
  EXPECT_EQ(call->waiting(), 2u) << "the second waits until the first was taken";
  for (const uint32_t number : {7, 8, 9}) EXPECT_EQ(Read(), number);
  call->Send(10);
  EXPECT_EQ(Read(), 10u) << "an empty queue is not the end";
  call->End(absl::OkStatus());
  EXPECT_TRUE(AtEnd());
  EXPECT_TRUE(reader_->Finish().ok());
}

TEST_F(StreamCallTest, EndWaitsForReadyMessages) {
  NumberCall* call = Begin();
  call->Send(1);
  call->Send(2);
  call->End(absl::NotFoundError("first"));
  call->End(absl::InternalError("second"));
  call->Send(3);
  EXPECT_EQ(call->finishes, 0) << "there is something to write";
  EXPECT_EQ(Read(), 1u);
  EXPECT_EQ(Read(), 2u);
  EXPECT_TRUE(AtEnd());
  EXPECT_EQ(reader_->Finish().error_message(), "first");
  EXPECT_EQ(call->finishes, 1);
  EXPECT_EQ(call->departures, 0);
  EXPECT_EQ(RecordedCode(), absl::StatusCode::kNotFound);
}

TEST_F(StreamCallTest, AbortDropsReadyMessages) {
  NumberCall* call = Begin();
  for (const uint32_t number : {1, 2, 3}) call->Send(number);
  call->End(absl::OkStatus());
  call->Abort(absl::AbortedError("too late to be the status"));
  EXPECT_EQ(call->waiting(), 0u);
  EXPECT_EQ(Read(), 1u) << "its write was in progress";
  EXPECT_TRUE(AtEnd());
  EXPECT_TRUE(reader_->Finish().ok());
}

TEST_F(StreamCallTest, LeavingCallerFreesEverything) {
  NumberCall* call = Begin();
  call->Send(1);
  call->Send(2);
  ASSERT_TRUE(call->is_writing());
  context_.TryCancel();
  EXPECT_EQ(reader_->Finish().error_code(), grpc::StatusCode::CANCELLED);
  const std::shared_ptr<NumberCall> held = call_;
  EXPECT_EQ(RecordedCode(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(kept_.expired()) << "though somebody still has the call";
  EXPECT_EQ(held->finishes, 1);
  EXPECT_GE(held->departures, 1);
  held->Send(3);
  EXPECT_EQ(held->waiting(), 0u) << "nothing gets ready after the end";
}

TEST_F(StreamCallTest, CallFinishesOnlyAfterRelease) {
  NumberCall* call = Begin();
  call->HoldOnce();
  call->HoldOnce();
  call->End(absl::OkStatus());
  EXPECT_EQ(call->finishes, 0);
  call->ReleaseOnce();
  EXPECT_EQ(call->finishes, 0) << "held twice";
  call->ReleaseOnce();
  EXPECT_EQ(call->finishes, 1);
  EXPECT_TRUE(AtEnd());
}

TEST_F(StreamCallTest, CancelledCallStaysUntilRelease) {
  NumberCall* call = Begin();
  call->HoldOnce();
  context_.TryCancel();
  EXPECT_EQ(reader_->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(call->finishes, 0);
  EXPECT_FALSE(kept_.expired());
  EXPECT_EQ(admission_.running(), 1);
  call->ReleaseOnce();
  EXPECT_EQ(RecordedCode(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(kept_.expired());
}

TEST_F(StreamCallTest, RefusedJobEndsCall) {
  NumberCall* call = Begin();
  call->Delegate([] { return absl::ResourceExhaustedError("no room"); });
  EXPECT_TRUE(AtEnd());
  EXPECT_EQ(reader_->Finish().error_message(), "no room");
  EXPECT_EQ(RecordedCode(), absl::StatusCode::kResourceExhausted);
}

TEST_F(StreamCallTest, CallStaysUntilItsJobEnds) {
  NumberCall* call = Begin();
  call->Delegate([] { return absl::OkStatus(); });
  call->End(absl::OkStatus());
  EXPECT_EQ(call->finishes, 0);
  call->ReleaseOnce();
  EXPECT_EQ(call->finishes, 1);
  EXPECT_TRUE(AtEnd());
  call->Delegate([] { return absl::InternalError("a call that is finished hands out no work"); });
  EXPECT_TRUE(reader_->Finish().ok());
}

TEST_F(StreamCallTest, UnreadWriteTimesOut) {
  NumberCall* call = Begin(absl::Milliseconds(1));
  call->Send(1);
  const std::shared_ptr<NumberCall> held = call_;
  EXPECT_EQ(RecordedCode(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(held->departures, 1);
  EXPECT_EQ(held->finishes, 1);
}

}  // namespace
}  // namespace hearth
