// A client of a store in its own process, for the restore points of store_kit.h: kit_client
// ADDRESS. Each line of its input is a command, and it answers with one line:
//
//   publish N   `durable`; or `error`, with code and text
//   fetch N     `right`, `miss`, `wrong` (the bytes differ from the published bytes), or `error`
//   slice N     the first bytes of a slice that only restore point N has, in hexadecimal
// All prompts have the same beginning. If N is odd, slices are small; if N is even, slices have 128
// KiB.
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/cache_store.grpc.pb.h"
#include "services/rpc/proto_conversion.h"
#include "services/rpc/status_conversion.h"
#include "services/rpc/transport_options.h"
#include "tests/support/store_kit.h"

namespace hearth {
namespace {

constexpr uint32_t kPublishedTokens = 64;

Fingerprint ModelOf(uint64_t number) {
  KitModel geometry;
  geometry.layer_types = "llllg";
  if (number % 2 == 0) geometry.head_dim = 1024;
  return geometry.Make();
}

KitPrompt PromptOf(uint64_t number) {
  std::vector<uint32_t> tokens = KitTokens(0, 32);
  const std::vector<uint32_t> own = KitTokens(number, 33);
  tokens.insert(tokens.end(), own.begin(), own.end());
  return {std::move(tokens), {}};
}

std::string BytesOf(const SliceView& slice) {
  return {reinterpret_cast<const char*>(slice.bytes.data()), slice.bytes.size()};
}

v1::Prefix PrefixOf(uint64_t number) {
  v1::Prefix prefix;
  ToProto(ModelOf(number), prefix.mutable_fingerprint());
  for (const uint32_t id : PromptOf(number).tokens) prefix.add_token_ids(id);
  return prefix;
}

std::string ErrorText(const grpc::Status& status) {
  const absl::Status error = FromGrpcStatus(status);
  return absl::StrCat("error ", error.ToString());
}

std::string Publish(v1::CacheStore::Stub* stub, uint64_t number) {
  const Fingerprint model = ModelOf(number);
  const PublishSpec spec = KitSpec(model, PromptOf(number), {kPublishedTokens});
  grpc::ClientContext context;
  const auto call = stub->Publish(&context);
  v1::PublishRequest message;
  v1::PublishBegin* const begin = message.mutable_begin();
  *begin->mutable_prefix() = PrefixOf(number);
  begin->add_boundaries(kPublishedTokens);
  begin->set_durability(v1::DURABILITY_SYNC);
  for (const PublishObject& object : spec.objects) {
    v1::ObjectRef* const ref = begin->add_objects();
    ToProto(object.id, ref);
    for (const uint64_t digest : object.slice_digests) ref->add_slice_digests(digest);
  }
  v1::PublishResponse response;
  if (call->Write(message) && call->Read(&response)) {
    const KvLayout layout = model.Layout().value();
    for (const uint32_t index : response.plan().needed()) {
      for (const uint32_t layer : layout.LayersOf(spec.objects[index].id.group)) {
        message.mutable_slice()->set_object(index);
        message.mutable_slice()->set_layer(layer);
        message.mutable_slice()->set_data(
            BytesOf(KitSlice(model, PromptOf(number), spec.objects[index].id, layer)));
        call->Write(message);
      }
    }
    message.mutable_commit();
    if (call->Write(message)) call->Read(&response);
  }
  const grpc::Status ended = call->Finish();
  if (!ended.ok()) return ErrorText(ended);
  return response.ack().durable() == v1::DURABILITY_SYNC ? "durable" : "error not durable";
}

std::string Fetch(v1::CacheStore::Stub* stub, uint64_t number) {
  v1::FetchRequest request;
  *request.mutable_prefix() = PrefixOf(number);
  grpc::ClientContext context;
  const auto reader = stub->Fetch(&context, request);
  const Fingerprint model = ModelOf(number);
  v1::FetchResponse response;
  v1::FetchPlan plan;
  bool is_right = true;
  while (reader->Read(&response)) {
    if (response.has_plan()) {
      plan = response.plan();
      continue;
    }
    const v1::SliceData& slice = response.slice();
    const absl::StatusOr<ObjectId> id =
        ObjectIdFromProto(plan.objects(static_cast<int>(slice.object())));
    const std::string expected =
        id.ok() ? BytesOf(KitSlice(model, PromptOf(number), *id, slice.layer())) : "";
    is_right = is_right && expected.compare(slice.offset(), slice.data().size(), slice.data()) == 0;
  }
  const grpc::Status ended = reader->Finish();
  if (!is_right) return "wrong";
  if (!ended.ok()) return ErrorText(ended);
  return plan.usable_tokens() == kPublishedTokens ? "right" : "miss";
}

std::string OwnSlice(uint64_t number) {
  constexpr size_t kShownBytes = 64;
  const ObjectId last{kPublishedTokens - 16, 16, LayerGroup::kGlobal};
  return absl::BytesToHexString(
      BytesOf(KitSlice(ModelOf(number), PromptOf(number), last, 4)).substr(0, kShownBytes));
}

int Main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto stub = v1::CacheStore::NewStub(*ConnectToStore(argv[1]));
  std::string what;
  uint64_t number = 0;
  while (std::cin >> what >> number) {
    std::string answer = what == "publish" ? Publish(stub.get(), number)
                         : what == "fetch" ? Fetch(stub.get(), number)
                                           : OwnSlice(number);
    for (char& c : answer) c = c == '\n' ? ' ' : c;
    std::cout << answer << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
