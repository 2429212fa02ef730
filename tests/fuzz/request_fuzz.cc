// Fuzz target: requests of an untrusted caller to a store in RAM, which are parsed, looked up and
// published.
#include <memory>

#include "cache_store/store/tiered_store.h"
#include "proto/cache_store.pb.h"
#include "services/rpc/slice_wire.h"
#include "services/store/slice_stream.h"
#include "services/store/store_conversion.h"
#include "tests/fuzz/fuzz_input.h"

namespace hearth {
namespace {

TieredStore* Store() {
  static const auto& store = *new std::unique_ptr<TieredStore>([] {
    StoreOptions options;
    options.disk_bytes = 0;
    options.host_bytes = options.max_staged_bytes = 1 << 20;
    options.default_durability = Durability::kMemory;
    return *TieredStore::Open(options);
  }());
  return store.get();
}

grpc::ByteBuffer Buffer(absl::string_view bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  return grpc::ByteBuffer(&slice, 1);
}

void TryFetch(absl::string_view bytes) {
  v1::FetchRequest request;
  if (!ParseMessage(Buffer(bytes), &request).ok()) return;
  IdFromProto(request.restore_point_id()).IgnoreError();
  const absl::StatusOr<PrefixQuery> query = QueryFromProto(request.prefix(), Identity());
  if (!query.ok()) return;
  ObserveFields(Store(), request.prefix(), query->tenant);
  Store()->Explain(*query).IgnoreError();
  auto session = Store()->Fetch(*query, request.above_tokens(), request.max_tokens());
  if (!session.ok()) return;
  const LookupPlan& plan = (*session)->plan();
  v1::FetchPlan answer;
  PlanToProto(plan, &answer);
  if (plan.usable_tokens == 0) return;
  for (const SliceRef& slice : SliceOrder(plan)) {
    Require((*session)->ReadSlice(slice.object, slice.layer).ok(), "a promised slice is gone");
  }
}

// Sends the messages of a publish stream to the store. Two bytes before each message are its
// length.
void TryPublish(absl::string_view bytes) {
  std::unique_ptr<PublishSession> session;
  std::unique_ptr<SliceAssembler> assembler;
  while (bytes.size() >= 2) {
    const size_t length = static_cast<uint8_t>(bytes[0]) | static_cast<uint8_t>(bytes[1]) << 8;
    grpc::ByteBuffer message = Buffer(bytes.substr(2, length));
    bytes.remove_prefix(std::min(bytes.size(), 2 + length));
    v1::PublishRequest request;
    if (session == nullptr) {
      if (!ParseMessage(message, &request).ok()) return;
      const absl::StatusOr<PublishSpec> spec = SpecFromProto(request.begin(), Identity());
      if (!spec.ok()) return;
      const absl::StatusOr<KvLayout> layout = spec->fingerprint.Layout();
      if (!layout.ok()) return;
      auto begun = Store()->Publish(*spec);
      if (!begun.ok()) return;
      session = *std::move(begun);
      assembler = std::make_unique<SliceAssembler>(*spec, *layout, session.get());
      continue;
    }
    const absl::Status taken = TakeMessage(&message, &request, nullptr,
                                           [&assembler](const SliceHeader& header, size_t size) {
                                             return assembler->Place(header, size);
                                           });
    if (!taken.ok()) return;
    if (request.has_commit()) {
      if (assembler->Finish().ok()) session->Commit().IgnoreError();
      return;
    }
    if (!assembler->PutPiece().ok()) return;
  }
}

void TryOther(absl::string_view bytes) {
  v1::DropRequest drop;
  if (drop.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    const absl::StatusOr<Digest> id = IdFromProto(drop.restore_point_id());
    if (id.ok()) Store()->Drop(*id, drop.tenant(), drop.force()).IgnoreError();
    if (drop.all()) Store()->DropAll(drop.tenant(), drop.force()).IgnoreError();
  }
  v1::PinRequest pin;
  if (pin.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    const absl::StatusOr<Digest> id = IdFromProto(pin.restore_point_id());
    if (id.ok()) Store()->SetPinned(*id, pin.tenant(), true).IgnoreError();
  }
}

}  // namespace
}  // namespace hearth

// The first byte selects the kind of request.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      hearth::TryFetch(bytes);
      break;
    case 1:
      hearth::TryPublish(bytes);
      break;
    default:
      hearth::TryOther(bytes);
  }
  return 0;
}
