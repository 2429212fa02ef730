// A client of a store in its own process, which a test may kill: store_client ADDRESS WHAT. Its
// prompt is the prompt of tiny_snapshot.h. WHAT:
//
//   fetch    fetches the prompt's restore point, and prints the number of its tokens
//   hold     keeps a lease on slices in shared memory, for the model with large slices
//   compute  keeps a lease to compute the prompt
// `hold` and `compute` print a line when they have the lease. They end when they are killed or when
// the lease ends.
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <string>

#include "proto/cache_store.grpc.pb.h"
#include "services/rpc/transport_options.h"
#include "tests/services/store/store_client.h"

namespace hearth {
namespace {

constexpr uint32_t kLongMs = 600000;

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// Fetches, and reads all messages. When the plan shares memory, prints a line. Returns the plan.
v1::FetchPlan Fetch(v1::CacheStore::Stub* stub, const v1::FetchRequest& request, bool* ok) {
  grpc::ClientContext context;
  const auto reader = stub->Fetch(&context, request);
  v1::FetchResponse response;
  v1::FetchPlan plan;
  while (reader->Read(&response)) {
    if (!response.has_plan()) continue;
    plan = response.plan();
    if (plan.shared().objects_size() > 0) Say("held");
  }
  *ok = reader->Finish().ok();
  return plan;
}

int FetchOrHold(v1::CacheStore::Stub* stub, bool hold) {
  v1::FetchRequest request;
  *request.mutable_prefix() = ClientPrefix(ClientModel(hold));
  request.set_max_tokens(request.prefix().token_ids_size());
  if (hold) request.set_segment_id("");
  bool ok = false;
  v1::FetchPlan plan = Fetch(stub, request, &ok);
  if (hold && ok) {
    request.set_segment_id(plan.segment().id());
    plan = Fetch(stub, request, &ok);
  }
  if (!hold) Say(std::to_string(plan.usable_tokens()));
  return ok ? 0 : 1;
}

int Compute(v1::CacheStore::Stub* stub) {
  v1::LeaseRequest request;
  *request.mutable_prefix() = ClientPrefix(ClientModel(false));
  request.set_lease_ms(kLongMs);
  grpc::ClientContext context;
  const auto reader = stub->Lease(&context, request);
  v1::LeaseResponse response;
  while (reader->Read(&response)) {
    if (response.turn() == v1::LeaseResponse::COMPUTE) Say("held");
  }
  return reader->Finish().ok() ? 0 : 1;
}

int Main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto stub = v1::CacheStore::NewStub(*ConnectToStore(argv[1]));
  const std::string what = argv[2];
  return what == "compute" ? Compute(stub.get()) : FetchOrHold(stub.get(), what == "hold");
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
