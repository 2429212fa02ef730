#include "services/rpc/request_id.h"

#include <algorithm>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace hearth {

std::string NewRequestId() {
  thread_local absl::BitGen random;
  return absl::StrCat(absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16));
}

void SendRequestId(const std::string& id, grpc::ClientContext* context) {
  if (!id.empty()) context->AddMetadata(kRequestIdKey, id);
}

std::string RequestIdOf(const grpc::ServerContextBase& context) {
  const auto sent = context.client_metadata().find(kRequestIdKey);
  if (sent == context.client_metadata().end()) return NewRequestId();
  const std::string id(sent->second.data(), sent->second.size());
  const bool is_plain = std::all_of(id.begin(), id.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
  return is_plain && !id.empty() && id.size() <= kMaxRequestIdBytes ? id : NewRequestId();
}

}  // namespace hearth
